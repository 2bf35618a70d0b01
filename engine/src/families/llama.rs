//! Llama 2, 3, 3.1 and what shares their architecture (SmolLM2 and others).

use super::{head, head_counts, layer};
use crate::config::fields::Fields;
use crate::config::quant::Quantization;
use crate::config::rope;
use crate::config::spec::{AttentionSpec, Body, MlpSpec, ModelSpec, NormSpec};
use crate::errors::EngineError;

pub(super) fn read(fields: &Fields<'_>, prefix: &str, quantization: Quantization) -> Result<ModelSpec, EngineError> {
    fields.only("hidden_act", "silu")?;
    let hidden = fields.size("hidden_size")?;
    let layers = fields.size("num_hidden_layers")?;
    let (heads, kv_heads) = head_counts(fields)?;
    let head_dim = fields.size_or("head_dim", hidden / heads)?;
    let max_positions = fields.size_or("max_position_embeddings", 2048)?;
    let eps = fields.number_or("rms_norm_eps", 1e-6)? as f32;
    let attention = AttentionSpec {
        name: "self_attn".into(),
        heads,
        kv_heads,
        head_dim,
        scale: (head_dim as f32).powf(-0.5),
        bias: fields.bool_or("attention_bias", false)?,
        qk_norm: None,
        rope: rope::read(fields, head_dim, max_positions, 1.0)?,
        window: None,
        output_gate: false,
    };
    let mlp = MlpSpec {
        name: "mlp".into(),
        intermediate: fields.size("intermediate_size")?,
        bias: fields.bool_or("mlp_bias", false)?,
    };
    let norm = |name: &str| NormSpec { name: name.into(), eps, unit_offset: false };
    Ok(ModelSpec {
        family: "llama",
        hidden,
        vocab: fields.size("vocab_size")?,
        max_positions,
        embed: format!("{prefix}embed_tokens"),
        layers: (0..layers)
            .map(|i| layer(format!("{prefix}layers.{i}."), Body::Attention(attention.clone()), mlp.clone(), norm))
            .collect(),
        head: head(fields.bool_or("tie_word_embeddings", false)?, prefix, norm(&format!("{prefix}norm"))),
        mtp: None,
        eos_tokens: fields.token_ids("eos_token_id")?,
        quantization,
        skipped: Vec::new(),
        warnings: Vec::new(),
    })
}
