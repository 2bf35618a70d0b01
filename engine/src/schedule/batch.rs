//! One step's rows: decode rows, verify groups and prefill chunks of several sequences, ragged.

use crate::cache::{Reservation, Sequence, Tables};
use crate::sampling::Selection;

/// Consecutive rows of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// First row in the step.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Position of the first row: the tokens the sequence holds already.
    pub start: usize,
    /// Device indices.
    pub tables: Tables,
}

/// Everything a backend needs to compute one step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepBatch {
    /// Token ids, one a row.
    pub tokens: Vec<u32>,
    /// Positions, one a row.
    pub positions: Vec<u32>,
    /// The sequences' parts, in row order.
    pub segments: Vec<Segment>,
    /// Rows whose logits are wanted, ascending.
    pub logit_rows: Vec<u32>,
    /// What is wanted of each of them.
    pub selections: Vec<Selection>,
}

/// Which rows of a segment need logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WantLogits {
    /// None: a prefill chunk that is not the last.
    None,
    /// The last row.
    Last,
    /// What a token is chosen from that follows the last row: decode, or the last prefill chunk.
    Choice(Selection),
    /// Every row: a verify group, or prompt log-probabilities.
    All,
}

impl WantLogits {
    /// How many of a segment's `rows` have logits.
    pub fn count(self, rows: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Last | Self::Choice(_) => rows.min(1),
            Self::All => rows,
        }
    }
}

impl StepBatch {
    /// Appends the reserved rows of a sequence. `tokens` are the reserved rows' ids.
    pub fn push(&mut self, sequence: &Sequence, reservation: &Reservation, tokens: &[u32], want: WantLogits) {
        let first_row = self.tokens.len();
        let start = sequence.len();
        self.tokens.extend_from_slice(tokens);
        self.positions.extend((start..start + tokens.len()).map(|position| position as u32));
        let (end, count) = (self.tokens.len(), want.count(tokens.len()));
        self.logit_rows.extend((end - count..end).map(|row| row as u32));
        let selection = if let WantLogits::Choice(selection) = want { selection } else { Selection::Logits };
        self.selections.extend((0..count).map(|_| selection));
        let tables = sequence.tables(reservation);
        self.segments.push(Segment { first_row, rows: tokens.len(), start, tables });
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }
}
