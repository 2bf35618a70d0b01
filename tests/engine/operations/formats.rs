//! Number formats and parameters, independent of the engine's: what the references compute with.

use crate::random::Rng;
use atlas_engine::weights::Param;
use atlas_kernels::{Dense, KvDtype, PackedMatrix};

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

fn e2m1(nibble: u8) -> f64 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(nibble & 7)];
    if nibble & 8 == 0 { magnitude } else { -magnitude }
}

/// What a cache of `dtype` gives back for `value`.
pub(crate) fn cached(dtype: KvDtype, value: f32) -> f64 {
    match dtype {
        KvDtype::F32 => f64::from(value),
        KvDtype::Bf16 => f64::from(bf16(value)),
    }
}

/// How the weight of a projection is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Dense(Dense),
    Nvfp4,
}

/// A parameter as a checkpoint stores it.
pub(crate) enum Raw {
    Dense { dtype: Dense, n: usize, k: usize, values: Vec<f32> },
    Nvfp4 { n: usize, k: usize, packed: Vec<u8>, scales: Vec<u8>, global: f32 },
    Vector(Vec<f32>),
}

impl Raw {
    /// Random values of about `gain`, representable in `dtype`.
    pub(crate) fn dense(rng: &mut Rng, dtype: Dense, n: usize, k: usize, gain: f32) -> Self {
        let round = |value: f32| match dtype {
            Dense::F32 => value,
            Dense::F16 => half::f16::from_f32(value).to_f32(),
            Dense::Bf16 => bf16(value),
        };
        Self::Dense { dtype, n, k, values: (0..n * k).map(|_| round(gain * rng.normal())).collect() }
    }

    /// Random codes; most block scales are near one, a few are anything that is no NaN.
    pub(crate) fn nvfp4(rng: &mut Rng, n: usize, k: usize, gain: f32) -> Self {
        let packed = (0..n * k / 2).map(|_| rng.next() as u8).collect();
        let scale = |rng: &mut Rng| if rng.one_in(16) { rng.between(0, 0x7e) } else { rng.between(0x34, 0x3f) } as u8;
        let scales = (0..n * k / 16).map(|_| scale(rng)).collect();
        Self::Nvfp4 { n, k, packed, scales, global: 0.3 * gain * (1.0 + 0.5 * rng.unit()) }
    }

    /// Element (row, column) of a matrix.
    pub(crate) fn at(&self, row: usize, column: usize) -> f64 {
        match self {
            Self::Dense { k, values, .. } => f64::from(values[row * k + column]),
            Self::Nvfp4 { k, packed, scales, global, .. } => {
                let nibble = packed[(row * k + column) / 2] >> (4 * (column % 2));
                e2m1(nibble) * e4m3(scales[(row * k + column) / 16]) * f64::from(*global)
            }
            Self::Vector(_) => panic!("a vector has no rows"),
        }
    }

    pub(crate) fn vector(&self) -> &[f32] {
        match self {
            Self::Vector(values) => values,
            _ => panic!("a matrix is no vector"),
        }
    }

    /// The parameter as the engine's loader hands it to a backend.
    pub(crate) fn param(&self) -> Param {
        match self {
            Self::Dense { dtype, n, k, values } => {
                let bytes: Vec<u8> = match dtype {
                    Dense::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
                    Dense::F16 => values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect(),
                    Dense::Bf16 => values.iter().flat_map(|value| value.to_le_bytes()[2..].to_vec()).collect(),
                };
                Param::Matrix(PackedMatrix::from_dense(*dtype, *n, *k, &bytes))
            }
            Self::Nvfp4 { n, k, packed, scales, global } => {
                Param::Matrix(PackedMatrix::from_nvfp4(*n, *k, packed, scales, *global))
            }
            Self::Vector(values) => Param::Vector(values.clone()),
        }
    }
}
