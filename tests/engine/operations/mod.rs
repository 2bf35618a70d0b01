//! One test body for each operation of a plan, run on every device and in every arithmetic mode.
//!
//! A body draws random plans around its operation. Each is computed in ragged steps of several sequences, again from
//! the start, and with every sequence alone in one chunk. Then
//!
//! - every row of every operation has the same bits in all three runs (NUMERICS);
//! - every element is within tolerance of a reference in f64, which is computed from the inputs as they were observed,
//!   so that one operation answers for its own error only: [`reference`] derives how much that may be, and bf16 mode
//!   adds half a unit of bf16, exactly at the places where the engine's documentation says that a result is rounded.

mod attention;
mod case;
mod formats;
mod linear;
mod models;
mod recurrent;
mod reference;
mod rows;
mod scenario;

use crate::devices::{Target, targets};
use crate::random::Rng;
use atlas_engine::backend::{ActivationDtype, DeviceKind};
use atlas_engine::plan::Op;
use atlas_kernels::KvDtype;
use case::Case;
use reference::{Expected, Observed};
use scenario::{Scenario, Trace, run};
use std::fmt::Debug;

/// Positions of a sequence whose values are compared; bits are compared everywhere.
const CHECKED: usize = 48;
/// Products that a reference computes for an operation of a sequence, about.
const WORK: usize = 60_000_000;

/// A case as computed operation by operation, and as the device fuses it if that may differ.
struct Forms {
    apart: Case,
    fused: Option<Case>,
}

impl Forms {
    /// Nothing in the case is fused by any device.
    fn single(case: Case) -> Self {
        Self { apart: case, fused: None }
    }

    /// `build` makes the same case twice, first with its operations kept apart.
    fn both(build: impl Fn(bool) -> Case) -> Self {
        Self { apart: build(true), fused: Some(build(false)) }
    }
}

/// Runs a case on every target and checks bits and values. `what` describes the drawn shape.
fn verify(what: &dyn Debug, forms: &Forms, scenario: &Scenario) {
    let case = &forms.apart;
    for target in targets().into_iter().filter(|target| concerns(case, target)) {
        let what = format!("{target:?}: {what:?}, {scenario:?}");
        let mixed = run(&target, case, scenario);
        let alone = run(&target, case, &scenario.alone());
        same_bits(&format!("{what}: run to run"), (case, &mixed), (case, &run(&target, case, scenario)));
        same_bits(&format!("{what}: in company and alone"), (case, &mixed), (case, &alone));
        if let Some(fused) = &forms.fused {
            let (together, lone) = (run(&target, fused, scenario), run(&target, fused, &scenario.alone()));
            same_bits(&format!("{what}: fused, in company"), (fused, &together), (case, &alone));
            same_bits(&format!("{what}: fused, alone"), (fused, &lone), (case, &alone));
        }
        check_values(&what, &target, case, scenario, &alone, |op| matches!(op, Op::GatherLogitRows { .. }));
    }
}

/// Formats of the cache matter only to plans that have one.
fn concerns(case: &Case, target: &Target) -> bool {
    let plain = match target.activations {
        ActivationDtype::F32 => KvDtype::F32,
        ActivationDtype::Bf16 => KvDtype::Bf16,
    };
    !case.plan.kv_layers.is_empty() || target.kv == plain
}

/// Every row of every operation that both runs have seen is the same.
fn same_bits(what: &str, left: (&Case, &Trace), right: (&Case, &Trace)) {
    let mut compared = 0;
    for (index, planned) in left.0.plan.ops.iter().enumerate() {
        let Some(other) = right.0.plan.ops.iter().position(|op| op.name == planned.name) else { continue };
        for (sequence, position, row) in left.1.rows(index) {
            // Rows whose logits nobody asked for, and operations inside a fused one, are in one run only.
            let Some(same) = right.1.row(other, sequence, position) else { continue };
            let differs = row.iter().zip(same).position(|(left, right)| left.to_bits() != right.to_bits());
            assert!(
                differs.is_none() && row.len() == same.len(),
                "{what}: {} of sequence {sequence} position {position} differs at {differs:?}",
                planned.name
            );
            compared += 1;
        }
    }
    assert!(compared > 0, "{what}: nothing was compared");
}

/// Compares what operations wrote with what they should write. `hidden` says which of them a device other than the CPU
/// may leave out, because it computes them inside others.
fn check_values(
    what: &str,
    target: &Target,
    case: &Case,
    scenario: &Scenario,
    trace: &Trace,
    hidden: impl Fn(&Op) -> bool,
) {
    let bf16_weights = target.device != DeviceKind::Cpu;
    let observed = Observed { case, trace, tokens: &scenario.tokens, kv: target.kv, bf16_weights };
    for (index, planned) in case.plan.ops.iter().enumerate() {
        for (sequence, tokens) in scenario.tokens.iter().enumerate() {
            if trace.row(index, sequence, 0).is_some() && observed.is_known(index, sequence) {
                check_operation(what, &observed, target.activations, index, sequence);
                continue;
            }
            let inside = target.device != DeviceKind::Cpu && hidden(&planned.op);
            assert!(inside, "{what}: {} was not observed in {} rows", planned.name, tokens.len());
        }
    }
}

fn check_operation(what: &str, observed: &Observed<'_>, mode: ActivationDtype, index: usize, sequence: usize) {
    let plan = &observed.case.plan;
    let planned = &plan.ops[index];
    let len = observed.tokens[sequence].len();
    // Expensive operations are compared in fewer rows, so that references stay cheap.
    let work = match &planned.op {
        Op::Linear { parts, .. } => parts.iter().map(|part| part.n * part.k).sum(),
        Op::Attention { layout, .. } => 2 * layout.heads * layout.head_dim * len,
        _ => 1,
    };
    let checked = (WORK / work).clamp(3, CHECKED);
    let stride = len.div_ceil(checked);
    let positions: Vec<usize> = (0..len).filter(|position| (len - 1 - position).is_multiple_of(stride)).collect();
    let logits = planned.op.out().buffer == plan.logits.buffer;
    let copies = matches!(planned.op, Op::Embed { .. } | Op::GatherLogitRows { .. });
    let rounded = mode == ActivationDtype::Bf16 && !logits && !copies;
    for (position, want) in positions.iter().zip(observed.expect(index, sequence, &positions)) {
        let got = observed.trace.row(index, sequence, *position).unwrap_or(&[]);
        let place = format!("{what}: {} of sequence {sequence} position {position}", planned.name);
        assert_eq!(got.len(), want.len(), "{place}");
        for (column, (got, want)) in got.iter().zip(want).enumerate() {
            check_value(*got, want, rounded).unwrap_or_else(|why| panic!("{place} column {column}: {why}"));
        }
    }
}

fn check_value(got: f32, want: Expected, rounded: bool) -> Result<(), String> {
    let error = (f64::from(got) - want.value).abs();
    let rounding = if rounded { half_unit(want.value.abs() + want.slack) } else { 0.0 };
    if error > want.slack + rounding || error.is_nan() {
        return Err(format!("{got:e} is {error:.2e} from {want:?}"));
    }
    if rounded && got.to_bits() & 0xffff != 0 {
        return Err(format!("{got:e} is not rounded to bf16"));
    }
    Ok(())
}

/// Half of the distance between bf16 values around `size`: eight bits of significand, down to the smallest subnormal.
fn half_unit(size: f64) -> f64 {
    2f64.powf(size.log2().floor() - 8.0).max(2f64.powi(-134))
}

/// A generator for case `index` of a test.
fn rng(test: u64, index: u64) -> Rng {
    Rng::new(test << 32 | index)
}

/// Lengths of four sequences: the last is the longest, so that chunks of up to 129 rows occur.
fn lengths(rng: &mut Rng) -> [usize; 4] {
    [rng.between(1, 90), rng.between(1, 150), rng.between(2, 100), rng.between(30, 200)]
}
