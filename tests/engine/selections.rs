//! A backend that chooses tokens itself serves every request with the tokens of one that returns whole rows.

use crate::devices::targets;
use crate::random::Rng;
use crate::support::load;
use atlas_engine::backend::{Backend, DeviceKind, Observer, StepOutput};
use atlas_engine::cache::Caches;
use atlas_engine::engine::{GenerateEvent, GenerateRequest, TokenEvent, TokenLogprobs};
use atlas_engine::errors::EngineError;
use atlas_engine::model::LoadOptions;
use atlas_engine::plan::Plan;
use atlas_engine::sampling::noise::Noise;
use atlas_engine::sampling::{Candidate, RowOutput, Sampler, SamplingError, SamplingParams, Selection};
use atlas_engine::schedule::StepBatch;
use atlas_engine::schedule::batch::WantLogits;
use atlas_engine::session::Session;
use atlas_engine::worker::{EngineOptions, start};
use atlas_kernels::cuda::{Choice, Device, RowSelection, SampleKernels, StepArena, StepRows};
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
        grammar: None,
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

/// Parameters of every kind of selection.
fn random_params(rng: &mut Rng) -> SamplingParams {
    let mut params = SamplingParams {
        temperature: rng.pick(&[0.0, 1e-30, 0.3, 0.8, 1.0, 1.7, 2.0]),
        seed: rng.next(),
        ..SamplingParams::default()
    };
    match rng.between(1, 5) {
        1 => params.top_k = rng.between(1, 300) as u32,
        2 => params.top_k = rng.between(1, 30) as u32,
        3 => params.top_k = 256,
        4 => params.top_p = 0.7,
        _ => {}
    }
    if params.top_k > 0 {
        params.top_p = rng.pick(&[1.0, 0.9, 0.5]);
        params.min_p = rng.pick(&[0.0, 0.05]);
    }
    params
}

#[test]
fn every_device_chooses_what_the_host_chooses_of_its_logits() {
    for target in targets() {
        let options =
            LoadOptions { device: target.device, activations: target.activations, kv_dtype: target.kv, ..options() };
        let mut model = load("qwen3_5", &options);
        let caches = Caches::new(&model.sizes, model.is_recurrent());
        let sequences: Vec<_> = (0..6).map(|_| caches.sequence().unwrap()).collect();
        let mut rng = Rng::new(1);
        for position in 0..40 {
            let rows = rng.between(1, sequences.len());
            let tokens: Vec<Vec<u32>> =
                (0..rows).map(|_| (0..rng.between(1, 9)).map(|_| rng.between(8, 487) as u32).collect()).collect();
            let mut samplers: Vec<Sampler> =
                (0..rows).map(|_| Sampler::new(&random_params(&mut rng), &[], model.spec.vocab)).collect();
            let mut run = |want: &dyn Fn(&Sampler) -> WantLogits, samplers: &mut [Sampler]| -> Vec<_> {
                let mut batch = StepBatch::default();
                let mut reservations = Vec::new();
                for ((sequence, tokens), sampler) in sequences.iter().zip(&tokens).zip(samplers.iter()) {
                    reservations.push(caches.reserve(sequence, tokens.len()).unwrap());
                    batch.push(sequence, &reservations[reservations.len() - 1], tokens, want(sampler));
                }
                let output = model.backend.execute(&batch, None).unwrap();
                assert_eq!(output.rows.len(), samplers.len());
                output.rows.iter().zip(samplers).map(|(row, sampler)| sampler.choose_from(row, position)).collect()
            };
            let whole = run(&|_| WantLogits::Last, &mut samplers);
            let chosen = run(&|sampler| WantLogits::Choice(sampler.selection(position)), &mut samplers);
            assert_eq!(whole, chosen, "{target:?}: position {position}");
        }
    }
}

/// A row that is hard to choose from: ties, infinities, both zeros, all of the best in one place.
fn random_logits(rng: &mut Rng, vocab: usize) -> Vec<f32> {
    let (kind, spread, first) = (rng.between(1, 8), rng.pick(&[0.1, 1.0, 8.0]), rng.between(0, vocab - 1));
    let mut logits: Vec<f32> = (0..vocab)
        .map(|id| match (kind, spread * rng.normal()) {
            (1, value) => value.floor(),
            (2, _) => 1.5,
            (3, value) => {
                if rng.one_in(3) {
                    value
                } else {
                    f32::NEG_INFINITY
                }
            }
            (4, _) => rng.pick(&[0.0, -0.0]),
            (5, value) => {
                if (first..first + 300).contains(&id) {
                    value + 50.0
                } else {
                    value
                }
            }
            (6, value) => value * 1e37,
            (_, value) => value,
        })
        .collect();
    match rng.between(1, 16) {
        1 => logits[first] = f32::NAN,
        2 => logits[first] = f32::INFINITY,
        3 => logits.fill(f32::NEG_INFINITY),
        _ => {}
    }
    logits
}

#[test]
fn a_device_chooses_from_any_vocabulary() {
    if !targets().iter().any(|target| matches!(target.device, DeviceKind::Cuda(_))) {
        return;
    }
    let device = Device::open(0).unwrap();
    let mut rng = Rng::new(2);
    for vocab in [1, 2, 127, 129, 2047, 2050, 5000, 32_000, 151_936, 248_321] {
        let capacity = 9;
        let mut kernels = SampleKernels::new(&device, capacity, vocab).unwrap();
        let mut arena = StepArena::new(&device, capacity, 1).unwrap();
        for position in 0..3 {
            let rows = rng.between(1, capacity);
            let logits: Vec<Vec<f32>> = (0..rows).map(|_| random_logits(&mut rng, vocab)).collect();
            let mut samplers: Vec<Sampler> =
                (0..rows).map(|_| Sampler::new(&random_params(&mut rng), &[], vocab)).collect();
            let asked = |sampler: &Sampler| match sampler.selection(position) {
                Selection::Logits => RowSelection::logits(),
                Selection::Greedy => RowSelection::greedy(),
                Selection::Sample { temperature, seed, position } => RowSelection::sample(temperature, seed, position),
                Selection::Top { k } => RowSelection::top(k as usize),
            };
            let selections: Vec<RowSelection> = samplers.iter().map(asked).collect();
            let step =
                StepRows { tokens: vec![0; rows], logit_rows: (0..rows as u32).collect(), ..StepRows::default() };
            let memory = device.alloc(4 * capacity * vocab).unwrap();
            device.write(&memory, 0, &logits.concat()).unwrap();
            arena.upload(&step, capacity).unwrap();
            kernels.upload(&selections).unwrap();
            kernels.launch(arena.args(capacity), &memory, capacity).unwrap();
            device.synchronize().unwrap();
            for (row, sampler) in samplers.iter_mut().enumerate() {
                if sampler.selection(position) == Selection::Logits {
                    continue;
                }
                let output = match kernels.choice(row) {
                    Choice::Token(token) => RowOutput::Token(token),
                    Choice::Top(candidates) => RowOutput::Candidates(candidates),
                    Choice::NotANumber(id) => RowOutput::Unusable(SamplingError::NotANumber { id }),
                    Choice::NothingAllowed => RowOutput::Unusable(SamplingError::NothingAllowed),
                };
                let chosen = sampler.choose_from(&output, position);
                assert_eq!(chosen, sampler.choose(&logits[row], position), "{vocab} tokens, {:?}", selections[row]);
            }
        }
    }
}
