//! The thread that owns the model.
//!
//! Handles put submissions into a shared inbox; the thread takes them between steps. A panic inside a step fails the
//! requests that were running and nothing else.

use crate::backend::Backend;
use crate::cache::PAGE;
use crate::engine::{
    EngineCore, EngineHandle, EngineStats, FinishReason, GenerateEvent, ModelInfo, Submission, SubmitError, Usage,
};
use crate::model::Model;
use crate::schedule::Policy;
use crate::schedule::pace::average;
use crate::schedule::scheduler::{Limits, Scheduler};
use crate::step::{StepCounts, step};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Limits of a running engine.
#[derive(Debug, Clone, Copy)]
pub struct EngineOptions {
    /// Requests that may wait.
    pub max_queue: usize,
    /// Tokens of one step: decode rows and prefill chunks together.
    pub max_step_tokens: usize,
    /// Sequences that run at once; not above what the model was loaded for.
    pub max_sequences: usize,
    /// Order of prompts.
    pub policy: Policy,
    /// Longest wanted time between two tokens of a sequence.
    pub between_tokens: Duration,
    /// Whether computed prefixes are kept for later requests. With recurrent state that also takes checkpoints, for
    /// which the model must have been loaded.
    pub prefix_caching: bool,
    /// Tokens before the first checkpoint inside a prompt; the next ones stand at its doublings.
    pub checkpoint_interval: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            max_queue: 256,
            max_step_tokens: 512,
            max_sequences: 8,
            policy: Policy::default(),
            between_tokens: Duration::from_millis(100),
            prefix_caching: true,
            checkpoint_interval: 4096,
        }
    }
}

struct Inbox {
    new: Vec<(Submission, Instant)>,
    stats: EngineStats,
    departures: Departures,
    /// Set by [`EngineCore::shutdown`]: no new work, and an end at this time.
    closing: Option<Instant>,
    stopped: bool,
}

/// How fast requests leave the queue.
#[derive(Debug, Clone, Copy, Default)]
struct Departures {
    /// Mean seconds between two.
    mean: Option<f64>,
    last: Option<Instant>,
}

impl Departures {
    const MOST: f64 = 600.0;

    /// Notes that `count` requests have left the queue and so many still wait.
    fn observe(&mut self, count: usize, waiting: usize, now: Instant) {
        if waiting == 0 {
            // Nobody waits for the next departure: the time until then says nothing.
            self.last = None;
        } else if (count > 0 || self.last.is_none())
            && let Some(last) = self.last.replace(now)
        {
            average(&mut self.mean, now.duration_since(last).as_secs_f64() / count as f64);
        }
    }

    /// When a place in a full queue is likely to be free: after the mean time between departures, or for as long as
    /// the present one already takes.
    fn next(&self, now: Instant) -> Duration {
        let waited = self.last.map_or(0.0, |last| now.duration_since(last).as_secs_f64());
        Duration::from_secs_f64(self.mean.unwrap_or(0.0).max(waited).clamp(1.0, Self::MOST))
    }
}

struct Shared {
    inbox: Mutex<Inbox>,
    wake: Condvar,
    info: ModelInfo,
    options: EngineOptions,
    total_pages: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the engine's thread.
pub fn start(model: Model, options: EngineOptions) -> std::io::Result<EngineHandle> {
    let options = EngineOptions { max_sequences: options.max_sequences.min(model.sizes.rings.max(1)), ..options };
    let info = ModelInfo {
        max_context: model.context,
        vocab_size: model.spec.vocab,
        eos_tokens: model.eos_tokens().to_vec(),
        family: model.spec.family.to_owned(),
        weight_bytes: model.backend.weight_bytes(),
    };
    let resumes = !model.is_recurrent() || model.backend.resumes_at_anchors();
    if options.prefix_caching && !resumes {
        tracing::warn!("no prefix caching: this device cannot resume the model's recurrent state");
    }
    let limits = Limits {
        max_sequences: options.max_sequences,
        step_tokens: options.max_step_tokens.max(options.max_sequences),
        vocab: model.spec.vocab,
        policy: options.policy,
        between_tokens: options.between_tokens,
        prefix_caching: options.prefix_caching && resumes,
        checkpoint_interval: options.checkpoint_interval,
    };
    let inbox = Inbox {
        new: Vec::new(),
        stats: EngineStats::default(),
        departures: Departures::default(),
        closing: None,
        stopped: false,
    };
    let shared = Arc::new(Shared {
        inbox: Mutex::new(inbox),
        wake: Condvar::new(),
        info,
        options,
        total_pages: model.sizes.pages,
    });
    let scheduler = Scheduler::new(limits, &model.sizes, model.is_recurrent());
    let worker = Worker { shared: shared.clone(), scheduler, backend: model.backend };
    std::thread::Builder::new().name("atlas-engine".into()).spawn(move || worker.run())?;
    Ok(EngineHandle::new(shared))
}

impl EngineCore for Shared {
    fn submit(&self, mut submission: Submission) -> Result<(), SubmitError> {
        let request = &mut submission.request;
        let prompt_tokens = request.prompt.len();
        if prompt_tokens == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        if request.max_tokens == 0 && request.prompt_logprobs.is_none() {
            return Err(SubmitError::Invalid("max_tokens is 0 and nothing is asked about the prompt".into()));
        }
        let room = self.info.max_context.saturating_sub(prompt_tokens);
        if room == 0 && request.max_tokens > 0 || prompt_tokens > self.info.max_context {
            return Err(SubmitError::PromptTooLong { prompt_tokens, max_context: self.info.max_context });
        }
        request.max_tokens = request.max_tokens.min(room);
        if let Some(token) = request.prompt.iter().find(|token| **token as usize >= self.info.vocab_size) {
            return Err(SubmitError::Invalid(format!(
                "token {token} is outside the vocabulary of {}",
                self.info.vocab_size
            )));
        }
        request.sampling.validate(self.info.vocab_size).map_err(SubmitError::Invalid)?;
        let pages = (prompt_tokens + request.max_tokens).div_ceil(PAGE);
        if pages > self.total_pages {
            return Err(SubmitError::TooLarge(format!(
                "prompt and output need {pages} KV pages of {PAGE} tokens, but there are {}; ask for fewer tokens",
                self.total_pages
            )));
        }
        let mut inbox = self.lock();
        if inbox.stopped || inbox.closing.is_some() {
            return Err(SubmitError::NotRunning);
        }
        let waiting = inbox.stats.waiting;
        if waiting >= self.options.max_queue {
            return Err(SubmitError::QueueFull { waiting, retry_after: inbox.departures.next(Instant::now()) });
        }
        inbox.stats.waiting += 1;
        inbox.new.push((submission, Instant::now()));
        self.wake.notify_one();
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        self.lock().stats
    }

    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn shutdown(&self, deadline: Instant) {
        self.lock().closing = Some(deadline);
        self.wake.notify_one();
    }
}

struct Worker {
    shared: Arc<Shared>,
    scheduler: Scheduler,
    backend: Box<dyn Backend>,
}

impl Worker {
    fn run(mut self) {
        loop {
            if !self.collect() {
                return self.stop();
            }
            let gone = self.scheduler.reap(Instant::now());
            let admitted = self.scheduler.admit();
            let counts = if self.scheduler.running.is_empty() { Ok(None) } else { self.step().map(Some) };
            let counts = counts.unwrap_or_else(|message| {
                tracing::error!(%message, "a step failed; its requests are failed");
                self.scheduler.clear(|generation| generation.fail(&message));
                None
            });
            self.report(gone, admitted, counts);
            if self.scheduler.is_idle() {
                self.check_idle();
            }
        }
    }

    fn step(&mut self) -> Result<StepCounts, String> {
        let (scheduler, backend) = (&mut self.scheduler, self.backend.as_mut());
        match catch_unwind(AssertUnwindSafe(|| step(scheduler, backend))) {
            Ok(Ok(counts)) => Ok(counts),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("an internal error occurred while computing".into()),
        }
    }

    fn report(&self, gone: u64, admitted: usize, counts: Option<StepCounts>) {
        let (running, waiting) = (self.scheduler.running.len(), self.scheduler.waiting());
        let (kv_usage, preemptions) = (self.scheduler.kv_usage(), self.scheduler.preemptions());
        let (cached_pages, checkpoints) = (self.scheduler.prefix().pages(), self.scheduler.prefix().checkpoints());
        let mut inbox = self.shared.lock();
        let waiting = waiting + inbox.new.len();
        inbox.departures.observe(admitted, waiting, Instant::now());
        let stats = &mut inbox.stats;
        stats.cancelled += gone;
        if let Some(counts) = counts {
            stats.steps += 1;
            stats.step_sequences += counts.sequences;
            stats.prompt_tokens += counts.prompt_tokens;
            stats.generation_tokens += counts.generated;
        }
        *stats = EngineStats { running, waiting, kv_usage, preemptions, cached_pages, checkpoints, ..*stats };
    }

    /// An idle engine holds nothing but its prefix cache. If it does, the caches are made anew, so that a leak cannot
    /// grow.
    fn check_idle(&mut self) {
        if let Err(message) = self.scheduler.check_idle() {
            debug_assert!(false, "{message}");
            tracing::error!(%message, "the caches are inconsistent; they are made anew");
            self.scheduler.reset();
        }
    }

    /// Takes new submissions, waiting for some when there is nothing to do. False when it is time to stop.
    fn collect(&mut self) -> bool {
        let mut inbox = self.shared.lock();
        loop {
            for (submission, queued) in inbox.new.drain(..) {
                self.scheduler.add(submission, queued);
            }
            let idle = self.scheduler.is_idle();
            match inbox.closing {
                Some(deadline) if idle || Instant::now() >= deadline => return false,
                _ if !idle => return true,
                _ => inbox = self.shared.wake.wait(inbox).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn stop(mut self) {
        self.scheduler.clear(|generation| generation.finish(FinishReason::Shutdown));
        let mut inbox = self.shared.lock();
        inbox.stopped = true;
        inbox.new.drain(..).for_each(|(submission, _)| end_waiting(submission));
        inbox.stats.running = 0;
        inbox.stats.waiting = 0;
    }
}

fn end_waiting(submission: Submission) {
    let usage = Usage { prompt_tokens: submission.request.prompt.len(), ..Usage::default() };
    let _ = submission.events.send(GenerateEvent::Finished { reason: FinishReason::Shutdown, usage });
}
