//! One layer's keys and values on the device (`cuda/kv_page.cuh`).

use super::device::{Device, Memory};
use super::error::CudaError;
use crate::kv::{KvDtype, KvScales, PAGE};
use crate::rope::QkvLayout;

/// The widest head; heads are multiples of [`HEAD_UNIT`] wide.
pub(super) const MAX_HEAD_DIM: usize = 256;
const HEAD_UNIT: usize = 8;
/// Dims of a block of a page.
pub(super) const BLOCK_DIMS: usize = 32;

/// One layer's pages, zero-initialised: kernels rely on values that are finite wherever nothing was stored yet.
pub struct KvPages {
    pub(super) k: Memory,
    pub(super) v: Memory,
    pub(super) fp8: bool,
    pub(super) scales: KvScales,
    kv_heads: usize,
    head_dim: usize,
}

impl KvPages {
    /// `pages` pages in BF16 or FP8; BF16 has no use for `scales`.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] if the device has no arithmetic for the format or the heads, or the memory is full.
    pub fn new(
        device: &Device,
        dtype: KvDtype,
        scales: KvScales,
        pages: usize,
        kv_heads: usize,
        head_dim: usize,
    ) -> Result<Self, CudaError> {
        let (fp8, element) = match dtype {
            KvDtype::Bf16 => (false, 2),
            KvDtype::Fp8 => (true, 1),
            KvDtype::F32 => return Err(CudaError::Unsupported("keys and values in f32 (bf16 and fp8 are)".into())),
        };
        if kv_heads == 0 || head_dim == 0 || head_dim > MAX_HEAD_DIM || !head_dim.is_multiple_of(HEAD_UNIT) {
            return Err(CudaError::Unsupported(format!(
                "{kv_heads} key heads of {head_dim} dims (heads of up to {MAX_HEAD_DIM} in multiples of {HEAD_UNIT} are)"
            )));
        }
        if !scales.is_valid() {
            return Err(CudaError::Unsupported(format!("{scales:?} (normal positive numbers are)")));
        }
        let scales = if fp8 { scales } else { KvScales::default() };
        let bytes = pages * PAGE * kv_heads * head_dim.next_multiple_of(BLOCK_DIMS) * element;
        let (k, v) = (device.zeros(bytes)?, device.zeros(bytes)?);
        Ok(Self { k, v, fp8, scales, kv_heads, head_dim })
    }

    /// Bytes of all pages.
    pub fn bytes(&self) -> usize {
        self.k.bytes() + self.v.bytes()
    }

    /// Blocks of a head.
    pub(super) fn blocks(&self) -> usize {
        self.head_dim.div_ceil(BLOCK_DIMS)
    }

    /// Whether kernels can read rows of `width` elements with this layout.
    pub(super) fn check(&self, layout: &QkvLayout, width: usize) -> Result<(), CudaError> {
        let QkvLayout { heads, kv_heads, head_dim, q_offset, q_head_stride, k_offset, v_offset, v_dim } = *layout;
        assert!(heads > 0 && heads.is_multiple_of(kv_heads), "{heads} heads come in groups of {kv_heads}");
        assert_eq!((kv_heads, head_dim), (self.kv_heads, self.head_dim), "layout and cache have the same shape");
        let end = ((heads - 1) * q_head_stride + head_dim).max(k_offset.max(v_offset) + kv_heads * head_dim);
        assert!(width >= end, "rows of {width} hold the layout's {end} elements");
        let aligned = [q_head_stride, k_offset, v_offset, width].iter().all(|at| at.is_multiple_of(HEAD_UNIT));
        if q_offset != 0 || v_dim != head_dim || !aligned {
            return Err(CudaError::Unsupported(format!(
                "{layout:?} in rows of {width} (queries first, values as wide as keys, multiples of {HEAD_UNIT})"
            )));
        }
        Ok(())
    }
}
