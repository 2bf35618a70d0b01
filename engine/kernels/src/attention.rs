//! Causal attention over the paged cache (NUMERICS N4).
//!
//! The one order, for prefill, decode and verify rows alike: scores are fma chains over ascending d; inside a split
//! of 512 absolute positions, on-line softmax runs over tiles of 64 absolute positions in ascending order, p·v being
//! an fma chain over the visible keys in ascending order; splits are merged in ascending order; a sink enters last.
//! Tiles and splits without a visible key do not take part, and a window never moves a cut.
//!
//! Per tile: `m' = max(m, max s)`, `c = e^(m − m')`, `p = e^(s − m')`, `l = fma(l, c, Σp)` with Σp over the fixed tree
//! of `(p₀ + p₁) + (p₂ + p₃)`, `acc = acc · c`, then the chain. Merging `(m₁, l₁, a₁)` with a later `(m₂, l₂, a₂)`:
//! `M = max`, `cᵢ = e^(mᵢ − M)`, `l = fma(l₁, c₁, l₂·c₂)`, `a = fma(a₁, c₁, a₂·c₂)`. The scale of stored keys is part of
//! the factor on scores, that of stored values multiplies the result: both sums run over the stored numbers.

use std::ops::Range;

use crate::kv::{KvElement, KvLayer, KvSegment, KvStore, PAGE};
use crate::math::{exp, tanh};
use crate::pool::Pool;
use crate::rope::QkvLayout;
use crate::scratch;
use crate::shared::SharedMut;
use crate::simd::{F32x16, Isa, Kernel, LANES, dispatch};
use crate::tile::{Rows, accumulate};

/// Positions in a soft-max step.
const TILE: usize = 64;
/// Positions between two merges.
const SPLIT: usize = 512;
/// (row, head) pairs that a task aims to work on together.
const PAIRS: usize = 48;

/// What a layer's attention does to its scores.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionArgs {
    /// Factor on q·k.
    pub scale: f32,
    /// A key is visible iff query position − key position is below this.
    pub window: Option<usize>,
    /// `cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
}

/// Row r of a segment attends to positions `0..=start + r` of its sequence, which the cache must hold. Queries are
/// read from the qkv buffer `q`; `out` is `[rows, heads · v_dim]` with row stride `ldo`. A head's sink is a logit
/// without a value.
///
/// # Panics
/// If a slice or block table is too short for the segments, or the cache has another shape than the layout.
#[expect(clippy::too_many_arguments, reason = "the operands of one fused operation")]
pub fn attention(
    pool: &Pool,
    q: &[f32],
    ld: usize,
    layout: &QkvLayout,
    segments: &[KvSegment],
    cache: &KvLayer,
    args: &AttentionArgs,
    sinks: Option<&[f32]>,
    out: &mut [f32],
    ldo: usize,
    round_bf16: bool,
) {
    layout.check_cache(cache);
    let group = layout.heads / layout.kv_heads;
    let width = layout.heads * layout.v_dim;
    assert!(sinks.is_none_or(|sinks| sinks.len() == layout.heads), "a sink for each of {} heads", layout.heads);
    assert!(args.window != Some(0), "a window shows at least the row itself");
    let q_end = layout.q_offset + (layout.heads - 1) * layout.q_head_stride + layout.head_dim;
    let mut taken = Vec::with_capacity(segments.len());
    for segment in segments.iter().filter(|segment| segment.rows > 0) {
        let last = segment.first_row + segment.rows - 1;
        assert!(q.len() >= last * ld + q_end, "qkv holds row {last}");
        assert!(out.len() >= last * ldo + width && (ldo >= width || last == 0), "out holds row {last}");
        taken.push(segment.first_row..last + 1);
        segment.check_pages(cache, args.window.map_or(0, |window| (segment.start + 1).saturating_sub(window)));
    }
    taken.sort_unstable_by_key(|rows| rows.start);
    assert!(taken.is_sorted_by(|a, b| a.end <= b.start), "segments have rows of their own");

    let units = Unit::cut(segments, layout.kv_heads, (PAIRS / group).max(1));
    let scale = args.scale * cache.scales.k;
    let call = Call { q, ld, layout, group, cache, args, scale, sinks, out: SharedMut::new(out), ldo, round_bf16 };
    let isa = Isa::best();
    let most_splits = units.iter().map(|unit| unit.splits(args).len()).max().unwrap_or(0);
    if units.len() >= 3 * pool.threads() || most_splits <= 1 || pool.threads() == 1 {
        pool.run(units.len(), &|i| dispatch(isa, Whole { call: &call, unit: &units[i] }));
    } else {
        call.run_split(pool, isa, &units);
    }
}

/// Rows of one segment under one key/value head.
struct Unit<'a> {
    segment: &'a KvSegment<'a>,
    kv_head: usize,
    /// Rows of the segment.
    rows: Range<usize>,
}

impl<'a> Unit<'a> {
    fn cut(segments: &'a [KvSegment<'a>], kv_heads: usize, block: usize) -> Vec<Unit<'a>> {
        let mut units = Vec::new();
        for segment in segments {
            for first in (0..segment.rows).step_by(block).rev() {
                let rows = first..segment.rows.min(first + block);
                units.extend((0..kv_heads).map(|kv_head| Unit { segment, kv_head, rows: rows.clone() }));
            }
        }
        units
    }

    /// Positions that a row of the segment sees.
    #[inline(always)]
    fn visible(&self, row: usize, args: &AttentionArgs) -> Range<usize> {
        let end = self.segment.start + row + 1;
        args.window.map_or(0, |window| end.saturating_sub(window))..end
    }

    /// Splits in which some row of the unit sees a key.
    #[inline(always)]
    fn splits(&self, args: &AttentionArgs) -> Range<usize> {
        let (first, last) = (self.visible(self.rows.start, args), self.visible(self.rows.end - 1, args));
        first.start / SPLIT..last.end.div_ceil(SPLIT)
    }
}

struct Call<'a> {
    q: &'a [f32],
    ld: usize,
    layout: &'a QkvLayout,
    group: usize,
    cache: &'a KvLayer,
    args: &'a AttentionArgs,
    /// Of scores: the layer's and that of the keys.
    scale: f32,
    sinks: Option<&'a [f32]>,
    out: SharedMut<'a, f32>,
    ldo: usize,
    round_bf16: bool,
}

impl Call<'_> {
    /// Few rows over a long context: splits are tasks of their own, their results merged afterwards.
    fn run_split(&self, pool: &Pool, isa: Isa, units: &[Unit]) {
        let mut tasks = Vec::new();
        let mut firsts = Vec::new();
        let mut size = 0;
        for unit in units {
            firsts.push(size);
            for split in unit.splits(self.args) {
                tasks.push((unit, split, size));
                size += self.state_len(unit);
            }
        }
        let mut states = scratch::take(size);
        let shared = SharedMut::new(&mut states);
        pool.run(tasks.len(), &|i| {
            let (unit, split, at) = tasks[i];
            // SAFETY: every task has its own range.
            let state = unsafe { shared.slice(at, self.state_len(unit)) };
            dispatch(isa, Partial { call: self, unit, split, state });
        });
        pool.run(units.len(), &|i| {
            let len = units[i].splits(self.args).len() * self.state_len(&units[i]);
            // SAFETY: every unit has its own range of states.
            let states = unsafe { shared.slice(firsts[i], len) };
            dispatch(isa, Merge { call: self, unit: &units[i], states });
        });
    }

    #[inline(always)]
    fn pairs(&self, unit: &Unit) -> usize {
        unit.rows.len() * self.group
    }

    #[inline(always)]
    fn state_len(&self, unit: &Unit) -> usize {
        self.pairs(unit) * (self.layout.v_dim + 2)
    }
}

/// A unit from its first split to its output.
struct Whole<'a> {
    call: &'a Call<'a>,
    unit: &'a Unit<'a>,
}

impl Kernel for Whole<'_> {
    #[inline(always)]
    fn run<V: F32x16>(self) {
        let Self { call, unit } = self;
        let len = call.state_len(unit);
        let mut states = scratch::take(2 * len);
        let (total, next) = states.split_at_mut(len);
        let mut total = State::new(total, call.pairs(unit));
        let mut next = State::new(next, call.pairs(unit));
        total.clear();
        for split in unit.splits(call.args) {
            attend::<V>(call, unit, split, &mut next);
            total.merge::<V>(&next);
        }
        finish::<V>(call, unit, &total);
    }
}

/// One split of a unit.
struct Partial<'a> {
    call: &'a Call<'a>,
    unit: &'a Unit<'a>,
    split: usize,
    state: &'a mut [f32],
}

impl Kernel for Partial<'_> {
    #[inline(always)]
    fn run<V: F32x16>(self) {
        let mut state = State::new(self.state, self.call.pairs(self.unit));
        attend::<V>(self.call, self.unit, self.split, &mut state);
    }
}

/// The merge of a unit's splits, and its output.
struct Merge<'a> {
    call: &'a Call<'a>,
    unit: &'a Unit<'a>,
    states: &'a mut [f32],
}

impl Kernel for Merge<'_> {
    #[inline(always)]
    fn run<V: F32x16>(self) {
        let pairs = self.call.pairs(self.unit);
        let mut states = self.states.chunks_exact_mut(self.call.state_len(self.unit));
        let Some(first) = states.next() else { return };
        let mut total = State::new(first, pairs);
        for next in states {
            total.merge::<V>(&State::new(next, pairs));
        }
        finish::<V>(self.call, self.unit, &total);
    }
}

/// Running soft-max of (row, head) pairs: maximum, sum, and the unnormalised output `[pair][v_dim]`.
struct State<'a> {
    max: &'a mut [f32],
    sum: &'a mut [f32],
    acc: &'a mut [f32],
    v_dim: usize,
}

impl<'a> State<'a> {
    #[inline(always)]
    fn new(memory: &'a mut [f32], pairs: usize) -> Self {
        let (max, rest) = memory.split_at_mut(pairs);
        let (sum, acc) = rest.split_at_mut(pairs);
        let v_dim = acc.len() / pairs;
        Self { max, sum, acc, v_dim }
    }

    #[inline(always)]
    fn clear(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.acc.fill(0.0);
    }

    /// Merges the state of later positions. A pair that saw no key has a sum of zero and takes no part.
    #[inline(always)]
    fn merge<V: F32x16>(&mut self, next: &State) {
        for pair in 0..self.max.len() {
            let here = pair * self.v_dim..(pair + 1) * self.v_dim;
            if next.sum[pair] == 0.0 {
                continue;
            }
            if self.sum[pair] == 0.0 {
                self.max[pair] = next.max[pair];
                self.sum[pair] = next.sum[pair];
                self.acc[here.clone()].copy_from_slice(&next.acc[here]);
                continue;
            }
            let max = if next.max[pair] > self.max[pair] { next.max[pair] } else { self.max[pair] };
            let mine = lane(exp(V::splat(self.max[pair] - max)));
            let other = lane(exp(V::splat(next.max[pair] - max)));
            self.max[pair] = max;
            self.sum[pair] = self.sum[pair].mul_add(mine, next.sum[pair] * other);
            for (acc, next) in self.acc[here.clone()].chunks_mut(LANES).zip(next.acc[here].chunks(LANES)) {
                // SAFETY: both chunks hold `acc.len()` values.
                unsafe {
                    let later = V::load_part(next.as_ptr(), acc.len()).mul(V::splat(other));
                    let value = V::load_part(acc.as_ptr(), acc.len()).fma(V::splat(mine), later);
                    value.store_part(acc.as_mut_ptr(), acc.len());
                }
            }
        }
    }
}

/// The first lane.
#[inline(always)]
fn lane<V: F32x16>(vector: V) -> f32 {
    let mut value = 0.0;
    // SAFETY: one lane into one value.
    unsafe { vector.store_part(&mut value, 1) };
    value
}

#[inline(always)]
fn attend<V: F32x16>(call: &Call, unit: &Unit, split: usize, state: &mut State) {
    match &call.cache.store {
        KvStore::F32 { k, v } => Split { call, unit, k, v }.run::<V>(split, state),
        KvStore::Bf16 { k, v } => Split { call, unit, k, v }.run::<V>(split, state),
        KvStore::Fp8 { k, v } => Split { call, unit, k, v }.run::<V>(split, state),
    }
}

struct Split<'a, T> {
    call: &'a Call<'a>,
    unit: &'a Unit<'a>,
    k: &'a [T],
    v: &'a [T],
}

impl<T: KvElement> Split<'_, T> {
    /// Soft-max over the tiles of one split, from an empty state.
    #[inline(always)]
    fn run<V: F32x16>(&self, split: usize, state: &mut State) {
        state.clear();
        let pairs = self.call.pairs(self.unit);
        let dim = self.call.layout.head_dim;
        let mut memory = scratch::take(pairs * (dim + TILE));
        let (q, scores) = memory.split_at_mut(pairs * dim);
        self.gather_queries(q);
        let args = self.call.args;
        let start = self.unit.visible(self.unit.rows.start, args).start.max(split * SPLIT);
        let end = self.unit.visible(self.unit.rows.end - 1, args).end.min((split + 1) * SPLIT);
        let mut tile = start / TILE * TILE;
        while tile < end {
            self.scores::<V>(tile, &(start..end), q, scores);
            self.soft_max::<V>(tile, scores, state);
            self.values::<V>(tile, scores, state);
            tile += TILE;
        }
    }

    /// Copies the unit's queries to `[pair][head_dim]`, pair = row · group + head of the group.
    #[inline(always)]
    fn gather_queries(&self, q: &mut [f32]) {
        let (call, layout) = (self.call, self.call.layout);
        for (pair, to) in q.chunks_exact_mut(layout.head_dim).enumerate() {
            let row = self.unit.segment.first_row + self.unit.rows.start + pair / call.group;
            let head = self.unit.kv_head * call.group + pair % call.group;
            let from = row * call.ld + layout.q_offset + head * layout.q_head_stride;
            to.copy_from_slice(&call.q[from..from + layout.head_dim]);
        }
    }

    /// q·k of all pairs with the pages of a tile in which some pair sees a key.
    #[inline(always)]
    fn scores<V: F32x16>(&self, tile: usize, seen: &Range<usize>, q: &[f32], scores: &mut [f32]) {
        let (pairs, dim) = (self.call.pairs(self.unit), self.call.layout.head_dim);
        scores.fill(0.0);
        for first in (tile..tile + TILE).step_by(PAGE) {
            if first + PAGE <= seen.start || first >= seen.end {
                continue;
            }
            let page = self.unit.segment.pages[first / PAGE] as usize;
            let keys = &self.k[self.call.cache.k_at(page, self.unit.kv_head)..][..dim * PAGE];
            let next = self.next_page(first, page);
            let next = self.k.as_ptr().wrapping_add(self.call.cache.k_at(next, self.unit.kv_head));
            // SAFETY: `keys` is head_dim × 16, `q` pairs × head_dim, `scores` pairs × 64 with this page's 16 columns.
            unsafe {
                accumulate::<V, T>(
                    [pairs, PAGE, dim],
                    Rows::new(q.as_ptr(), dim),
                    Rows::new(keys.as_ptr(), PAGE),
                    Rows::new_mut(scores.as_mut_ptr().add(first - tile), TILE),
                    next,
                );
            }
        }
    }

    /// The page after that of `position`, which is worth fetching; at the end of the table, the page itself.
    #[inline(always)]
    fn next_page(&self, position: usize, page: usize) -> usize {
        self.unit.segment.pages.get(position / PAGE + 1).map_or(page, |&next| next as usize)
    }

    /// Positions of a tile that a row sees, relative to the tile.
    #[inline(always)]
    fn window(&self, tile: usize, row: usize) -> Range<usize> {
        let seen = self.unit.visible(self.unit.rows.start + row, self.call.args);
        seen.start.saturating_sub(tile).min(TILE)..seen.end.saturating_sub(tile).min(TILE)
    }

    /// Turns scores into probabilities relative to the new maximum; rescales what was summed before.
    #[inline(always)]
    fn soft_max<V: F32x16>(&self, tile: usize, scores: &mut [f32], state: &mut State) {
        let mut iota = [0.0; LANES];
        for (i, lane) in iota.iter_mut().enumerate() {
            *lane = i as f32;
        }
        for (pair, scores) in scores.chunks_exact_mut(TILE).enumerate() {
            let seen = self.window(tile, pair / self.call.group);
            if seen.is_empty() {
                continue;
            }
            let (begin, end) = (V::splat(seen.start as f32), V::splat(seen.end as f32));
            let hidden = V::splat(f32::NEG_INFINITY);
            let mut vectors = [hidden; TILE / LANES];
            for (i, vector) in vectors.iter_mut().enumerate() {
                // SAFETY: `scores` holds 64 values, `iota` 16.
                let (score, at) = unsafe { (V::load(scores.as_ptr().add(i * LANES)), V::load(iota.as_ptr())) };
                let at = at.add(V::splat((i * LANES) as f32));
                let score = self.shape(score);
                *vector = at.select_lt(end, at.select_lt(begin, hidden, score), hidden);
            }
            let [a, b, c, d] = vectors;
            let highest = a.max(b).max(c.max(d)).max_lane();
            let max = if highest > state.max[pair] { highest } else { state.max[pair] };
            for (i, vector) in vectors.iter_mut().enumerate() {
                *vector = exp(vector.sub(V::splat(max)));
                // SAFETY: `scores` holds 64 values.
                unsafe { vector.store(scores.as_mut_ptr().add(i * LANES)) };
            }
            let [a, b, c, d] = vectors;
            let sum = a.add(b).add(c.add(d)).sum();
            let factor = lane(exp(V::splat(state.max[pair] - max)));
            state.sum[pair] = state.sum[pair].mul_add(factor, sum);
            // A factor of one changes nothing.
            if state.max[pair] != max {
                state.max[pair] = max;
                for acc in state.acc[pair * state.v_dim..(pair + 1) * state.v_dim].chunks_mut(LANES) {
                    // SAFETY: the chunk holds `acc.len()` values.
                    unsafe {
                        let value = V::load_part(acc.as_ptr(), acc.len()).mul(V::splat(factor));
                        value.store_part(acc.as_mut_ptr(), acc.len());
                    }
                }
            }
        }
    }

    /// Scale and soft-cap.
    #[inline(always)]
    fn shape<V: F32x16>(&self, score: V) -> V {
        let score = score.mul(V::splat(self.call.scale));
        match self.call.args.softcap {
            Some(cap) => tanh(score.div(V::splat(cap))).mul(V::splat(cap)),
            None => score,
        }
    }

    /// p·v of a tile: the keys that all rows see as one product, the others row by row before and after it, so that
    /// each row still sums in ascending order.
    #[inline(always)]
    fn values<V: F32x16>(&self, tile: usize, p: &[f32], state: &mut State) {
        let (group, rows) = (self.call.group, self.unit.rows.len());
        let (first, last) = (self.window(tile, 0), self.window(tile, rows - 1));
        let common = last.start..first.end;
        if common.is_empty() {
            for row in 0..rows {
                self.weigh::<V>(tile, self.window(tile, row), row * group..(row + 1) * group, p, state);
            }
            return;
        }
        for row in 0..rows {
            let before = self.window(tile, row).start..common.start;
            self.weigh::<V>(tile, before, row * group..(row + 1) * group, p, state);
        }
        self.weigh::<V>(tile, common.clone(), 0..rows * group, p, state);
        for row in 0..rows {
            let after = common.end..self.window(tile, row).end;
            self.weigh::<V>(tile, after, row * group..(row + 1) * group, p, state);
        }
    }

    /// Adds p·v over `keys` (relative to the tile) to the sums of `pairs`.
    #[inline(always)]
    fn weigh<V: F32x16>(&self, tile: usize, keys: Range<usize>, pairs: Range<usize>, p: &[f32], state: &mut State) {
        let v_dim = state.v_dim;
        let mut key = keys.start;
        while key < keys.end {
            let end = keys.end.min((key / PAGE + 1) * PAGE);
            let page = self.unit.segment.pages[(tile + key) / PAGE] as usize;
            let values = &self.v[self.call.cache.v_at(page, self.unit.kv_head)..][..v_dim * PAGE];
            let next = self.next_page(tile + key, page);
            let next = self.v.as_ptr().wrapping_add(self.call.cache.v_at(next, self.unit.kv_head));
            let p = &p[pairs.start * TILE..pairs.end * TILE];
            let acc = &mut state.acc[pairs.start * v_dim..pairs.end * v_dim];
            // SAFETY: `values` is 16 × v_dim from the page's first key, `p` pairs × 64, `acc` pairs × v_dim.
            unsafe {
                accumulate::<V, T>(
                    [pairs.len(), v_dim, end - key],
                    Rows::new(p.as_ptr().add(key), TILE),
                    Rows::new(values.as_ptr().add(key % PAGE * v_dim), v_dim),
                    Rows::new_mut(acc.as_mut_ptr(), v_dim),
                    next.wrapping_add(key % PAGE * v_dim),
                );
            }
            key = end;
        }
    }
}

/// Lets the sinks in, normalises, rounds and stores.
#[inline(always)]
fn finish<V: F32x16>(call: &Call, unit: &Unit, state: &State) {
    let v_dim = state.v_dim;
    for pair in 0..state.max.len() {
        let head = unit.kv_head * call.group + pair % call.group;
        let row = unit.segment.first_row + unit.rows.start + pair / call.group;
        let (mut sum, mut factor) = (state.sum[pair], 1.0);
        if let Some(sinks) = call.sinks {
            let max = if sinks[head] > state.max[pair] { sinks[head] } else { state.max[pair] };
            factor = lane(exp(V::splat(state.max[pair] - max)));
            sum = sum.mul_add(factor, lane(exp(V::splat(sinks[head] - max))));
        }
        // SAFETY: (row, head) outputs belong to one task; chunks of at most a vector inside them.
        unsafe {
            let out = call.out.at(row * call.ldo + head * v_dim, v_dim);
            for n in (0..v_dim).step_by(LANES) {
                let lanes = LANES.min(v_dim - n);
                let acc = V::load_part(state.acc.as_ptr().add(pair * v_dim + n), lanes);
                let mut value = acc.mul(V::splat(factor)).div(V::splat(sum)).mul(V::splat(call.cache.scales.v));
                if call.round_bf16 {
                    value = value.round_bf16();
                }
                value.store_part(out.add(n), lanes);
            }
        }
    }
}
