//! Linear layers: `out = x · Wᵀ (+ bias)`.
//!
//! The one order of every sum (NUMERICS N1), for any number of rows and threads:
//!
//! - NVFP4: inside a scale block of 16 columns `b = fma chain of e2m1 · x` from 0 in ascending k; over the blocks in
//!   ascending order `acc = fma(scale, b, acc)` from 0; the result is `acc · global`.
//! - F32, F16, BF16: inside blocks of 256 columns `b = fma chain of w · x` from 0 in ascending k (K padded to even
//!   with zeros); over the blocks in ascending order `acc = acc + b` from 0.
//!
//! Then `+ bias`, then `+ out` when accumulating, then BF16 rounding, each one rounded operation.
//!
//! A tile of R rows × P panels keeps its sums in registers while the panels stream by; x is repacked so that a tile
//! reads it in order. A row's arithmetic is the same in every tile.

#![expect(clippy::needless_range_loop, reason = "register tiles are indexed by row and column, as the formulas are")]

use crate::matrix::{PackedMatrix, PanelData, SCALE_BLOCK};
use crate::pool::Pool;
use crate::scratch;
use crate::shared::SharedMut;
use crate::simd::{F32x16, Isa, Kernel, LANES, dispatch, prefetch};

/// Columns in a chain of an unquantised weight.
const CHAIN: usize = 256;
/// Weight bytes that a task works on; with a row tile of x they stay in the second-level cache.
const TASK_BYTES: usize = 256 << 10;
/// How far ahead of the arithmetic NVFP4 words are asked for: the decoder is too busy for the hardware to run ahead.
const PREFETCH: usize = 4096;

/// One weight of a linear call; several parts read the same x.
#[derive(Clone, Copy)]
pub struct LinearPart<'a> {
    /// The N × K weight.
    pub weight: &'a PackedMatrix,
    /// N values added to each row.
    pub bias: Option<&'a [f32]>,
    /// First column of the result in `out`.
    pub column: usize,
}

/// `out[r·ldo + column + n] = Σ_k x[r·ldx + k] · w[n, k] (+ bias[n])` for every part; with `accumulate` this is added
/// to `out`; finally rounded to BF16 when `round_bf16`.
///
/// # Panics
/// If the parts differ in K, overlap or leave `out`'s rows, or if a slice is too short.
#[expect(clippy::too_many_arguments, reason = "the operands of one fused operation")]
pub fn linear(
    pool: &Pool,
    x: &[f32],
    ldx: usize,
    rows: usize,
    parts: &[LinearPart],
    out: &mut [f32],
    ldo: usize,
    accumulate: bool,
    round_bf16: bool,
) {
    let Some(first) = parts.first() else { return };
    let k = first.weight.k();
    check(x, ldx, rows, parts, out.len(), ldo);
    if rows == 0 {
        return;
    }
    let isa = Isa::best();
    let tiles = Tiles::new(isa, rows, k.next_multiple_of(2));
    let mut packed = scratch::take(tiles.packed_len());
    let shared = SharedMut::new(&mut packed);
    pool.run(tiles.count(), &|tile| {
        // SAFETY: tiles own disjoint ranges of the packed buffer.
        let to = unsafe { shared.slice(tiles.packed_at(tile), tiles.size(tile) * tiles.depth) };
        tiles.pack(tile, x, ldx, k, to);
    });
    let plan = Split::new(pool.threads(), parts, tiles.count());
    let call = Call { parts, tiles, packed: &packed, out: SharedMut::new(out), ldo, accumulate, round_bf16 };
    pool.run(plan.tasks(), &|task| dispatch(isa, Task { call: &call, plan: &plan, task }));
}

fn check(x: &[f32], ldx: usize, rows: usize, parts: &[LinearPart], out_len: usize, ldo: usize) {
    let k = parts[0].weight.k();
    let last = rows.saturating_sub(1);
    assert!(rows == 0 || x.len() >= last * ldx + k, "x holds {} values, {rows} rows of {k} were asked", x.len());
    let mut spans: Vec<_> = parts.iter().map(|part| (part.column, part.column + part.weight.n())).collect();
    spans.sort_unstable();
    assert!(spans.is_sorted_by(|a, b| a.1 <= b.0), "the parts of a linear overlap in out");
    let width = spans.last().map_or(0, |span| span.1);
    assert!(rows <= 1 || width <= ldo, "rows of {width} values overlap at stride {ldo}");
    assert!(
        rows == 0 || out_len >= last * ldo + width,
        "out holds {out_len} values, {rows} rows of {width} were asked"
    );
    for part in parts {
        assert_eq!(part.weight.k(), k, "the parts of a linear read the same x");
        assert!(part.bias.is_none_or(|bias| bias.len() == part.weight.n()), "a bias has one value per output");
    }
}

/// The cut of the rows into register tiles, and x in tile order: `[tile][k][row of the tile]`.
#[derive(Clone, Copy)]
struct Tiles {
    rows: usize,
    depth: usize,
    full: usize,
    sizes: &'static [usize],
}

impl Tiles {
    fn new(isa: Isa, rows: usize, depth: usize) -> Self {
        let sizes: &[usize] = match isa {
            Isa::Portable => &[1, 4],
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &[1, 2, 4],
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &[1, 2, 3, 4, 6, 8, 12],
        };
        Self { rows, depth, full: sizes[sizes.len() - 1], sizes }
    }

    fn count(&self) -> usize {
        self.rows.div_ceil(self.full)
    }

    /// Rows of the step in a tile.
    fn rows(&self, tile: usize) -> usize {
        self.full.min(self.rows - tile * self.full)
    }

    /// Rows of the tile's kernel: the smallest that holds the tile; the surplus rows are zeros.
    fn size(&self, tile: usize) -> usize {
        let rows = self.rows(tile);
        self.sizes.iter().copied().find(|&size| size >= rows).unwrap_or(self.full)
    }

    fn packed_at(&self, tile: usize) -> usize {
        tile * self.full * self.depth
    }

    fn packed_len(&self) -> usize {
        let last = self.count() - 1;
        self.packed_at(last) + self.size(last) * self.depth
    }

    fn pack(&self, tile: usize, x: &[f32], ldx: usize, k: usize, to: &mut [f32]) {
        let (rows, size) = (self.rows(tile), self.size(tile));
        if rows < size || k < self.depth {
            to.fill(0.0);
        }
        for row in 0..rows {
            let from = &x[(tile * self.full + row) * ldx..][..k];
            for (slot, &value) in to[row..].iter_mut().step_by(size).zip(from) {
                *slot = value;
            }
        }
    }
}

/// The cut of the work into tasks: chunks of panels × chunks of row tiles.
struct Split {
    /// (part, first panel, panels)
    chunks: Vec<(usize, usize, usize)>,
    tile_chunk: usize,
    tile_chunks: usize,
}

impl Split {
    fn new(threads: usize, parts: &[LinearPart], tiles: usize) -> Self {
        let panels = |part: &LinearPart| part.weight.n().div_ceil(LANES);
        let total: usize = parts.iter().map(panels).sum();
        let bytes: usize = parts.iter().map(|part| part.weight.bytes()).sum();
        // A chunk is a multiple of four panels, the width of the one-row kernel.
        let by_cache = (TASK_BYTES * total / bytes.max(1)).max(1);
        let by_threads = total.div_ceil(4 * threads);
        let chunk = by_cache.min(by_threads).next_multiple_of(4);
        let mut chunks = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let panels = panels(part);
            chunks.extend((0..panels).step_by(chunk).map(|first| (index, first, chunk.min(panels - first))));
        }
        let wanted = (4 * threads).div_ceil(chunks.len().max(1)).clamp(1, tiles);
        let tile_chunk = tiles.div_ceil(wanted);
        Self { chunks, tile_chunk, tile_chunks: tiles.div_ceil(tile_chunk) }
    }

    fn tasks(&self) -> usize {
        self.chunks.len() * self.tile_chunks
    }
}

struct Call<'a> {
    parts: &'a [LinearPart<'a>],
    tiles: Tiles,
    packed: &'a [f32],
    out: SharedMut<'a, f32>,
    ldo: usize,
    accumulate: bool,
    round_bf16: bool,
}

struct Task<'a> {
    call: &'a Call<'a>,
    plan: &'a Split,
    task: usize,
}

impl Kernel for Task<'_> {
    #[inline(always)]
    fn run<V: F32x16>(self) {
        let (part, first, panels) = self.plan.chunks[self.task / self.plan.tile_chunks];
        let part = &self.call.parts[part];
        let tiles = (self.task % self.plan.tile_chunks) * self.plan.tile_chunk..;
        let tiles = tiles.start..self.call.tiles.count().min(tiles.start + self.plan.tile_chunk);
        let depth = self.call.tiles.depth;
        for tile in tiles {
            let x = &self.call.packed[self.call.tiles.packed_at(tile)..][..self.call.tiles.size(tile) * depth];
            let block = Block { call: self.call, part, x, tile, first, end: first + panels };
            match &part.weight.data {
                PanelData::F32(data) => block.run::<V, _>(F32Panels { data, depth }),
                PanelData::F16(data) => block.run::<V, _>(F16Panels { data, depth }),
                PanelData::Bf16(data) => block.run::<V, _>(Bf16Panels { data, depth }),
                PanelData::Nvfp4 { words, scales, factor, .. } => {
                    block.run::<V, _>(Nvfp4Panels { words, scales, global: *factor, k: part.weight.k() });
                }
            }
        }
    }
}

/// One row tile against a range of panels.
struct Block<'a> {
    call: &'a Call<'a>,
    part: &'a LinearPart<'a>,
    x: &'a [f32],
    tile: usize,
    first: usize,
    end: usize,
}

impl Block<'_> {
    /// Picks the register tile: few rows take several panels at once, to have enough independent chains.
    #[inline(always)]
    fn run<V: F32x16, W: Panels>(&self, weight: W) {
        match self.call.tiles.size(self.tile) {
            1 if V::WIDE => self.panels::<V, W, 1, 4>(weight),
            1 => self.panels::<V, W, 1, 2>(weight),
            2 if V::WIDE => self.panels::<V, W, 2, 4>(weight),
            2 => self.panels::<V, W, 2, 1>(weight),
            3 if V::WIDE => self.panels::<V, W, 3, 2>(weight),
            4 if V::WIDE => self.panels::<V, W, 4, 2>(weight),
            4 => self.panels::<V, W, 4, 1>(weight),
            6 if V::WIDE => self.panels::<V, W, 6, 1>(weight),
            8 if V::WIDE => self.panels::<V, W, 8, 1>(weight),
            12 if V::WIDE => self.panels::<V, W, 12, 1>(weight),
            size => unreachable!("no register tile of {size} rows"),
        }
    }

    #[inline(always)]
    fn panels<V: F32x16, W: Panels, const R: usize, const P: usize>(&self, weight: W) {
        let whole = self.first + (self.end - self.first) / P * P;
        V::call(Tile::<W, R, P> { block: self, weight, panels: self.first..whole });
        if P > 1 && whole < self.end {
            V::call(Tile::<W, R, 1> { block: self, weight, panels: whole..self.end });
        }
    }
}

/// R rows against a range of panels, P at a time.
struct Tile<'a, W, const R: usize, const P: usize> {
    block: &'a Block<'a>,
    weight: W,
    panels: std::ops::Range<usize>,
}

impl<W: Panels, const R: usize, const P: usize> Kernel for Tile<'_, W, R, P> {
    #[inline(always)]
    fn run<V: F32x16>(self) {
        for panel in self.panels.step_by(P) {
            let acc = self.weight.tile::<V, R, P>(panel, self.block.x);
            self.block.finish::<V, W, R, P>(self.weight, panel, acc);
        }
    }
}

impl Block<'_> {
    /// Global scale, bias, accumulation, rounding, and the store.
    #[inline(always)]
    fn finish<V: F32x16, W: Panels, const R: usize, const P: usize>(&self, weight: W, panel: usize, acc: [[V; R]; P]) {
        let first_row = self.tile * self.call.tiles.full;
        let rows = self.call.tiles.rows(self.tile);
        for (p, acc) in acc.iter().enumerate() {
            let n = (panel + p) * LANES;
            let lanes = LANES.min(self.part.weight.n() - n);
            for (r, &acc) in acc.iter().enumerate().take(rows) {
                let mut value = weight.result(acc);
                // SAFETY: the bias holds N values (checked), the out range is asserted, and (row, panel) pairs belong
                // to one task.
                unsafe {
                    if let Some(bias) = self.part.bias {
                        value = value.add(V::load_part(bias.as_ptr().add(n), lanes));
                    }
                    let out = self.call.out.at((first_row + r) * self.call.ldo + self.part.column + n, lanes);
                    if self.call.accumulate {
                        value = V::load_part(out, lanes).add(value);
                    }
                    if self.call.round_bf16 {
                        value = value.round_bf16();
                    }
                    value.store_part(out, lanes);
                }
            }
        }
    }
}

/// A weight format's panels.
trait Panels: Copy {
    /// Sums of R rows against P panels from `panel`; `x` is `[k][R]`.
    fn tile<V: F32x16, const R: usize, const P: usize>(&self, panel: usize, x: &[f32]) -> [[V; R]; P];

    /// What is left to do with a finished sum.
    #[inline(always)]
    fn result<V: F32x16>(&self, acc: V) -> V {
        acc
    }
}

#[derive(Clone, Copy)]
struct Nvfp4Panels<'a> {
    words: &'a [u32],
    scales: &'a [u8],
    global: f32,
    k: usize,
}

impl Panels for Nvfp4Panels<'_> {
    /// Panel after panel, in one stream of memory; P blocks at once are chains enough.
    #[inline(always)]
    fn tile<V: F32x16, const R: usize, const P: usize>(&self, panel: usize, x: &[f32]) -> [[V; R]; P] {
        let blocks = self.k / SCALE_BLOCK;
        let (words_len, scales_len) = (blocks * 2 * LANES, blocks * LANES);
        let words = &self.words[panel * words_len..(panel + P) * words_len];
        let scales = &self.scales[panel * scales_len..(panel + P) * scales_len];
        assert!(x.len() >= self.k * R);
        let mut acc = [[V::splat(0.0); R]; P];
        for p in 0..P {
            // SAFETY: each of the P panels has `words_len` words and `scales_len` scales, and x has k·R values.
            unsafe {
                let (words, scales) = (words.as_ptr().add(p * words_len), scales.as_ptr().add(p * scales_len));
                let mut block = 0;
                while block + P <= blocks {
                    scale_blocks::<V, R, P>(words, scales, x.as_ptr(), block, &mut acc[p]);
                    block += P;
                }
                while P > 1 && block < blocks {
                    scale_blocks::<V, R, 1>(words, scales, x.as_ptr(), block, &mut acc[p]);
                    block += 1;
                }
            }
        }
        acc
    }

    #[inline(always)]
    fn result<V: F32x16>(&self, acc: V) -> V {
        acc.mul(V::splat(self.global))
    }
}

/// B scale blocks of a panel, from `first`, into the sums of R rows.
///
/// # Safety
/// The panel at `words` and `scales` and the inputs at `x` (`[k][R]`) reach past these blocks.
#[inline(always)]
unsafe fn scale_blocks<V: F32x16, const R: usize, const B: usize>(
    words: *const u32,
    scales: *const u8,
    x: *const f32,
    first: usize,
    acc: &mut [V; R],
) {
    // SAFETY: the caller's promise; a prefetch may go anywhere.
    unsafe {
        let mut sums = [[V::splat(0.0); R]; B];
        for b in 0..B {
            let (words, x) = (words.add((first + b) * 2 * LANES), x.add((first + b) * 16 * R));
            eight_columns::<V, R>(words, x, &mut sums[b]);
        }
        for b in 0..B {
            let (words, x) = (words.add(((first + b) * 2 + 1) * LANES), x.add(((first + b) * 2 + 1) * 8 * R));
            eight_columns::<V, R>(words, x, &mut sums[b]);
        }
        for (b, sum) in sums.iter().enumerate() {
            let scale = V::load_e4m3(scales.add((first + b) * LANES));
            for r in 0..R {
                acc[r] = scale.fma(sum[r], acc[r]);
            }
        }
    }
}

/// Eight columns of a panel: one vector of words against the inputs at `x` (`[8][R]`).
///
/// # Safety
/// `words` points to sixteen words, `x` to 8·R values.
#[inline(always)]
unsafe fn eight_columns<V: F32x16, const R: usize>(words: *const u32, x: *const f32, sum: &mut [V; R]) {
    prefetch(words.wrapping_add(PREFETCH / size_of::<u32>()));
    // SAFETY: the caller's promise.
    unsafe {
        let words = V::load_words(words);
        column::<V, R>(V::e2m1::<0>(words), x, sum);
        column::<V, R>(V::e2m1::<1>(words), x.add(R), sum);
        column::<V, R>(V::e2m1::<2>(words), x.add(2 * R), sum);
        column::<V, R>(V::e2m1::<3>(words), x.add(3 * R), sum);
        column::<V, R>(V::e2m1::<4>(words), x.add(4 * R), sum);
        column::<V, R>(V::e2m1::<5>(words), x.add(5 * R), sum);
        column::<V, R>(V::e2m1::<6>(words), x.add(6 * R), sum);
        column::<V, R>(V::e2m1::<7>(words), x.add(7 * R), sum);
    }
}

/// One column of sixteen weights against R inputs.
///
/// # Safety
/// `x` points to R values.
#[inline(always)]
unsafe fn column<V: F32x16, const R: usize>(weight: V, x: *const f32, sum: &mut [V; R]) {
    for r in 0..R {
        // SAFETY: the caller's promise.
        sum[r] = weight.fma(V::splat(unsafe { *x.add(r) }), sum[r]);
    }
}

/// Implements [`Panels`] of an unquantised format: `$step` columns come from one load at `$stride` elements.
macro_rules! dense_panels {
    ($name:ident, $element:ty, $step:expr, |$at:ident, $v:ident| $columns:expr) => {
        #[derive(Clone, Copy)]
        struct $name<'a> {
            data: &'a [$element],
            depth: usize,
        }

        impl Panels for $name<'_> {
            #[inline(always)]
            fn tile<$v: F32x16, const R: usize, const P: usize>(&self, panel: usize, x: &[f32]) -> [[$v; R]; P] {
                const STEP: usize = $step;
                let panel_len = self.depth / STEP * LANES;
                let data = &self.data[panel * panel_len..(panel + P) * panel_len];
                assert!(x.len() >= self.depth * R);
                let mut acc = [[$v::splat(0.0); R]; P];
                for begin in (0..self.depth).step_by(CHAIN) {
                    let mut sum = [[$v::splat(0.0); R]; P];
                    let mut k = begin;
                    while k < self.depth.min(begin + CHAIN) {
                        // SAFETY: `k < depth`, so the load stays inside each of the P panels sliced above and the
                        // inputs inside `x`, whose length was asserted.
                        unsafe {
                            let x = x.as_ptr().add(k * R);
                            for p in 0..P {
                                let $at = data.as_ptr().add(p * panel_len + k / STEP * LANES);
                                let columns: [$v; STEP] = $columns;
                                for i in 0..STEP {
                                    column::<$v, R>(columns[i], x.add(i * R), &mut sum[p]);
                                }
                            }
                        }
                        k += STEP;
                    }
                    for p in 0..P {
                        for r in 0..R {
                            acc[p][r] = acc[p][r].add(sum[p][r]);
                        }
                    }
                }
                acc
            }
        }
    };
}

dense_panels!(F32Panels, f32, 1, |at, V| [V::load(at)]);
dense_panels!(F16Panels, u16, 1, |at, V| [V::load_f16(at)]);
dense_panels!(Bf16Panels, u32, 2, |at, V| {
    let words = V::load_words(at);
    [V::bf16_low(words), V::bf16_high(words)]
});
