//! Admission and the choice of the next step's rows. No device here.
//!
//! First come, first served. A request is admitted when the pages it may come to need are not promised to others, so
//! that everything admitted finishes. A step takes every decoding sequence first, then prefill chunks in order of
//! arrival, up to the token budget.

use super::batch::{StepBatch, WantLogits};
use super::sequence::Running;
use crate::cache::{CacheSizes, Caches, OutOfCache, PAGE, Reservation};
use crate::engine::{FinishReason, GenerateEvent, Submission, Usage};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Limits of the scheduler.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Sequences that run at once.
    pub(crate) max_sequences: usize,
    /// Tokens of one step.
    pub(crate) step_tokens: usize,
    /// Context length.
    pub(crate) context: usize,
    /// Rows of the vocabulary.
    pub(crate) vocab: usize,
}

/// A sequence's share of a step.
pub(crate) struct Scheduled {
    /// Index into [`Scheduler::running`].
    pub(crate) index: usize,
    /// Rows in the step.
    pub(crate) rows: usize,
    /// Which of them have logits.
    pub(crate) want: WantLogits,
    pub(crate) reservation: Reservation,
}

/// Requests that wait and run.
pub(crate) struct Scheduler {
    limits: Limits,
    caches: Caches,
    waiting: VecDeque<(Submission, Instant)>,
    pub(crate) running: Vec<Running>,
    promised_pages: usize,
}

impl Scheduler {
    pub(crate) fn new(limits: Limits, sizes: &CacheSizes, recurrent: bool) -> Self {
        let caches = Caches::new(sizes, recurrent);
        Self { limits, caches, waiting: VecDeque::new(), running: Vec::new(), promised_pages: 0 }
    }

    pub(crate) fn add(&mut self, submission: Submission, queued: Instant) {
        self.waiting.push_back((submission, queued));
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// KV pages in use, as a fraction of all.
    pub(crate) fn kv_usage(&self) -> f64 {
        let (free, all) = self.caches.pages();
        if all == 0 { 0.0 } else { 1.0 - free as f64 / all as f64 }
    }

    /// Whether nothing is held although nothing runs: checked when idle.
    pub(crate) fn is_whole(&self) -> bool {
        self.promised_pages == 0 && self.caches.is_idle()
    }

    /// Drops requests whose client has gone and ends those past their deadline. Returns how many had gone.
    pub(crate) fn reap(&mut self, now: Instant) -> u64 {
        let mut gone = 0;
        self.waiting.retain(|(submission, queued)| {
            if submission.cancelled.load(Ordering::Acquire) || submission.events.is_closed() {
                gone += 1;
                return false;
            }
            let expired = submission.request.deadline.is_some_and(|deadline| now >= deadline);
            if expired {
                let prompt_tokens = submission.request.prompt.len();
                let usage = Usage { prompt_tokens, queue: now - *queued, ..Usage::default() };
                let _ = submission.events.send(GenerateEvent::Finished { reason: FinishReason::Deadline, usage });
            }
            !expired
        });
        for index in (0..self.running.len()).rev() {
            if self.running[index].is_cancelled() {
                gone += 1;
                drop(self.remove(index));
            } else if self.running[index].is_past_deadline(now) {
                self.remove(index).finish(FinishReason::Deadline);
            }
        }
        gone
    }

    /// Takes a sequence out; its cache is freed when it is dropped.
    pub(crate) fn remove(&mut self, index: usize) -> Running {
        let running = self.running.remove(index);
        self.promised_pages -= running.promised_pages;
        running
    }

    /// Ends everything that runs or waits.
    pub(crate) fn clear(&mut self, mut end: impl FnMut(Running), mut refuse: impl FnMut(Submission)) {
        while !self.running.is_empty() {
            end(self.remove(self.running.len() - 1));
        }
        self.waiting.drain(..).for_each(|(submission, _)| refuse(submission));
    }

    /// Admits what fits, in order of arrival.
    pub(crate) fn admit(&mut self) {
        while self.running.len() < self.limits.max_sequences {
            let Some((submission, _)) = self.waiting.front() else { return };
            let request = &submission.request;
            let most = (request.prompt.len() + request.max_tokens).min(self.limits.context);
            let pages = most.div_ceil(PAGE);
            if self.promised_pages + pages > self.caches.pages().1 {
                return;
            }
            let Ok(cache) = self.caches.sequence() else { return };
            let Some((submission, queued)) = self.waiting.pop_front() else { return };
            self.promised_pages += pages;
            self.running.push(Running::new(submission, queued, cache, pages, self.limits.vocab));
        }
    }

    /// Chooses the next step's rows. Empty when nothing runs.
    pub(crate) fn schedule(&self) -> Result<(StepBatch, Vec<Scheduled>), OutOfCache> {
        let mut batch = StepBatch::default();
        let mut scheduled = Vec::new();
        let decode_first =
            |decoding: bool| self.running.iter().enumerate().filter(move |(_, r)| r.is_decoding() == decoding);
        for (index, sequence) in decode_first(true).chain(decode_first(false)) {
            let budget = self.limits.step_tokens.saturating_sub(batch.rows());
            let rows = sequence.pending().min(budget);
            if rows == 0 {
                break;
            }
            let completes = rows == sequence.pending();
            let want = match (sequence.wants_prompt_logprobs().is_some(), completes && sequence.generates()) {
                (true, _) => WantLogits::All,
                (false, true) => WantLogits::Choice(sequence.selection()),
                (false, false) => WantLogits::None,
            };
            let reservation = self.caches.reserve(&sequence.cache, rows)?;
            let from = sequence.cache.len();
            batch.push(&sequence.cache, &reservation, &sequence.tokens[from..from + rows], want);
            scheduled.push(Scheduled { index, rows, want, reservation });
        }
        Ok((batch, scheduled))
    }
}
