//! Which rows are computed in which step, and what every operation wrote for them.

use super::case::{Case, VOCAB};
use crate::devices::Target;
use crate::random::Rng;
use atlas_engine::backend::Observer;
use atlas_engine::cache::{CacheSizes, Caches, Sequence};
use atlas_engine::plan::{PlannedOp, Rows};
use atlas_engine::schedule::StepBatch;
use atlas_engine::schedule::batch::WantLogits;
use std::fmt;

/// The most rows of a step.
const STEP_ROWS: usize = 129;
/// The most rows of a verify group.
const GROUP: usize = 8;

/// A sequence's rows in a step. Rows past the accepted ones hold other tokens and are rolled back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    sequence: usize,
    rows: usize,
    accepted: usize,
    want: WantLogits,
}

/// Token sequences and the steps that compute them.
#[derive(Clone)]
pub(crate) struct Scenario {
    pub(crate) tokens: Vec<Vec<u32>>,
    steps: Vec<Vec<Share>>,
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.steps.iter().enumerate() {
            write!(f, "{}", if index == 0 { "steps " } else { " | " })?;
            for share in step {
                write!(f, " {}:{}", share.sequence, share.rows)?;
                if share.accepted < share.rows {
                    write!(f, "({})", share.accepted)?;
                }
            }
        }
        Ok(())
    }
}

impl Scenario {
    /// Sequences of these lengths in ragged steps: chunks and verify groups of any size, some of them rejected, with
    /// odd starts. The last step holds two decode rows, a verify group and a chunk, in any order.
    pub(crate) fn ragged(rng: &mut Rng, lengths: [usize; 4]) -> Self {
        let tokens = tokens(rng, &lengths);
        let last = [1, 1, rng.between(1, GROUP), rng.between(1, 115)];
        let last: Vec<usize> = last.iter().zip(lengths).map(|(rows, length)| *rows.min(&length)).collect();
        let mut left: Vec<usize> = lengths.iter().zip(&last).map(|(length, rows)| length - rows).collect();
        let mut steps = Vec::new();
        while left.iter().any(|left| *left > 0) {
            let mut step = Vec::new();
            let mut budget = STEP_ROWS;
            for (sequence, left) in left.iter_mut().enumerate() {
                let most = rng.pick(&[1, GROUP, 64, STEP_ROWS]).min(*left).min(budget);
                if most == 0 || rng.one_in(3) {
                    continue;
                }
                let rows = rng.between(1, most);
                let rejects = rows > 1 && rows <= GROUP && rng.one_in(3);
                let accepted = if rejects { rng.between(0, rows - 1) } else { rows };
                let want = rng.pick(&[WantLogits::None, WantLogits::Last, WantLogits::All]);
                step.push(Share { sequence, rows, accepted, want });
                *left -= accepted;
                budget -= rows;
            }
            if !step.is_empty() {
                rng.shuffle(&mut step);
                steps.push(step);
            }
        }
        let all = |(sequence, rows): (usize, usize)| Share { sequence, rows, accepted: rows, want: WantLogits::All };
        let mut step: Vec<Share> = last.into_iter().enumerate().map(all).collect();
        rng.shuffle(&mut step);
        steps.push(step);
        Self { tokens, steps }
    }

    /// One sequence after the other, each alone, in as few steps as can be.
    pub(crate) fn alone(&self) -> Self {
        let mut steps = Vec::new();
        for (sequence, tokens) in self.tokens.iter().enumerate() {
            for chunk in tokens.chunks(512) {
                let rows = chunk.len();
                steps.push(vec![Share { sequence, rows, accepted: rows, want: WantLogits::All }]);
            }
        }
        Self { tokens: self.tokens.clone(), steps }
    }

    /// One sequence in steps of 1, 2, 3 … 129 rows.
    pub(crate) fn every_row_count(rng: &mut Rng) -> Self {
        let share = |rows| Share { sequence: 0, rows, accepted: rows, want: WantLogits::Last };
        let steps = (1..=STEP_ROWS).map(|rows| vec![share(rows)]).collect();
        Self { tokens: tokens(rng, &[STEP_ROWS * (STEP_ROWS + 1) / 2]), steps }
    }

    fn context(&self) -> usize {
        self.tokens.iter().map(Vec::len).max().unwrap_or(0)
    }
}

fn tokens(rng: &mut Rng, lengths: &[usize]) -> Vec<Vec<u32>> {
    let token = |rng: &mut Rng| rng.between(0, VOCAB - 1) as u32;
    lengths.iter().map(|length| (0..*length).map(|_| token(rng)).collect()).collect()
}

/// What operations wrote: `[operation][sequence][position]`.
#[derive(Clone)]
pub(crate) struct Trace(Vec<Vec<Vec<Option<Vec<f32>>>>>);

impl Trace {
    pub(crate) fn row(&self, op: usize, sequence: usize, position: usize) -> Option<&[f32]> {
        self.0[op][sequence][position].as_deref()
    }

    /// Changes the largest element of a row by two units of bf16.
    pub(crate) fn spoil(&mut self, op: usize, sequence: usize, position: usize) {
        let row = self.0[op][sequence][position].as_mut().unwrap();
        let largest = row.iter_mut().max_by(|left, right| left.abs().total_cmp(&right.abs())).unwrap();
        *largest = f32::from_bits(largest.to_bits() + (2 << 16));
    }

    /// Sequence, position and values of every row of an operation.
    pub(crate) fn rows(&self, op: usize) -> impl Iterator<Item = (usize, usize, &[f32])> {
        self.0[op].iter().enumerate().flat_map(|(sequence, rows)| {
            let rows = rows.iter().enumerate();
            rows.filter_map(move |(position, row)| row.as_deref().map(|row| (sequence, position, row)))
        })
    }
}

/// Outputs of one step.
struct Recorder(Vec<Vec<f32>>);

impl Observer for Recorder {
    fn after(&mut self, index: usize, _op: &PlannedOp, output: &[f32], rows: usize, width: usize) {
        assert_eq!(output.len(), rows * width);
        self.0[index] = output.to_vec();
    }
}

/// Computes the scenario on a new backend.
pub(crate) fn run(target: &Target, case: &Case, scenario: &Scenario) -> Trace {
    let plan = &case.plan;
    let taps = plan.state_layers.iter().map(|layer| layer.conv_taps).max().unwrap_or(0);
    let sizes = CacheSizes::for_sequences(scenario.tokens.len(), scenario.context() + GROUP, taps, GROUP);
    let mut backend = target.backend(plan, case.params.iter().cloned(), sizes);
    let caches = Caches::new(&sizes, !plan.state_layers.is_empty());
    let mut sequences: Vec<Sequence> = scenario.tokens.iter().map(|_| caches.sequence().unwrap()).collect();
    let empty = scenario.tokens.iter().map(|tokens| vec![None; tokens.len()]).collect::<Vec<_>>();
    let mut trace = Trace(vec![empty; plan.ops.len()]);
    for step in &scenario.steps {
        let mut batch = StepBatch::default();
        let mut reservations = Vec::new();
        for share in step {
            let sequence = &sequences[share.sequence];
            let reservation = caches.reserve(sequence, share.rows).unwrap();
            let known = &scenario.tokens[share.sequence][sequence.len()..];
            let draft = |row: usize| if row < share.accepted { known[row] } else { (row * 31) as u32 % VOCAB as u32 };
            let tokens: Vec<u32> = (0..share.rows).map(draft).collect();
            batch.push(sequence, &reservation, &tokens, share.want);
            reservations.push(reservation);
        }
        let mut recorder = Recorder(vec![Vec::new(); plan.ops.len()]);
        let logits = backend.execute(&batch, Some(&mut recorder)).unwrap().logits().unwrap();
        let observed = recorder.0.last().unwrap();
        assert!(logits == *observed, "returned logits are the observed ones");
        for ((share, segment), reservation) in step.iter().zip(&batch.segments).zip(reservations) {
            for (index, planned) in plan.ops.iter().enumerate() {
                let out = planned.op.out();
                for row in 0..share.accepted {
                    let step_row = segment.first_row + row;
                    let at = match plan.buffers[out.buffer.0].rows {
                        Rows::Step => Some(step_row),
                        Rows::Logits => batch.logit_rows.iter().position(|logit| *logit as usize == step_row),
                    };
                    let written = at.and_then(|at| recorder.0[index].get(at * out.width..(at + 1) * out.width));
                    trace.0[index][share.sequence][segment.start + row] = written.map(<[f32]>::to_vec);
                }
            }
            sequences[share.sequence].commit(reservation, share.accepted);
        }
    }
    trace
}
