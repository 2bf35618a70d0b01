//! The engine's thread with shared prefixes and too little memory: the same tokens as alone.

use crate::serving::{drain, request, settle};
use crate::support::load;
use atlas_engine::engine::{EngineHandle, FinishReason, GenerateEvent, GenerateRequest, SubmitError};
use atlas_engine::model::{LoadOptions, Model};
use atlas_engine::sampling::SamplingParams;
use atlas_engine::schedule::Policy;
use atlas_engine::session::Session;
use atlas_engine::worker::{EngineOptions, start};
use std::time::{Duration, Instant};

fn options(kv_tokens: usize) -> LoadOptions {
    LoadOptions {
        threads: 2,
        sequences: 6,
        context: Some(256),
        kv_tokens: Some(kv_tokens),
        checkpoints: 5,
        ..LoadOptions::default()
    }
}

/// Request `index`: a prefix that a third of all share, then its own tokens; every other one is sampled.
fn mixed(index: u32) -> GenerateRequest {
    let own = 1 + (index as usize * 29) % 60;
    let shared = request(900 + index % 3, 40 + 45 * (index as usize % 3), 0).prompt;
    let mut prompt = shared;
    prompt.extend(request(index, own, 0).prompt);
    let temperature = if index.is_multiple_of(2) { 0.0 } else { 0.9 };
    let sampling = SamplingParams { temperature, seed: u64::from(index), ..SamplingParams::default() };
    GenerateRequest { prompt, sampling, ..request(index, 1, 40 + (index as usize * 23) % 90) }
}

fn run(engine: &EngineHandle, requests: &[GenerateRequest]) -> Vec<(Vec<u32>, FinishReason)> {
    let streams: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    streams.into_iter().map(drain).collect()
}

#[test]
fn pressure_hits_and_preemptions_change_no_token() {
    let requests: Vec<GenerateRequest> = (0..24).map(mixed).collect();
    let (mut preemptions, mut sequences, mut steps) = (0, 0, 0);
    for case in ["qwen3_5", "qwen3"] {
        // One after the other, without any sharing.
        let alone =
            start(load(case, &options(256)), EngineOptions { prefix_caching: false, ..Default::default() }).unwrap();
        let expected: Vec<_> = requests.iter().map(|one| drain(alone.submit(one.clone()).unwrap())).collect();
        assert_eq!((alone.stats().preemptions, alone.stats().cached_pages), (0, 0));
        for (policy, prefix_caching, max_step_tokens, kv_tokens) in [
            (Policy::Slai, true, 16, 448),
            (Policy::Fifo, true, 512, 384),
            (Policy::Slai, false, 64, 384),
            (Policy::Fifo, true, 64, 4096),
        ] {
            let what = format!("{case} {policy:?} prefixes {prefix_caching} {max_step_tokens} {kv_tokens}");
            let limits = EngineOptions { policy, prefix_caching, max_step_tokens, ..EngineOptions::default() };
            let engine = start(load(case, &options(kv_tokens)), limits).unwrap();
            assert_eq!(run(&engine, &requests), expected, "{what}");
            // Once more, among requests that come and go.
            let leaving: Vec<_> = (100..108).map(|index| engine.submit(mixed(index)).unwrap()).collect();
            let streams: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
            drop(leaving);
            assert_eq!(streams.into_iter().map(drain).collect::<Vec<_>>(), expected, "{what}, again");
            settle(&engine);
            let stats = engine.stats();
            // Whether this very run was ever short of pages depends on how fast requests came; most are.
            assert!(stats.preemptions == 0 || kv_tokens < 512, "{what}: {stats:?}");
            preemptions += stats.preemptions;
            assert_eq!(stats.cached_pages > 0, prefix_caching, "{what}: {stats:?}");
            (sequences, steps) = (sequences + stats.step_sequences, steps + stats.steps);
            engine.shutdown(Instant::now());
        }
    }
    assert!(preemptions > 0, "no run was ever short of pages");
    assert!(sequences as f64 / steps as f64 > 1.2, "{sequences} sequences in {steps} steps");
}

/// Cached tokens of the answer, and its tokens.
fn cached(engine: &EngineHandle, request: GenerateRequest) -> (usize, Vec<u32>) {
    let mut stream = engine.submit(request).unwrap();
    let (mut cached, mut tokens) = (None, Vec::new());
    while let Some(event) = stream.blocking_next() {
        match event {
            GenerateEvent::Started { cached_tokens } => cached = Some(cached_tokens),
            GenerateEvent::Token(token) => tokens.push(token.id),
            GenerateEvent::Finished { usage, .. } => assert_eq!(Some(usage.cached_tokens), cached),
            other => panic!("{other:?}"),
        }
    }
    (cached.unwrap(), tokens)
}

#[test]
fn a_chat_with_a_growing_history_hits_on_every_turn() {
    for case in ["qwen3_5", "qwen3"] {
        let load_options = LoadOptions { context: Some(1024), checkpoints: 16, ..options(4096) };
        let engine = start(load(case, &load_options), EngineOptions::default()).unwrap();
        let mut model: Model = load(case, &load_options);
        let mut history = request(1, 90, 0).prompt;
        for turn in 0..8 {
            let known = history.len();
            history.extend(request(10 + turn, 25, 0).prompt);
            let (hit, tokens) = cached(&engine, GenerateRequest { prompt: history.clone(), ..request(0, 1, 40) });
            assert_eq!(
                tokens,
                Session::new(&mut model).unwrap().greedy(&history, 40, 512).unwrap(),
                "{case}, turn {turn}"
            );
            if turn > 0 {
                assert!(hit + 64 + 1 >= known, "{case}, turn {turn}: {hit} of {known} known tokens");
            }
            history.extend(tokens);
        }
        let stats = engine.stats();
        assert_eq!(stats.checkpoints > 0, case == "qwen3_5", "{stats:?}");
    }
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let limits = EngineOptions { max_queue: 3, max_sequences: 1, ..EngineOptions::default() };
    let engine = start(load("qwen3", &options(256)), limits).unwrap();
    let mut streams = Vec::new();
    let refusal = loop {
        match engine.submit(request(streams.len() as u32, 60, 100)) {
            Ok(stream) => streams.push(stream),
            Err(error) => break error,
        }
        assert!(streams.len() < 10, "the queue takes more than it should");
    };
    let SubmitError::QueueFull { waiting: 3, retry_after } = refusal else { panic!("{refusal}") };
    assert!((1..=600).contains(&retry_after.as_secs()) && retry_after < Duration::from_secs(601));
    drop(streams);
    settle(&engine);
}
