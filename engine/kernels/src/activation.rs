//! Element-wise operations: gated activations and residual sums.

use crate::math::{sigmoid, silu};
use crate::pool::Pool;
use crate::shared::SharedMut;
use crate::simd::{F32x16, Isa, Kernel, LANES, dispatch};

/// Values that a task works on.
const TASK: usize = 4096;

/// `out[r, i] = silu(gate[r, i]) · up[r, i]`, gate at columns `0..width` of `gate_up` and up at `width..2·width`.
///
/// # Panics
/// If a slice is too short for `rows` rows.
#[expect(clippy::too_many_arguments, reason = "the operands of one fused operation")]
pub fn silu_mul(
    pool: &Pool,
    gate_up: &[f32],
    ld: usize,
    rows: usize,
    width: usize,
    out: &mut [f32],
    ldo: usize,
    round_bf16: bool,
) {
    if rows == 0 || width == 0 {
        return;
    }
    assert!(gate_up.len() >= (rows - 1) * ld + 2 * width, "gate_up holds {rows} rows of 2 x {width}");
    assert!(out.len() >= (rows - 1) * ldo + width && (ldo >= width || rows == 1), "out holds {rows} rows of {width}");
    let isa = Isa::best();
    let out = SharedMut::new(out);
    spans(pool, rows, width, &|row, at, len| {
        let (gate, up) = (&gate_up[row * ld + at..][..len], &gate_up[row * ld + width + at..][..len]);
        // SAFETY: spans of (row, columns) belong to one task each.
        let out = unsafe { out.slice(row * ldo + at, len) };
        dispatch(isa, Product { function: Function::Silu, gate, factor: up.as_ptr(), out, round_bf16 });
    });
}

/// Where a row of the gate buffer has the gates of each head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GateLayout {
    /// First gate of head 0.
    pub offset: usize,
    /// From one head's gates to the next's.
    pub head_stride: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Number of heads.
    pub heads: usize,
}

/// `x[r·ldx + h·head_dim + d] *= sigmoid(gate[r·ldg + offset + h·head_stride + d])`.
///
/// # Panics
/// If a slice is too short for `rows` rows.
#[expect(clippy::too_many_arguments, reason = "the operands of one fused operation")]
pub fn sigmoid_mul(
    pool: &Pool,
    x: &mut [f32],
    ldx: usize,
    gate: &[f32],
    ldg: usize,
    layout: &GateLayout,
    rows: usize,
    round_bf16: bool,
) {
    let GateLayout { offset, head_stride, head_dim, heads } = *layout;
    let width = heads * head_dim;
    if rows == 0 || width == 0 {
        return;
    }
    assert!(x.len() >= (rows - 1) * ldx + width && (ldx >= width || rows == 1), "x holds {rows} rows of {width}");
    let gate_end = offset + (heads - 1) * head_stride + head_dim;
    assert!(gate.len() >= (rows - 1) * ldg + gate_end, "the gate holds {rows} rows of {heads} heads");
    let isa = Isa::best();
    let x = SharedMut::new(x);
    let (units, batch) = (rows * heads, (TASK / head_dim).max(1));
    pool.run(units.div_ceil(batch), &|task| {
        for unit in task * batch..units.min((task + 1) * batch) {
            let (row, head) = (unit / heads, unit % heads);
            let gate = &gate[row * ldg + offset + head * head_stride..][..head_dim];
            // SAFETY: every (row, head) belongs to one task.
            let out = unsafe { x.slice(row * ldx + head * head_dim, head_dim) };
            let factor = out.as_ptr();
            dispatch(isa, Product { function: Function::Sigmoid, gate, factor, out, round_bf16 });
        }
    });
}

/// `x[i] += y[i]` for i below `n`.
///
/// # Panics
/// If a slice holds fewer than `n` values.
pub fn add(pool: &Pool, x: &mut [f32], y: &[f32], n: usize, round_bf16: bool) {
    assert!(x.len() >= n && y.len() >= n, "{n} values to add");
    let isa = Isa::best();
    let x = SharedMut::new(x);
    spans(pool, 1, n, &|_, at, len| {
        // SAFETY: spans belong to one task each.
        let out = unsafe { x.slice(at, len) };
        dispatch(isa, Sum { out, y: &y[at..at + len], round_bf16 });
    });
}

/// Cuts rows × width values into spans of about [`TASK`] and runs `work(row, column, len)` on each.
fn spans(pool: &Pool, rows: usize, width: usize, work: &(dyn Fn(usize, usize, usize) + Sync)) {
    if width == 0 {
        return;
    }
    let span = TASK.min(width);
    let per_row = width.div_ceil(span);
    let batch = (TASK / width).max(1);
    let units = rows * per_row;
    pool.run(units.div_ceil(batch), &|task| {
        for unit in task * batch..units.min((task + 1) * batch) {
            let at = unit % per_row * span;
            work(unit / per_row, at, span.min(width - at));
        }
    });
}

#[derive(Clone, Copy)]
enum Function {
    Silu,
    Sigmoid,
}

/// `out = function(gate) · factor`; `factor` points to `out.len()` values and may be `out` itself.
struct Product<'a> {
    function: Function,
    gate: &'a [f32],
    factor: *const f32,
    out: &'a mut [f32],
    round_bf16: bool,
}

impl Kernel for Product<'_> {
    #[inline(always)]
    fn run<V: F32x16>(self) {
        let out = self.out.as_mut_ptr();
        let factors = if std::ptr::eq(self.factor, out) { out.cast_const() } else { self.factor };
        for at in (0..self.gate.len()).step_by(LANES) {
            let lanes = LANES.min(self.gate.len() - at);
            // SAFETY: gate, factor and out hold the same number of values; each step reads before it writes.
            unsafe {
                let gate = V::load_part(self.gate.as_ptr().add(at), lanes);
                let gate = match self.function {
                    Function::Silu => silu(gate),
                    Function::Sigmoid => sigmoid(gate),
                };
                let mut value = gate.mul(V::load_part(factors.add(at), lanes));
                if self.round_bf16 {
                    value = value.round_bf16();
                }
                value.store_part(out.add(at), lanes);
            }
        }
    }
}

struct Sum<'a> {
    out: &'a mut [f32],
    y: &'a [f32],
    round_bf16: bool,
}

impl Kernel for Sum<'_> {
    #[inline(always)]
    fn run<V: F32x16>(self) {
        for (out, y) in self.out.chunks_mut(LANES).zip(self.y.chunks(LANES)) {
            // SAFETY: both chunks hold `out.len()` values.
            unsafe {
                let mut value = V::load_part(out.as_ptr(), out.len()).add(V::load_part(y.as_ptr(), y.len()));
                if self.round_bf16 {
                    value = value.round_bf16();
                }
                value.store_part(out.as_mut_ptr(), out.len());
            }
        }
    }
}
