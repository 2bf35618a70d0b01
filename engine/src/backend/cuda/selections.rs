//! Selections and their answers between the engine and the device.

use crate::sampling::{RowOutput, SamplingError, Selection};
use atlas_kernels::cuda::{Choice, RowSelection, SampleKernels};

/// What the device is asked of a row.
pub(super) fn asked(selection: &Selection) -> RowSelection {
    match *selection {
        Selection::Logits => RowSelection::logits(),
        Selection::Greedy => RowSelection::greedy(),
        Selection::Sample { temperature, seed, position } => RowSelection::sample(temperature, seed, position),
        Selection::Top { k } => RowSelection::top(k as usize),
    }
}

/// The device's answer for a logit row of the last step that was not asked for whole.
pub(super) fn answer(kernels: &SampleKernels, row: usize) -> RowOutput<'_> {
    match kernels.choice(row) {
        Choice::Token(token) => RowOutput::Token(token),
        Choice::Top(candidates) => RowOutput::Candidates(candidates),
        Choice::NotANumber(id) => RowOutput::Unusable(SamplingError::NotANumber { id }),
        Choice::NothingAllowed => RowOutput::Unusable(SamplingError::NothingAllowed),
    }
}
