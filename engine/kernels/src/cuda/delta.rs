//! The gated delta net: causal convolution, gated delta rule (NUMERICS N5) and gated norm, from the rows of the input
//! projection to the packed input of the output projection.
//!
//! With heads of 128 and 4 taps, segments of few rows take one launch that does everything, and tiles take four. Other
//! heads (multiples of 8 up to 256) and up to 8 taps take one general kernel. A row has the same bits in all of them, and
//! when the three operations are launched one by one ([`DeltaKernels::convolve`], [`DeltaKernels::mix`],
//! [`GatedNormKernel`]).
//!
//! `gated_delta_few` reads caches and tables before it waits for the kernel ahead. So a step must not begin before the
//! step ahead of it has ended: something that is not a dependent launch (a copy, a graph) stands between them.

use super::delta_parts::{ConvKernels, DeltaArgs, GatedNormKernels, holds, run};
use super::device::{Device, Memory};
use super::error::CudaError;
use super::module::Kernel;
use super::packed_bytes;
use super::step::{FEW_ROWS, StepArgs};
use crate::delta::BLOCK;

/// The head width and the taps of the kernels that are made for them.
const FAST_DIM: usize = 128;
const FAST_TAPS: usize = 4;
/// The widest head and the most taps of the general kernel; widths are multiples of `DIM_UNIT`.
const MAX_DIM: usize = 256;
const MAX_TAPS: usize = 8;
const DIM_UNIT: usize = 8;

/// Bytes of shared memory that each kernel's `Shared` takes (asserted there).
const FEW_SHARED: u32 = 96_832;
const KEYS_SHARED: u32 = 67_584;
const VALUES_SHARED: u32 = 101_376;
const ANY_SHARED: u32 = 33_056;

/// The most value heads that a thread block of `gated_delta_few` takes.
const FEW_HEADS: usize = 4;
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
    /// Channels of the convolution: queries, keys and values.
    pub channels: usize,
    /// Taps of the convolution.
    pub taps: usize,
}

impl DeltaShape {
    /// Width of queries, keys and values.
    fn qkv_width(&self) -> usize {
        2 * self.k_heads * self.k_dim + self.value_width()
    }

    /// Width of the values, of the gates and of the output.
    pub fn value_width(&self) -> usize {
        self.v_heads * self.v_dim
    }

    fn is_fast(&self) -> bool {
        self.k_dim == FAST_DIM && self.v_dim == FAST_DIM && self.taps == FAST_TAPS
    }

    fn check(&self) -> Result<(), CudaError> {
        let heads = self.k_heads > 0 && self.v_heads > 0 && self.v_heads.is_multiple_of(self.k_heads);
        let dims = [self.k_dim, self.v_dim].iter().all(|dim| *dim > 0 && *dim <= MAX_DIM && dim % DIM_UNIT == 0);
        if heads && dims && (1..=MAX_TAPS).contains(&self.taps) && self.channels.is_multiple_of(2) {
            return Ok(());
        }
        Err(CudaError::Unsupported(format!(
            "a gated delta net with {} key heads of {}, {} value heads of {} and {} taps (heads of up to {MAX_DIM} in \
             multiples of {DIM_UNIT}, value heads a multiple of key heads, up to {MAX_TAPS} taps, even channels)",
            self.k_heads, self.k_dim, self.v_heads, self.v_dim, self.taps
        )))
    }
}

/// The recurrent state and the convolution history of one layer, zero-initialised.
///
/// Anchors: f32 `[slot][v_heads][k_dim][v_dim]`; slot 0 stays zero: the state at position 0. Open-block pages: k
/// `[page][k_heads][64][k_dim]`, u `[page][v_heads][64][v_dim]`, G `[page][v_heads][64]`. Inputs of the convolution,
/// bf16: those of the open block in rings `[slot][rows][channels]`, those before it with its anchor,
/// `[slot][taps − 1][channels]`.
pub struct DeltaCaches {
    shape: DeltaShape,
    anchors: Memory,
    k: Memory,
    u: Memory,
    g: Memory,
    ring: Memory,
    ring_rows: usize,
    history: Memory,
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
        let ring_rows = ring_rows.max(shape.taps - 1 + FEW_ROWS).next_power_of_two();
        Ok(Self {
            shape,
            anchors: device.zeros(4 * anchor_slots * shape.value_width() * shape.k_dim)?,
            k: device.zeros(4 * open_pages * shape.k_heads * BLOCK * shape.k_dim)?,
            u: device.zeros(4 * open_pages * shape.value_width() * BLOCK)?,
            g: device.zeros(4 * open_pages * shape.v_heads * BLOCK)?,
            ring: device.zeros(2 * rings * ring_rows * shape.channels)?,
            ring_rows,
            history: device.zeros(2 * anchor_slots * (shape.taps - 1) * shape.channels)?,
        })
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> usize {
        [&self.anchors, &self.k, &self.u, &self.g, &self.ring, &self.history].iter().map(|memory| memory.bytes()).sum()
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

/// The parameters of the rule, f32 `[v_heads]`.
#[derive(Clone, Copy)]
pub struct DeltaRates<'a> {
    /// Logarithm of the decay rate.
    pub a_log: &'a Memory,
    /// Added to a.
    pub dt_bias: &'a Memory,
}

/// The parameters of a layer, f32.
#[derive(Clone, Copy)]
pub struct DeltaParams<'a> {
    /// Weight of the convolution, `[channels, taps]`.
    pub conv: &'a Memory,
    /// Of the rule.
    pub rates: DeltaRates<'a>,
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

/// The kernels for one shape.
pub struct DeltaKernels {
    shape: DeltaShape,
    kind: Kind,
    conv: ConvKernels,
    norm: GatedNormKernels,
    multiprocessors: u32,
}

/// Kernels for segments of few rows and for tiles.
enum Kind {
    Fast { few: Kernel, lone: Kernel, keys: Kernel, values: Kernel },
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
                lone: device.kernel("gated_delta_few", "gated_delta_few_lone", FEW_SHARED)?,
                keys: device.kernel("gated_delta_tiles", "gated_delta_keys", KEYS_SHARED)?,
                values: device.kernel("gated_delta_tiles", "gated_delta_values", VALUES_SHARED)?,
            }
        } else {
            Kind::Any {
                few: device.kernel("gated_delta_any", "gated_delta_any_few", ANY_SHARED)?,
                tiles: device.kernel("gated_delta_any", "gated_delta_any_tiles", ANY_SHARED)?,
            }
        };
        let (conv, norm) = (ConvKernels::new(device)?, GatedNormKernels::new(device)?);
        Ok(Self { shape, kind, conv, norm, multiprocessors: device.properties().multiprocessors })
    }

    /// Convolution, rule and norm of a layer over the step's rows.
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
        let (shape, rows, width) = (&self.shape, room.rows, self.shape.value_width());
        self.check(room, params.rates, caches, scratch, room.tiles > 0)?;
        let ends = [shape.channels, columns.z + width, columns.a + shape.v_heads, columns.b + shape.v_heads];
        assert!(ends.iter().all(|end| *end <= columns.width), "a row has all of {ends:?} columns");
        holds("projection", buffers.projected, 2 * rows * columns.width);
        holds("gated rows", buffers.gated, packed_bytes(rows, width));
        holds("convolution weight", params.conv, 4 * shape.channels * shape.taps);
        holds("norm weight", params.norm, 4 * shape.v_dim);
        if room.tiles > 0 || buffers.observed {
            holds("convolved rows", buffers.convolved, 2 * rows * shape.channels);
            holds("mixed rows", buffers.mixed, 2 * rows * width);
        }
        if !(columns.width.is_multiple_of(2) && columns.z.is_multiple_of(2)) {
            return Err(CudaError::Unsupported(format!("gates at column {} of rows of {}", columns.z, columns.width)));
        }
        let args = DeltaArgs {
            projected: buffers.projected.address(),
            conv_weight: params.conv.address(),
            norm_weight: params.norm.address(),
            gated: buffers.gated.address(),
            convolved: buffers.convolved.address(),
            mixed: buffers.mixed.address(),
            z_offset: columns.z as u32,
            groups: room.rows.div_ceil(8) as u32,
            norm_eps: params.norm_eps,
            observed: buffers.observed.into(),
            norm_wanted: 1,
            ..self.args(room, columns, params.rates, caches, scratch)
        };
        let (few, tiles) = (room.few as u32, room.tiles as u32);
        let heads = self.heads_of_block(few);
        // SAFETY: every buffer was seen to hold what the kernels touch; slots, pages and rings come from tables that
        // were made for these caches.
        unsafe {
            match &self.kind {
                Kind::Fast { few: kernel, lone, .. } => {
                    let args = DeltaArgs { heads, ..args };
                    let kernel = if few * args.v_heads <= self.multiprocessors { lone } else { kernel };
                    run(kernel, (args.v_heads / heads, few, 1), 256, FEW_SHARED, &args)?;
                    self.conv.run(tiles, &args)?;
                    self.rule_of_tiles(tiles, &args)?;
                    self.norm.run(tiles, &args)
                }
                Kind::Any { .. } => self.general_rule(few, tiles, &args),
            }
        }
    }

    /// The convolution alone: the first columns of `x` (rows of `width`) to row-major `out`.
    ///
    /// # Panics
    /// As [`Self::launch`].
    pub fn convolve(
        &self,
        room: &DeltaRoom,
        x: &Memory,
        width: usize,
        weight: &Memory,
        caches: &DeltaCaches,
        out: &Memory,
    ) -> Result<(), CudaError> {
        let shape = &self.shape;
        assert!(caches.shape == *shape && shape.channels <= width, "layer and caches have the same shape");
        holds("projection", x, 2 * room.rows * width);
        holds("convolved rows", out, 2 * room.rows * shape.channels);
        holds("convolution weight", weight, 4 * shape.channels * shape.taps);
        if !width.is_multiple_of(2) {
            return Err(CudaError::Unsupported(format!("a convolution over rows of {width}")));
        }
        let args = DeltaArgs {
            step: room.step,
            projected: x.address(),
            conv_weight: weight.address(),
            ring: caches.ring.address(),
            history: caches.history.address(),
            convolved: out.address(),
            stride: width as u32,
            channels: shape.channels as u32,
            taps: shape.taps as u32,
            ring_rows: caches.ring_rows as u32,
            all_rows: 1,
            ..DeltaArgs::default()
        };
        // SAFETY: as in `launch`.
        unsafe { self.conv.run((room.few + room.tiles) as u32, &args) }
    }

    /// The rule alone: from convolved rows and the rows that hold a and b to row-major `mixed`. `columns.z` is not
    /// looked at.
    ///
    /// # Panics
    /// As [`Self::launch`]; there must be scratch for all rows.
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub fn mix(
        &self,
        room: &DeltaRoom,
        convolved: &Memory,
        ab: &Memory,
        columns: &DeltaColumns,
        rates: DeltaRates<'_>,
        caches: &DeltaCaches,
        scratch: &DeltaScratch,
        mixed: &Memory,
    ) -> Result<(), CudaError> {
        let (shape, rows) = (&self.shape, room.rows);
        self.check(room, rates, caches, scratch, true)?;
        holds("convolved rows", convolved, 2 * rows * shape.channels);
        holds("rows of a and b", ab, 2 * rows * columns.width);
        holds("mixed rows", mixed, 2 * rows * shape.value_width());
        assert!(columns.a.max(columns.b) + shape.v_heads <= columns.width, "a row has all of a and b");
        let args = DeltaArgs {
            projected: ab.address(),
            convolved: convolved.address(),
            mixed: mixed.address(),
            observed: 1,
            convolved_given: 1,
            ..self.args(room, columns, rates, caches, scratch)
        };
        let (few, tiles) = (room.few as u32, room.tiles as u32);
        // SAFETY: as in `launch`.
        unsafe {
            match &self.kind {
                Kind::Fast { .. } => self.rule_of_tiles(few + tiles, &DeltaArgs { all_rows: 1, ..args }),
                Kind::Any { .. } => self.general_rule(few, tiles, &args),
            }
        }
    }

    /// Value heads that a thread block of `gated_delta_few` takes: all of a key head if there are more of them than the
    /// device holds at once, for then they share a convolution and overlap their reads.
    fn heads_of_block(&self, few: u32) -> u32 {
        let DeltaShape { k_heads, v_heads, .. } = self.shape;
        if few * v_heads as u32 <= 2 * self.multiprocessors {
            return 1;
        }
        let group = v_heads / k_heads;
        (1..=FEW_HEADS.min(group)).rev().find(|heads| group.is_multiple_of(*heads)).unwrap_or(1) as u32
    }

    /// # Safety
    /// Every address must be valid for what the kernels do.
    unsafe fn rule_of_tiles(&self, tiles: u32, args: &DeltaArgs) -> Result<(), CudaError> {
        let Kind::Fast { keys, values, .. } = &self.kind else { return Ok(()) };
        let grid = (FAST_DIM as u32 / VALUE_COLUMNS, args.v_heads, tiles.min(SEGMENT_BLOCKS));
        // SAFETY: the caller's promise.
        unsafe {
            run(keys, (args.k_heads, tiles, 1), 128, KEYS_SHARED, args)?;
            run(values, grid, 128, VALUES_SHARED, args)
        }
    }

    /// # Safety
    /// Every address must be valid for what the kernels do.
    unsafe fn general_rule(&self, few: u32, tiles: u32, args: &DeltaArgs) -> Result<(), CudaError> {
        let Kind::Any { few: kernel, tiles: tiled } = &self.kind else { return Ok(()) };
        // SAFETY: the caller's promise.
        unsafe {
            run(kernel, (args.k_heads, few, 1), 256, ANY_SHARED, args)?;
            run(tiled, (args.k_heads, tiles.min(SEGMENT_BLOCKS), 1), 256, ANY_SHARED, args)
        }
    }

    fn check(
        &self,
        room: &DeltaRoom,
        rates: DeltaRates<'_>,
        caches: &DeltaCaches,
        scratch: &DeltaScratch,
        scratched: bool,
    ) -> Result<(), CudaError> {
        let (shape, rows) = (&self.shape, room.rows);
        assert!(caches.shape == *shape && scratch.shape == *shape, "layer, caches and scratch have the same shape");
        assert!(!scratched || scratch.rows >= rows, "scratch for {} of {rows} rows", scratch.rows);
        assert!(room.few <= rows && room.tiles <= rows, "every segment and tile has rows");
        holds("a_log", rates.a_log, 4 * shape.v_heads);
        holds("dt_bias", rates.dt_bias, 4 * shape.v_heads);
        if shape.channels == shape.qkv_width() {
            return Ok(());
        }
        Err(CudaError::Unsupported(format!("{} channels for heads of {}", shape.channels, shape.qkv_width())))
    }

    /// What the rule needs.
    fn args(
        &self,
        room: &DeltaRoom,
        columns: &DeltaColumns,
        rates: DeltaRates<'_>,
        caches: &DeltaCaches,
        scratch: &DeltaScratch,
    ) -> DeltaArgs {
        let shape = &self.shape;
        DeltaArgs {
            step: room.step,
            a_log: rates.a_log.address(),
            dt_bias: rates.dt_bias.address(),
            ring: caches.ring.address(),
            history: caches.history.address(),
            anchors: caches.anchors.address(),
            open_k: caches.k.address(),
            open_u: caches.u.address(),
            open_g: caches.g.address(),
            inverse_norms: scratch.inverse_norms.address(),
            dots: scratch.dots.address(),
            decays: scratch.decays.address(),
            betas: scratch.betas.address(),
            stride: columns.width as u32,
            a_offset: columns.a as u32,
            b_offset: columns.b as u32,
            k_heads: shape.k_heads as u32,
            v_heads: shape.v_heads as u32,
            k_dim: shape.k_dim as u32,
            v_dim: shape.v_dim as u32,
            channels: shape.channels as u32,
            taps: shape.taps as u32,
            ring_rows: caches.ring_rows as u32,
            heads: 1,
            ..DeltaArgs::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: DeltaShape = DeltaShape { k_heads: 16, v_heads: 48, k_dim: 128, v_dim: 128, channels: 10240, taps: 4 };

    #[test]
    fn what_the_kernels_cannot_do_is_an_error() {
        assert!(SHAPE.check().is_ok() && SHAPE.is_fast());
        assert_eq!((SHAPE.qkv_width(), SHAPE.value_width()), (10240, 6144));
        let general = DeltaShape { k_dim: 64, v_dim: 256, taps: 8, ..SHAPE };
        assert!(general.check().is_ok() && !general.is_fast());
        for shape in [
            DeltaShape { k_dim: 264, ..SHAPE },
            DeltaShape { v_dim: 100, ..SHAPE },
            DeltaShape { v_heads: 40, ..SHAPE },
            DeltaShape { k_heads: 0, ..SHAPE },
            DeltaShape { taps: 9, ..SHAPE },
            DeltaShape { taps: 0, ..SHAPE },
            DeltaShape { channels: 10241, ..SHAPE },
        ] {
            assert!(matches!(shape.check(), Err(CudaError::Unsupported(_))), "{shape:?}");
        }
    }
}
