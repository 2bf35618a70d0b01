//! What a model costs: parameters, bytes, operations, caches, and the speed that a machine's memory allows.

use crate::blocks;
use crate::config::spec::ParamSpec;
use crate::config::{ModelSpec, WeightFormat, hf};
use crate::errors::EngineError;
use crate::model::{LoadOptions, sizes};
use crate::plan::Cost;
use crate::weights::safetensors::Tensors;
use crate::weights::{ModelFiles, loader};
use atlas_kernels::KvDtype;
use serde::Serialize;

/// A machine, as far as the roofline needs it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hardware {
    /// Name, as in `gb10`.
    pub name: String,
    /// Memory that a model may use, in bytes.
    pub memory_bytes: u64,
    /// Memory bandwidth in bytes a second; `None` when not measured.
    pub bandwidth: Option<f64>,
}

impl Hardware {
    /// A machine known by name: peak bandwidths from the makers' data sheets.
    pub fn known(name: &str) -> Option<Self> {
        let (memory_gb, bandwidth) = match name {
            "gb10" => (128, 273e9),
            "h200" => (141, 4.8e12),
            _ => return None,
        };
        Some(Self { name: name.into(), memory_bytes: memory_gb * 1_000_000_000, bandwidth: Some(bandwidth) })
    }

    /// This machine: its available memory. Bandwidth is not guessed.
    pub fn this() -> Self {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0);
        Self { name: "this".into(), memory_bytes: kib * 1024, bandwidth: None }
    }
}

/// One group of operations, usually a sublayer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// As in `layers.3.mlp`.
    pub name: String,
    /// Costs.
    #[serde(flatten)]
    pub cost: CostJson,
}

/// [`Cost`] as reported.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Default)]
pub struct CostJson {
    /// Elements of all parameters.
    pub params: u64,
    /// Bytes of all parameters as stored, scales included.
    pub weight_bytes: u64,
    /// Bytes of weights that one decoded token reads.
    pub weight_bytes_per_token: u64,
    /// Floating-point operations for one token, attention over earlier tokens not counted.
    pub flops_per_token: u64,
    /// KV cache bytes for one token.
    pub kv_bytes_per_token: u64,
    /// Recurrent state bytes for one sequence.
    pub state_bytes_per_sequence: u64,
}

impl CostJson {
    fn add(&mut self, cost: &Cost) {
        self.params += cost.params;
        self.weight_bytes += cost.weight_bytes;
        self.weight_bytes_per_token += cost.read_bytes_per_token;
        self.flops_per_token += cost.flops_per_token;
        self.kv_bytes_per_token += cost.kv_bytes_per_token;
        self.state_bytes_per_sequence += cost.state_bytes_per_sequence;
    }
}

/// The whole report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// Family.
    pub family: String,
    /// Context length used for the memory estimate.
    pub context: usize,
    /// Sequences used for the memory estimate.
    pub sequences: usize,
    /// Bytes by weight format.
    pub formats: Vec<(String, u64)>,
    /// Groups in order.
    pub sublayers: Vec<Row>,
    /// Sums.
    pub total: CostJson,
    /// Weights, caches and activations in bytes.
    pub memory_bytes: u64,
    /// The machine compared with.
    pub hardware: Hardware,
    /// Whether it fits.
    pub fits: bool,
    /// Decode speed of one sequence that the memory bandwidth allows, tokens a second, at an empty context.
    pub decode_tok_s_bound: Option<f64>,
    /// What the reader should know.
    pub warnings: Vec<String>,
}

/// Explains the model in `files`. Weight bytes come from the checkpoint's own headers when its weights are there, else
/// from the declared formats.
pub fn explain(files: &ModelFiles, options: &LoadOptions, hardware: Hardware) -> Result<Explanation, EngineError> {
    let mut spec = hf::load_spec(files)?;
    let tensors = match has_weights(files)? {
        true => Some(Tensors::open(files)?),
        false => None,
    };
    if let Some(tensors) = &tensors {
        loader::reconcile(&mut spec, tensors);
    }
    let stored = |param: &ParamSpec| match &tensors {
        Some(tensors) => loader::stored(param, tensors).ok_or_else(|| EngineError::Weights {
            path: tensors.file_of(&param.name),
            message: format!("`{}` is missing", param.name),
        }),
        None => Ok((param.format, param.bytes())),
    };
    explain_spec(&spec, stored, options, hardware)
}

fn has_weights(files: &ModelFiles) -> Result<bool, EngineError> {
    let any = ["model.safetensors", "model.safetensors.index.json"];
    any.iter().try_fold(false, |found, name| Ok(found || files.open(name)?.is_some()))
}

/// Explains a specification, with `stored` giving a parameter's format and bytes.
pub fn explain_spec(
    spec: &ModelSpec,
    stored: impl Fn(&ParamSpec) -> Result<(WeightFormat, u64), EngineError>,
    options: &LoadOptions,
    hardware: Hardware,
) -> Result<Explanation, EngineError> {
    let plan = blocks::lower(spec);
    let mut formats: Vec<(String, u64)> = Vec::new();
    let mut bytes = std::collections::HashMap::new();
    for param in &plan.params {
        let (format, size) = stored(param)?;
        bytes.insert(param.name.clone(), size);
        match formats.iter_mut().find(|(name, _)| name == format.name()) {
            Some((_, sum)) => *sum += size,
            None => formats.push((format.name().to_owned(), size)),
        }
    }
    let (sizes, context) = sizes(spec, options)?;
    let kv_element = match options.kv_dtype {
        KvDtype::F32 => 4.0,
        KvDtype::Bf16 => 2.0,
    };
    let costs = plan.costs(|param| bytes.get(&param.name).copied().unwrap_or(0), kv_element, sizes.ring_rows);
    let mut total = CostJson::default();
    let mut sublayers = Vec::new();
    for (name, cost) in costs {
        let mut row = CostJson::default();
        row.add(&cost);
        total.add(&cost);
        sublayers.push(Row { name, cost: row });
    }
    // A second anchor and open page a sequence are held while a block is crossed.
    let state = 2 * total.state_bytes_per_sequence * options.sequences as u64;
    let kv = total.kv_bytes_per_token * (sizes.pages * crate::cache::PAGE) as u64;
    let activations: usize = plan.buffers.iter().map(|buffer| buffer.width).sum();
    let memory_bytes = total.weight_bytes + kv + state + 4 * 512 * activations as u64;
    let bound = hardware
        .bandwidth
        .map(|bandwidth| bandwidth / (total.weight_bytes_per_token + total.state_bytes_per_sequence).max(1) as f64);
    Ok(Explanation {
        family: spec.family.to_owned(),
        context,
        sequences: options.sequences,
        formats,
        sublayers,
        total,
        memory_bytes,
        fits: memory_bytes <= hardware.memory_bytes,
        hardware,
        decode_tok_s_bound: bound,
        warnings: spec.warnings.clone(),
    })
}
