//! Gated feed-forward.

use super::Lower;
use crate::config::spec::{MlpSpec, Partition};
use crate::plan::{Op, Part, View};

pub(super) struct Params {
    gate_up: Vec<Part>,
    down: Part,
}

pub(super) fn declare(lower: &mut Lower<'_>, spec: &MlpSpec, prefix: &str) -> Params {
    let (hidden, inner) = (lower.spec.hidden, spec.intermediate);
    let name = |module: &str| format!("{prefix}{}.{module}", spec.name);
    // Blocks of 16 keep a quantisation block whole on the input side of `down_proj`.
    let rows = Partition::Rows { unit: 16 };
    Params {
        gate_up: vec![
            lower.part(&name("gate_proj"), (inner, hidden), 0, spec.bias, rows),
            lower.part(&name("up_proj"), (inner, hidden), inner, spec.bias, rows),
        ],
        down: lower.part(&name("down_proj"), (hidden, inner), 0, spec.bias, Partition::Columns { unit: 16 }),
    }
}

pub(super) fn lower(lower: &mut Lower<'_>, spec: &MlpSpec, prefix: &str, x: View, residual: View) {
    let params = declare(lower, spec, prefix);
    let gate_up = lower.view("projected", 2 * spec.intermediate);
    let activated = lower.view("activated", spec.intermediate);
    lower.push("gate_up_proj", Op::Linear { x, parts: params.gate_up, out: gate_up, accumulate: false });
    lower.push("silu_mul", Op::SiluMul { gate_up, out: activated });
    lower.push("down_proj", Op::Linear { x: activated, parts: vec![params.down], out: residual, accumulate: true });
}
