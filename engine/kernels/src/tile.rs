//! The small matrix product behind attention and the delta rule.
//!
//! `c[r][n] ← fma(a[r][k], b[k][n], c[r][n])` for ascending k: every element is one chain, so the cut into register
//! tiles, and any cut along K, changes no bit.

#![expect(clippy::needless_range_loop, reason = "register tiles are indexed by row and column, as the formulas are")]

use crate::kv::KvElement;
use crate::simd::{F32x16, Kernel, LANES, prefetch};

/// A matrix given by its first element and the distance between rows.
#[derive(Clone, Copy)]
pub(crate) struct Rows<P> {
    pub(crate) at: P,
    pub(crate) stride: usize,
}

impl<T> Rows<*const T> {
    pub(crate) fn new(at: *const T, stride: usize) -> Self {
        Self { at, stride }
    }
}

impl<T> Rows<*mut T> {
    pub(crate) fn new_mut(at: *mut T, stride: usize) -> Self {
        Self { at, stride }
    }
}

/// Adds the product of `a` (rows × depth) and `b` (depth × cols) to `c` (rows × cols). While `b` is read, the same
/// places of the matrix at `ahead` are fetched into the cache.
///
/// # Safety
/// The three matrices are readable, `c` is writable and apart from the others.
#[inline(always)]
pub(crate) unsafe fn accumulate<V: F32x16, B: KvElement>(
    size: [usize; 3],
    a: Rows<*const f32>,
    b: Rows<*const B>,
    c: Rows<*mut f32>,
    ahead: *const B,
) {
    V::call(Product { size, a, b, c, ahead });
}

/// A call of [`accumulate`], whose caller vouches for the matrices.
struct Product<B> {
    size: [usize; 3],
    a: Rows<*const f32>,
    b: Rows<*const B>,
    c: Rows<*mut f32>,
    ahead: *const B,
}

impl<B: KvElement> Kernel for Product<B> {
    #[inline(always)]
    fn run<V: F32x16>(self) {
        const WIDTH: usize = 4 * LANES;
        let Self { size: [rows, cols, depth], a, b, c, ahead } = self;
        let mut n = 0;
        while n < cols {
            let left = cols - n;
            // SAFETY: column blocks of `b` and `c` that begin below `cols` and end at or below it, in matrices that
            // the caller of `accumulate` vouches for.
            unsafe {
                let (b, c) = (Rows { at: b.at.add(n), ..b }, Rows { at: c.at.add(n), ..c });
                let ahead = ahead.wrapping_add(n);
                if V::WIDE && left >= WIDTH {
                    panel::<V, B, 6, 4>(rows, depth, a, b, c, ahead);
                    n += WIDTH;
                } else if !V::WIDE && left >= 2 * LANES {
                    panel::<V, B, 2, 2>(rows, depth, a, b, c, ahead);
                    n += 2 * LANES;
                } else if left >= LANES {
                    panel::<V, B, 8, 1>(rows, depth, a, b, c, ahead);
                    n += LANES;
                } else {
                    narrow::<V, B>([rows, left, depth], a, b, c);
                    n = cols;
                }
            }
        }
    }
}

/// All rows of one block of C vectors of columns.
///
/// # Safety
/// As [`accumulate`].
#[inline(always)]
unsafe fn panel<V: F32x16, B: KvElement, const R: usize, const C: usize>(
    rows: usize,
    depth: usize,
    a: Rows<*const f32>,
    b: Rows<*const B>,
    c: Rows<*mut f32>,
    mut ahead: *const B,
) {
    let mut r = 0;
    while r < rows {
        // SAFETY: row blocks that end at or below `rows`.
        unsafe {
            let (a, c) = (Rows { at: a.at.add(r * a.stride), ..a }, Rows { at: c.at.add(r * c.stride), ..c });
            match rows - r {
                left if left >= R => {
                    block::<V, B, R, C>(depth, a, b, c, ahead);
                    r += R;
                }
                6.. if R > 6 => {
                    block::<V, B, 6, C>(depth, a, b, c, ahead);
                    r += 6;
                }
                4.. if R > 4 => {
                    block::<V, B, 4, C>(depth, a, b, c, ahead);
                    r += 4;
                }
                2.. if R > 2 => {
                    block::<V, B, 2, C>(depth, a, b, c, ahead);
                    r += 2;
                }
                _ => {
                    block::<V, B, 1, C>(depth, a, b, c, ahead);
                    r += 1;
                }
            }
        }
        // Once is enough; what is in the cache already costs nothing to ask for.
        ahead = b.at;
    }
}

/// R rows × C vectors in registers.
///
/// # Safety
/// As [`accumulate`].
#[inline(always)]
unsafe fn block<V: F32x16, B: KvElement, const R: usize, const C: usize>(
    depth: usize,
    a: Rows<*const f32>,
    b: Rows<*const B>,
    c: Rows<*mut f32>,
    ahead: *const B,
) {
    // SAFETY: the caller gives R rows of `a` and `c`, `depth` rows of `b`, and C vectors of columns.
    unsafe {
        let mut sum = [[V::splat(0.0); C]; R];
        for r in 0..R {
            for n in 0..C {
                sum[r][n] = V::load(c.at.add(r * c.stride + n * LANES));
            }
        }
        for k in 0..depth {
            let mut weights = [V::splat(0.0); C];
            for n in 0..C {
                weights[n] = B::load::<V>(b.at.add(k * b.stride + n * LANES));
                prefetch(ahead.wrapping_add(k * b.stride + n * LANES));
            }
            for r in 0..R {
                let x = V::splat(*a.at.add(r * a.stride + k));
                for n in 0..C {
                    sum[r][n] = x.fma(weights[n], sum[r][n]);
                }
            }
        }
        for r in 0..R {
            for n in 0..C {
                sum[r][n].store(c.at.add(r * c.stride + n * LANES));
            }
        }
    }
}

/// The last columns, fewer than a vector.
///
/// # Safety
/// As [`accumulate`].
#[inline(always)]
unsafe fn narrow<V: F32x16, B: KvElement>(
    [rows, cols, depth]: [usize; 3],
    a: Rows<*const f32>,
    b: Rows<*const B>,
    c: Rows<*mut f32>,
) {
    for r in 0..rows {
        // SAFETY: the caller's promise; loads and stores touch `cols` lanes.
        unsafe {
            let to = c.at.add(r * c.stride);
            let mut sum = V::load_part(to, cols);
            for k in 0..depth {
                let weight = B::load_part::<V>(b.at.add(k * b.stride), cols);
                sum = V::splat(*a.at.add(r * a.stride + k)).fma(weight, sum);
            }
            sum.store_part(to, cols);
        }
    }
}
