//! Llama 2, 3, 3.1 and what shares their architecture (SmolLM2 and others).

use super::dense::{Dense, Habits};
use crate::config::fields::Fields;
use crate::config::quant::Quantization;
use crate::config::spec::{Body, ModelSpec};
use crate::errors::EngineError;

pub(super) fn read(fields: &Fields<'_>, prefix: &str, quantization: Quantization) -> Result<ModelSpec, EngineError> {
    let habits = Habits {
        family: "llama",
        kv_heads: None,
        head_dim: None,
        max_positions: 2048,
        partial_rotary: 1.0,
        unit_offset: false,
        qk_norm: false,
        output_gate: false,
    };
    let mut dense = Dense::read(fields, prefix, habits)?;
    dense.mlp.bias = fields.bool_or("mlp_bias", false)?;
    let mixers = vec![Body::Attention(dense.attention.clone()); dense.layers];
    dense.model(fields, quantization, mixers, None)
}
