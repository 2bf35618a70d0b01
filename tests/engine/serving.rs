//! The engine's thread with a real model: many requests at once, cancellations, refusals, shutdown.

use crate::devices::{Target, targets};
use crate::support::load;
use atlas_engine::engine::{EngineHandle, FinishReason, GenerateEvent, GenerateRequest, GenerateStream, SubmitError};
use atlas_engine::model::LoadOptions;
use atlas_engine::sampling::SamplingParams;
use atlas_engine::session::Session;
use atlas_engine::worker::{EngineOptions, start};
use std::time::{Duration, Instant};

const CASE: &str = "qwen3_5";

fn options(target: &Target) -> LoadOptions {
    LoadOptions { sequences: 4, context: Some(256), ..crate::support::options(target) }
}

/// Every device, once.
fn devices() -> Vec<Target> {
    let mut targets = targets();
    targets.dedup_by_key(|target| target.device);
    targets
}

fn engine_on(target: &Target, limits: EngineOptions) -> EngineHandle {
    start(load(CASE, &options(target)), limits).unwrap()
}

/// On the CPU, where the device does not matter.
fn engine(limits: EngineOptions) -> EngineHandle {
    engine_on(&targets()[0], limits)
}

pub(crate) fn request(seed: u32, len: usize, max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        id: format!("test-{seed}"),
        prompt: (0..len as u32).map(|i| 8 + (i * 37 + seed * 101) % 480).collect(),
        max_tokens,
        sampling: SamplingParams::default(),
        grammar: None,
        stop_tokens: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
        deadline: None,
    }
}

/// Tokens and the reason of the end.
pub(crate) fn drain(mut stream: GenerateStream) -> (Vec<u32>, FinishReason) {
    let mut tokens = Vec::new();
    while let Some(event) = stream.blocking_next() {
        match event {
            GenerateEvent::Token(token) => tokens.push(token.id),
            GenerateEvent::Finished { reason, usage } => {
                assert_eq!(usage.completion_tokens, tokens.len());
                assert!(stream.blocking_next().is_none(), "nothing comes after the end");
                return (tokens, reason);
            }
            GenerateEvent::Failed(message) => panic!("{message}"),
            GenerateEvent::Started { .. } | GenerateEvent::PromptLogprobs(_) => {}
        }
    }
    panic!("the stream ended without an end")
}

/// Waits, within bounds, until nothing runs and no page is held.
pub(crate) fn settle(engine: &EngineHandle) {
    for _ in 0..500 {
        let stats = engine.stats();
        if stats.running == 0 && stats.waiting == 0 {
            assert_eq!(stats.kv_usage, 0.0, "a page is held although nothing runs");
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the engine did not settle: {:?}", engine.stats());
}

#[test]
fn requests_in_company_equal_lone_ones_also_in_a_cancel_storm() {
    let shapes: Vec<(u32, usize, usize)> =
        (0..24).map(|i| (i, 1 + (i as usize * 29) % 150, 1 + (i as usize * 7) % 40)).collect();
    for target in devices() {
        storm(&target, &shapes);
    }
}

fn storm(target: &Target, shapes: &[(u32, usize, usize)]) {
    let mut model = load(CASE, &options(target));
    let lone: Vec<Vec<u32>> = (shapes.iter())
        .map(|(seed, len, count)| {
            let prompt = request(*seed, *len, *count).prompt;
            Session::new(&mut model).unwrap().greedy(&prompt, *count, 64).unwrap()
        })
        .collect();
    for step_tokens in [16, 64, 1000] {
        let engine = engine_on(target, EngineOptions { max_step_tokens: step_tokens, ..EngineOptions::default() });
        let streams: Vec<_> = (shapes.iter())
            .map(|(seed, len, count)| {
                // Beside every request that stays, one comes and goes: before, during or after its prefill.
                let mut leaving = engine.submit(request(seed + 500, 120, 100)).unwrap();
                if seed % 3 > 0 {
                    leaving.blocking_next();
                }
                engine.submit(request(*seed, *len, *count)).unwrap()
            })
            .collect();
        for (index, stream) in streams.into_iter().enumerate() {
            assert_eq!(drain(stream), (lone[index].clone(), FinishReason::Length), "{target:?}: request {index}");
        }
        settle(&engine);
        assert!(engine.stats().cancelled >= 20, "{:?}", engine.stats());
        engine.shutdown(Instant::now());
    }
}

#[test]
fn a_stop_token_is_the_last_and_seeds_repeat() {
    for target in devices() {
        let engine = engine_on(&target, EngineOptions::default());
        let (tokens, _) = drain(engine.submit(request(3, 40, 20)).unwrap());
        let stop = GenerateRequest { stop_tokens: vec![tokens[4]], ..request(3, 40, 20) };
        let first = tokens.iter().position(|token| *token == tokens[4]).unwrap();
        assert_eq!(drain(engine.submit(stop).unwrap()), (tokens[..=first].to_vec(), FinishReason::Stop));
        let sampled = |seed| {
            let sampling = SamplingParams { temperature: 1.5, seed, ..SamplingParams::default() };
            drain(engine.submit(GenerateRequest { sampling, ..request(3, 40, 30) }).unwrap()).0
        };
        assert_eq!(sampled(7), sampled(7));
        assert_ne!(sampled(7), sampled(8));
    }
}

#[test]
fn prompt_logprobs_come_whole_and_need_no_output() {
    let engine = engine(EngineOptions { max_step_tokens: 16, ..EngineOptions::default() });
    let asked = GenerateRequest { prompt_logprobs: Some(2), ..request(5, 70, 0) };
    let mut stream = engine.submit(asked).unwrap();
    let mut found = None;
    while let Some(event) = stream.blocking_next() {
        match event {
            GenerateEvent::PromptLogprobs(logprobs) => found = Some(logprobs),
            GenerateEvent::Token(token) => panic!("{token:?} was not asked for"),
            _ => {}
        }
    }
    let found = found.unwrap();
    assert_eq!(found.len(), 69);
    assert!(found.iter().all(|one| one.logprob <= 0.0 && one.top.len() == 2 && one.top[0].1 >= one.top[1].1));
}

#[test]
fn what_cannot_be_served_is_refused_at_once() {
    let engine = engine(EngineOptions::default());
    let refused = |request: GenerateRequest| engine.submit(request).unwrap_err();
    assert_eq!(refused(request(0, 0, 5)), SubmitError::EmptyPrompt);
    assert!(matches!(refused(request(0, 256, 5)), SubmitError::PromptTooLong { prompt_tokens: 256, max_context: 256 }));
    assert!(matches!(refused(request(0, 10, 0)), SubmitError::Invalid(_)));
    let beyond = GenerateRequest { prompt: vec![512], ..request(0, 1, 5) };
    assert!(matches!(refused(beyond), SubmitError::Invalid(message) if message.contains("512")));
    let hot = SamplingParams { temperature: f32::NAN, ..SamplingParams::default() };
    assert!(matches!(refused(GenerateRequest { sampling: hot, ..request(0, 4, 5) }), SubmitError::Invalid(_)));
    // The output is cut to what the context leaves.
    assert_eq!(drain(engine.submit(request(1, 250, 100)).unwrap()).0.len(), 6);
}

#[test]
fn a_full_queue_refuses_and_a_deadline_ends() {
    let engine = engine(EngineOptions { max_queue: 2, max_sequences: 1, ..EngineOptions::default() });
    let busy = engine.submit(request(1, 100, 150)).unwrap();
    let past = GenerateRequest { deadline: Some(Instant::now()), ..request(2, 10, 10) };
    let late = engine.submit(past).unwrap();
    let mut waiting = Vec::new();
    let refusal = loop {
        match engine.submit(request(3, 100, 150)) {
            Ok(stream) => waiting.push(stream),
            Err(error) => break error,
        }
        assert!(waiting.len() < 10, "the queue takes more than it should");
    };
    assert!(matches!(refusal, SubmitError::QueueFull { .. }), "{refusal}");
    assert_eq!(drain(late), (Vec::new(), FinishReason::Deadline));
    drop((busy, waiting));
    settle(&engine);
}

#[test]
fn shutdown_lets_running_requests_finish_until_its_deadline() {
    let engine = engine(EngineOptions::default());
    let stream = engine.submit(request(1, 30, 20)).unwrap();
    engine.shutdown(Instant::now() + Duration::from_secs(60));
    assert!(matches!(engine.submit(request(2, 3, 3)), Err(SubmitError::NotRunning)));
    assert_eq!(drain(stream).1, FinishReason::Length);
    let engine = self::engine(EngineOptions::default());
    let stream = engine.submit(request(1, 30, 220)).unwrap();
    engine.shutdown(Instant::now());
    assert_eq!(drain(stream).1, FinishReason::Shutdown);
}
