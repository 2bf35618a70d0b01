//! NUMERICS: a row's logits depend on its own sequence only, bit for bit.
//!
//! One step holds two decode rows of different sequences, a four-row verify group that crosses an anchor block, and a
//! prefill chunk. Every row equals its lone run, under several chunk sizes, thread counts, KV dtypes and activation
//! formats, and again after a roll-back and a recomputation from scratch; on every device, and whether a step is
//! observed or not (devices replay captured graphs for steps that nobody looks into).

use crate::devices::targets;
use crate::support::{load, options};
use atlas_engine::backend::Observer;
use atlas_engine::cache::{Caches, Sequence};
use atlas_engine::model::{LoadOptions, Model};
use atlas_engine::plan::PlannedOp;
use atlas_engine::schedule::StepBatch;
use atlas_engine::schedule::batch::WantLogits;

/// A deterministic token sequence.
fn tokens(seed: u32, len: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        8 + (state >> 16) % 480
    };
    (0..len).map(|_| next()).collect()
}

struct Bench {
    model: Model,
    caches: Caches,
    vocab: usize,
}

impl Bench {
    fn new(case: &str, options: LoadOptions) -> Self {
        let model = load(case, &options);
        let caches = Caches::new(&model.sizes, model.is_recurrent());
        let vocab = model.spec.vocab;
        Self { model, caches, vocab }
    }

    /// Computes `tokens` after `sequence`, all of them in one step, accepts `accepted` and returns the logits' bits.
    fn extend(&mut self, sequence: &mut Sequence, tokens: &[u32], accepted: usize) -> Vec<u32> {
        let reservation = self.caches.reserve(sequence, tokens.len()).unwrap();
        let mut batch = StepBatch::default();
        batch.push(sequence, &reservation, tokens, WantLogits::All);
        let logits = bits(&self.model.backend.execute(&batch, None).unwrap().logits().unwrap());
        sequence.commit(reservation, accepted);
        logits
    }

    /// A sequence that holds `tokens`, computed in chunks.
    fn prefilled(&mut self, tokens: &[u32], chunk: usize) -> Sequence {
        let mut sequence = self.caches.sequence().unwrap();
        for part in tokens.chunks(chunk) {
            self.extend(&mut sequence, part, part.len());
        }
        sequence
    }

    /// Logits' bits of every row of `tokens`, computed alone in one chunk.
    fn lone(&mut self, tokens: &[u32]) -> Vec<u32> {
        let mut sequence = self.caches.sequence().unwrap();
        self.extend(&mut sequence, tokens, tokens.len())
    }

    /// One more row of each of these sequences in one step.
    fn decode(&mut self, sequences: &mut [Sequence], all: &[Vec<u32>], running: &[usize], observed: bool) -> Vec<u32> {
        let mut batch = StepBatch::default();
        let mut reservations = Vec::new();
        for index in running {
            let sequence = &sequences[*index];
            let reservation = self.caches.reserve(sequence, 1).unwrap();
            batch.push(sequence, &reservation, &all[*index][sequence.len()..][..1], WantLogits::Last);
            reservations.push(reservation);
        }
        let observer: Option<&mut dyn Observer> = if observed { Some(&mut Onlooker) } else { None };
        let logits = bits(&self.model.backend.execute(&batch, observer).unwrap().logits().unwrap());
        for (index, reservation) in running.iter().zip(reservations) {
            sequences[*index].commit(reservation, 1);
        }
        logits
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    assert!(logits.iter().all(|logit| logit.is_finite()));
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// What stands in the mixed step: tokens in all, and how many of them are computed in it.
const SHAPES: [(usize, usize); 4] = [(62, 1), (131, 1), (66, 4), (103, 70)];

fn check(case: &str, options: LoadOptions) {
    let what = format!("{case} {options:?}");
    let mut bench = Bench::new(case, options);
    let all: Vec<Vec<u32>> = SHAPES.iter().enumerate().map(|(i, (len, _))| tokens(i as u32 + 1, *len)).collect();
    let lone: Vec<Vec<u32>> = all.iter().map(|tokens| bench.lone(tokens)).collect();
    for chunk in [1, 7, 64, 200] {
        let mut sequences: Vec<Sequence> = (all.iter().zip(SHAPES))
            .map(|(tokens, (len, rows))| bench.prefilled(&tokens[..len - rows], chunk))
            .collect();
        let reservations: Vec<_> =
            (sequences.iter().zip(SHAPES)).map(|(s, (_, rows))| bench.caches.reserve(s, rows).unwrap()).collect();
        let mut batch = StepBatch::default();
        for ((sequence, reservation), (tokens, (len, rows))) in
            sequences.iter().zip(&reservations).zip(all.iter().zip(SHAPES))
        {
            batch.push(sequence, reservation, &tokens[len - rows..], WantLogits::All);
        }
        let mixed = bits(&bench.model.backend.execute(&batch, None).unwrap().logits().unwrap());
        let mut row = 0;
        for (index, (len, rows)) in SHAPES.into_iter().enumerate() {
            for position in len - rows..len {
                let alone = &lone[index][position * bench.vocab..][..bench.vocab];
                let together = &mixed[row * bench.vocab..][..bench.vocab];
                assert!(alone == together, "{what} chunk {chunk}: sequence {index} position {position}");
                row += 1;
            }
        }
        // One of the verify group's four rows is accepted; the sequence then goes another way.
        for (index, (sequence, reservation)) in sequences.iter_mut().zip(reservations).enumerate() {
            sequence.commit(reservation, if index == 2 { 1 } else { SHAPES[index].1 });
        }
        let kept = sequences[2].len();
        let other: Vec<u32> = all[2][..kept].iter().copied().chain(tokens(99, 70)).collect();
        let alone = bench.lone(&other);
        let after = bench.extend(&mut sequences[2], &other[kept..], 70);
        assert!(alone[kept * bench.vocab..] == after, "{what} chunk {chunk}: after a roll-back");
        // Preempted and recomputed: everything is freed and computed again.
        drop(sequences);
        assert!(bench.caches.is_idle());
        let mut again = bench.prefilled(&all[1][..130], 13);
        let last = bench.extend(&mut again, &all[1][130..], 1);
        assert!(lone[1][130 * bench.vocab..] == last, "{what} chunk {chunk}: after a recomputation");
    }
}

fn roomy(options: LoadOptions) -> LoadOptions {
    LoadOptions { sequences: 6, context: Some(256), ..options }
}

#[test]
fn rows_do_not_depend_on_their_company() {
    for case in crate::support::CASES {
        for target in targets() {
            check(case, roomy(options(&target)));
        }
    }
}

/// Backends prepare for a number of rows: it does not matter either.
#[test]
fn prepared_rows_do_not_matter() {
    for target in targets() {
        for step_rows in [1, 70, 2048] {
            check("qwen3_5", LoadOptions { step_rows, ..roomy(options(&target)) });
        }
    }
}

#[test]
fn threads_do_not_matter() {
    for case in ["qwen3_5_nvfp4_modelopt", "llama31"] {
        let prompt = tokens(5, 150);
        let with = |threads| roomy(LoadOptions { threads, ..LoadOptions::default() });
        let one = Bench::new(case, with(1)).lone(&prompt);
        for threads in [2, 3, 7] {
            let more = Bench::new(case, with(threads)).lone(&prompt);
            assert!(one == more, "{case}: {threads} threads");
        }
        check(case, with(3));
    }
}

struct Onlooker;

impl Observer for Onlooker {
    fn after(&mut self, _index: usize, _op: &PlannedOp, _output: &[f32], _rows: usize, _width: usize) {}
}

/// Five sequences decode together and leave one after the other, observed and not, again and again.
#[test]
fn repetitions_and_onlookers_do_not_matter() {
    const LENGTHS: [usize; 5] = [70, 90, 100, 135, 150];
    let prompt = |index: usize| 10 + 13 * index;
    let all: Vec<Vec<u32>> = LENGTHS.iter().enumerate().map(|(i, len)| tokens(i as u32 + 20, *len)).collect();
    for case in ["qwen3_5_nvfp4_modelopt", "llama31"] {
        for target in targets() {
            let mut bench = Bench::new(case, roomy(options(&target)));
            let lone: Vec<Vec<u32>> = all.iter().map(|tokens| bench.lone(tokens)).collect();
            let again: Vec<Vec<u32>> = all.iter().map(|tokens| bench.lone(tokens)).collect();
            assert!(lone == again, "{case} on {target:?}: run to run");
            for observed in [false, true, false] {
                let mut sequences: Vec<Sequence> =
                    all.iter().enumerate().map(|(i, tokens)| bench.prefilled(&tokens[..prompt(i)], 64)).collect();
                while sequences.iter().zip(LENGTHS).any(|(sequence, len)| sequence.len() < len) {
                    let running: Vec<usize> = (0..5).filter(|i| sequences[*i].len() < LENGTHS[*i]).collect();
                    let logits = bench.decode(&mut sequences, &all, &running, observed);
                    for (index, row) in running.iter().zip(logits.chunks_exact(bench.vocab)) {
                        let position = sequences[*index].len() - 1;
                        let alone = &lone[*index][position * bench.vocab..][..bench.vocab];
                        let what = format!("{case} on {target:?}, observed: {observed}");
                        assert!(alone == row, "{what}: sequence {index} position {position}");
                    }
                }
            }
        }
    }
}
