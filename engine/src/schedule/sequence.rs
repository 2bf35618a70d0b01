//! A request that has been admitted: its tokens, its cache and its listener.

use crate::cache::Sequence;
use crate::engine::{FinishReason, GenerateEvent, Submission, TokenEvent, TokenLogprobs, Usage};
use crate::sampling::{Sampler, Selection};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// An admitted request.
pub(crate) struct Running {
    submission: Submission,
    /// Prompt and output so far. Those beyond `cache.len()` are still to be computed.
    pub(crate) tokens: Vec<u32>,
    /// What it holds in the caches.
    pub(crate) cache: Sequence,
    /// KV pages that it may come to need in all: admission never promises more than there are.
    pub(crate) promised_pages: usize,
    pub(crate) sampler: Sampler,
    prompt_logprobs: Vec<TokenLogprobs>,
    queued: Instant,
    started: Instant,
    first_token: Option<Instant>,
    end: Option<FinishReason>,
}

impl Running {
    pub(crate) fn new(submission: Submission, queued: Instant, cache: Sequence, pages: usize, vocab: usize) -> Self {
        let request = &submission.request;
        let sampler = Sampler::new(&request.sampling, &request.prompt, vocab).with_grammar(request.grammar.as_ref());
        let this = Self {
            tokens: request.prompt.clone(),
            cache,
            promised_pages: pages,
            sampler,
            prompt_logprobs: Vec::new(),
            queued,
            started: Instant::now(),
            first_token: None,
            end: None,
            submission,
        };
        this.send(GenerateEvent::Started { cached_tokens: 0 });
        this
    }

    fn send(&self, event: GenerateEvent) {
        // A closed channel means that the client has gone, which `is_cancelled` notices before the next step.
        let _ = self.submission.events.send(event);
    }

    pub(crate) fn prompt_len(&self) -> usize {
        self.submission.request.prompt.len()
    }

    /// Tokens that are not in the cache yet.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.cache.len()
    }

    /// Whether the next token only needs one row.
    pub(crate) fn is_decoding(&self) -> bool {
        self.pending() == 1 && self.cache.len() >= self.prompt_len()
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.submission.cancelled.load(Ordering::Acquire) || self.submission.events.is_closed()
    }

    pub(crate) fn is_past_deadline(&self, now: Instant) -> bool {
        self.submission.request.deadline.is_some_and(|deadline| now >= deadline)
    }

    pub(crate) fn wants_prompt_logprobs(&self) -> Option<usize> {
        self.submission.request.prompt_logprobs.filter(|_| self.cache.len() < self.prompt_len())
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

    /// Takes the log-probabilities of prompt tokens, in order; reports them when the prompt is complete.
    pub(crate) fn add_prompt_logprobs(&mut self, logprobs: impl IntoIterator<Item = TokenLogprobs>) {
        self.prompt_logprobs.extend(logprobs);
        if self.prompt_logprobs.len() + 1 == self.prompt_len() {
            let logprobs = std::mem::take(&mut self.prompt_logprobs);
            self.send(GenerateEvent::PromptLogprobs(logprobs));
        }
        if self.submission.request.max_tokens == 0 && self.cache.len() >= self.prompt_len() {
            self.end = Some(FinishReason::Length);
        }
    }

    /// Whether a token is to be chosen after the prompt.
    pub(crate) fn generates(&self) -> bool {
        self.submission.request.max_tokens > 0
    }

    /// Appends a generated token and tells the listener.
    pub(crate) fn add_token(&mut self, id: u32, logprobs: Option<TokenLogprobs>) {
        self.first_token.get_or_insert_with(Instant::now);
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
        let first = self.first_token.unwrap_or(now);
        let usage = Usage {
            prompt_tokens: self.prompt_len(),
            completion_tokens: self.tokens.len() - self.prompt_len(),
            cached_tokens: 0,
            queue: self.started - self.queued,
            prefill: first - self.started,
            decode: now - first,
        };
        self.send(GenerateEvent::Finished { reason, usage });
    }

    /// Tells the listener that the engine failed.
    pub(crate) fn fail(self, message: &str) {
        self.send(GenerateEvent::Failed(message.to_owned()));
    }
}
