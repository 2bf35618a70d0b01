//! What a model costs: parameters, bytes, operations, caches, and the speed that a machine's memory allows.

use crate::blocks;
use crate::config::spec::ParamSpec;
use crate::config::{ModelSpec, WeightFormat, hf};
use crate::errors::EngineError;
use crate::model::{LoadOptions, sizes};
use crate::weights::safetensors::Tensors;
use crate::weights::{ModelFiles, loader};
use atlas_schemas::outputs::{Cost, ExplainHardware, ExplainReport, SublayerCost};
use std::collections::{BTreeMap, HashMap};

/// A machine known by name: peak bandwidths from the makers' data sheets.
pub fn known_hardware(name: &str) -> Option<ExplainHardware> {
    let (memory_gb, bandwidth) = match name {
        "gb10" => (128, 273e9),
        "h200" => (141, 4.8e12),
        _ => return None,
    };
    Some(ExplainHardware { name: name.into(), memory_bytes: memory_gb * 1_000_000_000, bandwidth: Some(bandwidth) })
}

fn add(sum: &mut Cost, cost: &Cost) {
    sum.params += cost.params;
    sum.weight_bytes += cost.weight_bytes;
    sum.weight_bytes_per_token += cost.weight_bytes_per_token;
    sum.flops_per_token += cost.flops_per_token;
    sum.kv_bytes_per_token += cost.kv_bytes_per_token;
    sum.state_bytes_per_sequence += cost.state_bytes_per_sequence;
}

/// Explains the model in `files`. Weight bytes come from the checkpoint's own headers when its weights are there, else
/// from the declared formats.
pub fn explain(
    files: &ModelFiles,
    options: &LoadOptions,
    hardware: ExplainHardware,
) -> Result<ExplainReport, EngineError> {
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
    hardware: ExplainHardware,
) -> Result<ExplainReport, EngineError> {
    let plan = blocks::lower(spec);
    let mut weight_formats: BTreeMap<String, u64> = BTreeMap::new();
    let mut bytes = HashMap::new();
    for param in &plan.params {
        let (format, size) = stored(param)?;
        bytes.insert(param.name.clone(), size);
        *weight_formats.entry(format.name().to_owned()).or_default() += size;
    }
    let (sizes, context) = sizes(spec, options)?;
    let costs =
        plan.costs(|param| bytes.get(&param.name).copied().unwrap_or(0), options.kv_dtype.bytes(), sizes.ring_rows);
    let mut total = Cost::default();
    costs.iter().for_each(|(_, cost)| add(&mut total, cost));
    let sublayers = costs.into_iter().map(|(name, cost)| SublayerCost { name, cost }).collect();
    // A second anchor and open page a sequence are held while a block is crossed.
    let state =
        2 * total.state_bytes_per_sequence * options.sequences as u64 + plan.anchor_bytes() * sizes.checkpoints as u64;
    let kv = total.kv_bytes_per_token * (sizes.pages * crate::cache::PAGE) as u64;
    let activations: usize = plan.buffers.iter().map(|buffer| buffer.width).sum();
    let memory_bytes = total.weight_bytes + kv + state + 4 * 512 * activations as u64;
    let bound = hardware
        .bandwidth
        .map(|bandwidth| bandwidth / (total.weight_bytes_per_token + total.state_bytes_per_sequence).max(1) as f64);
    Ok(ExplainReport {
        family: spec.family.to_owned(),
        context: context as u64,
        sequences: options.sequences as u64,
        weight_formats,
        sublayers,
        total,
        memory_bytes,
        fits: memory_bytes <= hardware.memory_bytes,
        hardware,
        decode_tok_s_bound: bound,
        warnings: spec.warnings.clone(),
    })
}
