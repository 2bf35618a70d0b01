//! The first and the last operation of the gated delta net over tiles, and the parameters that all of its kernels share.

use super::delta::DeltaRoom;
use super::device::{Device, Memory};
use super::error::CudaError;
use super::launch::{Launch, Params};
use super::module::Kernel;
use super::packed_bytes;
use super::step::StepArgs;

/// Mirrors `GatedDelta` of gated_delta.cuh.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct DeltaArgs {
    pub(super) step: StepArgs,
    pub(super) projected: u64,
    pub(super) conv_weight: u64,
    pub(super) a_log: u64,
    pub(super) dt_bias: u64,
    pub(super) norm_weight: u64,
    pub(super) ring: u64,
    pub(super) history: u64,
    pub(super) anchors: u64,
    pub(super) open_k: u64,
    pub(super) open_u: u64,
    pub(super) open_g: u64,
    pub(super) gated: u64,
    pub(super) convolved: u64,
    pub(super) mixed: u64,
    pub(super) inverse_norms: u64,
    pub(super) dots: u64,
    pub(super) decays: u64,
    pub(super) betas: u64,
    pub(super) stride: u32,
    pub(super) z_offset: u32,
    pub(super) a_offset: u32,
    pub(super) b_offset: u32,
    pub(super) k_heads: u32,
    pub(super) v_heads: u32,
    pub(super) k_dim: u32,
    pub(super) v_dim: u32,
    pub(super) channels: u32,
    pub(super) taps: u32,
    pub(super) ring_rows: u32,
    pub(super) groups: u32,
    pub(super) norm_eps: f32,
    pub(super) heads: u32,
    pub(super) observed: u32,
    pub(super) all_rows: u32,
    pub(super) convolved_given: u32,
    pub(super) norm_wanted: u32,
}

// SAFETY: mirrors the structure in gated_delta.cuh, addresses first.
unsafe impl Params for DeltaArgs {}

/// Queues a kernel, unless there is nothing to do.
///
/// # Safety
/// As [`Kernel::launch`].
pub(super) unsafe fn run(
    kernel: &Kernel,
    grid: (u32, u32, u32),
    threads: u32,
    shared: u32,
    args: &DeltaArgs,
) -> Result<(), CudaError> {
    if grid.0 * grid.1 * grid.2 == 0 {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { kernel.launch(Launch::new(grid, threads).shared(shared), args) }
}

/// Panics unless `memory` holds `bytes`: a caller's mistake.
pub(super) fn holds(what: &str, memory: &Memory, bytes: usize) {
    assert!(memory.bytes() >= bytes, "{what}: {bytes} bytes needed, {} there", memory.bytes());
}

/// The convolution of tiles.
pub(super) struct ConvKernels {
    wide: Kernel,
    any: Kernel,
}

impl ConvKernels {
    pub(super) fn new(device: &Device) -> Result<Self, CudaError> {
        let wide = device.kernel("causal_conv", "causal_conv_tiles", 0)?;
        Ok(Self { wide, any: device.kernel("causal_conv", "causal_conv_tiles_any", 0)? })
    }

    /// # Safety
    /// Every address must be valid for what the kernel does.
    pub(super) unsafe fn run(&self, tiles: u32, args: &DeltaArgs) -> Result<(), CudaError> {
        // Eight channels a thread if rows can be read 16 bytes at a time, else two; 16 rows of 64.
        let wide = args.channels.is_multiple_of(8) && args.stride.is_multiple_of(8) && args.taps <= 4;
        let (kernel, channels) = if wide { (&self.wide, 8 * 128) } else { (&self.any, 2 * 128) };
        // SAFETY: the caller's promise.
        unsafe { run(kernel, (args.channels.div_ceil(channels), tiles, 4), 128, 0, args) }
    }
}

/// The gated norm: per-head RMS norm times weight times SiLU of the gate.
pub struct GatedNormKernels {
    dim_128: Kernel,
    any: Kernel,
}

/// Operands of a gated norm.
#[derive(Clone, Copy)]
pub struct GatedNorm<'a> {
    /// Rows of `heads` heads of `dim`, row-major.
    pub x: &'a Memory,
    /// Rows that hold the gates.
    pub gate: &'a Memory,
    /// Columns of a row of `gate`, and the first gate.
    pub gate_columns: (usize, usize),
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub dim: usize,
    /// `[dim]`, f32.
    pub weight: &'a Memory,
    /// Added to the mean square.
    pub eps: f32,
    /// The output, packed.
    pub out: &'a Memory,
}

impl GatedNormKernels {
    /// Finds the kernels.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        let dim_128 = device.kernel("gated_norm", "gated_norm_tiles", 0)?;
        Ok(Self { dim_128, any: device.kernel("gated_norm", "gated_norm_tiles_any", 0)? })
    }

    /// The norm alone, over the step's rows.
    ///
    /// # Errors
    /// What the driver says, or heads and gates that the kernels do not take.
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn launch(&self, room: &DeltaRoom, norm: &GatedNorm<'_>) -> Result<(), CudaError> {
        let (rows, width, (columns, first)) = (room.rows, norm.heads * norm.dim, norm.gate_columns);
        if norm.dim > 256 || [norm.dim, columns, first].iter().any(|value| value % 2 != 0) {
            let message = format!("a gated norm of heads of {} with gates at {first} of {columns}", norm.dim);
            return Err(CudaError::Unsupported(message));
        }
        assert!(first + width <= columns, "a row has all gates");
        holds("mixed rows", norm.x, 2 * rows * width);
        holds("gates", norm.gate, 2 * rows * columns);
        holds("norm weight", norm.weight, 4 * norm.dim);
        holds("gated rows", norm.out, packed_bytes(rows, width));
        let args = DeltaArgs {
            step: room.step,
            projected: norm.gate.address(),
            norm_weight: norm.weight.address(),
            gated: norm.out.address(),
            mixed: norm.x.address(),
            stride: columns as u32,
            z_offset: first as u32,
            v_heads: norm.heads as u32,
            v_dim: norm.dim as u32,
            groups: rows.div_ceil(8) as u32,
            norm_eps: norm.eps,
            all_rows: 1,
            ..DeltaArgs::default()
        };
        // SAFETY: the buffers hold what the kernel touches.
        unsafe { self.run((room.few + room.tiles) as u32, &args) }
    }

    /// # Safety
    /// Every address must be valid for what the kernel does.
    pub(super) unsafe fn run(&self, tiles: u32, args: &DeltaArgs) -> Result<(), CudaError> {
        let kernel = if args.v_dim == 128 { &self.dim_128 } else { &self.any };
        // SAFETY: the caller's promise.
        unsafe { run(kernel, (16, tiles, 1), 256, 0, args) }
    }
}
