//! One layer's keys and values in pages of sixteen tokens.
//!
//! K page: `[kv_heads][head_dim][16 tokens]` (lanes over tokens, for q·k); V page: `[kv_heads][16 tokens][v_dim]`
//! (lanes over dims, for p·v). Values are quantised on write and every reader sees the dequantised ones.

use half::bf16;

use crate::aligned::Aligned;

/// Tokens in a page.
pub const PAGE: usize = 16;

/// Element type of stored keys and values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KvDtype {
    /// IEEE single precision.
    F32,
    /// The upper half of an f32, rounded to nearest even.
    Bf16,
    /// E4M3 of the value times one over the layer's scale, rounded to nearest even; what is too large becomes ±448.
    Fp8,
}

/// Scales of one layer's keys and values in [`KvDtype::Fp8`]: what is read is the stored number times the scale.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct KvScales {
    /// Of keys.
    pub k: f32,
    /// Of values.
    pub v: f32,
}

impl Default for KvScales {
    /// None.
    fn default() -> Self {
        Self { k: 1.0, v: 1.0 }
    }
}

impl KvScales {
    /// Whether both are numbers that can be divided by.
    pub fn is_valid(self) -> bool {
        [self.k, self.v].iter().all(|scale| scale.is_normal() && *scale > 0.0)
    }
}

impl KvDtype {
    /// Bytes of a stored element.
    pub fn bytes(self) -> f64 {
        match self {
            KvDtype::F32 => 4.0,
            KvDtype::Bf16 => 2.0,
            KvDtype::Fp8 => 1.0,
        }
    }
}

/// One layer's pages, zero-initialised.
pub struct KvLayer {
    pub(crate) store: KvStore,
    /// Ones, unless the store is [`KvStore::Fp8`].
    pub(crate) scales: KvScales,
    pub(crate) pages: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) v_dim: usize,
}

pub(crate) enum KvStore {
    F32 { k: Aligned<f32>, v: Aligned<f32> },
    Bf16 { k: Aligned<u16>, v: Aligned<u16> },
    Fp8 { k: Aligned<u8>, v: Aligned<u8> },
}

/// A run of rows that continues one sequence.
#[derive(Clone, Copy, Debug)]
pub struct KvSegment<'a> {
    /// First row of the step that belongs to the segment.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Position of the first row in its sequence.
    pub start: usize,
    /// Block table of the sequence from position 0: page of position p at index p / 16.
    pub pages: &'a [u32],
}

impl KvLayer {
    /// `pages` pages of zeros.
    pub fn new(dtype: KvDtype, pages: usize, kv_heads: usize, head_dim: usize, v_dim: usize) -> KvLayer {
        let (k, v) = (pages * kv_heads * head_dim * PAGE, pages * kv_heads * v_dim * PAGE);
        let store = match dtype {
            KvDtype::F32 => KvStore::F32 { k: Aligned::zeroed(k), v: Aligned::zeroed(v) },
            KvDtype::Bf16 => KvStore::Bf16 { k: Aligned::zeroed(k), v: Aligned::zeroed(v) },
            KvDtype::Fp8 => KvStore::Fp8 { k: Aligned::zeroed(k), v: Aligned::zeroed(v) },
        };
        KvLayer { store, scales: KvScales::default(), pages, kv_heads, head_dim, v_dim }
    }

    /// With scales, which formats other than [`KvDtype::Fp8`] have no use for. They are fixed before the first key is
    /// stored (NUMERICS N3).
    ///
    /// # Panics
    /// If they are not valid.
    pub fn with_scales(mut self, scales: KvScales) -> KvLayer {
        assert!(scales.is_valid(), "{scales:?} are normal positive numbers");
        if matches!(self.store, KvStore::Fp8 { .. }) {
            self.scales = scales;
        }
        self
    }

    /// Bytes of all pages.
    pub fn bytes(&self) -> usize {
        match &self.store {
            KvStore::F32 { k, v } => k.bytes() + v.bytes(),
            KvStore::Bf16 { k, v } => k.bytes() + v.bytes(),
            KvStore::Fp8 { k, v } => k.bytes() + v.bytes(),
        }
    }

    /// Element offset of a head's keys in a page.
    #[inline(always)]
    pub(crate) fn k_at(&self, page: usize, head: usize) -> usize {
        (page * self.kv_heads + head) * self.head_dim * PAGE
    }

    /// Element offset of a head's values in a page.
    #[inline(always)]
    pub(crate) fn v_at(&self, page: usize, head: usize) -> usize {
        (page * self.kv_heads + head) * self.v_dim * PAGE
    }
}

/// A stored element.
pub(crate) trait KvElement: crate::aligned::Pod {
    /// Quantises.
    fn from_f32(value: f32) -> Self;
    /// Sixteen dequantised elements, or the first `n`.
    ///
    /// # Safety
    /// As the vector loads.
    unsafe fn load<V: crate::simd::F32x16>(from: *const Self) -> V;
    /// # Safety
    /// As the vector loads.
    unsafe fn load_part<V: crate::simd::F32x16>(from: *const Self, n: usize) -> V;
    #[cfg(test)]
    fn to_f32(self) -> f32;
}

impl KvElement for f32 {
    #[inline(always)]
    fn from_f32(value: f32) -> f32 {
        value
    }
    #[inline(always)]
    unsafe fn load<V: crate::simd::F32x16>(from: *const f32) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(from) }
    }
    #[inline(always)]
    unsafe fn load_part<V: crate::simd::F32x16>(from: *const f32, n: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_part(from, n) }
    }
    #[cfg(test)]
    fn to_f32(self) -> f32 {
        self
    }
}

impl KvElement for u16 {
    #[inline(always)]
    fn from_f32(value: f32) -> u16 {
        bf16::from_f32(value).to_bits()
    }
    #[inline(always)]
    unsafe fn load<V: crate::simd::F32x16>(from: *const u16) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_bf16(from) }
    }
    #[inline(always)]
    unsafe fn load_part<V: crate::simd::F32x16>(from: *const u16, n: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_bf16_part(from, n) }
    }
    #[cfg(test)]
    fn to_f32(self) -> f32 {
        bf16::from_bits(self).to_f32()
    }
}

impl KvElement for u8 {
    #[inline(always)]
    fn from_f32(value: f32) -> u8 {
        to_e4m3(value)
    }
    #[inline(always)]
    unsafe fn load<V: crate::simd::F32x16>(from: *const u8) -> V {
        // SAFETY: the caller's promise.
        let value = unsafe { V::load_e4m3(from) };
        // The vector loads read the code of NaN as 480, the only one above 448.
        let magnitude = value.copysign(V::splat(1.0));
        V::splat(448.0).select_lt(magnitude, V::splat(f32::NAN), value)
    }
    #[inline(always)]
    unsafe fn load_part<V: crate::simd::F32x16>(from: *const u8, n: usize) -> V {
        let mut bytes = [0_u8; crate::simd::LANES];
        // SAFETY: the caller's promise covers `n` bytes, at most sixteen.
        unsafe {
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), n);
            Self::load(bytes.as_ptr())
        }
    }
    #[cfg(test)]
    fn to_f32(self) -> f32 {
        crate::e4m3_to_f32(self)
    }
}

/// The nearest E4M3, ties to even; magnitudes above 448 become 448, NaN stays NaN.
#[inline(always)]
pub(crate) fn to_e4m3(value: f32) -> u8 {
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    let magnitude = value.abs();
    if magnitude.is_nan() {
        return 0x7f;
    }
    // Below 2⁻⁶ numbers are multiples of 2⁻⁹; eight of them are the code of 2⁻⁶ itself.
    if magnitude < 0.015625 {
        return sign | (magnitude * 512.0).round_ties_even() as u8;
    }
    let bits = magnitude.min(448.0).to_bits();
    sign | (((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20) - (120 << 3)) as u8
}
