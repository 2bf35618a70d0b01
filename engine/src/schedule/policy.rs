//! Whose prompt is computed next, and how much of it in one step.

use super::pace::Pace;
use super::sequence::Generation;
use std::time::Duration;

/// The order in which requests are admitted and their prompts computed. Decode rows always come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// In order of arrival.
    #[default]
    Fifo,
    /// The shortest first, within fairness limits, and in a step only as many prompt rows as keep the sequences that
    /// decode within their inter-token deadline.
    ///
    /// Fairness: later arrivals and held-back rows pass a prompt of n tokens over until they come to [`PATIENCE`]
    /// times n rows. From then on it is due: it goes before all that is not, and no rows are held back from it. Among
    /// those due, the first to arrive goes first.
    Slai,
}

/// How many times its own length a prompt is passed over at most.
pub const PATIENCE: usize = 4;
/// A step that must hold rows back still takes this fraction of its budget.
const LEAST_SHARE: usize = 16;

impl Policy {
    /// Sorts before those that go later; `pending` tokens are still to be computed.
    pub(crate) fn rank(self, generation: &Generation, pending: usize) -> (bool, usize, u64) {
        match self {
            Self::Slai if !is_due(generation) => (true, pending, generation.arrival),
            Self::Slai | Self::Fifo => (false, 0, generation.arrival),
        }
    }

    /// Prompt rows of a step with `budget` rows left, when the next token of a decoding sequence is due in `left`.
    pub(crate) fn prompt_rows(self, budget: usize, left: Option<Duration>, pace: &Pace, some_due: bool) -> usize {
        match (self, left) {
            (Self::Slai, Some(left)) if !some_due => {
                pace.rows_within(left).clamp((budget / LEAST_SHARE).max(1).min(budget), budget)
            }
            _ => budget,
        }
    }
}

/// Whether a request has been passed over for long enough. A preempted one has waited before.
pub(crate) fn is_due(generation: &Generation) -> bool {
    generation.preempted || generation.passed_over >= PATIENCE * generation.tokens.len()
}
