//! Elementary functions on vectors, and the element-wise operations built on them.
//!
//! Every function is a fixed sequence of correctly rounded f32 operations, so it has the same bits on every
//! instruction set; errors against f64 are a few ulp (tested over the whole range). Sine and cosine for rotary angles
//! are scalar and in f64, for an angle of 100 000 rad leaves no room in f32.

use crate::simd::F32x16;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 cut to 15 bits, so that its product with an integral exponent is exact.
const LN2_HIGH: f32 = 0.693_145_75;
/// ln 2 − LN2_HIGH.
const LN2_LOW: f32 = 1.428_606_8e-6;

/// eˣ: x = n·ln 2 + r, Taylor of eʳ to degree 7 (|r| ≤ 0.347), times 2ⁿ.
#[inline(always)]
pub(crate) fn exp<V: F32x16>(x: V) -> V {
    // Constant first: a NaN in x survives the clamp.
    let x = V::splat(-104.0).max(V::splat(89.0).min(x));
    let n = x.mul(V::splat(LOG2_E)).round();
    let r = n.fma(V::splat(-LN2_HIGH), x);
    let r = n.fma(V::splat(-LN2_LOW), r);
    let mut p = V::splat(1.0 / 5040.0);
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p.fma(r, V::splat(coefficient));
    }
    p.scale2(n)
}

/// 1 / (1 + e⁻ˣ), from e^−|x| so that both ends keep their relative accuracy.
#[inline(always)]
pub(crate) fn sigmoid<V: F32x16>(x: V) -> V {
    let one = V::splat(1.0);
    let e = exp(V::splat(0.0).sub(x.abs()));
    x.select_lt(V::splat(0.0), e, one).div(one.add(e))
}

/// x · sigmoid(x); −∞ gives −0.
#[inline(always)]
pub(crate) fn silu<V: F32x16>(x: V) -> V {
    V::splat(-1000.0).max(x).mul(sigmoid(x))
}

/// ln(1 + eˣ), and x itself above 20 as torch has it.
#[inline(always)]
pub(crate) fn softplus<V: F32x16>(x: V) -> V {
    let e = exp(V::splat(0.0).sub(x.abs()));
    // ln(1 + e) = 2·atanh(s) with s = e / (2 + e) ≤ 1/3, by its Taylor series.
    let s = e.div(V::splat(2.0).add(e));
    let z = s.mul(s);
    let mut p = V::splat(1.0 / 17.0);
    for coefficient in [1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0] {
        p = p.fma(z, V::splat(coefficient));
    }
    let twice = s.add(s);
    let log = twice.mul(z).fma(p, twice);
    let value = log.add(V::splat(0.0).max(x));
    V::splat(20.0).select_lt(x, x, value)
}

/// Hyperbolic tangent: an odd series near zero, (1 − e^−2|x|) / (1 + e^−2|x|) elsewhere.
#[inline(always)]
pub(crate) fn tanh<V: F32x16>(x: V) -> V {
    let magnitude = x.abs();
    let z = x.mul(x);
    let mut p = V::splat(-1382.0 / 155_925.0);
    for coefficient in [62.0 / 2835.0, -17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0] {
        p = p.fma(z, V::splat(coefficient));
    }
    let small = magnitude.mul(z).fma(p, magnitude);
    let one = V::splat(1.0);
    let e = exp(magnitude.mul(V::splat(-2.0)));
    let large = one.sub(e).div(one.add(e));
    magnitude.select_lt(V::splat(0.3), small, large).copysign(x)
}

/// π/2 in four parts of 21 bits and a rest: the product of a part with a 32-bit integer is exact in f64.
const HALF_PI: [f64; 5] = [
    1.570_796_012_878_418,
    3.139_164_164_167_596e-7,
    6.223_369_259_164_557e-14,
    2.912_730_411_467_662_5e-20,
    1.644_625_693_632_425_8e-26,
];

/// Sine and cosine of `angle`, 0 ≤ angle < 2³², in f64: reduction by π/2, then Taylor on |r| ≤ π/4.
pub(crate) fn sin_cos(angle: f64) -> (f64, f64) {
    let n = (angle * std::f64::consts::FRAC_2_PI).round_ties_even();
    let r = HALF_PI.iter().fold(angle, |r, part| r - n * part);
    let z = r * r;
    // 1/k! alternating, highest first: sin to r¹⁷, cos to r¹⁸.
    let series = |first: u32, last: u32| {
        let mut k = last;
        let mut p = 1.0;
        while k > first {
            p = 1.0 - p * z / f64::from(k * (k - 1));
            k -= 2;
        }
        p
    };
    let (sin, cos) = (r * series(1, 17), series(0, 18));
    match n as i64 & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}
