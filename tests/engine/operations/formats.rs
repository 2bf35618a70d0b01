//! Number formats and parameters, decoded independently of the engine: what the references compute with.

use crate::random::Rng;
use atlas_engine::weights::{RawData, RawMatrix, RawParam};
use atlas_kernels::{Dense, KvDtype};

/// To the nearest bf16 value, ties to even. For finite values.
pub(crate) fn bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    let even = (bits >> 16) & 1;
    f32::from_bits(bits.wrapping_add(0x7fff + even) & 0xffff_0000)
}

/// The value of an E4M3 byte that is not NaN.
pub(crate) fn e4m3(byte: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f64::from(byte & 7));
    let magnitude = match exponent {
        0 => mantissa / 8.0 * 2f64.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// To the nearest E4M3 value, ties to even; what is too large becomes ±448.
pub(crate) fn to_e4m3(value: f64) -> f64 {
    let exponent = value.abs().log2().floor().max(-6.0);
    let unit = 2f64.powf(exponent - 3.0);
    ((value / unit).round_ties_even() * unit).clamp(-448.0, 448.0)
}

fn e2m1(nibble: u8) -> f64 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(nibble & 7)];
    if nibble & 8 == 0 { magnitude } else { -magnitude }
}

/// What a cache of `dtype` gives back for `value`; only fp8 has a scale.
pub(crate) fn cached(dtype: KvDtype, value: f32, scale: f32) -> f64 {
    match dtype {
        KvDtype::F32 => f64::from(value),
        KvDtype::Bf16 => f64::from(bf16(value)),
        KvDtype::Fp8 => to_e4m3(f64::from(value * (1.0 / scale))) * f64::from(scale),
    }
}

/// How the weight of a projection is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Bf16,
    Nvfp4,
}

/// Random bf16 values of about `gain`, which depends on the column.
pub(crate) fn random_bf16(rng: &mut Rng, n: usize, k: usize, gain: impl Fn(usize) -> f32) -> RawParam {
    let mut bytes = Vec::with_capacity(2 * n * k);
    for at in 0..n * k {
        bytes.extend(&bf16(gain(at % k) * rng.normal()).to_le_bytes()[2..]);
    }
    RawParam::Matrix(RawMatrix { n, k, data: RawData::Dense(Dense::Bf16, bytes) })
}

/// Random codes; most block scales are near one, a few are anything that is no NaN.
pub(crate) fn random_nvfp4(rng: &mut Rng, n: usize, k: usize, gain: f32) -> RawParam {
    let packed = (0..n * k / 2).map(|_| rng.next() as u8).collect();
    let any = |rng: &mut Rng| rng.between(0, 0x7e) | rng.pick(&[0, 0x80]);
    let scale = |rng: &mut Rng| if rng.one_in(16) { any(rng) } else { rng.between(0x34, 0x3f) } as u8;
    let scales = (0..n * k / 16).map(|_| scale(rng)).collect();
    let global = 0.3 * gain * (1.0 + 0.5 * rng.unit());
    RawParam::Matrix(RawMatrix { n, k, data: RawData::Nvfp4 { packed, scales, global } })
}

/// All elements of a matrix, row-major and exact.
pub(crate) fn elements(param: &RawParam) -> Vec<f64> {
    let RawParam::Matrix(matrix) = param else { panic!("a vector has no rows") };
    match &matrix.data {
        RawData::Dense(Dense::F32, bytes) => {
            bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect()
        }
        RawData::Dense(Dense::F16, bytes) => {
            bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f64()).collect()
        }
        RawData::Dense(Dense::Bf16, bytes) => {
            let widen = |b: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
            bytes.chunks_exact(2).map(|b| f64::from(widen(b))).collect()
        }
        RawData::Nvfp4 { packed, scales, global } => (0..matrix.n * matrix.k)
            .map(|at| e2m1(packed[at / 2] >> (4 * (at % 2))) * e4m3(scales[at / 16]) * f64::from(*global))
            .collect(),
    }
}

pub(crate) fn vector(param: &RawParam) -> &[f32] {
    match param {
        RawParam::Vector(values) => values,
        RawParam::Matrix(_) => panic!("a matrix is no vector"),
    }
}

#[test]
fn e4m3_is_rounded_to_the_nearest_value() {
    let all: Vec<f64> = (0..=0x7e).map(e4m3).collect();
    assert!(all.iter().all(|value| to_e4m3(*value) == *value && to_e4m3(-value) == -value));
    for pair in all.windows(2) {
        let middle = (pair[0] + pair[1]) / 2.0;
        assert_eq!((to_e4m3(middle * 0.999), to_e4m3(middle * 1.001)), (pair[0], pair[1]));
    }
    assert_eq!((to_e4m3(17.0), to_e4m3(19.0), to_e4m3(1e6)), (16.0, 20.0, 448.0));
}
