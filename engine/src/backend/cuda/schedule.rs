//! From a plan to the launches of a step, without a device.
//!
//! Two things are decided here. Which neighbouring operations one kernel computes: the intermediate result is then
//! never written, and its rounding stays. And in which layout a buffer stands: what a linear layer reads is packed
//! (`cuda/common.cuh`), all else is row-major; where a plan's producer and reader differ, a conversion is put between.

use crate::errors::EngineError;
use crate::plan::{BufferId, Op, Plan, View};

/// How a buffer's rows stand in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Layout {
    /// Row-major bf16 (logits: f32).
    Rows,
    /// Packed for linear layers.
    Packed,
}

/// What one launch (or a few that belong together) computes. Numbers are indices into [`Plan::ops`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Launch {
    /// One operation by itself.
    Single(usize),
    /// `GatherLogitRows` and the `RmsNorm` after it.
    GatherNorm(usize),
    /// `Linear` of gate and up, and the `SiluMul` after it.
    LinearSilu(usize),
    /// `Attention` and the `GateOutput` after it.
    GatedAttention(usize),
    /// `CausalConv`, `GatedDelta` and `GatedNorm`.
    DeltaNet(usize),
    /// A buffer from one layout to the other.
    Convert { view: View, to: Layout },
}

impl Launch {
    /// The operations that it covers.
    pub(super) fn ops(self) -> std::ops::Range<usize> {
        match self {
            Self::Single(op) => op..op + 1,
            Self::GatherNorm(op) | Self::LinearSilu(op) | Self::GatedAttention(op) => op..op + 2,
            Self::DeltaNet(op) => op..op + 3,
            Self::Convert { .. } => 0..0,
        }
    }
}

/// The launches of a step, and where the last one leaves each operation's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Schedule {
    pub(super) launches: Vec<Launch>,
}

/// The layout in which an operation writes its output.
pub(super) fn written(op: &Op) -> Layout {
    match op {
        Op::RmsNorm { .. }
        | Op::Attention { .. }
        | Op::GateOutput { .. }
        | Op::SiluMul { .. }
        | Op::GatedNorm { .. } => Layout::Packed,
        Op::Embed { .. }
        | Op::GatherLogitRows { .. }
        | Op::Linear { .. }
        | Op::RopeStore { .. }
        | Op::CausalConv { .. }
        | Op::GatedDelta { .. } => Layout::Rows,
    }
}

/// What an operation reads, and in which layout.
pub(super) fn reads(op: &Op) -> Vec<(View, Layout)> {
    match op {
        Op::Embed { .. } => vec![],
        Op::GatherLogitRows { x, .. } | Op::RmsNorm { x, .. } | Op::CausalConv { x, .. } => vec![(*x, Layout::Rows)],
        Op::Linear { x, out, accumulate, .. } => {
            let mut views = vec![(*x, Layout::Packed)];
            views.extend(accumulate.then_some((*out, Layout::Rows)));
            views
        }
        Op::RopeStore { qkv, .. } | Op::Attention { qkv, .. } => vec![(*qkv, Layout::Rows)],
        Op::GateOutput { x, gate, .. } => vec![(*x, Layout::Packed), (*gate, Layout::Rows)],
        Op::SiluMul { gate_up, .. } => vec![(*gate_up, Layout::Rows)],
        Op::GatedDelta { qkv, ab, .. } => vec![(*qkv, Layout::Rows), (*ab, Layout::Rows)],
        Op::GatedNorm { x, gate, .. } => vec![(*x, Layout::Rows), (*gate, Layout::Rows)],
    }
}

impl Schedule {
    /// Decides the launches of `plan`.
    ///
    /// # Errors
    /// If an operation reads a buffer that nothing has written.
    pub(super) fn new(plan: &Plan) -> Result<Self, EngineError> {
        let mut launches = Vec::new();
        let mut layouts: Vec<Option<Layout>> = vec![None; plan.buffers.len()];
        let mut index = 0;
        while index < plan.ops.len() {
            let launch = fused(plan, index);
            let ops = launch.ops();
            let written_inside: Vec<BufferId> = ops.clone().map(|op| plan.ops[op].op.out().buffer).collect();
            for op in ops.clone() {
                for (view, layout) in reads(&plan.ops[op].op) {
                    // What the launch itself makes never leaves it.
                    if written_inside[..op - ops.start].contains(&view.buffer) {
                        continue;
                    }
                    let found = layouts[view.buffer.0].ok_or_else(|| {
                        let name = &plan.ops[op].name;
                        EngineError::Unsupported(format!("`{name}` reads a buffer before anything wrote it"))
                    })?;
                    if found != layout {
                        launches.push(Launch::Convert { view, to: layout });
                        layouts[view.buffer.0] = Some(layout);
                    }
                }
            }
            launches.push(launch);
            let outputs = if let Launch::DeltaNet(_) = launch { ops.clone() } else { ops.end - 1..ops.end };
            for op in outputs {
                layouts[plan.ops[op].op.out().buffer.0] = Some(written(&plan.ops[op].op));
            }
            index = ops.end;
        }
        Ok(Self { launches })
    }

    /// Which layouts each buffer is needed in.
    pub(super) fn layouts(&self, plan: &Plan) -> Vec<[bool; 2]> {
        let mut needed = vec![[false; 2]; plan.buffers.len()];
        let mut need = |buffer: BufferId, layout: Layout| needed[buffer.0][layout as usize] = true;
        for launch in &self.launches {
            match launch {
                Launch::Convert { view, to } => need(view.buffer, *to),
                _ => {
                    let ops = launch.ops();
                    let made: Vec<BufferId> = ops.clone().map(|op| plan.ops[op].op.out().buffer).collect();
                    for op in ops.clone() {
                        for (view, layout) in reads(&plan.ops[op].op) {
                            if !made[..op - ops.start].contains(&view.buffer) {
                                need(view.buffer, layout);
                            }
                        }
                    }
                    // Tiles of a gated delta net pass through its inner buffers.
                    let outputs = if let Launch::DeltaNet(_) = launch { ops } else { ops.end - 1..ops.end };
                    outputs.for_each(|op| need(plan.ops[op].op.out().buffer, written(&plan.ops[op].op)));
                }
            }
        }
        needed
    }
}

/// The longest fusion that begins at `index`.
fn fused(plan: &Plan, index: usize) -> Launch {
    let op = |offset: usize| plan.ops.get(index + offset).map(|planned| &planned.op);
    let private = |view: &View, after: usize| is_dead(plan, view.buffer, index + after);
    match (op(0), op(1), op(2)) {
        (Some(Op::GatherLogitRows { out, .. }), Some(Op::RmsNorm { x, .. }), _) if out == x && private(out, 2) => {
            Launch::GatherNorm(index)
        }
        (Some(Op::Linear { parts, out, accumulate: false, .. }), Some(Op::SiluMul { gate_up, .. }), _)
            if out == gate_up
                && parts.len() == 2
                && parts.iter().all(|part| 2 * part.n == out.width)
                && [parts[0].column, parts[1].column] == [0, parts[0].n]
                && private(out, 2) =>
        {
            Launch::LinearSilu(index)
        }
        (Some(Op::Attention { out, qkv, layout, .. }), Some(Op::GateOutput { x, gate, layout: gates }), _)
            if out == x && qkv == gate && layout == gates =>
        {
            Launch::GatedAttention(index)
        }
        (
            Some(Op::CausalConv { x, out: convolved, .. }),
            Some(Op::GatedDelta { qkv, ab, out: mixed, .. }),
            Some(Op::GatedNorm { x: normed, gate, .. }),
        ) if convolved == qkv
            && mixed == normed
            && x == ab
            && x == gate
            && private(convolved, 3)
            && private(mixed, 3) =>
        {
            Launch::DeltaNet(index)
        }
        _ => Launch::Single(index),
    }
}

/// Whether `buffer` is written before it is read again, from operation `from` on.
fn is_dead(plan: &Plan, buffer: BufferId, from: usize) -> bool {
    for planned in &plan.ops[from.min(plan.ops.len())..] {
        if reads(&planned.op).iter().any(|(view, _)| view.buffer == buffer) {
            return false;
        }
        if planned.op.out().buffer == buffer {
            return true;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks;
    use crate::config::hf;
    use crate::weights::ModelFiles;
    use std::path::Path;

    fn golden(case: &str) -> Plan {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/goldens").join(case);
        blocks::lower(&hf::load_spec(&ModelFiles::folder(&folder).unwrap()).unwrap())
    }

    fn count(schedule: &Schedule, kind: impl Fn(&Launch) -> bool) -> usize {
        schedule.launches.iter().filter(|launch| kind(launch)).count()
    }

    #[test]
    fn a_models_operations_are_fused_and_nothing_is_converted() {
        // Six layers, of which two attend.
        let plan = golden("qwen3_5");
        let schedule = Schedule::new(&plan).unwrap();
        assert_eq!(count(&schedule, |launch| matches!(launch, Launch::Convert { .. })), 0);
        assert_eq!(count(&schedule, |launch| matches!(launch, Launch::LinearSilu(_))), 6);
        assert_eq!(count(&schedule, |launch| matches!(launch, Launch::DeltaNet(_))), 4);
        assert_eq!(count(&schedule, |launch| matches!(launch, Launch::GatedAttention(_))), 2);
        assert_eq!(count(&schedule, |launch| matches!(launch, Launch::GatherNorm(_))), 1);
        let covered: usize = schedule.launches.iter().map(|launch| launch.ops().len()).sum();
        assert_eq!(covered, plan.ops.len(), "every operation once");
    }

    #[test]
    fn an_intermediate_that_is_read_again_is_written() {
        let mut plan = golden("llama");
        let silu = plan.ops.iter().position(|planned| matches!(planned.op, Op::SiluMul { .. })).unwrap();
        let Op::SiluMul { gate_up, .. } = plan.ops[silu].op else { unreachable!() };
        let mut again = plan.ops[silu + 1].clone();
        again.op = Op::GatherLogitRows { x: gate_up, out: plan.final_hidden };
        plan.ops.insert(silu + 1, again);
        let schedule = Schedule::new(&plan).unwrap();
        assert!(schedule.launches.contains(&Launch::Single(silu)));
        assert!(!schedule.launches.contains(&Launch::LinearSilu(silu - 1)));
    }

    #[test]
    fn layouts_that_differ_are_converted_once() {
        let mut plan = golden("llama");
        // The first projection reads the residual stream itself.
        let residual = plan.residual;
        let Some(planned) = plan.ops.iter_mut().find(|planned| matches!(planned.op, Op::Linear { .. })) else {
            panic!()
        };
        let Op::Linear { x, .. } = &mut planned.op else { unreachable!() };
        *x = residual;
        let schedule = Schedule::new(&plan).unwrap();
        let converted: Vec<_> =
            schedule.launches.iter().filter(|launch| matches!(launch, Launch::Convert { .. })).collect();
        // To packed for the projection, and back for the one that adds to it.
        assert_eq!(converted.len(), 2);
        assert_eq!(schedule.layouts(&plan)[residual.buffer.0], [true, true]);
    }

    #[test]
    fn reading_what_nobody_wrote_is_an_error() {
        let mut plan = golden("llama");
        plan.ops.remove(0);
        let error = Schedule::new(&plan).unwrap_err().to_string();
        assert!(error.contains("layers.0"), "{error}");
    }
}
