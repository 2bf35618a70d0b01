//! Depthwise causal convolution along a sequence, with the last inputs of every sequence in a ring.
//!
//! Order: the chain begins with the bias (or 0) and takes the taps in ascending j, which is ascending position.

use crate::aligned::Aligned;
use crate::math::silu;
use crate::pool::Pool;
use crate::scratch;
use crate::shared::SharedMut;
use crate::simd::{F32x16, Isa, Kernel, LANES, dispatch};

/// Channels that a task works on.
const TASK: usize = 8 * LANES;

/// The last inputs of sequences: f32 `[slot][capacity][channels]`, position p at `p % capacity`.
pub struct ConvRing {
    data: Aligned<f32>,
    slots: usize,
    capacity: usize,
    channels: usize,
}

impl ConvRing {
    /// `slots` rings of zeros.
    ///
    /// # Panics
    /// If `capacity` is zero.
    pub fn new(slots: usize, capacity: usize, channels: usize) -> ConvRing {
        assert!(capacity > 0, "a ring holds at least one position");
        ConvRing { data: Aligned::zeroed(slots * capacity * channels), slots, capacity, channels }
    }

    /// Bytes of all rings.
    pub fn bytes(&self) -> usize {
        self.data.bytes()
    }
}

/// A run of rows that continues one sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConvSegment {
    /// First row of the step that belongs to the segment.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Position of the first row.
    pub start: usize,
    /// Ring of the sequence.
    pub slot: u32,
}

/// `out[r, c] = act(bias[c] + Σ_j w[c, j] · x[pos − (taps−1) + j, c])` for the segments' rows, act = silu or nothing;
/// positions below 0 are zeros, those before the segment come from its ring. Afterwards the segment's last inputs are
/// in the ring, as many as it holds. `x` has its channels at `offset` of rows of `ldx`; `weight` is `[channels, taps]`.
///
/// # Panics
/// If a slice is too short, a slot is not in the ring, or the ring is shorter than the history of `taps − 1`.
#[expect(clippy::too_many_arguments, reason = "the operands of one fused operation")]
pub fn causal_conv(
    pool: &Pool,
    x: &[f32],
    ldx: usize,
    offset: usize,
    segments: &[ConvSegment],
    channels: usize,
    weight: &[f32],
    bias: Option<&[f32]>,
    taps: usize,
    silu: bool,
    ring: &mut ConvRing,
    out: &mut [f32],
    ldo: usize,
    round_bf16: bool,
) {
    assert!(taps > 0 && weight.len() == channels * taps, "a weight for each of {channels} x {taps} taps");
    assert!(bias.is_none_or(|bias| bias.len() == channels), "a bias for each of {channels} channels");
    assert!(ring.channels == channels && ring.capacity + 1 >= taps, "a ring for {taps} taps of {channels} channels");
    for segment in segments.iter().filter(|segment| segment.rows > 0) {
        let last = segment.first_row + segment.rows - 1;
        assert!(x.len() >= last * ldx + offset + channels, "x holds row {last}");
        assert!(out.len() >= last * ldo + channels && (ldo >= channels || last == 0), "out holds row {last}");
        assert!((segment.slot as usize) < ring.slots, "ring {} of {}", segment.slot, ring.slots);
    }
    let isa = Isa::best();
    let (capacity, ring) = (ring.capacity, SharedMut::new(&mut ring.data));
    let out = SharedMut::new(out);
    let call =
        Call { x, ldx, offset, segments, channels, weight, bias, taps, silu, ring, capacity, out, ldo, round_bf16 };
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
    segments: &'a [ConvSegment],
    channels: usize,
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    taps: usize,
    silu: bool,
    ring: SharedMut<'a, f32>,
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
            for row in segment.rows.saturating_sub(call.capacity)..segment.rows {
                // SAFETY: this task alone touches these channels of the ring.
                let slot = unsafe { call.ring.slice(self.ring_at(segment, segment.start + row), lanes) };
                slot.copy_from_slice(&call.x[self.x_at(segment, row)..][..lanes]);
            }
        }
    }
}

impl Channels<'_> {
    #[inline(always)]
    fn x_at(&self, segment: &ConvSegment, row: usize) -> usize {
        (segment.first_row + row) * self.call.ldx + self.call.offset + self.first
    }

    #[inline(always)]
    fn ring_at(&self, segment: &ConvSegment, position: usize) -> usize {
        let slot = segment.slot as usize * self.call.capacity + position % self.call.capacity;
        slot * self.call.channels + self.first
    }

    #[inline(always)]
    fn row<V: F32x16>(&self, taps: &[f32], segment: &ConvSegment, row: usize, lanes: usize) {
        let call = self.call;
        // SAFETY: every part load and store covers `lanes` channels inside slices checked by the operation; ring and
        // output channels belong to this task.
        unsafe {
            let mut sum = match call.bias {
                Some(bias) => V::load_part(bias.as_ptr().add(self.first), lanes),
                None => V::splat(0.0),
            };
            for (j, tap) in taps.chunks_exact(LANES).enumerate() {
                // Input of tap j, counted from the segment's first row; before it lies the ring, before that nothing.
                let at = row + j;
                let value = if at + 1 >= call.taps {
                    let from = &call.x[self.x_at(segment, at + 1 - call.taps)..][..lanes];
                    V::load_part(from.as_ptr(), lanes)
                } else if segment.start + at + 1 >= call.taps {
                    let position = segment.start + at + 1 - call.taps;
                    V::load_part(call.ring.at(self.ring_at(segment, position), lanes), lanes)
                } else {
                    V::splat(0.0)
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
