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
mod recurrent;
mod reference;
mod rows;
mod scenario;

use crate::devices::{Target, targets};
use crate::random::Rng;
use atlas_engine::backend::cpu::ActivationDtype;
use atlas_engine::plan::Op;
use atlas_kernels::KvDtype;
use case::Case;
use reference::{Expected, Observed};
use scenario::{Scenario, Trace, run};
use std::fmt::Debug;

/// Positions of a sequence whose values are compared; bits are compared everywhere.
const CHECKED: usize = 48;

/// Runs a case on every target and checks bits and values. `what` describes the drawn shape.
fn verify(what: &dyn Debug, case: &Case, scenario: &Scenario) {
    for target in targets().into_iter().filter(|target| concerns(case, target)) {
        let what = format!("{target:?}: {what:?}, {scenario:?}");
        let mixed = run(&target, case, scenario);
        let again = run(&target, case, scenario);
        let alone = run(&target, case, &scenario.alone());
        same_bits(&format!("{what}: run to run"), case, scenario, &mixed, &again);
        same_bits(&format!("{what}: in company and alone"), case, scenario, &mixed, &alone);
        let observed = Observed { case, trace: &alone, tokens: &scenario.tokens, kv: target.kv };
        for index in 0..case.plan.ops.len() {
            for sequence in 0..scenario.tokens.len() {
                check_operation(&what, &observed, target.activations, index, sequence);
            }
        }
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

fn same_bits(what: &str, case: &Case, scenario: &Scenario, left: &Trace, right: &Trace) {
    let mut compared = 0;
    for (index, planned) in case.plan.ops.iter().enumerate() {
        for (sequence, tokens) in scenario.tokens.iter().enumerate() {
            for position in 0..tokens.len() {
                let rows = (left.row(index, sequence, position), right.row(index, sequence, position));
                // Rows whose logits nobody asked for are in one run only.
                let (Some(left), Some(right)) = rows else { continue };
                let differs = left.iter().zip(right).position(|(left, right)| left.to_bits() != right.to_bits());
                assert!(
                    differs.is_none() && left.len() == right.len(),
                    "{what}: {} of sequence {sequence} position {position} differs at {differs:?}",
                    planned.name
                );
                compared += 1;
            }
        }
    }
    assert!(compared > 0, "{what}: nothing was compared");
}

fn check_operation(what: &str, observed: &Observed<'_>, mode: ActivationDtype, index: usize, sequence: usize) {
    let plan = &observed.case.plan;
    let planned = &plan.ops[index];
    let len = observed.tokens[sequence].len();
    let stride = len.div_ceil(CHECKED);
    let positions: Vec<usize> = (0..len).filter(|position| (len - 1 - position).is_multiple_of(stride)).collect();
    let logits = planned.op.out().buffer == plan.logits.buffer;
    let copies = matches!(planned.op, Op::Embed { .. } | Op::GatherLogitRows { .. });
    let rounded = mode == ActivationDtype::Bf16 && !logits && !copies;
    for (position, want) in positions.iter().zip(observed.expect(index, sequence, &positions)) {
        let got = observed.trace.row(index, sequence, *position);
        let got = got.unwrap_or_else(|| panic!("{what}: {} was not observed", planned.name));
        assert_eq!(got.len(), want.len(), "{what}: {}", planned.name);
        for (column, (got, want)) in got.iter().zip(want).enumerate() {
            let place = || format!("{what}: {} of sequence {sequence} position {position} column {column}", planned.name);
            check_value(*got, want, rounded).unwrap_or_else(|why| panic!("{}: {why}", place()));
        }
    }
}

fn check_value(got: f32, want: Expected, rounded: bool) -> Result<(), String> {
    let error = (f64::from(got) - want.value).abs();
    let rounding = if rounded { half_unit(want.value.abs() + want.slack) } else { 0.0 };
    if !(error <= want.slack + rounding) {
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
