//! Devices that execute plans.
//!
//! A backend is made in three steps, so that nothing large is read in vain: [`prepare`] resolves every operation of the
//! plan and allocates the caches; [`Prepare::load`] takes the parameters one by one, in the plan's order, and packs
//! them for the device; [`Prepare::finish`] yields the [`Backend`].

pub mod cpu;
pub mod cuda;

use crate::cache::CacheSizes;
use crate::config::spec::ParamSpec;
use crate::errors::EngineError;
use crate::plan::{Plan, PlannedOp, QkvSpec};
use crate::sampling::RowOutput;
use crate::schedule::StepBatch;
use crate::weights::{RawParam, synthetic};
use atlas_kernels::{KvDtype, QkvLayout};

/// The format of activations between operations (NUMERICS N2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ActivationDtype {
    /// Reference mode.
    #[default]
    F32,
    /// Rounded to bfloat16 at the places that the engine's documentation lists.
    Bf16,
}

/// Where a model is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceKind {
    /// The CPU.
    #[default]
    Cpu,
    /// The CUDA device with this index.
    Cuda(usize),
}

/// What a backend is made for.
#[derive(Debug, Clone, Copy)]
pub struct BackendOptions {
    /// The device.
    pub device: DeviceKind,
    /// Threads of a step (CPU).
    pub threads: usize,
    /// Activation format.
    pub activations: ActivationDtype,
    /// Format of cached keys and values.
    pub kv_dtype: KvDtype,
    /// Cache sizes.
    pub sizes: CacheSizes,
    /// Rows that a step is expected to have at most; larger ones cost an allocation.
    pub step_rows: usize,
}

/// Sees the output of operations: how goldens and profiles look inside a step.
pub trait Observer {
    /// Called after `op` with its output, `rows` rows of `width` values. An operation that the device fuses with the
    /// next one has no output of its own and is left out; the residual stream, final hidden states and logits are
    /// always seen.
    fn after(&mut self, index: usize, op: &PlannedOp, output: &[f32], rows: usize, width: usize);
}

/// A backend that takes its parameters.
pub trait Prepare {
    /// Takes the parameter at `index` of the plan; they come in order.
    ///
    /// # Errors
    /// If the device has no room for it or no arithmetic for its format.
    fn load(&mut self, index: usize, param: RawParam) -> Result<(), EngineError>;

    /// Makes a random parameter, for benchmarks: see [`synthetic::param`].
    fn load_random(&mut self, index: usize, spec: &ParamSpec, seed: u64) -> Result<(), EngineError> {
        self.load(index, synthetic::param(spec, seed))
    }

    /// The backend, when every parameter has been loaded.
    fn finish(self: Box<Self>) -> Result<Box<dyn Backend>, EngineError>;
}

/// Resolves every operation of `plan` on the device and allocates the caches.
///
/// # Errors
/// If the device is not there, lacks an operation, or has no room.
pub fn prepare(plan: Plan, options: &BackendOptions) -> Result<Box<dyn Prepare>, EngineError> {
    match options.device {
        DeviceKind::Cpu => Ok(Box::new(cpu::CpuBackend::new(
            plan,
            cpu::CpuOptions {
                threads: options.threads,
                activations: options.activations,
                kv_dtype: options.kv_dtype,
                sizes: options.sizes,
            },
        ))),
        DeviceKind::Cuda(ordinal) => Ok(Box::new(cuda::CudaBackend::new(plan, ordinal, options)?)),
    }
}

/// What a step yields: one output a logit row of the batch, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepOutput<'a> {
    /// The outputs.
    pub rows: Vec<RowOutput<'a>>,
}

impl<'a> StepOutput<'a> {
    /// Whole rows of `vocab` logits, one after the other.
    pub fn of_logits(logits: &'a [f32], vocab: usize) -> Self {
        Self { rows: logits.chunks_exact(vocab.max(1)).map(RowOutput::Logits).collect() }
    }

    /// The logits of a step whose rows were all asked for whole, one row after the other.
    ///
    /// # Errors
    /// If the backend broke its contract.
    pub fn logits(&self) -> Result<Vec<f32>, EngineError> {
        let rows: Result<Vec<&[f32]>, _> = self.rows.iter().map(RowOutput::logits).collect();
        rows.map(|rows| rows.concat()).map_err(|error| EngineError::Unsupported(error.to_string()))
    }
}

/// Executes the steps of one model on one device.
pub trait Backend: Send {
    /// The plan it executes.
    fn plan(&self) -> &Plan;

    /// Computes one step and returns what the batch's selections ask for, or more. Keys, values and states of the
    /// step's rows are in the caches afterwards. The batch's indices come from [`crate::cache::Caches`] of the sizes
    /// that the backend was made with.
    fn execute(
        &mut self,
        batch: &StepBatch,
        observer: Option<&mut dyn Observer>,
    ) -> Result<StepOutput<'_>, EngineError>;

    /// Whether a sequence can begin at any anchor with nothing but that anchor: convolutions keep the inputs before an
    /// anchor with it. Prefix caching of models with recurrent state needs this.
    fn resumes_at_anchors(&self) -> bool {
        false
    }

    /// Bytes of weights in memory.
    fn weight_bytes(&self) -> u64;

    /// Bytes of caches in memory.
    fn cache_bytes(&self) -> u64;
}

/// Where kernels find queries, keys and values in the rows of a fused projection.
fn qkv_layout(spec: &QkvSpec) -> QkvLayout {
    QkvLayout {
        heads: spec.heads,
        kv_heads: spec.kv_heads,
        head_dim: spec.head_dim,
        q_offset: 0,
        q_head_stride: spec.q_stride,
        k_offset: spec.k_offset,
        v_offset: spec.v_offset,
        v_dim: spec.head_dim,
    }
}
