//! Norms of query and key heads, rotary positions, and the write into the pages.

use super::device::{Device, Memory};
use super::error::CudaError;
use super::kv::KvPages;
use super::launch::{Launch, Params};
use super::module::Kernel;
use super::rows::{Norm, StepRoom};
use super::step::StepArgs;
use crate::rope::QkvLayout;

/// Heads of a row that a thread block takes at a time, or rows of many.
const WARPS: usize = 4;
/// More rows take the kernel for many, whose thread blocks share the heads of a row in this many parts.
const FEW: usize = 256;
const MANY_PARTS: u32 = 2;

/// Rotary embedding of the first `2 · half` dims of a head, pairs (i, i + half).
#[derive(Clone, Copy)]
pub struct Rope<'a> {
    /// f32, one frequency a pair.
    pub inv_freq: &'a Memory,
    /// Pairs.
    pub half: usize,
    /// Multiplies cosine and sine.
    pub attention_scaling: f32,
}

/// RMS norms of query and key heads.
#[derive(Clone, Copy)]
pub struct HeadNorms<'a> {
    /// f32 `[head_dim]`
    pub q: &'a Memory,
    /// f32 `[head_dim]`
    pub k: &'a Memory,
    /// Of both.
    pub norm: Norm,
}

/// The kernels, resolved.
pub struct RopeKernel {
    few: Kernel,
    many: Kernel,
    multiprocessors: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct RopeStoreArgs {
    step: StepArgs,
    qkv: u64,
    q_norm: u64,
    k_norm: u64,
    inv_freq: u64,
    k: u64,
    v: u64,
    width: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    q_stride: u32,
    k_offset: u32,
    v_offset: u32,
    half: u32,
    unit_offset: u32,
    fp8: u32,
    eps: f32,
    attention_scaling: f32,
    k_scale: f32,
    v_scale: f32,
}

// SAFETY: mirrors the structure of the same name in `rope_store.cu`.
unsafe impl Params for RopeStoreArgs {}

impl RopeKernel {
    /// Finds the kernels.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        let multiprocessors = device.properties().multiprocessors as usize;
        let kernel = |name| device.kernel("rope_store", name, 0);
        Ok(Self { few: kernel("rope_store")?, many: kernel("rope_store_many")?, multiprocessors })
    }

    /// Norms and rotates queries and keys in place in rows of `width` bf16, and stores keys and values.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] for a layout that the kernel cannot read.
    ///
    /// # Panics
    /// If a buffer is too small or the cache has another shape.
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub fn rope_store(
        &self,
        room: &StepRoom,
        qkv: &Memory,
        width: usize,
        layout: &QkvLayout,
        norms: Option<HeadNorms<'_>>,
        rope: Rope<'_>,
        cache: &KvPages,
    ) -> Result<(), CudaError> {
        cache.check(layout, width)?;
        let QkvLayout { heads, kv_heads, head_dim, q_head_stride, k_offset, v_offset, .. } = *layout;
        assert!(qkv.bytes() >= 2 * room.rows * width, "qkv holds {} rows of {width}", room.rows);
        assert!(2 * rope.half <= head_dim && rope.inv_freq.bytes() >= 4 * rope.half, "a frequency for each pair");
        if let Some(norms) = norms {
            assert!(norms.q.bytes().min(norms.k.bytes()) >= 4 * head_dim, "norm weights of a head");
        }
        let args = RopeStoreArgs {
            step: room.step,
            qkv: qkv.address(),
            q_norm: norms.map_or(0, |norms| norms.q.address()),
            k_norm: norms.map_or(0, |norms| norms.k.address()),
            inv_freq: rope.inv_freq.address(),
            k: cache.k.address(),
            v: cache.v.address(),
            width: width as u32,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            q_stride: q_head_stride as u32,
            k_offset: k_offset as u32,
            v_offset: v_offset as u32,
            half: rope.half as u32,
            unit_offset: norms.is_some_and(|norms| norms.norm.unit_offset).into(),
            fp8: cache.fp8.into(),
            eps: norms.map_or(0.0, |norms| norms.norm.eps),
            attention_scaling: rope.attention_scaling,
            k_scale: cache.scales.k,
            v_scale: cache.scales.v,
        };
        let threads = (32 * WARPS) as u32;
        let (kernel, shape) = if room.rows > FEW {
            (&self.many, Launch::new((room.rows.div_ceil(WARPS) as u32, MANY_PARTS, 1), threads))
        } else {
            // A row's angles are computed by each of its thread blocks: fewer, where there are enough rows.
            let groups = (4 * self.multiprocessors / room.rows.max(1)).clamp(1, (heads + kv_heads).div_ceil(WARPS));
            (&self.few, Launch::new((room.rows as u32, groups as u32, 1), threads))
        };
        // SAFETY: the buffers hold what the kernels read and write; block tables name pages of the cache.
        unsafe { kernel.launch(shape, &args) }
    }
}
