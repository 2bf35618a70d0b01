//! An engine that plays scripts instead of running a model.

use super::tokenizer;
use atlas_engine::engine::{
    EngineCore, EngineStats, FinishReason, GenerateEvent, GenerateRequest, ModelInfo, Submission, SubmitError,
    TokenEvent, TokenLogprobs, Usage,
};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// `<|im_end|>` of the test tokenizer.
pub(crate) const END: u32 = 258;
pub(crate) const VOCAB: usize = 265;
pub(crate) const MAX_CONTEXT: usize = 2048;

/// What the engine does next for a request.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Generate the tokens of a text, one at a time.
    Text(String),
    /// Generate one token.
    Token(u32),
    /// Wait until the test opens the gate.
    Gate,
    /// Do nothing until the client goes away or the engine shuts down.
    Hang,
    /// End.
    Finish(FinishReason),
    /// Fail with a message.
    Fail(&'static str),
    /// Drop the request without a word.
    Vanish,
}

type Script = dyn Fn(&GenerateRequest) -> Vec<Step> + Send + Sync;

/// A request that reached the engine.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) request: GenerateRequest,
    pub(crate) cancelled: Arc<AtomicBool>,
}

pub(crate) struct ScriptedEngine {
    info: ModelInfo,
    script: Box<Script>,
    /// Refuses every request when set.
    pub(crate) refusal: Mutex<Option<SubmitError>>,
    pub(crate) seen: Mutex<Vec<Seen>>,
    /// More running requests than this are refused.
    capacity: usize,
    pub(crate) running: Arc<AtomicUsize>,
    pub(crate) steps: Arc<AtomicU64>,
    gate: watch::Sender<bool>,
    shutdown: watch::Sender<Option<Instant>>,
}

impl ScriptedEngine {
    /// Plays the same steps for every request.
    pub(crate) fn plays(steps: impl IntoIterator<Item = Step>) -> Self {
        let steps: Vec<_> = steps.into_iter().collect();
        Self::with(move |_| steps.clone())
    }

    /// Answers every request with a text and a stop token.
    pub(crate) fn says(text: &str) -> Self {
        Self::plays([Step::Text(text.into()), Step::Token(END), Step::Finish(FinishReason::Stop)])
    }

    pub(crate) fn with(script: impl Fn(&GenerateRequest) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let info = ModelInfo {
            max_context: MAX_CONTEXT,
            vocab_size: VOCAB,
            eos_tokens: vec![END, 256],
            family: "scripted".into(),
            weight_bytes: 12_345,
        };
        Self {
            info,
            script: Box::new(script),
            refusal: Mutex::new(None),
            seen: Mutex::default(),
            capacity: usize::MAX,
            running: Arc::default(),
            steps: Arc::default(),
            gate: watch::Sender::new(false),
            shutdown: watch::Sender::new(None),
        }
    }

    pub(crate) fn with_capacity(self, capacity: usize) -> Self {
        Self { capacity, ..self }
    }

    /// Lets all scripts pass their gates.
    pub(crate) fn open_gate(&self) {
        self.gate.send_replace(true);
    }

    pub(crate) fn requests(&self) -> Vec<GenerateRequest> {
        self.seen.lock().unwrap().iter().map(|seen| seen.request.clone()).collect()
    }

    pub(crate) fn submitted(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// How many of the requests have been cancelled by their clients.
    pub(crate) fn cancelled(&self) -> usize {
        self.seen.lock().unwrap().iter().filter(|seen| seen.cancelled.load(Ordering::Acquire)).count()
    }
}

impl EngineCore for ScriptedEngine {
    fn submit(&self, submission: Submission) -> Result<(), SubmitError> {
        let Submission { request, events, cancelled } = submission;
        if let Some(refusal) = &*self.refusal.lock().unwrap() {
            return Err(refusal.clone());
        }
        if self.running.load(Ordering::Relaxed) >= self.capacity {
            return Err(SubmitError::QueueFull { waiting: 0, retry_after: Duration::from_secs(1) });
        }
        if request.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        self.seen.lock().unwrap().push(Seen { request: request.clone(), cancelled: cancelled.clone() });
        let player = Player {
            steps: (self.script)(&request),
            request,
            events,
            cancelled,
            generated: 0,
            engine_steps: self.steps.clone(),
            gate: self.gate.subscribe(),
            shutdown: self.shutdown.subscribe(),
        };
        let running = self.running.clone();
        running.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            player.play().await;
            running.fetch_sub(1, Ordering::Relaxed);
        });
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            running: self.running.load(Ordering::Relaxed),
            waiting: 3,
            kv_usage: 0.25,
            prompt_tokens: 100,
            generation_tokens: 50,
            steps: self.steps.load(Ordering::Relaxed),
            step_sequences: 70,
            preemptions: 2,
            cached_pages: 11,
            checkpoints: 5,
            cancelled: self.cancelled() as u64,
        }
    }

    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn shutdown(&self, deadline: Instant) {
        self.shutdown.send_replace(Some(deadline));
    }
}

struct Player {
    steps: Vec<Step>,
    request: GenerateRequest,
    events: mpsc::UnboundedSender<GenerateEvent>,
    cancelled: Arc<AtomicBool>,
    generated: usize,
    engine_steps: Arc<AtomicU64>,
    gate: watch::Receiver<bool>,
    shutdown: watch::Receiver<Option<Instant>>,
}

impl Player {
    async fn play(mut self) {
        let tokenizer = tokenizer();
        self.send(GenerateEvent::Started { cached_tokens: 2 });
        if let Some(top) = self.request.prompt_logprobs {
            let scores = self.request.prompt.iter().skip(1).map(|id| logprobs(*id, top)).collect();
            self.send(GenerateEvent::PromptLogprobs(scores));
        }
        if self.request.max_tokens == 0 {
            return self.finish(FinishReason::Length);
        }
        for step in std::mem::take(&mut self.steps) {
            let ended = match step {
                Step::Text(text) => {
                    let ids = tokenizer.encode(&text, false, true).unwrap();
                    ids.into_iter().any(|id| self.token(id))
                }
                Step::Token(id) => self.token(id),
                Step::Gate => {
                    let mut gate = self.gate.clone();
                    self.unless_stopped(async move { drop(gate.wait_for(|open| *open).await) }).await
                }
                Step::Hang => self.unless_stopped(std::future::pending()).await,
                Step::Finish(reason) => {
                    self.finish(reason);
                    true
                }
                Step::Fail(message) => {
                    self.send(GenerateEvent::Failed(message.into()));
                    true
                }
                Step::Vanish => true,
            };
            if ended || self.cancelled.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// Generates a token; true when that ended the request.
    fn token(&mut self, id: u32) -> bool {
        self.engine_steps.fetch_add(1, Ordering::Relaxed);
        let logprobs = self.request.logprobs.map(|top| logprobs(id, top));
        self.send(GenerateEvent::Token(TokenEvent { id, logprobs }));
        self.generated += 1;
        if self.generated < self.request.max_tokens {
            return false;
        }
        let stopped = self.request.stop_tokens.contains(&id);
        self.finish(if stopped { FinishReason::Stop } else { FinishReason::Length });
        true
    }

    /// Waits, but not for longer than the client, the deadline or the engine.
    async fn unless_stopped(&mut self, wait: impl Future<Output = ()>) -> bool {
        let cancelled = self.cancelled.clone();
        let gone = async {
            while !cancelled.load(Ordering::Acquire) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let deadline = self.request.deadline.map(tokio::time::Instant::from_std);
        let timed_out = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let mut shutdown = self.shutdown.clone();
        let stopped = async {
            let deadline = shutdown.wait_for(Option::is_some).await.ok().and_then(|at| *at);
            match deadline {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let reason = tokio::select! {
            () = wait => return false,
            () = gone => return true,
            () = timed_out => FinishReason::Deadline,
            () = stopped => FinishReason::Shutdown,
        };
        self.finish(reason);
        true
    }

    fn finish(&mut self, reason: FinishReason) {
        let usage = Usage {
            prompt_tokens: self.request.prompt.len(),
            completion_tokens: self.generated,
            cached_tokens: 2,
            queue: Duration::from_millis(1),
            prefill: Duration::from_millis(20),
            decode: Duration::from_millis(300),
        };
        self.send(GenerateEvent::Finished { reason, usage });
    }

    fn send(&self, event: GenerateEvent) {
        drop(self.events.send(event)); // The client may have gone.
    }
}

/// Made-up scores that depend on the token alone.
fn logprobs(id: u32, top: usize) -> TokenLogprobs {
    let top = (0..top as u32).map(|rank| (id.wrapping_add(rank) % 256, -0.5 - rank as f32)).collect();
    TokenLogprobs { logprob: -0.5, top }
}
