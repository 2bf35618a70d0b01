//! Linear layers: which kernel serves how many rows, and its launch (`cuda/linear.cuh`).
//!
//! The choice changes the time, never a bit: all kernels add in one order (NUMERICS N1).

use super::device::{Device, Memory, Properties};
use super::error::CudaError;
use super::launch::{Launch, Params};
use super::module::Kernel;
use super::step::StepArgs;
use super::weights::{LinearFormat, MAX_PARTS, PackedLinear};

/// Rows that the kernel for few rows takes.
const FEW: usize = 8;
/// Threads of a block of that kernel.
const FEW_THREADS: u32 = 1024;
/// Splits of K.
const SPLITS: usize = 8;
/// Units of a quad, and of a tile of `linear_tile`.
const QUAD: usize = 4;
const TILE_UNITS: usize = 8;
/// Rows of a tile of `linear_tile`, and stages of its ring.
const TILE_ROWS: usize = 64;
const TILE_STAGES: usize = 2;
/// The kernels with `wgmma`: rows of a tile, quads of units of a tile, pairs of NVFP4 of a stage.
const WGMMA: [WgmmaKernel; 4] = [
    WgmmaKernel { name: "linear_wgmma_16", rows: 16, quads: 4, stage_pairs: 2 },
    WgmmaKernel { name: "linear_wgmma_32", rows: 32, quads: 4, stage_pairs: 1 },
    WgmmaKernel { name: "linear_wgmma_64", rows: 64, quads: 2, stage_pairs: 2 },
    WgmmaKernel { name: "linear_wgmma_128", rows: 128, quads: 2, stage_pairs: 1 },
];
const MAX_STAGES: usize = 16;
/// Row tiles that are computed together, so that their rows stay in L2.
const BAND: usize = 16;
/// Bytes that a thread block brings into L2 for the next layer.
const LOOK_AHEAD: usize = 64 << 10;
/// Static shared memory of a kernel, at most.
const STATIC_SHARED: usize = 1024;

/// What becomes of the products.
#[derive(Clone, Copy)]
pub enum LinearOut<'a> {
    /// bf16 rows of `ld` elements; each part at its column.
    Store(&'a Memory, usize),
    /// Added to such rows.
    Accumulate(&'a Memory, usize),
    /// f32 rows of `ld` elements.
    Logits(&'a Memory, usize),
    /// `silu(gate) * up`, packed, in a buffer of so many groups of 8 rows.
    SiluMul(&'a Memory, usize),
}

/// A packed activation: a buffer of so many groups of 8 rows.
#[derive(Clone, Copy)]
pub struct PackedRows<'a> {
    /// The buffer.
    pub memory: &'a Memory,
    /// Groups of 8 rows that it has room for.
    pub groups: usize,
}

/// Which of a step's counts says how many rows are real.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinearRows {
    /// Rows of the step.
    Step,
    /// Rows whose logits are wanted.
    Logits,
}

/// The kernels of linear layers, and the memory that they share. One operation at a time uses it, in stream order.
pub struct LinearKernels {
    device: Device,
    few: Vec<Option<Kernel>>,
    tile: Kernel,
    wgmma: Vec<Kernel>,
    partial: Memory,
    arrived: Memory,
}

/// A part as kernels see it.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct PartArgs {
    weight: u64,
    bias: u64,
    up_bias: u64,
    scale: f32,
    up_scale: f32,
    format: u32,
    first_unit: u32,
    n: u32,
    column: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    x: u64,
    out: u64,
    rows: u64,
    next: u64,
    next_stride: u64,
    partial: u64,
    arrived: u64,
    capacity: u32,
    groups: u32,
    blocks: u32,
    units: u32,
    mode: u32,
    ld: u32,
    vector: u32,
    parts: u32,
    row_tiles: u32,
    band: u32,
    cut_tiles: u32,
    stages: u32,
    stage_pairs: u32,
    next_bytes: u32,
    part: [PartArgs; MAX_PARTS],
}

// SAFETY: mirrors `Linear` of cuda/linear.cuh; addresses are integers.
unsafe impl Params for Args {}

/// A launch: which kernel, in what shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Choice {
    which: Which,
    launch: Launch,
    row_tiles: usize,
    stages: usize,
    stage_pairs: usize,
    cut_tiles: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    /// Index into [`FEW_KERNELS`].
    Few(usize),
    Tile,
    /// Index into [`WGMMA`].
    Wgmma(usize),
}

/// What the choice depends on.
#[derive(Debug, Clone, Copy)]
struct Shape {
    blocks: usize,
    units: usize,
    any_bf16: bool,
}

struct WgmmaKernel {
    name: &'static str,
    rows: usize,
    /// Consumer warpgroups: quads of units of a tile.
    quads: usize,
    stage_pairs: usize,
}

/// A kernel for few rows.
struct FewKernel {
    name: &'static str,
    /// Thread blocks that share a unit.
    cluster: usize,
    /// Whether parts may be BF16.
    mixed: bool,
}

/// In order of preference.
const FEW_KERNELS: [FewKernel; 4] = [
    FewKernel { name: "linear_few", cluster: 1, mixed: false },
    FewKernel { name: "linear_few_mixed", cluster: 1, mixed: true },
    FewKernel { name: "linear_few_pair", cluster: 2, mixed: false },
    FewKernel { name: "linear_few_pair_mixed", cluster: 2, mixed: true },
];

impl FewKernel {
    /// Whether a device has what it takes: clusters came with compute capability 9.0.
    fn runs_on(&self, device: &Properties) -> bool {
        self.cluster == 1 || device.capability >= (9, 0)
    }

    /// Sums of the teams and x: see `Few` in `cuda/linear_few.cu`.
    fn shared(&self, blocks: usize, rows: usize) -> usize {
        const SUMS: usize = 32 << 10;
        SUMS + (blocks + 2 * self.cluster) / self.cluster * 128 * rows.next_power_of_two()
    }
}

fn choose(device: &Properties, shape: Shape, capacity: usize) -> Choice {
    let room = device.shared_per_block as usize - STATIC_SHARED;
    let few = FEW_KERNELS.iter().position(|kernel| {
        capacity <= FEW
            && kernel.mixed == shape.any_bf16
            && kernel.runs_on(device)
            && kernel.shared(shape.blocks, capacity) <= room
    });
    if let Some(index) = few {
        let kernel = &FEW_KERNELS[index];
        let grid = device.multiprocessors / kernel.cluster as u32 * kernel.cluster as u32;
        let launch = Launch::new((grid, 1, 1), FEW_THREADS)
            .shared(kernel.shared(shape.blocks, capacity) as u32)
            .cluster(kernel.cluster as u32);
        return Choice { which: Which::Few(index), launch, row_tiles: 1, stages: 0, stage_pairs: 0, cut_tiles: false };
    }
    let pair = if shape.any_bf16 { LinearFormat::Bf16 } else { LinearFormat::Nvfp4 }.pair_bytes();
    if device.has_wgmma() { choose_wgmma(device, shape, capacity, pair) } else { choose_tile(shape, capacity, pair) }
}

fn choose_tile(shape: Shape, capacity: usize, pair: usize) -> Choice {
    let grid = (capacity.div_ceil(TILE_ROWS) as u32, shape.units.div_ceil(TILE_UNITS) as u32, 1);
    let shared = TILE_STAGES * (TILE_ROWS * 256 + TILE_UNITS * pair);
    let launch = Launch::new(grid, 256).shared(shared as u32);
    Choice { which: Which::Tile, launch, row_tiles: 1, stages: 0, stage_pairs: 0, cut_tiles: false }
}

fn choose_wgmma(device: &Properties, shape: Shape, capacity: usize, pair: usize) -> Choice {
    let last = WGMMA.len() - 1;
    let index = WGMMA.iter().position(|kernel| kernel.rows >= capacity).unwrap_or(last);
    let WgmmaKernel { rows, quads, .. } = WGMMA[index];
    let multiprocessors = device.multiprocessors as usize;
    let row_tiles = capacity.div_ceil(rows);
    let stage_pairs = if shape.any_bf16 { 1 } else { WGMMA[index].stage_pairs };
    let stage = stage_pairs * (rows * 256 + quads * QUAD * pair);
    let stages = ((device.shared_per_block as usize - STATIC_SHARED) / stage).min(MAX_STAGES);
    let tiles = shape.units.div_ceil(quads * QUAD) * row_tiles;
    // Whole tiles leave multiprocessors idle in the last round; cut ones pay a trip through L2.
    let rounds = tiles.div_ceil(multiprocessors);
    let cut_tiles = rounds <= 8 && tiles * 10 < rounds * multiprocessors * 9;
    let grid = if cut_tiles { multiprocessors } else { tiles.min(multiprocessors) };
    let launch = Launch::new((grid as u32, 1, 1), 128 * (quads as u32 + 1)).shared((stage * stages) as u32);
    Choice { which: Which::Wgmma(index), launch, row_tiles, stages, stage_pairs, cut_tiles }
}

impl LinearKernels {
    /// Resolves the kernels that this device uses.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        let properties = device.properties();
        let room = properties.shared_per_block - STATIC_SHARED as u32;
        let kernel = |file: &str, name: &str| device.kernel(file, name, room);
        let wgmma = if properties.has_wgmma() { &WGMMA[..] } else { &[] };
        // Sums of tiles that several blocks share: all splits of a tile in f32, a block.
        let most = wgmma.iter().map(|kernel| kernel.quads * kernel.rows).max().unwrap_or(0);
        let most = SPLITS * QUAD * 16 * 4 * most;
        let multiprocessors = properties.multiprocessors as usize;
        Ok(Self {
            device: device.clone(),
            few: (FEW_KERNELS.iter())
                .map(|few| few.runs_on(properties).then(|| kernel("linear_few", few.name)).transpose())
                .collect::<Result<_, _>>()?,
            tile: kernel("linear_tile", "linear_tile")?,
            wgmma: (wgmma.iter()).map(|wgmma| kernel("linear_wgmma", wgmma.name)).collect::<Result<_, _>>()?,
            partial: device.alloc(most * multiprocessors)?,
            arrived: device.zeros(multiprocessors * 16)?,
        })
    }

    /// Bytes of memory that the kernels share.
    pub fn bytes(&self) -> usize {
        self.partial.bytes() + self.arrived.bytes()
    }

    /// `out = x · Wᵀ (+ bias)` for up to `capacity` rows.
    ///
    /// # Errors
    /// If a buffer is too small, the weight is not loaded, or `out` does not fit the kind of weight.
    pub fn run(
        &self,
        weight: &PackedLinear,
        x: PackedRows<'_>,
        out: LinearOut<'_>,
        step: &StepArgs,
        rows: LinearRows,
        capacity: usize,
    ) -> Result<(), CudaError> {
        let parts = weight.device_parts();
        check(weight, x, out, capacity)?;
        let shape = Shape {
            blocks: weight.blocks(),
            units: weight.units(),
            any_bf16: parts.iter().any(|part| part.shape.format == LinearFormat::Bf16),
        };
        let choice = choose(self.device.properties(), shape, capacity);
        let look_ahead = look_ahead(weight.next().map_or(0, Memory::bytes), choice.launch.grid.0);
        let (mode, out, ld) = match out {
            LinearOut::Store(out, ld) => (0, out, ld),
            LinearOut::Accumulate(out, ld) => (1, out, ld),
            LinearOut::Logits(out, ld) => (2, out, ld),
            LinearOut::SiluMul(out, groups) => (3, out, groups),
        };
        let mut part_args = [PartArgs::default(); MAX_PARTS];
        for (index, (args, part)) in part_args.iter_mut().zip(parts).enumerate() {
            let bias = |part: usize| weight.part(part).bias.as_ref().map_or(0, Memory::address);
            *args = PartArgs {
                weight: weight.address(index),
                bias: bias(index),
                up_bias: if weight.is_gate_up() { bias(1) } else { 0 },
                scale: part.scale,
                up_scale: if weight.is_gate_up() { weight.part(1).scale } else { 1.0 },
                format: part.shape.format as u32,
                first_unit: part.first_unit as u32,
                n: part.shape.n as u32,
                column: part.shape.column as u32,
            };
        }
        let args = Args {
            x: x.memory.address(),
            out: out.address(),
            rows: match rows {
                LinearRows::Step => step.row_count(),
                LinearRows::Logits => step.logit_row_count(),
            },
            next: weight.next().map_or(0, Memory::address),
            next_stride: look_ahead.0,
            partial: self.partial.address(),
            arrived: self.arrived.address(),
            capacity: capacity as u32,
            groups: x.groups as u32,
            blocks: shape.blocks as u32,
            units: shape.units as u32,
            mode,
            ld: ld as u32,
            vector: u32::from(ld % 4 == 0 && parts.iter().all(|part| part.shape.column % 4 == 0)),
            parts: parts.len() as u32,
            row_tiles: choice.row_tiles as u32,
            band: choice.row_tiles.min(BAND) as u32,
            cut_tiles: u32::from(choice.cut_tiles),
            stages: choice.stages as u32,
            stage_pairs: choice.stage_pairs as u32,
            next_bytes: look_ahead.1,
            part: part_args,
        };
        let kernel = match choice.which {
            Which::Few(index) => self.few[index].as_ref(),
            Which::Tile => Some(&self.tile),
            Which::Wgmma(index) => self.wgmma.get(index),
        };
        let Some(kernel) = kernel else {
            return Err(CudaError::Unsupported("a linear kernel that this device does not have".into()));
        };
        // SAFETY: `check` compared every buffer with what the kernel touches; the workspace was made for this device.
        unsafe { kernel.launch(choice.launch, &args) }
    }
}

/// How far apart the pieces of the next weights are that thread blocks bring into L2, and how large.
fn look_ahead(bytes: usize, blocks: u32) -> (u64, u32) {
    let stride = bytes / blocks as usize / 128 * 128;
    // Whole 16-byte words for each of 32 warps.
    (stride as u64, (stride.min(LOOK_AHEAD) / 512 * 512) as u32)
}

fn check(weight: &PackedLinear, x: PackedRows<'_>, out: LinearOut<'_>, capacity: usize) -> Result<(), CudaError> {
    let unsupported = |what: &str| Err(CudaError::Unsupported(format!("linear: {what}")));
    if !weight.is_loaded() {
        return unsupported("a weight has no values yet");
    }
    if capacity == 0 || capacity > 8 * x.groups || x.memory.bytes() < weight.blocks() * x.groups * 1024 {
        return unsupported("x has fewer rows than asked for");
    }
    let (out_bytes, needed) = match out {
        LinearOut::Store(out, ld) | LinearOut::Accumulate(out, ld) if ld >= weight.width() => {
            (out.bytes(), ((capacity - 1) * ld + weight.width()) * 2)
        }
        LinearOut::Logits(out, ld) if ld >= weight.width() => (out.bytes(), ((capacity - 1) * ld + weight.width()) * 4),
        LinearOut::SiluMul(out, groups) if capacity <= 8 * groups => {
            (out.bytes(), weight.width().div_ceil(64) * groups * 1024)
        }
        _ => return unsupported("rows of the output overlap"),
    };
    if weight.is_gate_up() != matches!(out, LinearOut::SiluMul(..)) {
        return unsupported("only a fused gate and up goes out as silu(gate) * up");
    }
    if out_bytes < needed {
        return unsupported("the output is too small");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h200() -> Properties {
        Properties {
            name: String::new(),
            capability: (9, 0),
            multiprocessors: 132,
            shared_per_block: 232_448,
            shared_per_multiprocessor: 233_472,
            l2_bytes: 50 << 20,
            memory_bytes: 141 << 30,
        }
    }

    fn gb10() -> Properties {
        Properties { capability: (12, 1), multiprocessors: 48, shared_per_block: 101_376, ..h200() }
    }

    #[test]
    fn every_row_count_has_a_kernel_that_fits() {
        for device in [h200(), gb10()] {
            for blocks in [1, 8, 80, 96, 272] {
                for units in [4, 320, 1030, 2176, 15520] {
                    for any_bf16 in [false, true] {
                        for capacity in (1..=130).chain([512, 4096, 8192]) {
                            let shape = Shape { blocks, units, any_bf16 };
                            let choice = choose(&device, shape, capacity);
                            let name = format!("{shape:?} {capacity} {choice:?}");
                            assert!(
                                choice.launch.shared as usize + STATIC_SHARED <= device.shared_per_block as usize,
                                "{name}"
                            );
                            match choice.which {
                                Which::Few(_) => assert!(capacity <= FEW, "{name}"),
                                Which::Tile => assert!(choice.launch.grid.1 < 65536 && !device.has_wgmma(), "{name}"),
                                Which::Wgmma(index) => {
                                    assert!(choice.row_tiles * WGMMA[index].rows >= capacity, "{name}");
                                    assert!((2..=MAX_STAGES).contains(&choice.stages) && device.has_wgmma(), "{name}");
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn parameters_have_the_size_that_kernels_expect() {
        assert_eq!((size_of::<PartArgs>(), size_of::<Args>()), (48, 7 * 8 + 14 * 4 + 6 * 48));
    }
}
