//! Rotary positions, per-head query and key norms, and the write into the paged cache, in one operation.

use crate::aligned::Pod;
use crate::kv::{KvElement, KvLayer, KvScales, KvSegment, KvStore, PAGE};
use crate::math::sin_cos;
use crate::norm::normalise;
use crate::pool::Pool;
use crate::scratch;
use crate::shared::SharedMut;
use crate::simd::{F32x16, Isa, Kernel, LANES, dispatch};

/// How many rows a task takes at a time.
const ROWS: usize = 8;

/// Rotary embedding: the angle of pair i at position p is `p · inv_freq[i]`, in f32.
#[derive(Clone, Copy, Debug)]
pub struct RopeArgs<'a> {
    /// Position of every row.
    pub positions: &'a [u32],
    /// One frequency a pair: half of the rotary dims, which are the first of the head.
    pub inv_freq: &'a [f32],
    /// Multiplies cosine and sine (YaRN).
    pub attention_scaling: f32,
    /// Pairs are (2i, 2i+1); otherwise (i, i + rotary/2).
    pub interleaved: bool,
}

/// Weights of the RMS norms of query and key heads.
#[derive(Clone, Copy, Debug)]
pub struct QkNorm<'a> {
    /// `[head_dim]`
    pub q: &'a [f32],
    /// `[head_dim]`
    pub k: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
    /// The factor is 1 + weight.
    pub unit_offset: bool,
}

/// Where queries, keys and values stand in a row of the qkv buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QkvLayout {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Dims of a query or key head.
    pub head_dim: usize,
    /// First query.
    pub q_offset: usize,
    /// From one query head to the next: `head_dim`, or twice that when a gate follows each query.
    pub q_head_stride: usize,
    /// First key; key heads are contiguous.
    pub k_offset: usize,
    /// First value; value heads are contiguous.
    pub v_offset: usize,
    /// Dims of a value head.
    pub v_dim: usize,
}

impl QkvLayout {
    pub(crate) fn check_cache(&self, cache: &KvLayer) {
        assert!(self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads), "heads come in groups");
        assert!(self.heads > 0 && self.head_dim > 0 && self.v_dim > 0, "heads have dims");
        assert_eq!(
            (self.kv_heads, self.head_dim, self.v_dim),
            (cache.kv_heads, cache.head_dim, cache.v_dim),
            "layout and cache have the same shape"
        );
    }

    /// Values of a row, up to the last that the layout names.
    fn width(&self) -> usize {
        let q = self.q_offset + (self.heads - 1) * self.q_head_stride + self.head_dim;
        let k = self.k_offset + self.kv_heads * self.head_dim;
        q.max(k).max(self.v_offset + self.kv_heads * self.v_dim)
    }
}

impl KvSegment<'_> {
    /// The block table names a page of the cache for every position from `first` to the segment's last.
    pub(crate) fn check_pages(&self, cache: &KvLayer, first: usize) {
        let end = (self.start + self.rows).div_ceil(PAGE);
        assert!(self.pages.len() >= end, "a block table of {} pages, {end} needed", self.pages.len());
        let used = &self.pages[(first / PAGE).min(end)..end];
        assert!(used.iter().all(|&page| (page as usize) < cache.pages), "a page outside the cache");
    }
}

/// In place on `qkv` (`[rows, ld]`): RMS norm of each query and key head, then rotary on the first
/// `2 · inv_freq.len()` dims, then BF16 rounding if asked; then keys and values go to the pages of their positions.
/// Rows outside the segments are rotated but not stored.
///
/// # Panics
/// If a slice or block table is too short, or the cache has another shape than the layout.
#[expect(clippy::too_many_arguments, reason = "the operands of one fused operation")]
pub fn rope_and_store(
    pool: &Pool,
    qkv: &mut [f32],
    ld: usize,
    rows: usize,
    layout: &QkvLayout,
    norms: Option<QkNorm>,
    rope: Option<&RopeArgs>,
    segments: &[KvSegment],
    cache: &mut KvLayer,
    round_bf16: bool,
) {
    layout.check_cache(cache);
    let width = layout.width();
    if rows == 0 {
        return;
    }
    assert!(ld >= width && qkv.len() >= (rows - 1) * ld + width, "qkv holds {rows} rows of {width}");
    if let Some(rope) = rope {
        assert!(rope.positions.len() >= rows, "a position for every row");
        assert!(2 * rope.inv_freq.len() <= layout.head_dim, "rotary dims inside the head");
    }
    if let Some(norms) = norms {
        assert!(norms.q.len() == layout.head_dim && norms.k.len() == layout.head_dim, "norm weights of a head");
    }
    for segment in segments {
        assert!(segment.first_row + segment.rows <= rows, "segments inside the rows");
        segment.check_pages(cache, segment.start);
    }

    let isa = Isa::best();
    let shared = SharedMut::new(qkv);
    pool.run(rows.div_ceil(ROWS), &|task| {
        for row in task * ROWS..rows.min((task + 1) * ROWS) {
            // SAFETY: rows belong to one task each.
            let row_values = unsafe { shared.slice(row * ld, width) };
            dispatch(isa, Row { values: row_values, row, layout, norms, rope, round_bf16 });
        }
    });
    let (pages, kv_heads, scales) = (cache.pages, cache.kv_heads, cache.scales);
    match &mut cache.store {
        KvStore::F32 { k, v } => {
            let (k, v) = (SharedMut::new(k), SharedMut::new(v));
            Writer { qkv, ld, layout, segments, pages, scales, k, v }.run(pool, kv_heads);
        }
        KvStore::Bf16 { k, v } => {
            let (k, v) = (SharedMut::new(k), SharedMut::new(v));
            Writer { qkv, ld, layout, segments, pages, scales, k, v }.run(pool, kv_heads);
        }
        KvStore::Fp8 { k, v } => {
            let (k, v) = (SharedMut::new(k), SharedMut::new(v));
            Writer { qkv, ld, layout, segments, pages, scales, k, v }.run(pool, kv_heads);
        }
    }
}

/// Norm and rotation of one row.
struct Row<'a> {
    values: &'a mut [f32],
    row: usize,
    layout: &'a QkvLayout,
    norms: Option<QkNorm<'a>>,
    rope: Option<&'a RopeArgs<'a>>,
    round_bf16: bool,
}

impl Kernel for Row<'_> {
    #[inline(always)]
    fn run<V: F32x16>(self) {
        let layout = self.layout;
        let half = self.rope.map_or(0, |rope| rope.inv_freq.len());
        let mut angles = scratch::take(2 * half);
        let (cos, sin) = angles.split_at_mut(half);
        if let Some(rope) = self.rope {
            rotation(rope, rope.positions[self.row], cos, sin);
        }
        let interleaved = self.rope.is_some_and(|rope| rope.interleaved);
        for head in 0..layout.heads + layout.kv_heads {
            let (at, weight) = if head < layout.heads {
                (layout.q_offset + head * layout.q_head_stride, self.norms.map(|norms| norms.q))
            } else {
                (layout.k_offset + (head - layout.heads) * layout.head_dim, self.norms.map(|norms| norms.k))
            };
            let values = &mut self.values[at..at + layout.head_dim];
            if let (Some(norms), Some(weight)) = (self.norms, weight) {
                // SAFETY: `values` is read and written in place, element by element.
                unsafe {
                    let to = values.as_mut_ptr();
                    normalise::<V>(to, layout.head_dim, Some(weight), norms.unit_offset, norms.eps, to, false);
                }
            }
            if interleaved {
                rotate_interleaved(values, cos, sin);
            } else {
                rotate_halves::<V>(values, cos, sin);
            }
            if self.round_bf16 {
                for chunk in values.chunks_mut(LANES) {
                    // SAFETY: the chunk holds `chunk.len()` values.
                    unsafe {
                        let rounded = V::load_part(chunk.as_ptr(), chunk.len()).round_bf16();
                        rounded.store_part(chunk.as_mut_ptr(), chunk.len());
                    }
                }
            }
        }
    }
}

/// Cosine and sine of a position's angles, rounded to f32, times the scaling.
fn rotation(rope: &RopeArgs, position: u32, cos: &mut [f32], sin: &mut [f32]) {
    for ((cos, sin), &frequency) in cos.iter_mut().zip(sin).zip(rope.inv_freq) {
        let angle = position as f32 * frequency;
        let (s, c) = sin_cos(f64::from(angle));
        (*cos, *sin) = (c as f32 * rope.attention_scaling, s as f32 * rope.attention_scaling);
    }
}

/// `(a, b) ← (fma(a, cos, −(b·sin)), fma(b, cos, a·sin))` for pairs (i, i + half).
#[inline(always)]
fn rotate_halves<V: F32x16>(values: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    assert!(values.len() >= 2 * half && sin.len() == half);
    for i in (0..half).step_by(LANES) {
        let lanes = LANES.min(half - i);
        // SAFETY: `i + lanes ≤ half`, inside all three slices as asserted.
        unsafe {
            let (low, high) = (values.as_mut_ptr().add(i), values.as_mut_ptr().add(half + i));
            let (a, b) = (V::load_part(low, lanes), V::load_part(high, lanes));
            let (cos, sin) = (V::load_part(cos.as_ptr().add(i), lanes), V::load_part(sin.as_ptr().add(i), lanes));
            let minus = V::splat(0.0).sub(b.mul(sin));
            a.fma(cos, minus).store_part(low, lanes);
            b.fma(cos, a.mul(sin)).store_part(high, lanes);
        }
    }
}

/// The same for pairs (2i, 2i + 1).
#[inline(always)]
fn rotate_interleaved(values: &mut [f32], cos: &[f32], sin: &[f32]) {
    for ((pair, &cos), &sin) in values.chunks_exact_mut(2).zip(cos).zip(sin) {
        let (a, b) = (pair[0], pair[1]);
        pair[0] = a.mul_add(cos, 0.0 - b * sin);
        pair[1] = b.mul_add(cos, a * sin);
    }
}

/// Copies keys and values of the segments' rows into the pages.
struct Writer<'a, T> {
    qkv: &'a [f32],
    ld: usize,
    layout: &'a QkvLayout,
    segments: &'a [KvSegment<'a>],
    pages: usize,
    scales: KvScales,
    k: SharedMut<'a, T>,
    v: SharedMut<'a, T>,
}

impl<T: KvElement + Pod> Writer<'_, T> {
    /// One task for the keys and one for the values of each head, so that no page is written by two.
    fn run(&self, pool: &Pool, kv_heads: usize) {
        let rows: usize = self.segments.iter().map(|segment| segment.rows).sum();
        let work = |task: usize| self.store(task.is_multiple_of(2), task / 2);
        if rows <= 4 {
            (0..2 * kv_heads).for_each(work);
        } else {
            pool.run(2 * kv_heads, &work);
        }
    }

    fn store(&self, keys: bool, head: usize) {
        let layout = self.layout;
        let (dim, offset) = if keys { (layout.head_dim, layout.k_offset) } else { (layout.v_dim, layout.v_offset) };
        let (target, scale) = if keys { (&self.k, self.scales.k) } else { (&self.v, self.scales.v) };
        let factor = 1.0 / scale;
        for segment in self.segments {
            for row in 0..segment.rows {
                let position = segment.start + row;
                let page = segment.pages[position / PAGE] as usize;
                debug_assert!(page < self.pages);
                // SAFETY: one task writes this head's keys (or values), page by page in turn.
                let page = unsafe { target.slice((page * layout.kv_heads + head) * dim * PAGE, dim * PAGE) };
                let from = &self.qkv[(segment.first_row + row) * self.ld + offset + head * dim..][..dim];
                let token = position % PAGE;
                if keys {
                    for (slot, &value) in page[token..].iter_mut().step_by(PAGE).zip(from) {
                        *slot = T::from_f32(value * factor);
                    }
                } else {
                    for (slot, &value) in page[token * dim..].iter_mut().zip(from) {
                        *slot = T::from_f32(value * factor);
                    }
                }
            }
        }
    }
}
