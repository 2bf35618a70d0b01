//! From a model's files to a backend that is ready to compute.

use crate::backend::{ActivationDtype, Backend, BackendOptions, DeviceKind, prepare};
use crate::blocks;
use crate::cache::CacheSizes;
use crate::config::generation::GenerationConfig;
use crate::config::{ModelSpec, hf};
use crate::errors::EngineError;
use crate::weights::safetensors::Tensors;
use crate::weights::{ModelFiles, loader};
use atlas_kernels::KvDtype;

/// How a model is loaded.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions {
    /// Where it is computed.
    pub device: DeviceKind,
    /// Threads of a step.
    pub threads: usize,
    /// Activation format.
    pub activations: ActivationDtype,
    /// Format of cached keys and values.
    pub kv_dtype: KvDtype,
    /// Sequences that run at once.
    pub sequences: usize,
    /// Context length in tokens; the checkpoint's own when `None`.
    pub context: Option<usize>,
    /// KV cache tokens in all; `sequences * context` when `None`.
    pub kv_tokens: Option<usize>,
    /// Checkpoints of recurrent state that the prefix cache may keep.
    pub checkpoints: usize,
    /// Rows of the largest verify group.
    pub verify_rows: usize,
    /// Rows that a step is expected to have at most.
    pub step_rows: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            device: DeviceKind::Cpu,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            activations: ActivationDtype::F32,
            kv_dtype: KvDtype::F32,
            sequences: 1,
            context: None,
            kv_tokens: None,
            checkpoints: 0,
            verify_rows: 8,
            step_rows: 512,
        }
    }
}

impl LoadOptions {
    fn backend(&self, sizes: CacheSizes) -> BackendOptions {
        BackendOptions {
            device: self.device,
            threads: self.threads,
            activations: self.activations,
            kv_dtype: self.kv_dtype,
            sizes,
            step_rows: self.step_rows,
        }
    }
}

/// A model ready to compute.
pub struct Model {
    /// The model as data.
    pub spec: ModelSpec,
    /// What the checkpoint suggests for generation.
    pub generation: GenerationConfig,
    /// The device.
    pub backend: Box<dyn Backend>,
    /// Sizes of its caches.
    pub sizes: CacheSizes,
    /// Context length in tokens.
    pub context: usize,
}

impl Model {
    /// Reads the configuration, lowers it, loads the weights and allocates the caches. `progress` is told the bytes of
    /// weights read so far and in all.
    pub fn load(
        files: &ModelFiles,
        options: &LoadOptions,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Self, EngineError> {
        let mut spec = hf::load_spec(files)?;
        let generation = hf::load_generation(files)?;
        let tensors = Tensors::open(files)?;
        loader::reconcile(&mut spec, &tensors);
        let mut plan = blocks::lower(&spec);
        loader::kv_scales(&mut plan, &tensors)?;
        let total =
            plan.params.iter().filter_map(|param| loader::stored(param, &tensors)).map(|(_, bytes)| bytes).sum();
        let (sizes, context) = sizes(&spec, options)?;
        let mut backend = prepare(plan.clone(), &options.backend(sizes))?;
        loader::load(
            &spec,
            &plan.params,
            &tensors,
            |index, param| backend.load(index, param),
            |read| progress(read, total),
        )?;
        Ok(Self { spec, generation, backend: backend.finish()?, sizes, context })
    }

    /// A model of this configuration with seeded random weights, for benchmarks.
    pub fn synthetic(spec: ModelSpec, options: &LoadOptions, seed: u64) -> Result<Self, EngineError> {
        let plan = blocks::lower(&spec);
        let (sizes, context) = sizes(&spec, options)?;
        let mut backend = prepare(plan.clone(), &options.backend(sizes))?;
        for (index, param) in plan.params.iter().enumerate() {
            backend.load_random(index, param, seed.wrapping_add(index as u64))?;
        }
        Ok(Self { spec, generation: GenerationConfig::default(), backend: backend.finish()?, sizes, context })
    }

    /// End-of-sequence ids: those of `generation_config.json`, else those of `config.json`.
    pub fn eos_tokens(&self) -> &[u32] {
        if self.generation.eos_tokens.is_empty() { &self.spec.eos_tokens } else { &self.generation.eos_tokens }
    }

    /// Whether the model has recurrent state.
    pub fn is_recurrent(&self) -> bool {
        !self.backend.plan().state_layers.is_empty()
    }
}

/// Cache sizes and context length for `options`.
pub fn sizes(spec: &ModelSpec, options: &LoadOptions) -> Result<(CacheSizes, usize), EngineError> {
    let context = options.context.unwrap_or(spec.max_positions);
    if context > spec.max_positions {
        return Err(EngineError::Unsupported(format!(
            "a context of {context} tokens was asked for, but the model was made for {}",
            spec.max_positions
        )));
    }
    let taps = spec.layers.iter().flat_map(|layer| &layer.sublayers).filter_map(|sublayer| match &sublayer.body {
        crate::config::spec::Body::GatedDelta(delta) => Some(delta.conv_taps),
        _ => None,
    });
    let taps = taps.max();
    let mut sizes = CacheSizes::for_sequences(options.sequences, context, taps.unwrap_or(0), options.verify_rows);
    if taps.is_some() {
        sizes = sizes.with_checkpoints(options.checkpoints);
    }
    if let Some(tokens) = options.kv_tokens {
        sizes.pages = tokens.div_ceil(crate::cache::PAGE);
    }
    Ok((sizes, context))
}
