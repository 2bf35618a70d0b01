//! A backend that chooses tokens itself serves every request with the tokens of one that returns whole rows.

use crate::support::load;
use atlas_engine::backend::{Backend, Observer, StepOutput};
use atlas_engine::engine::{GenerateEvent, GenerateRequest, TokenEvent, TokenLogprobs};
use atlas_engine::errors::EngineError;
use atlas_engine::model::LoadOptions;
use atlas_engine::plan::Plan;
use atlas_engine::sampling::noise::Noise;
use atlas_engine::sampling::{Candidate, RowOutput, SamplingParams, Selection};
use atlas_engine::schedule::StepBatch;
use atlas_engine::session::Session;
use atlas_engine::worker::{EngineOptions, start};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Answers every selection as a device does, from the rows of another backend.
struct Selecting {
    inner: Box<dyn Backend>,
    tops: Vec<Vec<Candidate>>,
    /// Rows that were given whole, as tokens and as candidates.
    given: Arc<[AtomicUsize; 3]>,
}

fn ranked(logits: &[f32]) -> Vec<Candidate> {
    let mut ranked: Vec<Candidate> =
        (0..).zip(logits).map(|(id, logit)| Candidate { id, logit: logit + 0.0 }).collect();
    ranked.sort_by(|a, b| b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id)));
    ranked
}

fn sample(logits: &[f32], temperature: f32, seed: u64, position: u64) -> u32 {
    let largest = ranked(logits)[0].logit;
    let mut noise = Noise::new(seed, position);
    let mut best = (f32::NEG_INFINITY, 0);
    for (id, logit) in (0..).zip(logits) {
        let value = (logit - largest) / temperature + noise.gumbel(id);
        if value > best.0 {
            best = (value, id);
        }
    }
    best.1
}

impl Backend for Selecting {
    fn plan(&self) -> &Plan {
        self.inner.plan()
    }

    fn execute(
        &mut self,
        batch: &StepBatch,
        observer: Option<&mut dyn Observer>,
    ) -> Result<StepOutput<'_>, EngineError> {
        let whole = self.inner.execute(batch, observer)?.rows;
        assert_eq!(whole.len(), batch.selections.len(), "a selection for each row");
        self.tops = (whole.iter().zip(&batch.selections))
            .map(|(row, selection)| match selection {
                Selection::Top { k } => ranked(row.logits().unwrap()).into_iter().take(*k as usize).collect(),
                _ => Vec::new(),
            })
            .collect();
        let rows = whole.into_iter().zip(&batch.selections).zip(&self.tops).map(|((row, selection), top)| {
            let logits = row.logits().unwrap();
            let (kind, output) = match *selection {
                Selection::Logits => (0, row),
                Selection::Greedy => (1, RowOutput::Token(ranked(logits)[0].id)),
                Selection::Sample { temperature, seed, position } => {
                    (1, RowOutput::Token(sample(logits, temperature, seed, position)))
                }
                Selection::Top { .. } => (2, RowOutput::Candidates(top)),
            };
            self.given[kind].fetch_add(1, Ordering::Relaxed);
            output
        });
        Ok(StepOutput { rows: rows.collect() })
    }

    fn weight_bytes(&self) -> u64 {
        self.inner.weight_bytes()
    }

    fn cache_bytes(&self) -> u64 {
        self.inner.cache_bytes()
    }
}

fn requests() -> Vec<GenerateRequest> {
    let samplings = [
        SamplingParams::default(),
        SamplingParams { temperature: 1.2, seed: 5, ..Default::default() },
        SamplingParams { temperature: 1.5, seed: 6, top_k: 40, top_p: 0.9, ..Default::default() },
        SamplingParams { temperature: 1.5, seed: 7, top_p: 0.9, ..Default::default() },
        SamplingParams { temperature: 1.0, seed: 8, top_k: 20, presence_penalty: 1.0, ..Default::default() },
        SamplingParams { repetition_penalty: 1.3, ..Default::default() },
    ];
    let request = |index: usize, sampling: &SamplingParams| GenerateRequest {
        id: format!("test-{index}"),
        prompt: (0..20 + 9 * index as u32).map(|i| 8 + (i * 41 + index as u32 * 97) % 480).collect(),
        max_tokens: 24,
        sampling: sampling.clone(),
        stop_tokens: Vec::new(),
        logprobs: (index % 4 == 3).then_some(2),
        prompt_logprobs: (index % 5 == 4).then_some(1),
        deadline: None,
    };
    samplings.iter().cycle().take(12).enumerate().map(|(index, sampling)| request(index, sampling)).collect()
}

fn options() -> LoadOptions {
    LoadOptions { threads: 2, sequences: 6, context: Some(256), ..LoadOptions::default() }
}

type Output = (Vec<TokenEvent>, Vec<TokenLogprobs>);

/// Tokens and log-probabilities of every request, and the rows that the backend gave in each way.
fn outputs(selecting: bool) -> (Vec<Output>, [usize; 3]) {
    let mut model = load("qwen3_5", &options());
    let given = Arc::new([const { AtomicUsize::new(0) }; 3]);
    if selecting {
        let given = given.clone();
        model.backend = Box::new(Selecting { inner: model.backend, tops: Vec::new(), given });
    }
    let engine = start(model, EngineOptions { max_step_tokens: 48, ..EngineOptions::default() }).unwrap();
    let streams: Vec<_> = requests().into_iter().map(|request| engine.submit(request).unwrap()).collect();
    let read = |mut stream: atlas_engine::engine::GenerateStream| {
        let mut output = Output::default();
        while let Some(event) = stream.blocking_next() {
            match event {
                GenerateEvent::Token(token) => output.0.push(token),
                GenerateEvent::PromptLogprobs(logprobs) => output.1 = logprobs,
                GenerateEvent::Failed(message) => panic!("{message}"),
                GenerateEvent::Started { .. } | GenerateEvent::Finished { .. } => {}
            }
        }
        output
    };
    (streams.into_iter().map(read).collect(), std::array::from_fn(|kind| given[kind].load(Ordering::Relaxed)))
}

#[test]
fn tokens_do_not_depend_on_who_chooses_them() {
    let (whole, _) = outputs(false);
    let (selected, given) = outputs(true);
    assert_eq!(whole, selected);
    assert!(whole.iter().all(|(tokens, _)| tokens.len() == 24));
    assert!(given.iter().all(|rows| *rows > 24), "every way was taken: {given:?}");
}

#[test]
fn a_greedy_session_does_not_need_the_logits() {
    let prompt: Vec<u32> = (8..40).collect();
    let mut model = load("qwen3_5", &options());
    let whole = Session::new(&mut model).unwrap().greedy(&prompt, 20, 7).unwrap();
    let given = Arc::new([const { AtomicUsize::new(0) }; 3]);
    model.backend = Box::new(Selecting { inner: model.backend, tops: Vec::new(), given: given.clone() });
    let selected = Session::new(&mut model).unwrap().greedy(&prompt, 20, 7).unwrap();
    assert_eq!(whole, selected);
    assert_eq!(given[1].load(Ordering::Relaxed), 20);
    assert_eq!(given[0].load(Ordering::Relaxed), 0);
}
