//! Seeded random weights of any configuration, for benchmarks without a checkpoint.

use super::raw::{RawData, RawMatrix, RawParam};
use crate::config::WeightFormat;
use crate::config::spec::{ParamShape, ParamSpec};
use atlas_kernels::Dense;

/// The global scale that gives an NVFP4 matrix of `k` inputs unit gain for unit inputs.
pub fn nvfp4_global(k: usize) -> f32 {
    0.25 / (k as f32).sqrt()
}

/// A parameter in its declared format. Values are small enough that activations stay finite.
pub fn param(param: &ParamSpec, seed: u64) -> RawParam {
    let mut noise = Noise((seed ^ 0x9e37_79b9_7f4a_7c15).max(1));
    match param.shape {
        ParamShape::Linear { n, k } if param.format == WeightFormat::Nvfp4 => {
            let mut packed = vec![0; n * k / 2];
            noise.fill(&mut packed);
            // Block scales of 1 to 1.875 in E4M3.
            let mut scales = vec![0; n * k / 16];
            noise.fill(&mut scales);
            scales.iter_mut().for_each(|scale| *scale = 0x38 | (*scale & 7));
            RawParam::Matrix(RawMatrix { n, k, data: RawData::Nvfp4 { packed, scales, global: nvfp4_global(k) } })
        }
        ParamShape::Linear { n, k } | ParamShape::Table { rows: n, width: k } => {
            let gain = (k as f32).powf(-0.5);
            let (dtype, bytes) = match param.format {
                WeightFormat::F32 => (Dense::F32, noise.bytes(n * k, gain, |x| x.to_le_bytes())),
                WeightFormat::F16 => (Dense::F16, noise.bytes(n * k, gain, |x| half::f16::from_f32(x).to_le_bytes())),
                WeightFormat::Bf16 | WeightFormat::Nvfp4 => {
                    (Dense::Bf16, noise.bytes(n * k, gain, |x| half::bf16::from_f32(x).to_le_bytes()))
                }
            };
            RawParam::Matrix(RawMatrix { n, k, data: RawData::Dense(dtype, bytes) })
        }
        shape @ (ParamShape::Vector { .. } | ParamShape::Conv { .. }) => {
            RawParam::Vector((0..shape.elements()).map(|_| 0.5 * noise.unit()).collect())
        }
    }
}

/// A small counter-free generator (xorshift64*); quality does not matter here, speed and repeatability do.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Uniform in -1..1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    fn bytes<const N: usize>(&mut self, count: usize, gain: f32, encode: impl Fn(f32) -> [u8; N]) -> Vec<u8> {
        (0..count).flat_map(|_| encode(gain * self.unit())).collect()
    }
}
