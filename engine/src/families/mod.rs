//! One file a family: `config.json` to [`ModelSpec`]. Pure data: no tensors, no device.

mod dense;
mod llama;
mod qwen3;
mod qwen3_5;

use crate::config::fields::Fields;
use crate::config::quant::Quantization;
use crate::config::spec::{HeadSpec, ModelSpec, NormSpec};
use crate::errors::EngineError;
use serde_json::Value;

type Reader = fn(&Fields<'_>, &str, Quantization) -> Result<ModelSpec, EngineError>;

/// `model_type`, the field that nests the language model (if any), the tensor prefix, and the reader.
const FAMILIES: &[(&str, Option<&str>, &str, Reader)] = &[
    ("llama", None, "model.", llama::read),
    ("qwen3", None, "model.", qwen3::read),
    ("qwen3_5_text", None, "model.", qwen3_5::read),
    ("qwen3_5", Some("text_config"), "model.language_model.", qwen3_5::read),
];

/// Names of the supported `model_type`s.
pub fn supported() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|(name, ..)| *name)
}

/// Chooses the family by `model_type` and reads the configuration. `file` is shown in errors.
pub fn read(file: &str, config: &Value, quantization: Quantization) -> Result<ModelSpec, EngineError> {
    let top = Fields::new(file, config)?;
    let model_type = top.opt_str("model_type")?.ok_or_else(|| top.error("model_type", "is missing"))?;
    let Some((_, nested, prefix, reader)) = FAMILIES.iter().find(|(name, ..)| *name == model_type) else {
        let known: Vec<_> = supported().collect();
        return Err(top.error(
            "model_type",
            format!("is \"{model_type}\", which is not supported; supported are {}", known.join(", ")),
        ));
    };
    // A text-only checkpoint of a multimodal family has no nested configuration.
    let Some(text) = nested.map(|key| top.object(key)).transpose()?.flatten() else {
        let prefix = if nested.is_some() { "model." } else { prefix };
        let mut spec = reader(&top, prefix, quantization)?;
        spec.warnings.extend(top.finish()?);
        return Ok(spec);
    };
    let mut spec = reader(&text, prefix, quantization)?;
    // The outer object may repeat what the inner one says; the inner one wins where it speaks.
    let tied = text.bool_or("tie_word_embeddings", top.bool_or("tie_word_embeddings", false)?)?;
    spec.head = head(tied, prefix, spec.head.norm);
    if spec.eos_tokens.is_empty() {
        spec.eos_tokens = top.token_ids("eos_token_id")?;
    }
    spec.skipped.push(("model.visual.".into(), "the vision encoder"));
    spec.warnings.extend(text.finish()?);
    spec.warnings.extend(top.finish()?);
    Ok(spec)
}

/// The output head: shared embedding or `lm_head`.
fn head(tied: bool, prefix: &str, norm: NormSpec) -> HeadSpec {
    let name = if tied { format!("{prefix}embed_tokens") } else { "lm_head".into() };
    HeadSpec { norm, name, tied }
}

/// `layer_types`, checked against the layer count and the kinds a family knows.
fn layer_types(
    fields: &Fields<'_>,
    layers: usize,
    known: &[&str],
    default: impl Fn(usize) -> String,
) -> Result<Vec<String>, EngineError> {
    let Some(types) = fields.opt_strings("layer_types")? else { return Ok((0..layers).map(default).collect()) };
    if types.len() != layers {
        return Err(fields.error("layer_types", format!("has {} entries for {layers} layers", types.len())));
    }
    match types.iter().find(|kind| !known.contains(kind)) {
        Some(kind) => Err(fields.error("layer_types", format!("holds \"{kind}\"; known are {}", known.join(", ")))),
        None => Ok(types.into_iter().map(str::to_owned).collect()),
    }
}
