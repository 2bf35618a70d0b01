//! RMS norms.
//!
//! The sum of squares runs in four vectors of sixteen fma chains (chunk c of sixteen values goes to vector c mod 4),
//! folded as (a + b) + (c + d) and over the fixed lane tree; a last part is padded with zeros. Then
//! `y = (x · (1 / √(Σ/width + eps))) · w`.

use crate::math::{sigmoid, silu};
use crate::pool::Pool;
use crate::shared::SharedMut;
use crate::simd::{F32x16, Isa, Kernel, LANES, dispatch};

/// Values that a task works on, at least.
const TASK: usize = 4096;

/// `y = x · 1/√(mean(x²) + eps) · w` per row; w is absent, `weight`, or 1 + `weight` with `unit_offset`.
///
/// # Panics
/// If a slice is too short for `rows` rows or the weight is not `width` long.
#[expect(clippy::too_many_arguments, reason = "the operands of one fused operation")]
pub fn rms_norm(
    pool: &Pool,
    x: &[f32],
    ldx: usize,
    rows: usize,
    width: usize,
    weight: Option<&[f32]>,
    unit_offset: bool,
    eps: f32,
    out: &mut [f32],
    ldo: usize,
    round_bf16: bool,
) {
    if rows == 0 {
        return;
    }
    assert!(x.len() >= (rows - 1) * ldx + width, "x holds {rows} rows of {width}");
    assert!(out.len() >= (rows - 1) * ldo + width && (ldo >= width || rows == 1), "out holds {rows} rows of {width}");
    assert!(weight.is_none_or(|weight| weight.len() == width), "a weight for each of {width} values");
    let isa = Isa::best();
    let out = SharedMut::new(out);
    let batch = (TASK / width.max(1)).max(1);
    pool.run(rows.div_ceil(batch), &|task| {
        let rows = task * batch..rows.min((task + 1) * batch);
        dispatch(isa, Norm { x, ldx, rows, width, weight, unit_offset, eps, out, ldo, round_bf16 });
    });
}

struct Norm<'a> {
    x: &'a [f32],
    ldx: usize,
    rows: std::ops::Range<usize>,
    width: usize,
    weight: Option<&'a [f32]>,
    unit_offset: bool,
    eps: f32,
    out: SharedMut<'a, f32>,
    ldo: usize,
    round_bf16: bool,
}

impl Kernel for Norm<'_> {
    #[inline(always)]
    fn run<V: F32x16>(self) {
        for row in self.rows {
            let x = &self.x[row * self.ldx..][..self.width];
            // SAFETY: rows belong to one task each; weight and x are `width` long.
            unsafe {
                let out = self.out.at(row * self.ldo, self.width);
                normalise::<V>(x.as_ptr(), self.width, self.weight, self.unit_offset, self.eps, out, self.round_bf16);
            }
        }
    }
}

/// Σx² in the order of this module.
///
/// # Safety
/// `x` points to `width` values.
#[inline(always)]
pub(crate) unsafe fn sum_squares<V: F32x16>(x: *const f32, width: usize) -> f32 {
    let mut sums = [V::splat(0.0); 4];
    let mut at = 0;
    while at < width {
        for sum in &mut sums {
            if at >= width {
                break;
            }
            // SAFETY: `at + lanes ≤ width`.
            let x = unsafe { V::load_part(x.add(at), LANES.min(width - at)) };
            *sum = x.fma(x, *sum);
            at += LANES;
        }
    }
    sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum()
}

/// 1 / √(Σx²/width + eps).
///
/// # Safety
/// `x` points to `width` values.
#[inline(always)]
unsafe fn inverse_rms<V: F32x16>(x: *const f32, width: usize, eps: f32) -> f32 {
    // SAFETY: the caller's promise.
    1.0 / (unsafe { sum_squares::<V>(x, width) } / width as f32 + eps).sqrt()
}

/// Normalises `width` values; `out` may be `x`.
///
/// # Safety
/// `x` and `out` point to `width` values, the weight holds as many.
#[inline(always)]
pub(crate) unsafe fn normalise<V: F32x16>(
    x: *const f32,
    width: usize,
    weight: Option<&[f32]>,
    unit_offset: bool,
    eps: f32,
    out: *mut f32,
    round_bf16: bool,
) {
    // SAFETY: the caller's promise; every access touches `lanes` values that end at or below `width`.
    unsafe {
        let scale = V::splat(inverse_rms::<V>(x, width, eps));
        for at in (0..width).step_by(LANES) {
            let lanes = LANES.min(width - at);
            let mut value = V::load_part(x.add(at), lanes).mul(scale);
            if let Some(weight) = weight {
                let weight = V::load_part(weight.as_ptr().add(at), lanes);
                value = value.mul(if unit_offset { V::splat(1.0).add(weight) } else { weight });
            }
            if round_bf16 {
                value = value.round_bf16();
            }
            value.store_part(out.add(at), lanes);
        }
    }
}

/// RMS norm of each head of `x` (`[rows, heads · dim]`) times `weight` (`[dim]`), times silu (or sigmoid) of the gate
/// at `gate[row · ldg + gate_offset + head · dim ..]`.
///
/// # Panics
/// If a slice is too short for `rows` rows or the weight is not `dim` long.
#[expect(clippy::too_many_arguments, reason = "the operands of one fused operation")]
pub fn gated_rms_norm(
    pool: &Pool,
    x: &[f32],
    gate: &[f32],
    ldg: usize,
    gate_offset: usize,
    rows: usize,
    heads: usize,
    dim: usize,
    weight: &[f32],
    eps: f32,
    sigmoid_gate: bool,
    out: &mut [f32],
    ldo: usize,
    round_bf16: bool,
) {
    let width = heads * dim;
    if rows == 0 || width == 0 {
        return;
    }
    assert!(x.len() >= rows * width, "x holds {rows} rows of {width}");
    assert!(gate.len() >= (rows - 1) * ldg + gate_offset + width, "the gate holds {rows} rows of {width}");
    assert!(out.len() >= (rows - 1) * ldo + width && (ldo >= width || rows == 1), "out holds {rows} rows of {width}");
    assert_eq!(weight.len(), dim, "a weight for each value of a head");
    let isa = Isa::best();
    let out = SharedMut::new(out);
    let (units, batch) = (rows * heads, (TASK / dim).max(1));
    pool.run(units.div_ceil(batch), &|task| {
        for unit in task * batch..units.min((task + 1) * batch) {
            let (row, head) = (unit / heads, unit % heads);
            let x = &x[unit * dim..][..dim];
            let gate = &gate[row * ldg + gate_offset + head * dim..][..dim];
            // SAFETY: every (row, head) belongs to one task.
            let out = unsafe { out.slice(row * ldo + head * dim, dim) };
            dispatch(isa, GatedNorm { x, gate, weight, eps, sigmoid_gate, out, round_bf16 });
        }
    });
}

struct GatedNorm<'a> {
    x: &'a [f32],
    gate: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    sigmoid_gate: bool,
    out: &'a mut [f32],
    round_bf16: bool,
}

impl Kernel for GatedNorm<'_> {
    #[inline(always)]
    fn run<V: F32x16>(self) {
        let dim = self.x.len();
        // SAFETY: all four slices hold `dim` values.
        unsafe {
            let scale = V::splat(inverse_rms::<V>(self.x.as_ptr(), dim, self.eps));
            for at in (0..dim).step_by(LANES) {
                let lanes = LANES.min(dim - at);
                let gate = V::load_part(self.gate.as_ptr().add(at), lanes);
                let gate = if self.sigmoid_gate { sigmoid(gate) } else { silu(gate) };
                let weight = V::load_part(self.weight.as_ptr().add(at), lanes);
                let mut value = V::load_part(self.x.as_ptr().add(at), lanes).mul(scale).mul(weight).mul(gate);
                if self.round_bf16 {
                    value = value.round_bf16();
                }
                value.store_part(self.out.as_mut_ptr().add(at), lanes);
            }
        }
    }
}
