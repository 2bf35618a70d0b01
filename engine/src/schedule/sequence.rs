//! A request on its way: its tokens, its listener and, while it runs, what it holds in the caches.

use crate::cache::{Lease, Sequence};
use crate::engine::{FinishReason, GenerateEvent, Submission, TokenEvent, TokenLogprobs, Usage};
use crate::sampling::{Sampler, Selection};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A request with its tokens so far. It waits, runs, and after a preemption waits again.
pub(crate) struct Generation {
    submission: Submission,
    /// Place in the order of arrival.
    pub(crate) arrival: u64,
    /// Prompt and output so far.
    pub(crate) tokens: Vec<u32>,
    pub(crate) sampler: Sampler,
    /// Prompt rows that later arrivals were given, or that were held back, while this one could have used them.
    pub(crate) passed_over: usize,
    pub(crate) preempted: bool,
    prompt_logprobs: Vec<TokenLogprobs>,
    prompt_reported: bool,
    cached_tokens: usize,
    queued: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    end: Option<FinishReason>,
}

impl Generation {
    pub(crate) fn new(submission: Submission, queued: Instant, arrival: u64, vocab: usize) -> Self {
        let request = &submission.request;
        Self {
            arrival,
            tokens: request.prompt.clone(),
            sampler: Sampler::new(&request.sampling, &request.prompt, vocab).with_grammar(request.grammar.as_ref()),
            passed_over: 0,
            preempted: false,
            prompt_logprobs: Vec::new(),
            prompt_reported: request.prompt_logprobs.is_none(),
            cached_tokens: 0,
            queued,
            started: None,
            first_token: None,
            last_token: None,
            end: None,
            submission,
        }
    }

    fn send(&self, event: GenerateEvent) {
        // A closed channel means that the client has gone, which `is_cancelled` notices before the next step.
        let _ = self.submission.events.send(event);
    }

    pub(crate) fn prompt_len(&self) -> usize {
        self.submission.request.prompt.len()
    }

    /// Tokens that prompt and output may come to together.
    pub(crate) fn most_tokens(&self) -> usize {
        self.prompt_len() + self.submission.request.max_tokens
    }

    /// Whether every row of the prompt must be computed, cached or not.
    pub(crate) fn needs_every_row(&self) -> bool {
        !self.prompt_reported
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.submission.cancelled.load(Ordering::Acquire) || self.submission.events.is_closed()
    }

    pub(crate) fn is_past_deadline(&self, now: Instant) -> bool {
        self.submission.request.deadline.is_some_and(|deadline| now >= deadline)
    }

    pub(crate) fn wants_logprobs(&self) -> Option<usize> {
        self.submission.request.logprobs
    }

    /// What is needed of the row that the next token is chosen from.
    pub(crate) fn selection(&self) -> Selection {
        match self.wants_logprobs() {
            Some(_) => Selection::Logits,
            None => self.sampler.selection(self.tokens.len() as u64),
        }
    }

    /// Whether a token is to be chosen after the prompt.
    pub(crate) fn generates(&self) -> bool {
        self.submission.request.max_tokens > 0
    }

    /// When the next token is due if two are to be no further apart than `between`.
    pub(crate) fn next_token_due(&self, between: Duration) -> Option<Instant> {
        self.last_token.map(|last| last + between)
    }

    /// Appends a generated token and tells the listener.
    pub(crate) fn add_token(&mut self, id: u32, logprobs: Option<TokenLogprobs>) {
        let now = Instant::now();
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.tokens.push(id);
        self.sampler.accept(id);
        self.send(GenerateEvent::Token(TokenEvent { id, logprobs }));
        let request = &self.submission.request;
        if request.stop_tokens.contains(&id) || self.sampler.is_complete() {
            self.end = Some(FinishReason::Stop);
        } else if self.tokens.len() - request.prompt.len() >= request.max_tokens {
            self.end = Some(FinishReason::Length);
        }
    }

    /// Why it has ended, if it has.
    pub(crate) fn ended(&self) -> Option<FinishReason> {
        self.end
    }

    /// Tells the listener that it is over.
    pub(crate) fn finish(self, reason: FinishReason) {
        let now = Instant::now();
        let started = self.started.unwrap_or(now);
        let first = self.first_token.unwrap_or(now);
        let usage = Usage {
            prompt_tokens: self.prompt_len(),
            completion_tokens: self.tokens.len() - self.prompt_len(),
            cached_tokens: self.cached_tokens,
            queue: started - self.queued,
            prefill: first - started,
            decode: now - first,
        };
        self.send(GenerateEvent::Finished { reason, usage });
    }

    /// Tells the listener that the engine failed.
    pub(crate) fn fail(self, message: &str) {
        self.send(GenerateEvent::Failed(message.to_owned()));
    }
}

/// An admitted request.
pub(crate) struct Running {
    pub(crate) generation: Generation,
    /// What it holds in the caches. Tokens beyond its length are still to be computed.
    pub(crate) cache: Sequence,
    /// What it shares with the prefix cache.
    pub(crate) lease: Lease,
    /// Positions at which its state is to be kept, ascending; the last is where its prompt ends.
    pub(crate) checkpoints: Vec<usize>,
}

impl Running {
    /// Admits a request whose `cache` holds its beginning already; tells the listener the first time.
    pub(crate) fn new(mut generation: Generation, cache: Sequence, lease: Lease, checkpoints: Vec<usize>) -> Self {
        if generation.started.is_none() {
            generation.started = Some(Instant::now());
            generation.cached_tokens = cache.len();
            generation.send(GenerateEvent::Started { cached_tokens: cache.len() });
        }
        Self { generation, cache, lease, checkpoints }
    }

    /// Tokens that are not in the cache yet.
    pub(crate) fn pending(&self) -> usize {
        self.generation.tokens.len() - self.cache.len()
    }

    /// Whether the next token only needs one row.
    pub(crate) fn is_decoding(&self) -> bool {
        self.pending() == 1 && self.cache.len() >= self.generation.prompt_len()
    }

    pub(crate) fn wants_prompt_logprobs(&self) -> Option<usize> {
        let asked = self.generation.submission.request.prompt_logprobs;
        asked.filter(|_| self.generation.needs_every_row() && self.cache.len() < self.generation.prompt_len())
    }

    /// Takes the log-probabilities of prompt tokens, in order; reports them when the prompt is complete.
    pub(crate) fn add_prompt_logprobs(&mut self, logprobs: impl IntoIterator<Item = TokenLogprobs>) {
        let generation = &mut self.generation;
        generation.prompt_logprobs.extend(logprobs);
        if generation.prompt_logprobs.len() + 1 == generation.prompt_len() {
            let logprobs = std::mem::take(&mut generation.prompt_logprobs);
            generation.prompt_reported = true;
            generation.send(GenerateEvent::PromptLogprobs(logprobs));
        }
        if !generation.generates() && self.cache.len() >= generation.prompt_len() {
            generation.end = Some(FinishReason::Length);
        }
    }

    /// Takes the request out of its caches, to be computed again later.
    pub(crate) fn preempt(mut self) -> Generation {
        self.generation.preempted = true;
        self.generation.prompt_logprobs.clear();
        self.generation
    }
}
