//! Elementary functions against f64.

use super::{Random, assert_bits, each_isa, reference};
use crate::math::{self, sin_cos};
use crate::simd::{F32x16, Isa, Kernel, LANES, dispatch};

/// Distance of `got` from `exact` in units in the last place of `exact` (of the smallest subnormal at least).
fn ulps(got: f32, exact: f64) -> f64 {
    let nearest = exact as f32;
    // Near the end of the range a factor of silu is subnormal and short of bits itself.
    let vanishing = exact.abs() < 1e-36 && (f64::from(got) - exact).abs() < 1e-42;
    if got == nearest || vanishing || (got.is_nan() && nearest.is_nan()) {
        return 0.0;
    }
    let magnitude = nearest.abs().clamp(f32::MIN_POSITIVE, f32::MAX);
    let ulp = f64::from(f32::from_bits(magnitude.to_bits() + 1)) - f64::from(magnitude);
    (f64::from(got) - exact).abs() / if ulp.is_finite() { ulp } else { f64::from(f32::MAX) * 2.0_f64.powi(-23) }
}

/// Every exponent and sign with pseudo-random mantissas, a dense grid where the functions bend, and the specials.
fn arguments() -> Vec<f32> {
    let mut random = Random::new(7);
    let mut all = vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, f32::MIN_POSITIVE];
    all.extend([
        f32::from_bits(1),
        -f32::from_bits(1),
        88.722_84,
        88.722_83,
        -87.336_5,
        -103.97,
        -103.98,
        20.0,
        20.000_002,
    ]);
    for exponent in 0..255_u32 {
        for _ in 0..64 {
            all.push(f32::from_bits(exponent << 23 | random.bits() as u32 & 0x807f_ffff));
        }
    }
    all.extend((-420_000..=360_000).map(|i| i as f32 / 4000.0));
    all
}

#[test]
fn functions_are_within_a_few_ulps_of_f64() {
    type Pair = (&'static str, fn(f32) -> f32, fn(f64) -> f64, f64);
    let functions: [Pair; 5] = [
        ("exp", reference::exp, f64::exp, 1.1),
        (
            "sigmoid",
            reference::sigmoid,
            |x| if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) },
            2.5,
        ),
        ("silu", reference::silu, |x| if x == f64::NEG_INFINITY { -0.0 } else { x / (1.0 + (-x).exp()) }, 3.5),
        ("softplus", reference::softplus, |x| if x > 20.0 { x } else { x.exp().ln_1p() }, 3.0),
        ("tanh", reference::tanh, f64::tanh, 3.0),
    ];
    for (name, function, exact, bound) in functions {
        let worst = arguments().into_iter().map(|x| (ulps(function(x), exact(f64::from(x))), x));
        let (worst, at) = worst.fold((0.0, 0.0), |a, b| if b.0 > a.0 || b.0.is_nan() { b } else { a });
        assert!(worst <= bound, "{name}({at:e}) is {} instead of {}: {worst} ulp", function(at), exact(f64::from(at)));
    }
}

#[test]
fn special_values() {
    assert_eq!(reference::exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(reference::exp(f32::INFINITY), f32::INFINITY);
    assert_eq!(reference::exp(0.0), 1.0);
    assert_eq!(reference::sigmoid(f32::NEG_INFINITY), 0.0);
    assert_eq!(reference::silu(f32::INFINITY), f32::INFINITY);
    assert_eq!(reference::softplus(f32::INFINITY), f32::INFINITY);
    assert_eq!(reference::tanh(f32::NEG_INFINITY), -1.0);
    assert_bits(&[reference::tanh(-0.0)], &[-0.0], "tanh keeps the sign of zero");
    for function in [reference::exp, reference::sigmoid, reference::silu, reference::softplus, reference::tanh] {
        assert!(function(f32::NAN).is_nan());
    }
}

#[test]
fn instruction_sets_agree() {
    struct All<'a> {
        x: [f32; LANES],
        out: &'a mut [[f32; LANES]; 7],
    }
    impl Kernel for All<'_> {
        #[inline(always)]
        fn run<V: F32x16>(self) {
            // SAFETY: arrays of sixteen.
            unsafe {
                let x = V::load(self.x.as_ptr());
                math::exp(x).store(self.out[0].as_mut_ptr());
                math::sigmoid(x).store(self.out[1].as_mut_ptr());
                math::silu(x).store(self.out[2].as_mut_ptr());
                math::softplus(x).store(self.out[3].as_mut_ptr());
                math::tanh(x).store(self.out[4].as_mut_ptr());
                x.round_bf16().store(self.out[5].as_mut_ptr());
                self.out[6][0] = x.sum();
            }
        }
    }
    for x in arguments().chunks_exact(LANES) {
        let x = std::array::from_fn(|i| x[i]);
        let run = |isa| {
            let mut out = [[0.0; LANES]; 7];
            dispatch(isa, All { x, out: &mut out });
            out
        };
        let expected = run(Isa::Portable);
        let bf16 = x.map(|x| half::bf16::from_f32(x).to_f32());
        assert_bits(&expected[5], &bf16, "round_bf16");
        each_isa(|isa| {
            let got = run(Isa::best());
            for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert_bits(got, expected, &format!("function {i} on {isa}"));
            }
        });
    }
}

#[test]
fn sine_and_cosine_of_large_angles() {
    let mut random = Random::new(8);
    for i in 0..200_000 {
        let range = [1.0, 100.0, 1e4, 1e6, 4e9][i % 5];
        let angle = f64::from(random.value().abs() * range);
        let (sin, cos) = sin_cos(angle);
        let error = (sin - angle.sin()).abs().max((cos - angle.cos()).abs());
        assert!(error < 4e-16, "angle {angle}: error {error:e}");
    }
    assert_eq!(sin_cos(0.0), (0.0, 1.0));
}
