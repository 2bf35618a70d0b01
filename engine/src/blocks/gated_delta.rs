//! Gated delta net: fused projection, causal convolution, gated delta rule, gated norm.

use super::Lower;
use crate::config::spec::{GatedDeltaSpec, ParamShape, Partition};
use crate::plan::{Op, ParamId, Part, StateLayerSpec, View};

pub(super) struct Params {
    input: Vec<Part>,
    conv: ParamId,
    a_log: ParamId,
    dt_bias: ParamId,
    norm: ParamId,
    out: Part,
}

/// First columns of z, a and b in the fused projection, and its width. Queries, keys and values come first.
fn columns(spec: &GatedDeltaSpec) -> (usize, usize, usize, usize) {
    let z = spec.conv_channels();
    let a = z + spec.value_width();
    (z, a, a + spec.value_heads, a + 2 * spec.value_heads)
}

pub(super) fn declare(lower: &mut Lower<'_>, spec: &GatedDeltaSpec, prefix: &str) -> Params {
    let hidden = lower.spec.hidden;
    let (z, a, b, _) = columns(spec);
    let name = |module: &str| format!("{prefix}{}.{module}", spec.name);
    let group = spec.value_heads / spec.key_heads;
    let channels = spec.conv_channels();
    let heads = Partition::Rows { unit: group };
    let values = Partition::Rows { unit: group * spec.value_dim };
    let input = vec![
        lower.part(&name("in_proj_qkv"), (channels, hidden), 0, false, Partition::Rows { unit: spec.key_dim }),
        lower.part(&name("in_proj_z"), (spec.value_width(), hidden), z, false, values),
        lower.part(&name("in_proj_a"), (spec.value_heads, hidden), a, false, heads),
        lower.part(&name("in_proj_b"), (spec.value_heads, hidden), b, false, heads),
    ];
    let shape = ParamShape::Conv { channels, taps: spec.conv_taps };
    Params {
        input,
        conv: lower.param(&name("conv1d.weight"), shape),
        a_log: lower.vector(&name("A_log"), spec.value_heads),
        dt_bias: lower.vector(&name("dt_bias"), spec.value_heads),
        norm: lower.vector(&name("norm.weight"), spec.value_dim),
        out: lower.part(
            &name("out_proj"),
            (hidden, spec.value_width()),
            0,
            false,
            Partition::Columns { unit: group * spec.value_dim },
        ),
    }
}

pub(super) fn lower(lower: &mut Lower<'_>, spec: &GatedDeltaSpec, prefix: &str, x: View, residual: View) {
    let params = declare(lower, spec, prefix);
    let (z, a, b, width) = columns(spec);
    let projected = lower.view("projected", width);
    let convolved = lower.view("convolved", spec.conv_channels());
    let mixed = lower.view("mixed", spec.value_width());
    let gated = lower.view("gated", spec.value_width());
    let layer = lower.state_layers.len();
    lower.state_layers.push(StateLayerSpec {
        key_heads: spec.key_heads,
        value_heads: spec.value_heads,
        key_dim: spec.key_dim,
        value_dim: spec.value_dim,
        conv_channels: spec.conv_channels(),
        conv_taps: spec.conv_taps,
    });
    lower.push("in_proj", Op::Linear { x, parts: params.input, out: projected, accumulate: false });
    lower.push(
        "conv1d",
        Op::CausalConv {
            x: projected,
            channels: spec.conv_channels(),
            weight: params.conv,
            taps: spec.conv_taps,
            layer,
            out: convolved,
        },
    );
    lower.push(
        "delta",
        Op::GatedDelta {
            qkv: convolved,
            ab: projected,
            a_offset: a,
            b_offset: b,
            a_log: params.a_log,
            dt_bias: params.dt_bias,
            layer,
            out: mixed,
        },
    );
    lower.push(
        "gated_norm",
        Op::GatedNorm {
            x: mixed,
            gate: projected,
            gate_offset: z,
            heads: spec.value_heads,
            weight: params.norm,
            eps: spec.norm_eps,
            out: gated,
        },
    );
    lower.push("out_proj", Op::Linear { x: gated, parts: vec![params.out], out: residual, accumulate: true });
}
