//! Qwen3 dense: Llama's layer with per-head query and key norms and an optional sliding window.

use super::dense::{Dense, Habits};
use super::layer_types;
use crate::config::fields::Fields;
use crate::config::quant::Quantization;
use crate::config::spec::{AttentionSpec, Body, ModelSpec};
use crate::errors::EngineError;

pub(super) fn read(fields: &Fields<'_>, prefix: &str, quantization: Quantization) -> Result<ModelSpec, EngineError> {
    let habits = Habits {
        family: "qwen3",
        kv_heads: None,
        head_dim: Some(128),
        max_positions: 32768,
        partial_rotary: 1.0,
        unit_offset: false,
        qk_norm: true,
        output_gate: false,
    };
    let dense = Dense::read(fields, prefix, habits)?;
    let declared_window = fields.opt_size("sliding_window")?;
    let first_windowed = fields.opt_count("max_window_layers")?.unwrap_or(28);
    let window = if fields.bool_or("use_sliding_window", false)? { declared_window } else { None };
    let kinds = layer_types(fields, dense.layers, &["full_attention", "sliding_attention"], |i| {
        if window.is_some() && i >= first_windowed { "sliding_attention" } else { "full_attention" }.to_owned()
    })?;
    if window.is_none() && kinds.iter().any(|kind| kind == "sliding_attention") {
        return Err(fields.error("layer_types", "asks for sliding attention, but no sliding_window is in use"));
    }
    let windowed = |kind: &String| if kind == "sliding_attention" { window } else { None };
    let attention = dense.attention.clone();
    let mixers =
        kinds.iter().map(|kind| Body::Attention(AttentionSpec { window: windowed(kind), ..attention.clone() }));
    dense.model(fields, quantization, mixers, None)
}
