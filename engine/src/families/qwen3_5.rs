//! Qwen3.5, 3.6 and 3.8 dense: three gated-delta-net layers to one gated full-attention layer, partial rotary
//! embedding, `1 + w` norms, and a multi-token-prediction head.

use super::dense::{Dense, Habits, MAX_LAYERS};
use super::layer_types;
use crate::config::fields::Fields;
use crate::config::quant::Quantization;
use crate::config::spec::{Body, GatedDeltaSpec, ModelSpec, MtpSpec};
use crate::errors::EngineError;

pub(super) fn read(fields: &Fields<'_>, prefix: &str, quantization: Quantization) -> Result<ModelSpec, EngineError> {
    let habits = Habits {
        family: "qwen3_5",
        kv_heads: Some(4),
        head_dim: Some(256),
        max_positions: 32768,
        partial_rotary: 0.25,
        unit_offset: true,
        qk_norm: true,
        output_gate: true,
    };
    let dense = Dense::read(fields, prefix, habits)?;
    fields.only("mamba_ssm_dtype", "float32")?;
    fields.only("output_gate_type", "swish")?;
    if !fields.bool_or("attn_output_gate", true)? {
        return Err(fields.error("attn_output_gate", "is false; this family always gates its attention output"));
    }
    let interval = fields.size_or("full_attention_interval", 4)?;
    let kinds = layer_types(fields, dense.layers, &["linear_attention", "full_attention"], |i| {
        if (i + 1) % interval == 0 { "full_attention" } else { "linear_attention" }.to_owned()
    })?;
    let delta = gated_delta(fields, dense.eps)?;
    let mtp = mtp(fields, &dense)?;
    let attention = dense.attention.clone();
    let mixers = kinds.iter().map(|kind| match kind.as_str() {
        "full_attention" => Body::Attention(attention.clone()),
        _ => Body::GatedDelta(delta.clone()),
    });
    let declared = mtp.is_some();
    let mut spec = dense.model(fields, quantization, mixers, mtp)?;
    if !declared {
        spec.skipped.push(("mtp.".into(), "a draft head that the configuration does not declare"));
    }
    Ok(spec)
}

fn gated_delta(fields: &Fields<'_>, norm_eps: f32) -> Result<GatedDeltaSpec, EngineError> {
    let delta = GatedDeltaSpec {
        name: "linear_attn".into(),
        key_heads: fields.size_or("linear_num_key_heads", 16)?,
        value_heads: fields.size_or("linear_num_value_heads", 32)?,
        key_dim: fields.size_or("linear_key_head_dim", 128)?,
        value_dim: fields.size_or("linear_value_head_dim", 128)?,
        conv_taps: fields.size_or("linear_conv_kernel_dim", 4)?,
        norm_eps,
    };
    if !delta.value_heads.is_multiple_of(delta.key_heads) {
        let message = format!("is {}, which is no multiple of {} key heads", delta.value_heads, delta.key_heads);
        return Err(fields.error("linear_num_value_heads", message));
    }
    Ok(delta)
}

fn mtp(fields: &Fields<'_>, dense: &Dense) -> Result<Option<MtpSpec>, EngineError> {
    if fields.bool_or("mtp_use_dedicated_embeddings", false)? {
        return Err(fields.error("mtp_use_dedicated_embeddings", "is true, which is not supported"));
    }
    let layers = match fields.opt_count("mtp_num_hidden_layers")? {
        Some(layers) if layers > MAX_LAYERS => {
            return Err(
                fields.error("mtp_num_hidden_layers", format!("is {layers}; it must not be above {MAX_LAYERS}"))
            );
        }
        layers => layers.unwrap_or(0),
    };
    let layer = |i: usize| dense.layer(format!("mtp.layers.{i}."), Body::Attention(dense.attention.clone()));
    Ok((layers > 0).then(|| MtpSpec {
        embedding_norm: dense.norm("mtp.pre_fc_norm_embedding"),
        hidden_norm: dense.norm("mtp.pre_fc_norm_hidden"),
        fusion: "mtp.fc".into(),
        layers: (0..layers).map(layer).collect(),
        norm: dense.norm("mtp.norm"),
    }))
}
