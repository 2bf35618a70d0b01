//! The gated delta net: causal convolution, gated delta rule (NUMERICS N5) and gated norm, from the rows of the input
//! projection to the packed input of the output projection.
//!
//! With heads of 128 and at most 4 taps, segments of few rows take one launch that does everything, and tiles take
//! four. Other heads (multiples of 8 up to 256) and up to 8 taps take one general kernel. A row has the same bits in all
//! of them.

use super::device::{Device, Memory};
use super::error::CudaError;
use super::launch::{Launch, Params};
use super::module::Kernel;
use super::packed_bytes;
use super::step::{FEW_ROWS, StepArgs};
use crate::delta::BLOCK;

/// The head width and the most taps of the kernels that are made for them.
const FAST_DIM: usize = 128;
const FAST_TAPS: usize = 4;
/// The widest head and the most taps of the general kernel; widths are multiples of `DIM_UNIT`.
const MAX_DIM: usize = 256;
const MAX_TAPS: usize = 8;
const DIM_UNIT: usize = 8;

/// Bytes of shared memory that each kernel's `Shared` takes (asserted there).
const FEW_SHARED: u32 = 99_616;
const KEYS_SHARED: u32 = 67_584;
const VALUES_SHARED: u32 = 101_376;
const ANY_SHARED: u32 = 33_056;

/// Columns of a value head that a thread block of `gated_delta_values` takes.
const VALUE_COLUMNS: u32 = 32;
/// Thread blocks that share the tiled segments of a head.
const SEGMENT_BLOCKS: u32 = 4;

/// Dimensions of a gated delta net.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeltaShape {
    /// Query and key heads.
    pub k_heads: usize,
    /// Value heads; head h uses key head `h / (v_heads / k_heads)`.
    pub v_heads: usize,
    /// Dims of a query or key head.
    pub k_dim: usize,
    /// Dims of a value head.
    pub v_dim: usize,
    /// Taps of the convolution.
    pub taps: usize,
}

impl DeltaShape {
    /// Channels of the convolution: queries, keys, values.
    pub fn channels(&self) -> usize {
        2 * self.k_heads * self.k_dim + self.value_width()
    }

    /// Width of the values, of the gates and of the output.
    pub fn value_width(&self) -> usize {
        self.v_heads * self.v_dim
    }

    fn is_fast(&self) -> bool {
        self.k_dim == FAST_DIM && self.v_dim == FAST_DIM && self.taps <= FAST_TAPS
    }

    fn check(&self) -> Result<(), CudaError> {
        let heads = self.k_heads > 0 && self.v_heads > 0 && self.v_heads.is_multiple_of(self.k_heads);
        let dims = [self.k_dim, self.v_dim].iter().all(|dim| *dim > 0 && *dim <= MAX_DIM && dim % DIM_UNIT == 0);
        if heads && dims && (1..=MAX_TAPS).contains(&self.taps) {
            return Ok(());
        }
        Err(CudaError::Unsupported(format!(
            "a gated delta net with {} key heads of {}, {} value heads of {} and {} taps (heads of up to {MAX_DIM} in \
             multiples of {DIM_UNIT}, value heads a multiple of key heads, up to {MAX_TAPS} taps)",
            self.k_heads, self.k_dim, self.v_heads, self.v_dim, self.taps
        )))
    }
}

/// The recurrent state and the convolution history of one layer, zero-initialised.
///
/// Anchors: f32 `[slot][v_heads][k_dim][v_dim]`; slot 0 stays zero: the state at position 0. Open-block pages: k
/// `[page][k_heads][64][k_dim]`, u `[page][v_heads][64][v_dim]`, G `[page][v_heads][64]`. Rings: bf16
/// `[slot][rows][channels]`.
pub struct DeltaCaches {
    shape: DeltaShape,
    anchors: Memory,
    k: Memory,
    u: Memory,
    g: Memory,
    ring: Memory,
    ring_rows: usize,
}

impl DeltaCaches {
    /// `anchor_slots` states (slot 0 included), `open_pages` block pages and `rings` of at least `ring_rows` rows.
    ///
    /// # Errors
    /// If the shape is not supported or the memory is full.
    pub fn new(
        device: &Device,
        shape: DeltaShape,
        anchor_slots: usize,
        open_pages: usize,
        rings: usize,
        ring_rows: usize,
    ) -> Result<Self, CudaError> {
        shape.check()?;
        // The rows that a launch writes must never take the place of those that it reads.
        let ring_rows = ring_rows.max(shape.taps - 1 + FEW_ROWS);
        Ok(Self {
            shape,
            anchors: device.zeros(4 * anchor_slots * shape.value_width() * shape.k_dim)?,
            k: device.zeros(4 * open_pages * shape.k_heads * BLOCK * shape.k_dim)?,
            u: device.zeros(4 * open_pages * shape.value_width() * BLOCK)?,
            g: device.zeros(4 * open_pages * shape.v_heads * BLOCK)?,
            ring: device.zeros(2 * rings * ring_rows * shape.channels())?,
            ring_rows,
        })
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> usize {
        [&self.anchors, &self.k, &self.u, &self.g, &self.ring].iter().map(|memory| memory.bytes()).sum()
    }

    /// The anchors, for tests and checkpoints.
    pub fn anchors(&self) -> &Memory {
        &self.anchors
    }
}

/// What the kernels of tiles hand to one another, shared by all layers of one shape.
pub struct DeltaScratch {
    rows: usize,
    shape: DeltaShape,
    inverse_norms: Memory,
    dots: Memory,
    decays: Memory,
    betas: Memory,
}

impl DeltaScratch {
    /// Room for steps of `rows` rows.
    pub fn new(device: &Device, shape: DeltaShape, rows: usize) -> Result<Self, CudaError> {
        shape.check()?;
        let rows_of = |floats: usize| device.alloc(if shape.is_fast() { 4 * rows * floats } else { 0 });
        Ok(Self {
            rows,
            shape,
            inverse_norms: rows_of(2 * shape.k_heads)?,
            dots: rows_of(2 * BLOCK * shape.k_heads)?,
            decays: rows_of(shape.v_heads)?,
            betas: rows_of(shape.v_heads)?,
        })
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        [&self.inverse_norms, &self.dots, &self.decays, &self.betas].iter().map(|memory| memory.bytes()).sum()
    }
}

/// The parameters of a layer, f32.
#[derive(Clone, Copy)]
pub struct DeltaParams<'a> {
    /// Weight of the convolution, `[channels, taps]`.
    pub conv: &'a Memory,
    /// `[v_heads]`
    pub a_log: &'a Memory,
    /// `[v_heads]`
    pub dt_bias: &'a Memory,
    /// Weight of the gated norm, `[v_dim]`.
    pub norm: &'a Memory,
    /// Added to the mean square in the gated norm.
    pub norm_eps: f32,
}

/// Where the rows of the input projection have what: queries, keys and values stand first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaColumns {
    /// Columns of a row.
    pub width: usize,
    /// First gate of the norm.
    pub z: usize,
    /// First a.
    pub a: usize,
    /// First b.
    pub b: usize,
}

/// Activations of a launch, for `rows` rows.
#[derive(Clone, Copy)]
pub struct DeltaBuffers<'a> {
    /// The input projection, row-major.
    pub projected: &'a Memory,
    /// The output, packed.
    pub gated: &'a Memory,
    /// Convolved rows, row-major; written by tiles, and by all rows if `observed`.
    pub convolved: &'a Memory,
    /// What the rule makes of the rows, row-major; likewise.
    pub mixed: &'a Memory,
    /// Whether `convolved` and `mixed` are wanted for all rows.
    pub observed: bool,
}

/// A step and the room that its launches make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaRoom {
    /// The step.
    pub step: StepArgs,
    /// Rows.
    pub rows: usize,
    /// Segments of at most [`FEW_ROWS`] rows.
    pub few: usize,
    /// Tiles of the other segments.
    pub tiles: usize,
}

/// Mirrors `GatedDelta` of gated_delta.cuh.
#[derive(Clone, Copy)]
#[repr(C)]
struct DeltaArgs {
    step: StepArgs,
    projected: u64,
    conv_weight: u64,
    a_log: u64,
    dt_bias: u64,
    norm_weight: u64,
    ring: u64,
    anchors: u64,
    open_k: u64,
    open_u: u64,
    open_g: u64,
    gated: u64,
    convolved: u64,
    mixed: u64,
    inverse_norms: u64,
    dots: u64,
    decays: u64,
    betas: u64,
    stride: u32,
    z_offset: u32,
    a_offset: u32,
    b_offset: u32,
    k_heads: u32,
    v_heads: u32,
    k_dim: u32,
    v_dim: u32,
    taps: u32,
    ring_rows: u32,
    groups: u32,
    norm_eps: f32,
    observed: u32,
}

// SAFETY: mirrors the structure in gated_delta.cuh, addresses first.
unsafe impl Params for DeltaArgs {}

/// The kernels for one shape.
pub struct DeltaKernels {
    shape: DeltaShape,
    kind: Kind,
}

enum Kind {
    Fast { few: Kernel, conv: Kernel, conv_any: Kernel, keys: Kernel, values: Kernel, norm: Kernel },
    Any { few: Kernel, tiles: Kernel },
}

impl DeltaKernels {
    /// Finds the kernels.
    ///
    /// # Errors
    /// If there are none for this shape and device.
    pub fn new(device: &Device, shape: DeltaShape) -> Result<Self, CudaError> {
        shape.check()?;
        let kind = if shape.is_fast() && device.properties().shared_per_block >= VALUES_SHARED {
            Kind::Fast {
                few: device.kernel("gated_delta_few", "gated_delta_few", FEW_SHARED)?,
                conv: device.kernel("causal_conv", "causal_conv_tiles", 0)?,
                conv_any: device.kernel("causal_conv", "causal_conv_tiles_any", 0)?,
                keys: device.kernel("gated_delta_tiles", "gated_delta_keys", KEYS_SHARED)?,
                values: device.kernel("gated_delta_tiles", "gated_delta_values", VALUES_SHARED)?,
                norm: device.kernel("gated_norm", "gated_norm_tiles", 0)?,
            }
        } else {
            Kind::Any {
                few: device.kernel("gated_delta_any", "gated_delta_any_few", ANY_SHARED)?,
                tiles: device.kernel("gated_delta_any", "gated_delta_any_tiles", ANY_SHARED)?,
            }
        };
        Ok(Self { shape, kind })
    }

    /// Runs a layer over the step's rows.
    ///
    /// # Errors
    /// What the driver says, or a projection whose rows cannot be read in pairs.
    ///
    /// # Panics
    /// If a buffer is too small or the caches have another shape.
    pub fn launch(
        &self,
        room: &DeltaRoom,
        columns: &DeltaColumns,
        params: &DeltaParams<'_>,
        caches: &DeltaCaches,
        scratch: &DeltaScratch,
        buffers: &DeltaBuffers<'_>,
    ) -> Result<(), CudaError> {
        self.check(room, columns, params, caches, scratch, buffers)?;
        let args = self.args(room, columns, params, caches, scratch, buffers);
        let (few, tiles) = (room.few as u32, room.tiles as u32);
        let (k_heads, v_heads) = (args.k_heads, args.v_heads);
        let run = |kernel: &Kernel, grid: (u32, u32, u32), threads: u32, shared: u32| {
            if grid.0 * grid.1 * grid.2 == 0 {
                return Ok(());
            }
            // SAFETY: `check` saw that every buffer holds what the kernels touch; slots, pages and rings come from
            // tables that were made for these caches.
            unsafe { kernel.launch(Launch::new(grid, threads).shared(shared), &args) }
        };
        match &self.kind {
            Kind::Fast { few: kernel, conv, conv_any, keys, values, norm } => {
                run(kernel, (v_heads, few, 1), 256, FEW_SHARED)?;
                let channels = self.shape.channels() as u32;
                if channels.is_multiple_of(8) && args.stride.is_multiple_of(8) {
                    run(conv, (channels.div_ceil(1024), tiles, 4), 128, 0)?;
                } else {
                    run(conv_any, (channels.div_ceil(256), tiles, 4), 128, 0)?;
                }
                run(keys, (k_heads, tiles, 1), 256, KEYS_SHARED)?;
                let grid = (FAST_DIM as u32 / VALUE_COLUMNS, v_heads, tiles.min(SEGMENT_BLOCKS));
                run(values, grid, 128, VALUES_SHARED)?;
                run(norm, (16, tiles, 1), 256, 0)
            }
            Kind::Any { few: kernel, tiles: tiled } => {
                run(kernel, (k_heads, few, 1), 256, ANY_SHARED)?;
                run(tiled, (k_heads, tiles.min(SEGMENT_BLOCKS), 1), 256, ANY_SHARED)
            }
        }
    }

    fn check(
        &self,
        room: &DeltaRoom,
        columns: &DeltaColumns,
        params: &DeltaParams<'_>,
        caches: &DeltaCaches,
        scratch: &DeltaScratch,
        buffers: &DeltaBuffers<'_>,
    ) -> Result<(), CudaError> {
        let shape = &self.shape;
        let (rows, width) = (room.rows, shape.value_width());
        assert!(caches.shape == *shape && scratch.shape == *shape, "layer, caches and scratch have the same shape");
        assert!(room.tiles == 0 || scratch.rows >= rows, "scratch for {} of {rows} rows", scratch.rows);
        assert!(room.few <= rows && room.tiles <= rows, "every segment and tile has rows");
        let ends = [shape.channels(), columns.z + width, columns.a + shape.v_heads, columns.b + shape.v_heads];
        assert!(ends.iter().all(|end| *end <= columns.width), "a row has all of {ends:?} columns");
        let holds = |what: &str, memory: &Memory, bytes: usize| {
            assert!(memory.bytes() >= bytes, "{what}: {bytes} bytes needed, {} there", memory.bytes());
        };
        holds("projection", buffers.projected, 2 * rows * columns.width);
        holds("gated rows", buffers.gated, packed_bytes(rows, width));
        if room.tiles > 0 || buffers.observed {
            holds("convolved rows", buffers.convolved, 2 * rows * shape.channels());
            holds("mixed rows", buffers.mixed, 2 * rows * width);
        }
        holds("convolution weight", params.conv, 4 * shape.channels() * shape.taps);
        holds("a_log", params.a_log, 4 * shape.v_heads);
        holds("dt_bias", params.dt_bias, 4 * shape.v_heads);
        holds("norm weight", params.norm, 4 * shape.v_dim);
        if columns.width.is_multiple_of(2) && columns.z.is_multiple_of(2) {
            return Ok(());
        }
        Err(CudaError::Unsupported(format!("gates at column {} of rows of {}", columns.z, columns.width)))
    }

    fn args(
        &self,
        room: &DeltaRoom,
        columns: &DeltaColumns,
        params: &DeltaParams<'_>,
        caches: &DeltaCaches,
        scratch: &DeltaScratch,
        buffers: &DeltaBuffers<'_>,
    ) -> DeltaArgs {
        let shape = &self.shape;
        DeltaArgs {
            step: room.step,
            projected: buffers.projected.address(),
            conv_weight: params.conv.address(),
            a_log: params.a_log.address(),
            dt_bias: params.dt_bias.address(),
            norm_weight: params.norm.address(),
            ring: caches.ring.address(),
            anchors: caches.anchors.address(),
            open_k: caches.k.address(),
            open_u: caches.u.address(),
            open_g: caches.g.address(),
            gated: buffers.gated.address(),
            convolved: buffers.convolved.address(),
            mixed: buffers.mixed.address(),
            inverse_norms: scratch.inverse_norms.address(),
            dots: scratch.dots.address(),
            decays: scratch.decays.address(),
            betas: scratch.betas.address(),
            stride: columns.width as u32,
            z_offset: columns.z as u32,
            a_offset: columns.a as u32,
            b_offset: columns.b as u32,
            k_heads: shape.k_heads as u32,
            v_heads: shape.v_heads as u32,
            k_dim: shape.k_dim as u32,
            v_dim: shape.v_dim as u32,
            taps: shape.taps as u32,
            ring_rows: caches.ring_rows as u32,
            groups: room.rows.div_ceil(8) as u32,
            norm_eps: params.norm_eps,
            observed: buffers.observed.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: DeltaShape = DeltaShape { k_heads: 16, v_heads: 48, k_dim: 128, v_dim: 128, taps: 4 };

    #[test]
    fn what_the_kernels_cannot_do_is_an_error() {
        assert!(SHAPE.check().is_ok() && SHAPE.is_fast());
        assert_eq!((SHAPE.channels(), SHAPE.value_width()), (10240, 6144));
        let general = DeltaShape { k_dim: 64, v_dim: 256, taps: 8, ..SHAPE };
        assert!(general.check().is_ok() && !general.is_fast());
        for shape in [
            DeltaShape { k_dim: 264, ..SHAPE },
            DeltaShape { v_dim: 100, ..SHAPE },
            DeltaShape { v_heads: 40, ..SHAPE },
            DeltaShape { k_heads: 0, ..SHAPE },
            DeltaShape { taps: 9, ..SHAPE },
            DeltaShape { taps: 0, ..SHAPE },
        ] {
            assert!(matches!(shape.check(), Err(CudaError::Unsupported(_))), "{shape:?}");
        }
    }
}
