//! Qwen3.5, 3.6 and 3.8 dense: three gated-delta-net layers to one gated full-attention layer, partial rotary
//! embedding, `1 + w` norms, and a multi-token-prediction head.

use super::{head, head_counts, layer, layer_types};
use crate::config::fields::Fields;
use crate::config::quant::Quantization;
use crate::config::rope;
use crate::config::spec::{AttentionSpec, Body, GatedDeltaSpec, MlpSpec, ModelSpec, MtpSpec, NormSpec};
use crate::errors::EngineError;

pub(super) fn read(fields: &Fields<'_>, prefix: &str, quantization: Quantization) -> Result<ModelSpec, EngineError> {
    fields.only("hidden_act", "silu")?;
    fields.only("mamba_ssm_dtype", "float32")?;
    fields.only("output_gate_type", "swish")?;
    let layers = fields.size("num_hidden_layers")?;
    let (heads, kv_heads) = head_counts(fields)?;
    let head_dim = fields.size_or("head_dim", 256)?;
    let max_positions = fields.size_or("max_position_embeddings", 32768)?;
    let eps = fields.number_or("rms_norm_eps", 1e-6)? as f32;
    let interval = fields.size_or("full_attention_interval", 4)?;
    let kinds = layer_types(fields, layers, &["linear_attention", "full_attention"], |i| {
        if (i + 1) % interval == 0 { "full_attention" } else { "linear_attention" }.to_owned()
    })?;
    if !fields.bool_or("attn_output_gate", true)? {
        return Err(fields.error("attn_output_gate", "is false; this family always gates its attention output"));
    }
    let attention = AttentionSpec {
        name: "self_attn".into(),
        heads,
        kv_heads,
        head_dim,
        scale: (head_dim as f32).powf(-0.5),
        bias: fields.bool_or("attention_bias", false)?,
        qk_norm: Some((eps, true)),
        rope: rope::read(fields, head_dim, max_positions, 0.25)?,
        window: None,
        output_gate: true,
    };
    let delta = GatedDeltaSpec {
        name: "linear_attn".into(),
        key_heads: fields.size_or("linear_num_key_heads", 16)?,
        value_heads: fields.size_or("linear_num_value_heads", 32)?,
        key_dim: fields.size_or("linear_key_head_dim", 128)?,
        value_dim: fields.size_or("linear_value_head_dim", 128)?,
        conv_taps: fields.size_or("linear_conv_kernel_dim", 4)?,
        norm_eps: eps,
    };
    if !delta.value_heads.is_multiple_of(delta.key_heads) {
        return Err(fields.error(
            "linear_num_value_heads",
            format!("is {}, which is no multiple of {} key heads", delta.value_heads, delta.key_heads),
        ));
    }
    let mlp = MlpSpec { name: "mlp".into(), intermediate: fields.size("intermediate_size")?, bias: false };
    let norm = |name: &str| NormSpec { name: name.into(), eps, unit_offset: true };
    let mixer = |kind: &str| match kind {
        "full_attention" => Body::Attention(attention.clone()),
        _ => Body::GatedDelta(delta.clone()),
    };
    if fields.bool_or("mtp_use_dedicated_embeddings", false)? {
        return Err(fields.error("mtp_use_dedicated_embeddings", "is true, which is not supported"));
    }
    let mtp_layers = fields.opt_count("mtp_num_hidden_layers")?.unwrap_or(0);
    let mtp = (mtp_layers > 0).then(|| MtpSpec {
        embedding_norm: norm("mtp.pre_fc_norm_embedding"),
        hidden_norm: norm("mtp.pre_fc_norm_hidden"),
        fusion: "mtp.fc".into(),
        layers: (0..mtp_layers)
            .map(|i| layer(format!("mtp.layers.{i}."), Body::Attention(attention.clone()), mlp.clone(), norm))
            .collect(),
        norm: norm("mtp.norm"),
    });
    Ok(ModelSpec {
        family: "qwen3_5",
        hidden: fields.size("hidden_size")?,
        vocab: fields.size("vocab_size")?,
        max_positions,
        embed: format!("{prefix}embed_tokens"),
        layers: (kinds.iter().enumerate())
            .map(|(i, kind)| layer(format!("{prefix}layers.{i}."), mixer(kind), mlp.clone(), norm))
            .collect(),
        head: head(fields.bool_or("tie_word_embeddings", false)?, prefix, norm(&format!("{prefix}norm"))),
        mtp,
        eos_tokens: fields.token_ids("eos_token_id")?,
        quantization,
        skipped: Vec::new(),
        warnings: Vec::new(),
    })
}
