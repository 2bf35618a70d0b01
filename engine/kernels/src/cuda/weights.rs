//! Weights of linear layers on the device, in the packed layout of `cuda/linear.cuh`.

use super::device::{Device, Memory};
use super::error::CudaError;
use super::launch::{Launch, Params};
use super::module::Kernel;
use std::sync::Arc;

/// The most weights of one operation.
pub const MAX_PARTS: usize = 6;
const BLOCK: usize = 64;
const UNIT: usize = 16;
/// The decoder yields e2m1 · e4m3 · 2⁻⁷.
const NVFP4_BIAS: f32 = 128.0;
/// Bytes that are copied to the device at a time on their way into the packed layout.
const STAGING: usize = 32 << 20;

/// How a weight is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum LinearFormat {
    /// Unquantised.
    Bf16 = 0,
    /// e2m1 codes with an E4M3 scale for every 16 columns.
    Nvfp4 = 1,
}

impl LinearFormat {
    /// Bytes of 16 rows × 128 columns.
    pub(super) fn pair_bytes(self) -> usize {
        match self {
            Self::Bf16 => 4096,
            Self::Nvfp4 => 1152,
        }
    }
}

/// One weight of an operation: `n` outputs from `column` of the output row on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearShape {
    /// Format.
    pub format: LinearFormat,
    /// Outputs.
    pub n: usize,
    /// First output column.
    pub column: usize,
}

/// A weight as checkpoints hold it, row-major.
#[derive(Debug, Clone, Copy)]
pub enum RawWeight<'a> {
    /// Little-endian bf16 `[n, k]`.
    Bf16(&'a [u8]),
    /// `w = e2m1 · scale · global`.
    Nvfp4 {
        /// `[n, k / 2]`, the even column in the low half of a byte.
        packed: &'a [u8],
        /// E4M3 `[n, k / 16]`.
        scales: &'a [u8],
        /// Scale of the whole weight.
        global: f32,
    },
}

/// The weights of one linear operation.
pub struct PackedLinear {
    memory: Arc<Memory>,
    /// Weights that the device will read after these: their first bytes come into its cache while these end.
    next: Option<Arc<Memory>>,
    k: usize,
    silu: bool,
    parts: Vec<Part>,
}

/// One weight; of a fused gate and up the two share their units.
pub(super) struct Part {
    pub(super) shape: LinearShape,
    /// Where its units begin in the memory.
    offset: usize,
    /// The number of its first unit.
    pub(super) first_unit: usize,
    pub(super) units: usize,
    /// Multiplies the finished sum.
    pub(super) scale: f32,
    pub(super) bias: Option<Memory>,
    loaded: bool,
}

impl PackedLinear {
    /// Room for weights of `k` inputs whose products stand side by side.
    ///
    /// # Errors
    /// If the kernels cannot compute it, or the device has no room.
    pub fn new(device: &Device, k: usize, shapes: &[LinearShape]) -> Result<Self, CudaError> {
        Self::with_layout(device, k, shapes, false)
    }

    /// Room for a gate and an up projection whose product is `silu(gate) * up`.
    ///
    /// # Errors
    /// As for [`Self::new`], and if the two differ in shape or format.
    pub fn gate_up(device: &Device, k: usize, format: LinearFormat, n: usize) -> Result<Self, CudaError> {
        let shape = LinearShape { format, n, column: 0 };
        Self::with_layout(device, k, &[shape, shape], true)
    }

    fn with_layout(device: &Device, k: usize, shapes: &[LinearShape], silu: bool) -> Result<Self, CudaError> {
        let (parts, bytes) = layout(k, shapes, silu)?;
        Ok(Self { memory: Arc::new(device.zeros(bytes)?), next: None, k, silu, parts })
    }

    /// Inputs.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Blocks of 64 inputs.
    pub fn blocks(&self) -> usize {
        self.k.div_ceil(BLOCK)
    }

    /// Whether it is a fused gate and up.
    pub fn is_gate_up(&self) -> bool {
        self.silu
    }

    /// Whether it is one plain BF16 matrix, whose rows can be looked up.
    pub fn is_table(&self) -> bool {
        !self.silu && self.parts.len() == 1 && self.parts[0].shape.format == LinearFormat::Bf16
    }

    /// Columns of an output row that are written (of a fused gate and up: of its packed output).
    pub fn width(&self) -> usize {
        self.parts.iter().map(|part| part.shape.column + part.shape.n).max().unwrap_or(0)
    }

    /// Bytes on the device, biases included.
    pub fn bytes(&self) -> usize {
        self.memory.bytes() + self.parts.iter().filter_map(|part| part.bias.as_ref()).map(Memory::bytes).sum::<usize>()
    }

    /// Units of 16 rows, of all parts.
    pub(super) fn units(&self) -> usize {
        self.device_parts().iter().map(|part| part.units).sum()
    }

    /// The parts as kernels see them: a fused gate and up is one.
    pub(super) fn device_parts(&self) -> &[Part] {
        if self.silu { &self.parts[..1] } else { &self.parts }
    }

    pub(super) fn part(&self, index: usize) -> &Part {
        &self.parts[index]
    }

    /// Address of a part's first unit. Rows of a plain BF16 part can be read where they are: see `packed_weight_at` of
    /// `cuda/linear.cuh`.
    pub fn address(&self, part: usize) -> u64 {
        self.memory.address() + self.parts[part].offset as u64
    }

    /// Gives a part its bias.
    ///
    /// # Errors
    /// If it has another length, or the device has no room.
    pub fn set_bias(&mut self, device: &Device, part: usize, bias: &[f32]) -> Result<(), CudaError> {
        let part = &mut self.parts[part];
        if bias.len() != part.shape.n {
            return Err(CudaError::Unsupported(format!(
                "a bias of {} values for {} outputs",
                bias.len(),
                part.shape.n
            )));
        }
        part.bias = Some(device.upload(bias)?);
        Ok(())
    }

    /// Names the weights that the device will read after these. It changes the time, never the result.
    pub fn followed_by(&mut self, next: &PackedLinear) {
        self.next = Some(next.memory.clone());
    }

    pub(super) fn next(&self) -> Option<&Memory> {
        self.next.as_deref()
    }

    /// Whether every part has its values.
    pub fn is_loaded(&self) -> bool {
        self.parts.iter().all(|part| part.loaded)
    }
}

/// Where the parts stand, and the bytes of all.
fn layout(k: usize, shapes: &[LinearShape], silu: bool) -> Result<(Vec<Part>, usize), CudaError> {
    let unsupported = |what: String| Err(CudaError::Unsupported(what));
    if shapes.is_empty() || shapes.len() > MAX_PARTS {
        return unsupported(format!("{} weights in one linear operation (1 to {MAX_PARTS} are)", shapes.len()));
    }
    let pairs = k.div_ceil(2 * BLOCK);
    let (mut offset, mut first_unit) = (0, 0);
    let mut parts: Vec<Part> = Vec::new();
    for shape in shapes {
        if shape.n == 0 || k == 0 || shape.n.max(k) > 1 << 24 {
            return unsupported(format!("a linear layer of {} × {k}", shape.n));
        }
        if shape.format == LinearFormat::Nvfp4 && !k.is_multiple_of(16) {
            return unsupported(format!("NVFP4 rows of {k} columns: a scale covers 16"));
        }
        // Whole warpgroups of 64 rows; a gate and its up make two.
        let units = shape.n.next_multiple_of(BLOCK) * (1 + usize::from(silu)) / UNIT;
        let shares = silu && !parts.is_empty();
        let at = if shares { (0, 0) } else { (offset, first_unit) };
        parts.push(Part {
            shape: *shape,
            offset: at.0,
            first_unit: at.1,
            units,
            scale: 1.0,
            bias: None,
            loaded: false,
        });
        if !shares {
            offset += units * pairs * shape.format.pair_bytes();
            first_unit += units;
        }
    }
    Ok((parts, offset))
}

/// Brings weights into the packed layout.
pub struct WeightLoader {
    device: Device,
    pack: Kernel,
    random: Kernel,
    staging: Memory,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct PackArgs {
    weight: u64,
    values: u64,
    scales: u64,
    format: u32,
    role: u32,
    n: u32,
    k: u32,
    blocks: u32,
    first_row: u32,
    rows: u32,
    seed: u32,
}

// SAFETY: mirrors `LinearPack` of cuda/linear_pack.cu; addresses are integers.
unsafe impl Params for PackArgs {}

impl WeightLoader {
    /// Resolves the kernels.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        Ok(Self {
            device: device.clone(),
            pack: device.kernel("linear_pack", "linear_pack", 0)?,
            random: device.kernel("linear_pack", "linear_random", 0)?,
            staging: device.alloc(STAGING)?,
        })
    }

    /// Packs a part.
    ///
    /// # Errors
    /// If it is not of the format and size that were announced.
    pub fn load(&self, weight: &mut PackedLinear, part: usize, raw: RawWeight<'_>) -> Result<(), CudaError> {
        let LinearShape { format, n, .. } = weight.parts[part].shape;
        let k = weight.k;
        let (values, scales, scale) = match (raw, format) {
            (RawWeight::Bf16(values), LinearFormat::Bf16) if values.len() == 2 * n * k => (values, &[][..], 1.0),
            (RawWeight::Nvfp4 { packed, scales, global }, LinearFormat::Nvfp4)
                if packed.len() == n * k / 2 && scales.len() == n * k / 16 =>
            {
                (packed, scales, global * NVFP4_BIAS)
            }
            _ => return Err(CudaError::Unsupported(format!("a weight that is not {format:?} {n} × {k}"))),
        };
        let (row, scale_row) = (values.len() / n, scales.len() / n);
        // Whole units, so that no two calls set bits of one word.
        let rows = (STAGING / (row + scale_row) / BLOCK * BLOCK).min(n.next_multiple_of(BLOCK));
        if rows == 0 {
            return Err(CudaError::Unsupported(format!("rows of {k} columns do not fit the staging memory")));
        }
        for first in (0..n).step_by(rows) {
            let count = rows.min(n - first);
            self.device.write(&self.staging, 0, &values[first * row..][..count * row])?;
            self.device.write(&self.staging, count * row, &scales[first * scale_row..][..count * scale_row])?;
            let values = self.staging.address();
            let args = PackArgs {
                values,
                scales: values + (count * row) as u64,
                first_row: first as u32,
                rows: count as u32,
                ..args(weight, part)
            };
            self.launch(&self.pack, weight, args)?;
        }
        self.loaded(weight, part, scale);
        Ok(())
    }

    /// Fills a part with random values of unit gain, a function of the seed alone.
    pub fn load_random(&self, weight: &mut PackedLinear, part: usize, seed: u32) -> Result<(), CudaError> {
        let LinearShape { format, n, .. } = weight.parts[part].shape;
        self.launch(&self.random, weight, PackArgs { rows: n as u32, seed, ..args(weight, part) })?;
        let global = 0.25 / (weight.k as f32).sqrt();
        self.loaded(weight, part, if format == LinearFormat::Nvfp4 { global * NVFP4_BIAS } else { 1.0 });
        Ok(())
    }

    fn launch(&self, kernel: &Kernel, weight: &PackedLinear, args: PackArgs) -> Result<(), CudaError> {
        let units = args.rows.next_multiple_of(BLOCK as u32) * (1 + u32::from(weight.silu)) / UNIT as u32;
        // A grid has at most 65,535 blocks along y; every launch takes whole units.
        let shape = |units| Launch::new((args.blocks.div_ceil(4), units, 1), 128);
        const MOST: u32 = 32768;
        let rows_of = |units: u32| units * UNIT as u32 / (1 + u32::from(weight.silu));
        for from in (0..units).step_by(MOST as usize) {
            let count = MOST.min(units - from);
            let skipped = rows_of(from);
            let (row, scale_row) = row_bytes(args.format, args.k);
            let part = PackArgs {
                values: args.values + u64::from(skipped) * row,
                scales: args.scales + u64::from(skipped) * scale_row,
                first_row: args.first_row + skipped,
                rows: rows_of(count).min(args.rows - skipped),
                ..args
            };
            // SAFETY: source rows are in the staging memory, units in the weight's; both outlive the launch because
            // freeing device memory waits for the device.
            unsafe { kernel.launch(shape(count), &part) }?;
        }
        Ok(())
    }

    fn loaded(&self, weight: &mut PackedLinear, part: usize, scale: f32) {
        weight.parts[part].scale = scale;
        weight.parts[part].loaded = true;
    }
}

/// Bytes of a row of values and of a row of scales.
fn row_bytes(format: u32, k: u32) -> (u64, u64) {
    let k = u64::from(k);
    if format == LinearFormat::Nvfp4 as u32 { (k / 2, k / 16) } else { (2 * k, 0) }
}

fn args(weight: &PackedLinear, part: usize) -> PackArgs {
    let shape = weight.parts[part].shape;
    PackArgs {
        weight: weight.address(part),
        values: 0,
        scales: 0,
        format: shape.format as u32,
        role: if weight.silu { part as u32 + 1 } else { 0 },
        n: shape.n as u32,
        k: weight.k as u32,
        blocks: weight.blocks() as u32,
        first_row: 0,
        rows: 0,
        seed: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(format: LinearFormat, n: usize) -> LinearShape {
        LinearShape { format, n, column: 0 }
    }

    #[test]
    fn parts_follow_each_other_in_whole_warpgroups() {
        let shapes = [shape(LinearFormat::Nvfp4, 100), shape(LinearFormat::Bf16, 1), shape(LinearFormat::Nvfp4, 64)];
        let (parts, bytes) = layout(80, &shapes, false).unwrap();
        let places: Vec<_> = parts.iter().map(|part| (part.first_unit, part.units, part.offset)).collect();
        assert_eq!(places, [(0, 8, 0), (8, 4, 8 * 1152), (12, 4, 8 * 1152 + 4 * 4096)]);
        assert_eq!(bytes, 12 * 1152 + 4 * 4096);
    }

    #[test]
    fn a_gate_and_its_up_share_their_units() {
        let (parts, bytes) = layout(64, &[shape(LinearFormat::Bf16, 65); 2], true).unwrap();
        assert!(parts.iter().all(|part| (part.first_unit, part.units, part.offset) == (0, 16, 0)));
        assert_eq!(bytes, 16 * 4096);
    }

    #[test]
    fn what_kernels_cannot_compute_is_refused() {
        assert!(layout(72, &[shape(LinearFormat::Nvfp4, 8)], false).is_err());
        assert!(layout(64, &[], false).is_err());
        assert!(layout(64, &[shape(LinearFormat::Bf16, 8); MAX_PARTS + 1], false).is_err());
        assert!(layout(64, &[shape(LinearFormat::Bf16, 0)], false).is_err());
    }
}
