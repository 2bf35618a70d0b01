//! Operations that work on rows one by one: embedding, norms, activations, changes of layout.

use super::device::{Device, Memory};
use super::error::CudaError;
use super::launch::{Launch, Params};
use super::module::Kernel;
use super::packed_bytes;
use super::step::StepArgs;
use super::weights::PackedLinear;

/// Rows that are worth a thread block each in a norm; more are worked on in groups of eight.
const NORM_ROWS: usize = 512;
/// The widest row that one thread block normalises.
const NORM_WIDTH: usize = 16 * 1024;

/// The kernels, resolved.
pub struct RowKernels {
    embed: Kernel,
    norm_row: Kernel,
    norm_group: Kernel,
    silu_mul: Kernel,
    gate_output: Kernel,
    pack: Kernel,
    unpack: Kernel,
    to_f32: Kernel,
    gather: Kernel,
    multiprocessors: u32,
}

/// A step and the rows that its launches make room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRoom {
    /// The step.
    pub step: StepArgs,
    /// Rows.
    pub rows: usize,
    /// Rows whose logits are wanted.
    pub logit_rows: usize,
}

/// How a norm is computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Added to the mean square.
    pub eps: f32,
    /// Whether the weight is an offset from one.
    pub unit_offset: bool,
}

/// Which rows a norm has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum NormRows {
    /// All rows of the step.
    Step = 0,
    /// The rows whose logits are wanted, out of all.
    Gather = 1,
    /// Rows that have been gathered before.
    Logits = 2,
}

/// Where the gates of an attention output stand in the rows of a projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gates {
    /// Elements of a row.
    pub width: usize,
    /// First gate of head 0.
    pub offset: usize,
    /// From one head's gates to the next's.
    pub head_stride: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Heads.
    pub heads: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct EmbedArgs {
    step: StepArgs,
    table: u64,
    out: u64,
    width: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct RmsNormArgs {
    step: StepArgs,
    x: u64,
    weight: u64,
    out: u64,
    width: u32,
    groups: u32,
    which: u32,
    unit_offset: u32,
    eps: f32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct SiluMulArgs {
    step: StepArgs,
    gate_up: u64,
    out: u64,
    width: u32,
    groups: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GateOutputArgs {
    step: StepArgs,
    x: u64,
    gate: u64,
    gate_width: u32,
    gate_offset: u32,
    head_stride: u32,
    head_dim: u32,
    heads: u32,
    groups: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct PackArgs {
    x: u64,
    out: u64,
    rows: u32,
    width: u32,
    groups: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct GatherArgs {
    step: StepArgs,
    x: u64,
    out: u64,
    width: u32,
}

// SAFETY: each mirrors the structure of the same name in its `.cu` file, addresses first.
unsafe impl Params for EmbedArgs {}
// SAFETY: as above.
unsafe impl Params for GatherArgs {}
// SAFETY: as above.
unsafe impl Params for RmsNormArgs {}
// SAFETY: as above.
unsafe impl Params for SiluMulArgs {}
// SAFETY: as above.
unsafe impl Params for GateOutputArgs {}
// SAFETY: as above; `ConvertArgs` has the same fields.
unsafe impl Params for PackArgs {}

fn groups(rows: usize) -> u32 {
    rows.div_ceil(8) as u32
}

/// Panics unless `memory` holds `bytes`: a caller's mistake.
fn holds(what: &str, memory: &Memory, bytes: usize) {
    assert!(memory.bytes() >= bytes, "{what}: {bytes} bytes needed, {} there", memory.bytes());
}

impl RowKernels {
    /// Finds the kernels.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        Ok(Self {
            embed: device.kernel("embed", "embed", 0)?,
            norm_row: device.kernel("rms_norm", "rms_norm_row", 0)?,
            norm_group: device.kernel("rms_norm", "rms_norm_group", 0)?,
            silu_mul: device.kernel("silu_mul", "silu_mul", 0)?,
            gate_output: device.kernel("gate_output", "gate_output", 0)?,
            pack: device.kernel("convert", "pack_rows", 0)?,
            unpack: device.kernel("convert", "unpack_rows", 0)?,
            to_f32: device.kernel("convert", "bf16_rows_to_f32", 0)?,
            gather: device.kernel("convert", "gather_rows", 0)?,
            multiprocessors: device.properties().multiprocessors,
        })
    }

    /// Rows of `table` (a plain BF16 weight with a row a token) for the step's tokens, to row-major `out`.
    ///
    /// # Errors
    /// If the table is not BF16 rows of `width` columns.
    ///
    /// # Panics
    /// If `out` is too small.
    pub fn embed(&self, room: &StepRoom, table: &PackedLinear, out: &Memory, width: usize) -> Result<(), CudaError> {
        holds("embedding", out, 2 * room.rows * width);
        if !table.is_table() || table.k() != width {
            return Err(CudaError::Unsupported(format!("an embedding of width {width} that is not a BF16 table")));
        }
        let args = EmbedArgs { step: room.step, table: table.address(0), out: out.address(), width: width as u32 };
        let threads = (width.div_ceil(4) as u32).next_multiple_of(32).clamp(32, 1024);
        // SAFETY: `out` holds the rows; tokens were checked against the vocabulary by the caller.
        unsafe { self.embed.launch(Launch::new((room.rows as u32, 1, 1), threads), &args) }
    }

    /// RMS norm of row-major `x` to packed `out`. Which rows it has is told by `which`.
    ///
    /// # Panics
    /// If a buffer is too small.
    #[expect(clippy::too_many_arguments, reason = "the operands of one operation")]
    pub fn rms_norm(
        &self,
        room: &StepRoom,
        x: &Memory,
        weight: &Memory,
        out: &Memory,
        width: usize,
        norm: Norm,
        which: NormRows,
    ) -> Result<(), CudaError> {
        let rows = if which == NormRows::Step { room.rows } else { room.logit_rows };
        let source = if which == NormRows::Logits { room.logit_rows } else { room.rows };
        holds("norm input", x, 2 * source * width);
        holds("norm weight", weight, 4 * width);
        holds("norm output", out, packed_bytes(rows, width));
        let args = RmsNormArgs {
            step: room.step,
            x: x.address(),
            weight: weight.address(),
            out: out.address(),
            width: width as u32,
            groups: groups(rows),
            which: which as u32,
            unit_offset: norm.unit_offset.into(),
            eps: norm.eps,
        };
        let units = width.next_multiple_of(64) / 16;
        let (kernel, shape) = if rows <= NORM_ROWS && width <= NORM_WIDTH {
            (&self.norm_row, Launch::new((rows as u32, 1, 1), (units as u32).next_multiple_of(32)))
        } else {
            (&self.norm_group, Launch::new((groups(rows), 1, 1), 256))
        };
        // SAFETY: the buffers hold what the kernel reads and writes.
        unsafe { kernel.launch(shape, &args) }
    }

    /// `silu(gate) * up` of row-major `[gate | up]` rows to packed `out`.
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn silu_mul(&self, room: &StepRoom, gate_up: &Memory, out: &Memory, width: usize) -> Result<(), CudaError> {
        holds("gate and up", gate_up, 4 * room.rows * width);
        holds("activated", out, packed_bytes(room.rows, width));
        let args = SiluMulArgs {
            step: room.step,
            gate_up: gate_up.address(),
            out: out.address(),
            width: width as u32,
            groups: groups(room.rows),
        };
        // SAFETY: the buffers hold what the kernel reads and writes.
        unsafe { self.silu_mul.launch(blocks_and_groups(width, room.rows), &args) }
    }

    /// `x *= sigmoid(gate)`, `x` packed, the gates in rows of a projection.
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn gate_output(&self, room: &StepRoom, x: &Memory, gate: &Memory, gates: &Gates) -> Result<(), CudaError> {
        let width = gates.heads * gates.head_dim;
        holds("gated", x, packed_bytes(room.rows, width));
        holds("gates", gate, 2 * room.rows * gates.width);
        let args = GateOutputArgs {
            step: room.step,
            x: x.address(),
            gate: gate.address(),
            gate_width: gates.width as u32,
            gate_offset: gates.offset as u32,
            head_stride: gates.head_stride as u32,
            head_dim: gates.head_dim as u32,
            heads: gates.heads as u32,
            groups: groups(room.rows),
        };
        // SAFETY: the buffers hold what the kernel reads and writes.
        unsafe { self.gate_output.launch(blocks_and_groups(width, room.rows), &args) }
    }

    /// Rows of row-major `x` whose logits are wanted, to row-major `out`.
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn gather(&self, room: &StepRoom, x: &Memory, out: &Memory, width: usize) -> Result<(), CudaError> {
        holds("rows", x, 2 * room.rows * width);
        holds("gathered rows", out, 2 * room.logit_rows * width);
        let args = GatherArgs { step: room.step, x: x.address(), out: out.address(), width: width as u32 };
        // SAFETY: the buffers hold what the kernel reads and writes.
        unsafe { self.gather.launch(Launch::new((room.logit_rows as u32, 1, 1), 256), &args) }
    }

    /// Row-major `x` to packed `out`.
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn pack(&self, x: &Memory, out: &Memory, rows: usize, width: usize) -> Result<(), CudaError> {
        holds("rows", x, 2 * rows * width);
        holds("packed", out, packed_bytes(rows, width));
        self.convert(&self.pack, x, out, rows, width, groups(rows))
    }

    /// Packed `x` to row-major `out`.
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn unpack(&self, x: &Memory, out: &Memory, rows: usize, width: usize) -> Result<(), CudaError> {
        holds("packed", x, packed_bytes(rows, width));
        holds("rows", out, 2 * rows * width);
        self.convert(&self.unpack, x, out, rows, width, groups(rows))
    }

    /// Packed or row-major bf16 `x` to row-major f32 `out`: what observers see.
    ///
    /// # Panics
    /// If a buffer is too small.
    pub fn to_f32(
        &self,
        x: &Memory,
        packed: bool,
        out: &Memory,
        rows: usize,
        width: usize,
        capacity: usize,
    ) -> Result<(), CudaError> {
        let bytes = if packed { packed_bytes(capacity, width) } else { 2 * rows * width };
        holds("activation", x, bytes);
        holds("f32 rows", out, 4 * rows * width);
        self.convert(&self.to_f32, x, out, rows, width, if packed { groups(capacity) } else { 0 })
    }

    fn convert(
        &self,
        kernel: &Kernel,
        x: &Memory,
        out: &Memory,
        rows: usize,
        width: usize,
        groups: u32,
    ) -> Result<(), CudaError> {
        let args = PackArgs { x: x.address(), out: out.address(), rows: rows as u32, width: width as u32, groups };
        let blocks = (rows * width.next_multiple_of(64)).div_ceil(256).clamp(1, 8 * self.multiprocessors as usize);
        // SAFETY: the callers checked the buffers.
        unsafe { kernel.launch(Launch::new((blocks as u32, 1, 1), 256), &args) }
    }
}

/// A warp a block of 64 columns, four warps a thread block, by groups of eight rows.
fn blocks_and_groups(width: usize, rows: usize) -> Launch {
    Launch::new((width.div_ceil(64).div_ceil(4) as u32, groups(rows), 1), 128)
}
