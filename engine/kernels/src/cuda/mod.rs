//! CUDA: devices, kernels and launches. Nothing is linked: the driver is looked for at run time.
//!
//! Each operation has a file here that checks shapes and launches, and a `.cu` file of the same name. Activations are
//! bf16; those that a linear layer reads stand in the packed layout of `cuda/common.cuh`.

mod attention;
mod delta;
mod delta_parts;
mod device;
mod error;
mod kv;
mod launch;
mod linear;
mod module;
mod nvrtc;
mod probe;
mod rope;
mod rows;
mod sample;
mod step;
mod weights;

pub use attention::{AttentionKernels, AttentionOp, AttentionRoom};
pub use delta::{
    DeltaBuffers, DeltaCaches, DeltaColumns, DeltaKernels, DeltaParams, DeltaRates, DeltaRoom, DeltaScratch, DeltaShape,
};
pub use delta_parts::{GatedNorm, GatedNormKernels};
pub use device::{Device, Memory, Pinned, Plain, Properties, device_count};
pub use error::CudaError;
pub use kv::KvPages;
pub use launch::{Event, Graph, Launch, Params};
pub use linear::{LinearKernels, LinearOut, LinearRows, PackedRows};
pub use module::Kernel;
pub use probe::probe_memory;
pub use rope::{HeadNorms, Rope, RopeKernel};
pub use rows::{Gates, Norm, NormRows, RowKernels, StepRoom};
pub use sample::{Candidate, Choice, MAX_TOP, RowSelection, SampleKernels};
pub use step::{DeviceSegment, FEW_ROWS, StepArena, StepArgs, StepRows, TILE_ROWS, Tile};
pub use weights::{LinearFormat, LinearShape, MAX_PARTS, PackedLinear, RawWeight, WeightLoader};

/// Bytes of a packed activation of `rows` rows of `width` columns (bf16, see `cuda/common.cuh`).
pub fn packed_bytes(rows: usize, width: usize) -> usize {
    width.next_multiple_of(64) * rows.next_multiple_of(8) * 2
}
