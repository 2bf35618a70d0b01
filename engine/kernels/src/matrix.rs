//! Weight matrices as they stand in memory: quantised, in panels of sixteen output rows.
//!
//! A panel holds K-major vectors of sixteen lanes, lane = output row, so that one broadcast input value meets sixteen
//! weights and sums run along K inside each lane. Rows past N and columns past K are zeros.
//!
//! | format | panel, per step of K | bits a weight |
//! |---|---|---|
//! | F32 | `[k][16]` f32 | 32 |
//! | F16 | `[k][16]` f16 | 16 |
//! | BF16 | `[k/2][16]` words: even k in the low half, odd k in the high half | 16 |
//! | NVFP4 | `[k/8][16]` words of eight nibbles, ascending k from the low end; scales `[k/16][16]` E4M3 | 4.5 |

use half::{bf16, f16};

use crate::aligned::Aligned;
use crate::simd::{E2M1, LANES};

/// Columns that share one NVFP4 scale.
pub(crate) const SCALE_BLOCK: usize = 16;

/// Element type of an unquantised weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dense {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
}

impl Dense {
    fn bytes(self) -> usize {
        match self {
            Dense::F32 => 4,
            Dense::F16 | Dense::Bf16 => 2,
        }
    }
}

/// An N × K weight, packed for [`linear`](crate::linear()).
pub struct PackedMatrix {
    n: usize,
    k: usize,
    pub(crate) data: PanelData,
}

/// The panels, one after the other.
pub(crate) enum PanelData {
    F32(Aligned<f32>),
    F16(Aligned<u16>),
    Bf16(Aligned<u32>),
    /// `factor` is the global scale, or NaN if some block scale is: the vector decoder knows no NaN.
    Nvfp4 {
        words: Aligned<u32>,
        scales: Aligned<u8>,
        global: f32,
        factor: f32,
    },
}

impl PackedMatrix {
    /// Packs a row-major N × K matrix of little-endian elements; it keeps its element size.
    ///
    /// # Panics
    /// If the bytes are not N × K elements.
    pub fn from_dense(dtype: Dense, n: usize, k: usize, row_major_le_bytes: &[u8]) -> PackedMatrix {
        let row_bytes = k * dtype.bytes();
        assert_eq!(row_major_le_bytes.len(), n * row_bytes, "weight bytes of a {n} x {k} {dtype:?} matrix");
        let (panels, depth) = (n.div_ceil(LANES), k.next_multiple_of(2));
        let half_at = |at: usize| u16::from_le_bytes([row_major_le_bytes[at], row_major_le_bytes[at + 1]]);
        let data = match dtype {
            Dense::F32 => {
                let mut out = Aligned::zeroed(panels * depth * LANES);
                interleave(n, k, depth, &mut out, |slot: &mut f32, row, column| {
                    let at = row * row_bytes + column * 4;
                    let bytes = &row_major_le_bytes[at..at + 4];
                    *slot = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                });
                PanelData::F32(out)
            }
            Dense::F16 => {
                let mut out = Aligned::zeroed(panels * depth * LANES);
                interleave(n, k, depth, &mut out, |slot: &mut u16, row, column| {
                    *slot = half_at(row * row_bytes + column * 2);
                });
                PanelData::F16(out)
            }
            Dense::Bf16 => {
                let mut out = Aligned::zeroed(panels * depth / 2 * LANES);
                interleave(n, k.div_ceil(2), depth / 2, &mut out, |slot: &mut u32, row, pair| {
                    let at = row * row_bytes + pair * 4;
                    let high = if 2 * pair + 1 < k { half_at(at + 2) } else { 0 };
                    *slot = u32::from(half_at(at)) | u32::from(high) << 16;
                });
                PanelData::Bf16(out)
            }
        };
        PackedMatrix { n, k, data }
    }

    /// Packs an NVFP4 matrix: `packed` is `[n, k/2]` with the even column in the low nibble, `scales` is E4M3
    /// `[n, k/16]`; w = (e2m1 · scale) · `global`. One NaN among the scales makes every product with the matrix NaN.
    ///
    /// # Panics
    /// If K is not a multiple of 16 or a length does not fit N and K.
    pub fn from_nvfp4(n: usize, k: usize, packed: &[u8], scales: &[u8], global: f32) -> PackedMatrix {
        assert_eq!(k % SCALE_BLOCK, 0, "columns of an NVFP4 matrix come in scale blocks");
        assert_eq!(packed.len(), n * k / 2, "weight bytes of a {n} x {k} NVFP4 matrix");
        assert_eq!(scales.len(), n * k / SCALE_BLOCK, "scale bytes of a {n} x {k} NVFP4 matrix");
        let panels = n.div_ceil(LANES);
        let mut words = Aligned::zeroed(panels * k / 8 * LANES);
        interleave(n, k / 8, k / 8, &mut words, |slot: &mut u32, row, eight| {
            let at = row * (k / 2) + eight * 4;
            let bytes = &packed[at..at + 4];
            *slot = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        });
        let blocks = k / SCALE_BLOCK;
        let mut packed_scales = Aligned::zeroed(panels * blocks * LANES);
        interleave(n, blocks, blocks, &mut packed_scales, |slot: &mut u8, row, block| {
            *slot = scales[row * blocks + block];
        });
        let poisoned = scales.iter().any(|&scale| scale & 0x7f == 0x7f);
        let factor = if poisoned { f32::NAN } else { global };
        PackedMatrix { n, k, data: PanelData::Nvfp4 { words, scales: packed_scales, global, factor } }
    }

    /// Output features.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Input features.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes held in memory.
    pub fn bytes(&self) -> usize {
        match &self.data {
            PanelData::F32(data) => data.bytes(),
            PanelData::F16(data) => data.bytes(),
            PanelData::Bf16(data) => data.bytes(),
            PanelData::Nvfp4 { words, scales, .. } => words.bytes() + scales.bytes() + size_of::<f32>(),
        }
    }

    /// Writes the exact dequantised row `n` to `out`; for NVFP4 that is (e2m1 · scale) · global in f32.
    ///
    /// # Panics
    /// If there is no such row or `out` is not K long.
    pub fn row(&self, n: usize, out: &mut [f32]) {
        assert!(n < self.n, "row {n} of a matrix with {} rows", self.n);
        assert_eq!(out.len(), self.k, "output of a row of {} columns", self.k);
        let (panel, lane, depth) = (n / LANES, n % LANES, self.k.next_multiple_of(2));
        let at = |steps: usize, step: usize| (panel * steps + step) * LANES + lane;
        for (k, out) in out.iter_mut().enumerate() {
            *out = match &self.data {
                PanelData::F32(data) => data[at(depth, k)],
                PanelData::F16(data) => f16::from_bits(data[at(depth, k)]).to_f32(),
                PanelData::Bf16(data) => {
                    let pair = data[at(depth / 2, k / 2)];
                    bf16::from_bits((pair >> (16 * (k % 2))) as u16).to_f32()
                }
                PanelData::Nvfp4 { words, scales, global, .. } => {
                    let nibble = (words[at(self.k / 8, k / 8)] >> (4 * (k % 8))) as u8;
                    let scale = scales[at(self.k / SCALE_BLOCK, k / SCALE_BLOCK)];
                    (e2m1_to_f32(nibble) * e4m3_to_f32(scale)) * global
                }
            };
        }
    }
}

/// Fills panels `[panel][depth][16]` from an element source by (row, step).
fn interleave<T>(n: usize, steps: usize, depth: usize, out: &mut [T], fill: impl Fn(&mut T, usize, usize)) {
    for (panel, out) in out.chunks_exact_mut((depth * LANES).max(1)).enumerate() {
        let first = panel * LANES;
        let lanes = LANES.min(n - first);
        for (step, vector) in out.chunks_exact_mut(LANES).take(steps).enumerate() {
            for (lane, slot) in vector[..lanes].iter_mut().enumerate() {
                fill(slot, first + lane, step);
            }
        }
    }
}

/// The value of an OCP E4M3 byte (no infinities; 0x7f and 0xff are NaN).
pub fn e4m3_to_f32(b: u8) -> f32 {
    crate::simd::e4m3(b)
}

/// The value of an E2M1 nibble; the upper four bits are ignored.
pub fn e2m1_to_f32(nibble: u8) -> f32 {
    E2M1[usize::from(nibble & 15)]
}
