//! The gated delta rule with anchored blocks (NUMERICS N5).
//!
//! The matrix state S (`[k_dim][v_dim]` per value head) exists only at absolute positions that are multiples of 64.
//! Between them a sequence keeps the rows of its open block: k, u and the cumulative log-decay G. For row t of a
//! block, with β = σ(b) and G_t = G_{t−1} − exp(a_log) · softplus(a + dt_bias):
//!
//! - `u_t = β (v_t − (e^{G_t} Sᵀk_t + Σ_{j<t} e^{G_t−G_j} (k_j·k_t) u_j))`
//! - `o_t = e^{G_t} Sᵀq_t + Σ_{j≤t} e^{G_t−G_j} (k_j·q_t) u_j`
//! - after row 63: `S ← e^{G_63} S + Σ_j (e^{G_63−G_j} k_j) u_jᵀ`
//!
//! Products Sᵀk, k·k and the like are fma chains from 0 over ascending d; the sums over j are fma chains in ascending
//! j that begin with the term in S. One row or a whole block: the same chains, only cut into other register tiles.
//!
//! A block is worked on in two stages. `Keys` (a task per key head) normalises q and k, writes k and G to the open
//! page and takes the dot products with the block's keys; `Values` (a task per value head and range of value dims)
//! does the rest.

use crate::aligned::Aligned;
use crate::math::{exp, sigmoid, softplus};
use crate::norm::sum_squares;
use crate::pool::Pool;
use crate::scratch;
use crate::shared::SharedMut;
use crate::simd::{F32x16, Isa, Kernel, LANES, dispatch};
use crate::tile::{Rows, accumulate};

/// Tokens between two anchors.
pub const BLOCK: usize = 64;
/// Rows that are solved against earlier rows together.
const ROWS: usize = 6;

/// The recurrent state of one layer, zero-initialised.
///
/// Anchors: f32 `[slot][v_heads][k_dim][v_dim]`; slot 0 stays zero: the state at position 0. Open-block pages: k
/// `[page][k_heads][k_dim][64]`, u `[page][v_heads][64][v_dim]`, G `[page][v_heads][64]`.
pub struct DeltaState {
    anchors: Aligned<f32>,
    k: Aligned<f32>,
    u: Aligned<f32>,
    g: Aligned<f32>,
    anchor_slots: usize,
    open_pages: usize,
    shape: Shape,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    k_heads: usize,
    v_heads: usize,
    k_dim: usize,
    v_dim: usize,
}

/// A run of rows that continues one sequence.
#[derive(Clone, Copy, Debug)]
pub struct DeltaSegment<'a> {
    /// First row of the step that belongs to the segment.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Position of the first row.
    pub start: usize,
    /// Slot of the state at the start of block `start/64 + i`, for every block that the segment touches and one more
    /// if it completes the last. A completed block writes the next entry, which may be the same slot.
    pub anchors: &'a [u32],
    /// Open page of block `start/64 + i`; pages of completed blocks may come again.
    pub pages: &'a [u32],
}

/// Shape and parameters of a layer.
#[derive(Clone, Copy, Debug)]
pub struct DeltaArgs<'a> {
    /// Query and key heads.
    pub k_heads: usize,
    /// Value heads; head h uses key head `h / (v_heads / k_heads)`.
    pub v_heads: usize,
    /// Dims of a query or key head.
    pub k_dim: usize,
    /// Dims of a value head.
    pub v_dim: usize,
    /// `[v_heads]`
    pub a_log: &'a [f32],
    /// `[v_heads]`
    pub dt_bias: &'a [f32],
    /// Added to the sum of squares in the L2 norm of q and k.
    pub eps: f32,
}

impl DeltaState {
    /// `anchor_slots` states (slot 0 included) and `open_pages` block pages of zeros.
    ///
    /// # Panics
    /// If `v_heads` is not a multiple of `k_heads`.
    pub fn new(
        anchor_slots: usize,
        open_pages: usize,
        k_heads: usize,
        v_heads: usize,
        k_dim: usize,
        v_dim: usize,
    ) -> DeltaState {
        assert!(k_heads > 0 && v_heads > 0 && v_heads.is_multiple_of(k_heads), "value heads come in groups");
        assert!(k_dim > 0 && v_dim > 0, "heads have dims");
        DeltaState {
            anchors: Aligned::zeroed(anchor_slots * v_heads * k_dim * v_dim),
            k: Aligned::zeroed(open_pages * k_heads * k_dim * BLOCK),
            u: Aligned::zeroed(open_pages * v_heads * v_dim * BLOCK),
            g: Aligned::zeroed(open_pages * v_heads * BLOCK),
            anchor_slots,
            open_pages,
            shape: Shape { k_heads, v_heads, k_dim, v_dim },
        }
    }

    /// Bytes of all anchors and pages.
    pub fn bytes(&self) -> usize {
        self.anchors.bytes() + self.k.bytes() + self.u.bytes() + self.g.bytes()
    }
}

/// Runs the segments' rows through the recurrence. A row of `x` is `[q | k | v]` by heads; `ab` holds the raw a and b
/// projections of each value head at `a_offset` and `b_offset`. `out` is `[rows, v_heads · v_dim]`, row stride `ldo`.
///
/// # Panics
/// If a slice is too short, the state has another shape, or a segment names a slot or page that the state lacks (or
/// would write slot 0).
#[expect(clippy::too_many_arguments, reason = "the operands of one fused operation")]
pub fn gated_delta(
    pool: &Pool,
    x: &[f32],
    ldx: usize,
    ab: &[f32],
    ldab: usize,
    a_offset: usize,
    b_offset: usize,
    segments: &[DeltaSegment],
    args: &DeltaArgs,
    state: &mut DeltaState,
    out: &mut [f32],
    ldo: usize,
    round_bf16: bool,
) {
    let shape = Shape { k_heads: args.k_heads, v_heads: args.v_heads, k_dim: args.k_dim, v_dim: args.v_dim };
    assert_eq!(shape, state.shape, "layer and state have the same shape");
    assert!(args.a_log.len() == shape.v_heads && args.dt_bias.len() == shape.v_heads, "a decay for each value head");
    let (x_width, width) = (2 * shape.k_heads * shape.k_dim + shape.v_heads * shape.v_dim, shape.v_heads * shape.v_dim);
    for segment in segments.iter().filter(|segment| segment.rows > 0) {
        let last = segment.first_row + segment.rows - 1;
        assert!(x.len() >= last * ldx + x_width, "x holds row {last}");
        assert!(ab.len() >= last * ldab + a_offset.max(b_offset) + shape.v_heads, "ab holds row {last}");
        assert!(out.len() >= last * ldo + width && (ldo >= width || last == 0), "out holds row {last}");
        segment.check(state);
    }
    let inputs = Inputs { x, ldx, ab, ldab, a_offset, b_offset, args, shape };
    let blocks = segments.iter().map(DeltaSegment::blocks).max().unwrap_or(0);
    let isa = Isa::best();
    // Enough tasks for the threads, each of whole vectors of value dims.
    let cuts = (2 * pool.threads()).div_ceil(shape.v_heads).min(shape.v_dim.div_ceil(BLOCK)).max(1);
    let cut = shape.v_dim.div_ceil(cuts).next_multiple_of(LANES);
    let cuts = shape.v_dim.div_ceil(cut);
    let DeltaState { anchors, k, u, g, .. } = state;
    for block in 0..blocks {
        let pieces = Piece::of_block(segments, block);
        let rows: usize = pieces.iter().map(|piece| piece.rows).sum();
        let mut work = scratch::take(rows * shape.work_per_row());
        let memory = Memory {
            work: SharedMut::new(&mut work),
            rows,
            anchors: SharedMut::new(anchors),
            k: SharedMut::new(k),
            u: SharedMut::new(u),
            g: SharedMut::new(g),
            out: SharedMut::new(out),
        };
        let call = Call { inputs: &inputs, shape, pieces: &pieces, memory, ldo, round_bf16 };
        pool.run(shape.k_heads, &|head| dispatch(isa, Keys { call: &call, head }));
        pool.run(shape.v_heads * cuts, &|task| {
            let first = task % cuts * cut;
            let dims = first..shape.v_dim.min(first + cut);
            dispatch(isa, Values { call: &call, head: task / cuts, dims });
        });
    }
}

impl DeltaSegment<'_> {
    /// Blocks that the rows touch.
    fn blocks(&self) -> usize {
        if self.rows == 0 { 0 } else { (self.start % BLOCK + self.rows).div_ceil(BLOCK) }
    }

    fn check(&self, state: &DeltaState) {
        let (blocks, completed) = (self.blocks(), (self.start % BLOCK + self.rows) / BLOCK);
        let states = blocks.max(completed + 1);
        assert!(self.anchors.len() >= states, "{} anchors, {states} needed", self.anchors.len());
        assert!(self.pages.len() >= blocks, "{} open pages, {blocks} needed", self.pages.len());
        assert!(self.anchors[..states].iter().all(|&slot| (slot as usize) < state.anchor_slots), "an anchor outside");
        assert!(self.anchors[1..=completed].iter().all(|&slot| slot != 0), "slot 0 stays zero");
        assert!(self.pages[..blocks].iter().all(|&page| (page as usize) < state.open_pages), "an open page outside");
    }
}

impl Shape {
    /// Scratch of a row: per key head q, k, and their products with the block's keys; per value head β.
    fn work_per_row(&self) -> usize {
        self.k_heads * (2 * self.k_dim + 2 * BLOCK) + self.v_heads
    }
}

struct Inputs<'a> {
    x: &'a [f32],
    ldx: usize,
    ab: &'a [f32],
    ldab: usize,
    a_offset: usize,
    b_offset: usize,
    args: &'a DeltaArgs<'a>,
    shape: Shape,
}

/// The rows of one segment in one block.
struct Piece {
    /// First row in the step.
    row: usize,
    rows: usize,
    /// First row in the scratch of this block.
    work: usize,
    /// First row in the block.
    t: usize,
    page: usize,
    anchor: usize,
    /// Where the state goes if these rows complete the block.
    fold: Option<usize>,
}

impl Piece {
    /// The rows of every segment in its `block`-th block.
    fn of_block(segments: &[DeltaSegment], block: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut work = 0;
        for segment in segments.iter().filter(|segment| block < segment.blocks()) {
            let before = (block * BLOCK).saturating_sub(segment.start % BLOCK);
            let t = if block == 0 { segment.start % BLOCK } else { 0 };
            let rows = (segment.rows - before).min(BLOCK - t);
            pieces.push(Piece {
                row: segment.first_row + before,
                rows,
                work,
                t,
                page: segment.pages[block] as usize,
                anchor: segment.anchors[block] as usize,
                fold: (t + rows == BLOCK).then(|| segment.anchors[block + 1] as usize),
            });
            work += rows;
        }
        pieces
    }
}

struct Memory<'a> {
    work: SharedMut<'a, f32>,
    rows: usize,
    anchors: SharedMut<'a, f32>,
    k: SharedMut<'a, f32>,
    u: SharedMut<'a, f32>,
    g: SharedMut<'a, f32>,
    out: SharedMut<'a, f32>,
}

struct Call<'a> {
    inputs: &'a Inputs<'a>,
    shape: Shape,
    pieces: &'a [Piece],
    memory: Memory<'a>,
    ldo: usize,
    round_bf16: bool,
}

/// Pointers into scratch and pages. The first stage writes them (one task per key head), the second reads.
impl Call<'_> {
    /// `[row][q, k][k_dim]` of a key head.
    ///
    /// # Safety
    /// As [`SharedMut::at`].
    #[inline(always)]
    unsafe fn qk(&self, head: usize, piece: &Piece) -> *mut f32 {
        let row = 2 * self.shape.k_dim;
        // SAFETY: the caller's promise.
        unsafe { self.memory.work.at((head * self.memory.rows + piece.work) * row, piece.rows * row) }
    }

    /// `[row][q, k][64]`: products of a row's q and k with the block's keys.
    ///
    /// # Safety
    /// As [`SharedMut::at`].
    #[inline(always)]
    unsafe fn dots(&self, head: usize, piece: &Piece) -> *mut f32 {
        let before = self.shape.k_heads * self.memory.rows * 2 * self.shape.k_dim;
        let row = 2 * BLOCK;
        // SAFETY: the caller's promise.
        unsafe { self.memory.work.at(before + (head * self.memory.rows + piece.work) * row, piece.rows * row) }
    }

    /// `[row]` of β of a value head.
    ///
    /// # Safety
    /// As [`SharedMut::at`].
    #[inline(always)]
    unsafe fn beta(&self, head: usize, piece: &Piece) -> *mut f32 {
        let before = self.shape.k_heads * self.memory.rows * 2 * (self.shape.k_dim + BLOCK);
        // SAFETY: the caller's promise.
        unsafe { self.memory.work.at(before + head * self.memory.rows + piece.work, piece.rows) }
    }

    /// `[k_dim][64]` of a page and key head.
    ///
    /// # Safety
    /// As [`SharedMut::at`].
    #[inline(always)]
    unsafe fn keys(&self, head: usize, piece: &Piece) -> *mut f32 {
        let len = self.shape.k_dim * BLOCK;
        // SAFETY: the caller's promise.
        unsafe { self.memory.k.at((piece.page * self.shape.k_heads + head) * len, len) }
    }

    /// `[64]` of a page and value head.
    ///
    /// # Safety
    /// As [`SharedMut::at`].
    #[inline(always)]
    unsafe fn decays(&self, head: usize, piece: &Piece) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.memory.g.at((piece.page * self.shape.v_heads + head) * BLOCK, BLOCK) }
    }

    /// `[k_dim][v_dim]` of an anchor and value head.
    ///
    /// # Safety
    /// As [`SharedMut::at`].
    #[inline(always)]
    unsafe fn anchor(&self, head: usize, slot: usize) -> *mut f32 {
        let len = self.shape.k_dim * self.shape.v_dim;
        // SAFETY: the caller's promise.
        unsafe { self.memory.anchors.at((slot * self.shape.v_heads + head) * len, len) }
    }
}

/// Stage one of a key head: q, k, decays, β, and the products with the block's keys.
struct Keys<'a> {
    call: &'a Call<'a>,
    head: usize,
}

impl Kernel for Keys<'_> {
    #[inline(always)]
    fn run<V: F32x16>(self) {
        let shape = self.call.shape;
        let group = shape.v_heads / shape.k_heads;
        for piece in self.call.pieces {
            self.normalise::<V>(piece);
            for head in self.head * group..(self.head + 1) * group {
                self.decay::<V>(piece, head);
            }
            let known = (piece.t + piece.rows).next_multiple_of(LANES);
            // SAFETY: one task per key head; `dots` is 2·rows × 64 of which `known` columns are summed, `qk` 2·rows ×
            // k_dim, `keys` k_dim × 64.
            unsafe {
                let dots = self.call.dots(self.head, piece);
                std::ptr::write_bytes(dots, 0, piece.rows * 2 * BLOCK);
                accumulate::<V, f32>(
                    [2 * piece.rows, known, shape.k_dim],
                    Rows::new(self.call.qk(self.head, piece), shape.k_dim),
                    Rows::new(self.call.keys(self.head, piece), BLOCK),
                    Rows::new_mut(dots, BLOCK),
                    self.call.keys(self.head, piece),
                );
            }
        }
    }
}

impl Keys<'_> {
    /// `q̂ = (q · 1/√(Σq² + eps)) · k_dim^−½` and `k̂` without the last factor, to the scratch; k̂ to the page.
    #[inline(always)]
    fn normalise<V: F32x16>(&self, piece: &Piece) {
        let Inputs { x, ldx, args, shape, .. } = *self.call.inputs;
        let dim = shape.k_dim;
        for row in 0..piece.rows {
            for key in 0..2 {
                let at = (piece.row + row) * ldx + (key * shape.k_heads + self.head) * dim;
                let from = &x[at..at + dim];
                // SAFETY: one task per key head; `from` holds `dim` values, the scratch a row of 2·dim.
                unsafe {
                    let to = self.call.qk(self.head, piece).add((2 * row + key) * dim);
                    let inverse = V::splat(1.0 / (sum_squares::<V>(from.as_ptr(), dim) + args.eps).sqrt());
                    let scale = V::splat(1.0 / (dim as f32).sqrt());
                    for i in (0..dim).step_by(LANES) {
                        let lanes = LANES.min(dim - i);
                        let mut value = V::load_part(from.as_ptr().add(i), lanes).mul(inverse);
                        if key == 0 {
                            value = value.mul(scale);
                        }
                        value.store_part(to.add(i), lanes);
                    }
                    if key == 1 {
                        let keys = self.call.keys(self.head, piece);
                        for d in 0..dim {
                            *keys.add(d * BLOCK + piece.t + row) = *to.add(d);
                        }
                    }
                }
            }
        }
    }

    /// β to the scratch and the running log-decay to the page.
    #[inline(always)]
    fn decay<V: F32x16>(&self, piece: &Piece, head: usize) {
        let Inputs { ab, ldab, a_offset, b_offset, args, .. } = *self.call.inputs;
        // SAFETY: one task per key head, hence per value head of its group.
        let (beta, decays) = unsafe { (self.call.beta(head, piece), self.call.decays(head, piece)) };
        let rate = V::splat(0.0).sub(exp(V::splat(args.a_log[head])));
        // SAFETY: `t < 64` rows of decays, `rows` of β.
        let mut total = V::splat(if piece.t == 0 { 0.0 } else { unsafe { *decays.add(piece.t - 1) } });
        for row in 0..piece.rows {
            let at = (piece.row + row) * ldab + head;
            let step = rate.mul(softplus(V::splat(ab[at + a_offset] + args.dt_bias[head])));
            total = total.add(step);
            // SAFETY: as above.
            unsafe {
                total.store_part(decays.add(piece.t + row), 1);
                sigmoid(V::splat(ab[at + b_offset])).store_part(beta.add(row), 1);
            }
        }
    }
}

/// Stage two of a value head and some of its dims: u, o, and the anchor.
struct Values<'a> {
    call: &'a Call<'a>,
    head: usize,
    dims: std::ops::Range<usize>,
}

impl Kernel for Values<'_> {
    #[inline(always)]
    fn run<V: F32x16>(self) {
        let width = self.dims.len();
        for piece in self.call.pieces {
            // Products with the anchor `[row][q, k][width]`, then coefficients of the same shape with 64 columns.
            let rows = 2 * piece.rows;
            let mut memory = scratch::take(rows * (width + BLOCK));
            let (sums, coefficients) = memory.split_at_mut(rows * width);
            self.read_anchor::<V>(piece, sums, coefficients);
            for first in (0..piece.rows).step_by(ROWS) {
                self.solve::<V>(piece, first..piece.rows.min(first + ROWS), sums, coefficients);
            }
            self.store::<V>(piece, sums);
            if let Some(slot) = piece.fold {
                self.fold::<V>(piece, slot);
            }
        }
    }
}

impl Values<'_> {
    #[inline(always)]
    fn key_head(&self) -> usize {
        self.head / (self.call.shape.v_heads / self.call.shape.k_heads)
    }

    /// This task's columns of the block's u rows, stride v_dim.
    ///
    /// # Safety
    /// As [`SharedMut::at`]: the columns belong to this task.
    #[inline(always)]
    unsafe fn u(&self, piece: &Piece) -> *mut f32 {
        let len = self.call.shape.v_dim * BLOCK;
        let at = (piece.page * self.call.shape.v_heads + self.head) * len;
        // SAFETY: the caller's promise.
        unsafe { self.call.memory.u.at(at, len).add(self.dims.start) }
    }

    /// `e^{G_t} Sᵀq_t` and `e^{G_t} Sᵀk_t`, and the coefficients `e^{G_t−G_j} (k_j·q_t)` and `… (k_j·k_t)`.
    #[inline(always)]
    fn read_anchor<V: F32x16>(&self, piece: &Piece, sums: &mut [f32], coefficients: &mut [f32]) {
        let (shape, width) = (self.call.shape, self.dims.len());
        sums.fill(0.0);
        // SAFETY: stage one has ended, so scratch and decays are only read; `sums` is 2·rows × width, the anchor's
        // columns belong to this task.
        unsafe {
            // The products with the zero state are zeros.
            if piece.anchor != 0 {
                accumulate::<V, f32>(
                    [2 * piece.rows, width, shape.k_dim],
                    Rows::new(self.call.qk(self.key_head(), piece), shape.k_dim),
                    Rows::new(self.call.anchor(self.head, piece.anchor).add(self.dims.start), shape.v_dim),
                    Rows::new_mut(sums.as_mut_ptr(), width),
                    self.call.anchor(self.head, piece.anchor),
                );
            }
            let decays = self.call.decays(self.head, piece);
            let dots = self.call.dots(self.key_head(), piece);
            for row in 0..piece.rows {
                let t = piece.t + row;
                let total = V::splat(*decays.add(t));
                let decay = exp(total);
                for sums in sums[2 * row * width..2 * (row + 1) * width].chunks_mut(LANES) {
                    let scaled = V::load_part(sums.as_ptr(), sums.len()).mul(decay);
                    scaled.store_part(sums.as_mut_ptr(), sums.len());
                }
                for j in (0..=t).step_by(LANES) {
                    let factor = exp(total.sub(V::load(decays.add(j))));
                    for qk in 0..2 {
                        let at = (2 * row + qk) * BLOCK + j;
                        factor.mul(V::load(dots.add(at))).store(coefficients[at..at + LANES].as_mut_ptr());
                    }
                }
            }
        }
    }

    /// u and o of some rows: first the part of earlier rows, for all together, then the rows among themselves.
    #[inline(always)]
    fn solve<V: F32x16>(&self, piece: &Piece, rows: std::ops::Range<usize>, sums: &mut [f32], coefficients: &[f32]) {
        let (shape, width) = (self.call.shape, self.dims.len());
        let begin = piece.t + rows.start;
        // SAFETY: `sums` is 2·rows × width and `coefficients` 2·rows × 64 with rows of q and k in turn; the u columns
        // belong to this task; row t reads u of rows below t (and o at t) only.
        unsafe {
            let u = self.u(piece);
            let sums = sums.as_mut_ptr();
            let sum = |row: usize, qk: usize| sums.add((2 * row + qk) * width);
            let coefficient = |row: usize, qk: usize| coefficients.as_ptr().add((2 * row + qk) * BLOCK);
            accumulate::<V, f32>(
                [2 * rows.len(), width, begin],
                Rows::new(coefficient(rows.start, 0), BLOCK),
                Rows::new(u, shape.v_dim),
                Rows::new_mut(sum(rows.start, 0), width),
                u,
            );
            for row in rows.clone() {
                let t = piece.t + row;
                let among = |qk: usize, depth: usize| {
                    (
                        [1, width, depth],
                        Rows::new(coefficient(row, qk).add(begin), BLOCK),
                        Rows::new(u.add(begin * shape.v_dim).cast_const(), shape.v_dim),
                        Rows::new_mut(sum(row, qk), width),
                    )
                };
                let (size, a, b, c) = among(1, t - begin);
                accumulate::<V, f32>(size, a, b, c, u);
                let at = (piece.row + row) * self.call.inputs.ldx + 2 * shape.k_heads * shape.k_dim;
                let v = &self.call.inputs.x[at + self.head * shape.v_dim + self.dims.start..][..width];
                let beta = V::splat(*self.call.beta(self.head, piece).add(row));
                for i in (0..width).step_by(LANES) {
                    let lanes = LANES.min(width - i);
                    let expected = V::load_part(sum(row, 1).add(i), lanes);
                    let error = V::load_part(v.as_ptr().add(i), lanes).sub(expected);
                    beta.mul(error).store_part(u.add(t * shape.v_dim + i), lanes);
                }
                let (size, a, b, c) = among(0, t + 1 - begin);
                accumulate::<V, f32>(size, a, b, c, u);
            }
        }
    }

    #[inline(always)]
    fn store<V: F32x16>(&self, piece: &Piece, sums: &[f32]) {
        let (shape, width) = (self.call.shape, self.dims.len());
        for row in 0..piece.rows {
            let from = &sums[2 * row * width..][..width];
            let at = (piece.row + row) * self.call.ldo + self.head * shape.v_dim + self.dims.start;
            // SAFETY: these dims of the row belong to this task.
            let to = unsafe { self.call.memory.out.slice(at, width) };
            for (to, from) in to.chunks_mut(LANES).zip(from.chunks(LANES)) {
                // SAFETY: both chunks hold `to.len()` values.
                unsafe {
                    let mut value = V::load_part(from.as_ptr(), to.len());
                    if self.call.round_bf16 {
                        value = value.round_bf16();
                    }
                    value.store_part(to.as_mut_ptr(), to.len());
                }
            }
        }
    }

    /// The state after a completed block, to `slot`.
    #[inline(always)]
    fn fold<V: F32x16>(&self, piece: &Piece, slot: usize) {
        let (shape, width) = (self.call.shape, self.dims.len());
        let mut weighted = scratch::take(shape.k_dim * BLOCK);
        // SAFETY: stage one has ended, so keys and decays are only read; anchor and u columns belong to this task;
        // `weighted` is k_dim × 64.
        unsafe {
            let (keys, decays) = (self.call.keys(self.key_head(), piece), self.call.decays(self.head, piece));
            let total = V::splat(*decays.add(BLOCK - 1));
            for j in (0..BLOCK).step_by(LANES) {
                let factor = exp(total.sub(V::load(decays.add(j))));
                for d in 0..shape.k_dim {
                    let at = d * BLOCK + j;
                    factor.mul(V::load(keys.add(at))).store(weighted[at..at + LANES].as_mut_ptr());
                }
            }
            let decay = exp(total);
            let from = self.call.anchor(self.head, piece.anchor).add(self.dims.start);
            let to = self.call.anchor(self.head, slot).add(self.dims.start);
            for d in 0..shape.k_dim {
                for i in (0..width).step_by(LANES) {
                    let (at, lanes) = (d * shape.v_dim + i, LANES.min(width - i));
                    V::load_part(from.add(at), lanes).mul(decay).store_part(to.add(at), lanes);
                }
            }
            accumulate::<V, f32>(
                [shape.k_dim, width, BLOCK],
                Rows::new(weighted.as_ptr(), BLOCK),
                Rows::new(self.u(piece), shape.v_dim),
                Rows::new_mut(to, shape.v_dim),
                self.u(piece),
            );
        }
    }
}
