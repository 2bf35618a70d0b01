//! Qwen3 dense: Llama's layer with per-head query and key norms and an optional sliding window.

use super::{head, head_counts, layer, layer_types};
use crate::config::fields::Fields;
use crate::config::quant::Quantization;
use crate::config::rope;
use crate::config::spec::{AttentionSpec, Body, MlpSpec, ModelSpec, NormSpec};
use crate::errors::EngineError;

pub(super) fn read(fields: &Fields<'_>, prefix: &str, quantization: Quantization) -> Result<ModelSpec, EngineError> {
    fields.only("hidden_act", "silu")?;
    let layers = fields.size("num_hidden_layers")?;
    let (heads, kv_heads) = head_counts(fields)?;
    let head_dim = fields.size_or("head_dim", 128)?;
    let max_positions = fields.size_or("max_position_embeddings", 32768)?;
    let eps = fields.number_or("rms_norm_eps", 1e-6)? as f32;
    let declared_window = fields.opt_size("sliding_window")?;
    let first_windowed = fields.opt_count("max_window_layers")?.unwrap_or(28);
    let window = if fields.bool_or("use_sliding_window", false)? { declared_window } else { None };
    let kinds = layer_types(fields, layers, &["full_attention", "sliding_attention"], |i| {
        if window.is_some() && i >= first_windowed { "sliding_attention" } else { "full_attention" }.to_owned()
    })?;
    if window.is_none() && kinds.iter().any(|kind| kind == "sliding_attention") {
        return Err(fields.error("layer_types", "asks for sliding attention, but no sliding_window is in use"));
    }
    let attention = AttentionSpec {
        name: "self_attn".into(),
        heads,
        kv_heads,
        head_dim,
        scale: (head_dim as f32).powf(-0.5),
        bias: fields.bool_or("attention_bias", false)?,
        qk_norm: Some((eps, false)),
        rope: rope::read(fields, head_dim, max_positions, 1.0)?,
        window: None,
        output_gate: false,
    };
    let mlp = MlpSpec { name: "mlp".into(), intermediate: fields.size("intermediate_size")?, bias: false };
    let norm = |name: &str| NormSpec { name: name.into(), eps, unit_offset: false };
    let windowed = |kind: &str| if kind == "sliding_attention" { window } else { None };
    Ok(ModelSpec {
        family: "qwen3",
        hidden: fields.size("hidden_size")?,
        vocab: fields.size("vocab_size")?,
        max_positions,
        embed: format!("{prefix}embed_tokens"),
        layers: (kinds.iter().enumerate())
            .map(|(i, kind)| {
                let attention = AttentionSpec { window: windowed(kind), ..attention.clone() };
                layer(format!("{prefix}layers.{i}."), Body::Attention(attention), mlp.clone(), norm)
            })
            .collect(),
        head: head(fields.bool_or("tie_word_embeddings", false)?, prefix, norm(&format!("{prefix}norm"))),
        mtp: None,
        eos_tokens: fields.token_ids("eos_token_id")?,
        quantization,
        skipped: Vec::new(),
        warnings: Vec::new(),
    })
}
