//! Depthwise causal convolution along a sequence, with its last inputs in a cache.
//!
//! Inputs of the open block of 64 tokens are in the sequence's ring. The `taps − 1` inputs before a block are kept with
//! the anchor at its start, so that a sequence can begin anew at any anchor, with nothing but that anchor.
//!
//! Order: the chain begins with the bias (or 0) and takes the taps in ascending j, which is ascending position.

use crate::aligned::Aligned;
use crate::delta::BLOCK;
use crate::math::silu;
use crate::pool::Pool;
use crate::scratch;
use crate::shared::SharedMut;
use crate::simd::{F32x16, Isa, Kernel, LANES, dispatch};

/// Channels that a task works on.
const TASK: usize = 8 * LANES;

/// The last inputs of sequences. Rings: f32 `[slot][capacity][channels]`, position p at `p % capacity`. History: f32
/// `[anchor][taps − 1][channels]`, the inputs before the anchor in ascending position; anchor 0, at position 0, stays
/// zero.
pub struct ConvCache {
    rings: Aligned<f32>,
    history: Aligned<f32>,
    slots: usize,
    capacity: usize,
    anchors: usize,
    taps: usize,
    channels: usize,
}

impl ConvCache {
    /// `slots` rings and `anchors` histories (anchor 0 included) of zeros.
    ///
    /// # Panics
    /// If `capacity` or `taps` is zero.
    pub fn new(slots: usize, capacity: usize, anchors: usize, taps: usize, channels: usize) -> ConvCache {
        assert!(capacity > 0, "a ring holds at least one position");
        assert!(taps > 0, "a convolution has taps");
        ConvCache {
            rings: Aligned::zeroed(slots * capacity * channels),
            history: Aligned::zeroed(anchors * (taps - 1) * channels),
            slots,
            capacity,
            anchors,
            taps,
            channels,
        }
    }

    /// Bytes of rings and histories.
    pub fn bytes(&self) -> usize {
        self.rings.bytes() + self.history.bytes()
    }
}

/// A run of rows that continues one sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConvSegment<'a> {
    /// First row of the step that belongs to the segment.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Position of the first row.
    pub start: usize,
    /// Ring of the sequence.
    pub slot: u32,
    /// Anchor at the start of block `start/64 + i`, for the first block and for the one after each that is completed.
    /// Neighbouring entries may be the same; the last of them keeps its history.
    pub anchors: &'a [u32],
}

impl ConvSegment<'_> {
    /// Blocks whose last row is among the rows.
    fn completed(&self) -> usize {
        (self.start % BLOCK + self.rows) / BLOCK
    }

    fn check(&self, cache: &ConvCache) {
        assert!((self.slot as usize) < cache.slots, "ring {} of {}", self.slot, cache.slots);
        let anchors = self.anchors.get(..=self.completed()).unwrap_or_else(|| panic!("an anchor for every block"));
        assert!(anchors.iter().all(|&anchor| (anchor as usize) < cache.anchors), "an anchor outside");
        assert!(anchors[1..].iter().all(|&anchor| anchor != 0), "anchor 0 stays zero");
    }
}

/// `out[r, c] = act(bias[c] + Σ_j w[c, j] · x[pos − (taps−1) + j, c])` for the segments' rows, act = silu or nothing;
/// positions below 0 are zeros, those before the segment come from its ring or its first anchor's history. Afterwards the
/// segment's last inputs are in the ring, as many as it holds, and new anchors have their histories. `x` has its channels at `offset` of rows of `ldx`; `weight` is `[channels, taps]`.
///
/// # Panics
/// If a slice is too short, a segment names a slot or anchor that the cache lacks (or would write anchor 0), or a ring
/// or a block is shorter than the history of `taps − 1`.
#[expect(clippy::too_many_arguments, reason = "the operands of one fused operation")]
pub fn causal_conv(
    pool: &Pool,
    x: &[f32],
    ldx: usize,
    offset: usize,
    segments: &[ConvSegment<'_>],
    channels: usize,
    weight: &[f32],
    bias: Option<&[f32]>,
    taps: usize,
    silu: bool,
    cache: &mut ConvCache,
    out: &mut [f32],
    ldo: usize,
    round_bf16: bool,
) {
    assert!(taps > 0 && weight.len() == channels * taps, "a weight for each of {channels} x {taps} taps");
    assert!(bias.is_none_or(|bias| bias.len() == channels), "a bias for each of {channels} channels");
    assert!(cache.channels == channels && cache.taps == taps, "a cache for {taps} taps of {channels} channels");
    assert!(taps <= cache.capacity + 1 && taps <= BLOCK + 1, "a ring and a block hold the history of {taps} taps");
    for segment in segments.iter().filter(|segment| segment.rows > 0) {
        let last = segment.first_row + segment.rows - 1;
        assert!(x.len() >= last * ldx + offset + channels, "x holds row {last}");
        assert!(out.len() >= last * ldo + channels && (ldo >= channels || last == 0), "out holds row {last}");
        segment.check(cache);
    }
    let isa = Isa::best();
    let capacity = cache.capacity;
    let (rings, history) = (SharedMut::new(&mut cache.rings), SharedMut::new(&mut cache.history));
    let out = SharedMut::new(out);
    let call = Call {
        x,
        ldx,
        offset,
        segments,
        channels,
        weight,
        bias,
        taps,
        silu,
        rings,
        history,
        capacity,
        out,
        ldo,
        round_bf16,
    };
    pool.run(channels.div_ceil(TASK), &|task| {
        for first in (task * TASK..channels.min((task + 1) * TASK)).step_by(LANES) {
            dispatch(isa, Channels { call: &call, first });
        }
    });
}

struct Call<'a> {
    x: &'a [f32],
    ldx: usize,
    offset: usize,
    segments: &'a [ConvSegment<'a>],
    channels: usize,
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    taps: usize,
    silu: bool,
    rings: SharedMut<'a, f32>,
    history: SharedMut<'a, f32>,
    capacity: usize,
    out: SharedMut<'a, f32>,
    ldo: usize,
    round_bf16: bool,
}

/// Up to sixteen channels of all segments, in their order: tasks touch different channels only.
struct Channels<'a> {
    call: &'a Call<'a>,
    first: usize,
}

impl Kernel for Channels<'_> {
    #[inline(always)]
    fn run<V: F32x16>(self) {
        let call = self.call;
        let lanes = LANES.min(call.channels - self.first);
        let mut taps = scratch::take(call.taps * LANES);
        for (j, tap) in taps.chunks_exact_mut(LANES).enumerate() {
            tap.fill(0.0);
            for (lane, value) in tap[..lanes].iter_mut().enumerate() {
                *value = call.weight[(self.first + lane) * call.taps + j];
            }
        }
        for segment in call.segments {
            for row in 0..segment.rows {
                self.row::<V>(&taps, segment, row, lanes);
            }
            self.keep_history(segment, lanes);
            for row in segment.rows.saturating_sub(call.capacity)..segment.rows {
                // SAFETY: this task alone touches these channels of the rings.
                let slot = unsafe { call.rings.slice(self.ring_at(segment, segment.start + row), lanes) };
                slot.copy_from_slice(&call.x[self.x_at(segment, row)..][..lanes]);
            }
        }
    }
}

impl Channels<'_> {
    #[inline(always)]
    fn x_at(&self, segment: &ConvSegment<'_>, row: usize) -> usize {
        (segment.first_row + row) * self.call.ldx + self.call.offset + self.first
    }

    #[inline(always)]
    fn ring_at(&self, segment: &ConvSegment<'_>, position: usize) -> usize {
        let slot = segment.slot as usize * self.call.capacity + position % self.call.capacity;
        slot * self.call.channels + self.first
    }

    /// `index` counts from the oldest of an anchor's inputs.
    #[inline(always)]
    fn history_at(&self, anchor: u32, index: usize) -> usize {
        (anchor as usize * (self.call.taps - 1) + index) * self.call.channels + self.first
    }

    /// Writes the last inputs of every completed block to the anchor at its end, while the ring still holds those that
    /// stand before the segment.
    #[inline(always)]
    fn keep_history(&self, segment: &ConvSegment<'_>, lanes: usize) {
        let (kept, completed) = (self.call.taps - 1, segment.completed());
        for block in 0..completed {
            let anchor = segment.anchors[block + 1];
            if block + 1 < completed && segment.anchors[block + 2] == anchor {
                continue;
            }
            let end = (segment.start / BLOCK + block + 1) * BLOCK;
            for (index, position) in (end - kept..end).enumerate() {
                // SAFETY: this task alone touches these channels of rings and histories.
                let slot = unsafe { self.call.history.slice(self.history_at(anchor, index), lanes) };
                match position.checked_sub(segment.start) {
                    Some(row) => slot.copy_from_slice(&self.call.x[self.x_at(segment, row)..][..lanes]),
                    None => {
                        // SAFETY: as above.
                        let kept = unsafe { self.call.rings.slice(self.ring_at(segment, position), lanes) };
                        slot.copy_from_slice(kept);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn row<V: F32x16>(&self, taps: &[f32], segment: &ConvSegment<'_>, row: usize, lanes: usize) {
        let call = self.call;
        let open = segment.start % BLOCK;
        // SAFETY: every part load and store covers `lanes` channels inside slices checked by the operation; cache and
        // output channels belong to this task.
        unsafe {
            let mut sum = match call.bias {
                Some(bias) => V::load_part(bias.as_ptr().add(self.first), lanes),
                None => V::splat(0.0),
            };
            for (j, tap) in taps.chunks_exact(LANES).enumerate() {
                // Input of tap j, counted from the segment's first row; before it lie the open block's earlier rows in
                // the ring, before those the history of the block's anchor.
                let at = row + j;
                let value = if at + 1 >= call.taps {
                    let from = &call.x[self.x_at(segment, at + 1 - call.taps)..][..lanes];
                    V::load_part(from.as_ptr(), lanes)
                } else if open + at + 1 >= call.taps {
                    let position = segment.start + at + 1 - call.taps;
                    V::load_part(call.rings.at(self.ring_at(segment, position), lanes), lanes)
                } else {
                    let index = self.history_at(segment.anchors[0], open + at);
                    V::load_part(call.history.at(index, lanes), lanes)
                };
                sum = V::load(tap.as_ptr()).fma(value, sum);
            }
            if call.silu {
                sum = silu(sum);
            }
            if call.round_bf16 {
                sum = sum.round_bf16();
            }
            let out = (segment.first_row + row) * call.ldo + self.first;
            sum.store_part(call.out.at(out, lanes), lanes);
        }
    }
}
