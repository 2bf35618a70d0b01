//! The engine's front door: submit a request, receive a stream of events.
//!
//! One thread owns the model. Everything else talks to it through an [`EngineHandle`], which is cheap to clone.
//! Dropping a [`GenerateStream`] cancels its request within one step.

use crate::sampling::SamplingParams;
use crate::sampling::grammar::CompiledGrammar;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::mpsc;

/// One generation: token ids in, token ids out.
#[derive(Debug, Clone)]
pub struct GenerateRequest {
    /// Shown in logs; need not be unique.
    pub id: String,
    /// Prompt token ids; at least one.
    pub prompt: Vec<u32>,
    /// The most tokens to generate. Zero only together with `prompt_logprobs`.
    pub max_tokens: usize,
    /// How the next token is chosen.
    pub sampling: SamplingParams,
    /// What the output is held to. The generation ends with [`FinishReason::Stop`] when it is complete.
    pub grammar: Option<Arc<CompiledGrammar>>,
    /// Token ids that end the generation (the end-of-sequence ids unless they are to be ignored).
    pub stop_tokens: Vec<u32>,
    /// With `Some(n)`, each [`TokenEvent`] carries its log-probability and those of the `n` likeliest tokens.
    pub logprobs: Option<usize>,
    /// With `Some(n)`, [`GenerateEvent::PromptLogprobs`] reports on the prompt's own tokens.
    pub prompt_logprobs: Option<usize>,
    /// The generation ends with [`FinishReason::Deadline`] when this passes.
    pub deadline: Option<Instant>,
}

/// Log-probability of one token and of its likeliest rivals, from the raw logits (before temperature and filters).
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Natural log-probability of the token itself.
    pub logprob: f32,
    /// The likeliest tokens, best first, ties to the lower id.
    pub top: Vec<(u32, f32)>,
}

/// One generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenEvent {
    /// Token id.
    pub id: u32,
    /// Present when asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was generated. (It is reported as a token event first; the consumer leaves it out of the text.) Or
    /// the grammar's text is complete.
    Stop,
    /// `max_tokens` or the context length was reached.
    Length,
    /// The request's deadline passed.
    Deadline,
    /// The engine is shutting down.
    Shutdown,
}

/// Token counts and times of a finished generation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    /// Tokens in the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub completion_tokens: usize,
    /// Prompt tokens that were taken from the prefix cache.
    pub cached_tokens: usize,
    /// Time in the queue before the first prefill chunk.
    pub queue: Duration,
    /// Time from the first prefill chunk to the first token.
    pub prefill: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
}

/// What a request's stream delivers, in order. Exactly one of `Finished` and `Failed` comes, last.
#[derive(Debug, Clone, PartialEq)]
pub enum GenerateEvent {
    /// The request left the queue; so many prompt tokens came from the prefix cache.
    Started {
        /// Prompt tokens that need no computation.
        cached_tokens: usize,
    },
    /// Log-probabilities of prompt tokens 1.. (the first token has none), when asked for.
    PromptLogprobs(Vec<TokenLogprobs>),
    /// A token was generated.
    Token(TokenEvent),
    /// The end.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Counts and times.
        usage: Usage,
    },
    /// The engine failed; the message is safe to show to the client.
    Failed(String),
}

/// Why a request was not accepted.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SubmitError {
    /// The prompt holds no token.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// Prompt and output cannot fit the context.
    #[error("the prompt has {prompt_tokens} tokens, but the context holds {max_context}")]
    PromptTooLong {
        /// Tokens in the prompt.
        prompt_tokens: usize,
        /// The served context length.
        max_context: usize,
    },
    /// The request could never be scheduled in this much cache memory.
    #[error("{0}")]
    TooLarge(String),
    /// The request's numbers are out of range.
    #[error("{0}")]
    Invalid(String),
    /// Too many requests wait already.
    #[error("the queue is full ({waiting} requests wait)")]
    QueueFull {
        /// Requests in the queue.
        waiting: usize,
        /// A sensible pause before the next try.
        retry_after: Duration,
    },
    /// The engine is shutting down or has failed.
    #[error("the engine is not running")]
    NotRunning,
}

/// Facts about the served model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// Context length served, in tokens.
    pub max_context: usize,
    /// Rows of the vocabulary.
    pub vocab_size: usize,
    /// End-of-sequence ids.
    pub eos_tokens: Vec<u32>,
    /// Family name, as in `qwen3_5`.
    pub family: String,
    /// Bytes of weights held in memory.
    pub weight_bytes: u64,
}

/// Live counters, read by `/metrics`. All counts are since start.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineStats {
    /// Requests being prefilled or decoded.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// KV cache entries in use by running requests, as a fraction of all.
    pub kv_usage: f64,
    /// KV pages that the prefix cache holds, those in use included.
    pub cached_pages: usize,
    /// States of recurrent layers that the prefix cache holds.
    pub checkpoints: usize,
    /// Prompt tokens computed.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Forward passes.
    pub steps: u64,
    /// Sequences in all of them: divided by `steps`, the mean batch.
    pub step_sequences: u64,
    /// Requests whose memory was taken for others and that were computed again.
    pub preemptions: u64,
    /// Requests ended because their client went away.
    pub cancelled: u64,
}

/// What a handle sends to the engine's thread.
#[derive(Debug)]
pub struct Submission {
    /// The request.
    pub request: GenerateRequest,
    /// Where its events go.
    pub events: mpsc::UnboundedSender<GenerateEvent>,
    /// Set when the client has gone.
    pub cancelled: Arc<AtomicBool>,
}

/// What the thread that owns the model offers to handles. Tests implement it with a script.
pub trait EngineCore: Send + Sync {
    /// Queues a request or says why not.
    fn submit(&self, submission: Submission) -> Result<(), SubmitError>;
    /// Live counters.
    fn stats(&self) -> EngineStats;
    /// Facts about the model.
    fn info(&self) -> &ModelInfo;
    /// Finishes what runs until `deadline`, then stops.
    fn shutdown(&self, deadline: Instant);
}

/// A cheap, clonable way to use the engine from any thread or task.
#[derive(Clone)]
pub struct EngineHandle {
    core: Arc<dyn EngineCore>,
}

impl EngineHandle {
    /// Wraps an engine.
    pub fn new(core: Arc<dyn EngineCore>) -> Self {
        Self { core }
    }

    /// Queues a request and returns its events. See [`SubmitError`] for the refusals.
    pub fn submit(&self, request: GenerateRequest) -> Result<GenerateStream, SubmitError> {
        let (sender, events) = mpsc::unbounded_channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        self.core.submit(Submission { request, events: sender, cancelled: cancelled.clone() })?;
        Ok(GenerateStream { events, cancelled })
    }

    /// Live counters.
    pub fn stats(&self) -> EngineStats {
        self.core.stats()
    }

    /// Facts about the model.
    pub fn info(&self) -> &ModelInfo {
        self.core.info()
    }

    /// Refuses new work, lets running requests finish until `deadline`, then stops the engine.
    pub fn shutdown(&self, deadline: Instant) {
        self.core.shutdown(deadline);
    }
}

/// The events of one request. Dropping it cancels the request.
#[derive(Debug)]
pub struct GenerateStream {
    events: mpsc::UnboundedReceiver<GenerateEvent>,
    cancelled: Arc<AtomicBool>,
}

impl GenerateStream {
    /// The next event, or `None` after the last.
    pub async fn next(&mut self) -> Option<GenerateEvent> {
        self.events.recv().await
    }

    /// Like [`Self::next`], for threads outside an async runtime.
    pub fn blocking_next(&mut self) -> Option<GenerateEvent> {
        self.events.blocking_recv()
    }
}

impl Drop for GenerateStream {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Release);
    }
}
