//! Causal attention over the paged cache (NUMERICS N4), and the gate of its output.
//!
//! Segments of few rows take a kernel that shares their context among thread blocks and one that merges; tiles of other
//! segments take a third. A row has the same bits in both (`cuda/attention.cuh` states the order).

use super::device::{Device, Memory, Properties};
use super::error::CudaError;
use super::kv::{BLOCK_DIMS, KvPages};
use super::launch::{Launch, Params};
use super::module::Kernel;
use super::packed_bytes;
use super::step::{FEW_ROWS, StepArgs, TILE_ROWS};
use crate::kv::KvDtype;
use crate::rope::QkvLayout;

/// Positions of a tile and of a split of the context.
const TILE: usize = 64;
const SPLIT: usize = 512;
/// Threads of the kernels, and of the one that merges.
const THREADS: usize = 128;
const MERGE_THREADS: u32 = 64;
/// Pairs of row and head that a thread block of the decode kernel takes.
const DECODE_PAIRS: usize = 16;
/// Bytes of a ring at most, and its most slots.
const RING: u32 = 64 << 10;
const MAX_SLOTS: u32 = 8;
/// Over fp8 the kernels divide queries by this.
const FP8_QUERY_DIVISOR: f32 = 16.0;
/// What the system reserves of a block's shared memory.
const RESERVED: u32 = 1 << 10;

/// What a launch makes room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionRoom {
    /// The step.
    pub step: StepArgs,
    /// Rows of the step's buffers.
    pub rows: usize,
    /// Segments of at most [`FEW_ROWS`] rows.
    pub few: usize,
    /// Rows of such a segment at most: 1 where there are only decode rows.
    pub few_rows: usize,
    /// Tiles of the other segments.
    pub tiles: usize,
    /// Tokens of the longest context, this step's rows included.
    pub context: usize,
}

/// How scores are made and outputs gated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionOp {
    /// Factor on q·k, positive.
    pub scale: f32,
    /// Positions that a row sees, itself included.
    pub window: Option<usize>,
    /// Whether each query head is followed by a gate that the output is multiplied with (`GateOutput`).
    pub gated: bool,
}

/// The kernels for one head width and one format, resolved.
pub struct AttentionKernels {
    decode: Kernel,
    merge: Kernel,
    prefill: Kernel,
    /// Blocks of 32 dims that the kernels are made for.
    blocks: usize,
    fp8: bool,
    properties: Properties,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct AttentionArgs {
    step: StepArgs,
    qkv: u64,
    k: u64,
    v: u64,
    out: u64,
    states: u64,
    sums: u64,
    width: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    q_stride: u32,
    gated: u32,
    window: u32,
    groups: u32,
    chunks: u32,
    slots: u32,
    pairs: u32,
    score_scale: f32,
    v_scale: f32,
}

// SAFETY: mirrors the structure of the same name in `attention.cuh`.
unsafe impl Params for AttentionArgs {}

/// How the decode kernel shares the contexts of few rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sharing {
    /// Thread blocks a segment, KV head and sixteen pairs.
    chunks: usize,
    /// States that a segment may have.
    slots: usize,
    /// Pairs of a segment under one KV head.
    pairs: usize,
}

impl AttentionKernels {
    /// Finds the kernels for heads of `head_dim`.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] for a format or width without a kernel ([`KvPages::new`] says which have one).
    pub fn new(device: &Device, head_dim: usize, dtype: KvDtype) -> Result<Self, CudaError> {
        let blocks = match head_dim.div_ceil(BLOCK_DIMS) {
            1..=2 => 2,
            3..=4 => 4,
            5..=8 => 8,
            _ => return Err(CudaError::Unsupported(format!("attention heads of {head_dim} dims"))),
        };
        let fp8 = match dtype {
            KvDtype::Bf16 => false,
            KvDtype::Fp8 => true,
            KvDtype::F32 => return Err(CudaError::Unsupported("attention over keys in f32".into())),
        };
        let name = |kernel: &str| format!("{kernel}_{}_{}", blocks * BLOCK_DIMS, if fp8 { "fp8" } else { "bf16" });
        let properties = device.properties().clone();
        let (decode, prefill) = (name("attention_decode"), name("attention_prefill"));
        Ok(Self {
            decode: device.kernel("attention_decode", &decode, decode_shared(blocks, fp8))?,
            merge: device.kernel("attention_decode", "attention_merge", 0)?,
            prefill: device.kernel("attention_prefill", &prefill, prefill_shared(blocks, fp8))?,
            blocks,
            fp8,
            properties,
        })
    }

    /// Bytes of scratch memory that [`Self::attention`] needs. All layers may share it.
    pub fn scratch_bytes(&self, room: &AttentionRoom, layout: &QkvLayout) -> usize {
        let (states, sums) = self.few_bytes(room, layout);
        let many = self.prefill_grid(room, layout) * THREADS * 16 * (1 + 4 * self.blocks);
        (states + sums).max(many)
    }

    /// Attends with the queries in `qkv`, rows of `width` bf16, and writes packed rows of `heads · head_dim` to `out`.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] for a layout that the kernels cannot read.
    ///
    /// # Panics
    /// If a buffer is too small, or the cache has another shape or format.
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub fn attention(
        &self,
        room: &AttentionRoom,
        qkv: &Memory,
        width: usize,
        layout: &QkvLayout,
        op: &AttentionOp,
        cache: &KvPages,
        scratch: &Memory,
        out: &Memory,
    ) -> Result<(), CudaError> {
        cache.check(layout, width)?;
        let QkvLayout { heads, kv_heads, head_dim, q_head_stride, .. } = *layout;
        assert!(cache.fp8 == self.fp8 && cache.blocks() <= self.blocks, "the cache that the kernels are made for");
        assert!(op.scale > 0.0 && op.window != Some(0), "{op:?}: a positive scale, and a row sees itself");
        assert!(!op.gated || q_head_stride >= 2 * head_dim, "a gate after each query head");
        assert!((1..=FEW_ROWS).contains(&room.few_rows) || room.few == 0, "{} rows are few", room.few_rows);
        assert!(qkv.bytes() >= 2 * room.rows * width, "qkv holds {} rows of {width}", room.rows);
        assert!(out.bytes() >= packed_bytes(room.rows, heads * head_dim), "out holds {} rows", room.rows);
        assert!(scratch.bytes() >= self.scratch_bytes(room, layout), "scratch memory for {room:?}");
        let sharing = self.sharing(room, layout);
        let query_divisor = if self.fp8 { FP8_QUERY_DIVISOR } else { 1.0 };
        let args = AttentionArgs {
            step: room.step,
            qkv: qkv.address(),
            k: cache.k.address(),
            v: cache.v.address(),
            out: out.address(),
            states: scratch.address(),
            sums: scratch.address() + self.few_bytes(room, layout).0 as u64,
            width: width as u32,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            q_stride: q_head_stride as u32,
            gated: op.gated.into(),
            window: op.window.map_or(0, |window| u32::try_from(window).unwrap_or(0)),
            groups: room.rows.div_ceil(8) as u32,
            chunks: sharing.chunks as u32,
            slots: sharing.slots as u32,
            pairs: sharing.pairs as u32,
            score_scale: op.scale * cache.scales.k * std::f32::consts::LOG2_E * query_divisor,
            v_scale: cache.scales.v,
        };
        if room.few > 0 {
            self.few(room, &args)?;
        }
        if room.tiles > 0 {
            let grid = self.prefill_grid(room, layout) as u32;
            let shape = Launch::new((grid, 1, 1), THREADS as u32).shared(prefill_shared(self.blocks, self.fp8));
            // SAFETY: the buffers were checked above; block tables name pages of the cache.
            unsafe { self.prefill.launch(shape, &args) }?;
        }
        Ok(())
    }

    fn few(&self, room: &AttentionRoom, args: &AttentionArgs) -> Result<(), CudaError> {
        let parts = args.pairs.div_ceil(DECODE_PAIRS as u32);
        let shape = Launch::new((args.chunks, args.kv_heads, room.few as u32 * parts), THREADS as u32);
        let shape = shape.shared(decode_shared(self.blocks, self.fp8));
        // SAFETY: the caller checked the buffers.
        unsafe { self.decode.launch(shape, args) }?;
        let shape = Launch::new((args.heads, room.few_rows as u32, room.few as u32), MERGE_THREADS);
        // SAFETY: as above.
        unsafe { self.merge.launch(shape, args) }
    }

    /// Enough thread blocks for two on every multiprocessor, if the context has tiles for them.
    fn sharing(&self, room: &AttentionRoom, layout: &QkvLayout) -> Sharing {
        let pairs = room.few_rows * (layout.heads / layout.kv_heads);
        let blocks = room.few * layout.kv_heads * pairs.div_ceil(DECODE_PAIRS);
        let wanted = (2 * self.properties.multiprocessors as usize).div_ceil(blocks.max(1));
        let chunks = wanted.clamp(1, room.context.div_ceil(TILE).max(1));
        // A context is cut into tiles only while its splits are fewer than half the chunks; a window may begin anywhere.
        Sharing { chunks, slots: (SPLIT / TILE / 2 * chunks).max(room.context.div_ceil(SPLIT) + 1), pairs }
    }

    /// Bytes of the states of few rows, and of their sums.
    fn few_bytes(&self, room: &AttentionRoom, layout: &QkvLayout) -> (usize, usize) {
        let Sharing { slots, pairs, .. } = self.sharing(room, layout);
        let states = room.few * layout.kv_heads * slots * pairs;
        (states * layout.head_dim.next_multiple_of(BLOCK_DIMS) * 4, states * 8)
    }

    /// Thread blocks that walk the tiles: as many as run at once.
    fn prefill_grid(&self, room: &AttentionRoom, layout: &QkvLayout) -> usize {
        let shared = prefill_shared(self.blocks, self.fp8) + RESERVED;
        let resident = (self.properties.shared_per_multiprocessor / shared).clamp(1, 2);
        let work = room.tiles * TILE_ROWS * (layout.heads / layout.kv_heads) / 64 * layout.kv_heads;
        work.min((resident * self.properties.multiprocessors) as usize)
    }
}

/// Shared memory of the decode kernel: a ring of tiles of keys or values, sixteen bytes a chunk and lane.
fn decode_shared(blocks: usize, fp8: bool) -> u32 {
    let own = blocks.div_ceil(4);
    ring((blocks.max(4 * own) * if fp8 { 1 } else { 2 } * 16 * THREADS) as u32)
}

/// Shared memory of the prefill kernel: 64 queries, and a ring of tiles of keys or values.
fn prefill_shared(blocks: usize, fp8: bool) -> u32 {
    let slot = (TILE * blocks * BLOCK_DIMS * if fp8 { 1 } else { 2 }) as u32;
    (64 * blocks * BLOCK_DIMS * 2) as u32 + ring(slot)
}

/// Bytes of a ring with slots of `slot` bytes.
fn ring(slot: u32) -> u32 {
    slot * (RING / slot).min(MAX_SLOTS)
}
