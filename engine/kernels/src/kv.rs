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
}

impl KvDtype {
    /// Bytes of a stored element.
    pub fn bytes(self) -> f64 {
        match self {
            KvDtype::F32 => 4.0,
            KvDtype::Bf16 => 2.0,
        }
    }
}

/// One layer's pages, zero-initialised.
pub struct KvLayer {
    pub(crate) store: KvStore,
    pub(crate) pages: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) v_dim: usize,
}

pub(crate) enum KvStore {
    F32 { k: Aligned<f32>, v: Aligned<f32> },
    Bf16 { k: Aligned<u16>, v: Aligned<u16> },
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
        };
        KvLayer { store, pages, kv_heads, head_dim, v_dim }
    }

    /// Bytes of all pages.
    pub fn bytes(&self) -> usize {
        match &self.store {
            KvStore::F32 { k, v } => k.bytes() + v.bytes(),
            KvStore::Bf16 { k, v } => k.bytes() + v.bytes(),
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
