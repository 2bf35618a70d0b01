//! Grouped-query attention: fused projection, norms and rotary embedding, paged cache, optional output gate.

use super::Lower;
use crate::config::spec::{AttentionSpec, Partition};
use crate::plan::{KvLayerSpec, Op, ParamId, Part, QkvSpec, View};

pub(super) struct Params {
    qkv: [Part; 3],
    out: Part,
    norms: Option<(ParamId, ParamId)>,
}

fn layout(spec: &AttentionSpec) -> QkvSpec {
    let q_stride = if spec.output_gate { 2 * spec.head_dim } else { spec.head_dim };
    let k_offset = spec.heads * q_stride;
    QkvSpec {
        heads: spec.heads,
        kv_heads: spec.kv_heads,
        head_dim: spec.head_dim,
        q_stride,
        k_offset,
        v_offset: k_offset + spec.kv_heads * spec.head_dim,
    }
}

pub(super) fn declare(lower: &mut Lower<'_>, spec: &AttentionSpec, prefix: &str) -> Params {
    let hidden = lower.spec.hidden;
    let layout = layout(spec);
    let name = |module: &str| format!("{prefix}{}.{module}", spec.name);
    let kv_width = spec.kv_heads * spec.head_dim;
    // Query heads move together with the key head they share.
    let group = spec.heads / spec.kv_heads * layout.q_stride;
    let qkv = [
        lower.part(&name("q_proj"), (layout.k_offset, hidden), 0, spec.bias, Partition::Rows { unit: group }),
        lower.part(
            &name("k_proj"),
            (kv_width, hidden),
            layout.k_offset,
            spec.bias,
            Partition::Rows { unit: spec.head_dim },
        ),
        lower.part(
            &name("v_proj"),
            (kv_width, hidden),
            layout.v_offset,
            spec.bias,
            Partition::Rows { unit: spec.head_dim },
        ),
    ];
    let unit = spec.heads / spec.kv_heads * spec.head_dim;
    let out =
        lower.part(&name("o_proj"), (hidden, spec.heads * spec.head_dim), 0, spec.bias, Partition::Columns { unit });
    let norms = spec.qk_norm.map(|_| {
        let mut norm = |module: &str| lower.vector(&format!("{}.weight", name(module)), spec.head_dim);
        (norm("q_norm"), norm("k_norm"))
    });
    Params { qkv, out, norms }
}

pub(super) fn lower(lower: &mut Lower<'_>, spec: &AttentionSpec, prefix: &str, x: View, residual: View) {
    let Params { qkv: parts, out, norms } = declare(lower, spec, prefix);
    let layout = layout(spec);
    let qkv = lower.view("projected", layout.v_offset + spec.kv_heads * spec.head_dim);
    let attended = lower.view("mixed", spec.heads * spec.head_dim);
    let rope = lower.rope(&spec.rope);
    let layer = lower.kv_layers.len();
    let weights = Some((parts[1].weight, parts[2].weight));
    lower.kv_layers.push(KvLayerSpec { weights, ..KvLayerSpec::new(spec.kv_heads, spec.head_dim) });
    lower.push("qkv_proj", Op::Linear { x, parts: parts.to_vec(), out: qkv, accumulate: false });
    let norms = norms.zip(spec.qk_norm).map(|((q, k), (eps, unit_offset))| (q, k, eps, unit_offset));
    lower.push("rope", Op::RopeStore { qkv, layout, norms, rope, layer });
    lower
        .push("attention", Op::Attention { qkv, layout, layer, scale: spec.scale, window: spec.window, out: attended });
    if spec.output_gate {
        lower.push("gate", Op::GateOutput { x: attended, gate: qkv, layout });
    }
    lower.push("o_proj", Op::Linear { x: attended, parts: vec![out], out: residual, accumulate: true });
}
