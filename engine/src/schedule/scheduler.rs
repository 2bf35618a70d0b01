//! Admission and the choice of the next step's rows. No device here.
//!
//! A request is admitted when its prompt fits the memory that is there: free pages and what the prefix cache can give
//! up, less what others still need for their prompts and for the next tokens. What runs may therefore outgrow the
//! memory: then the latest arrivals are preempted, which keep their tokens and are computed again later, with the same
//! result. The first arrival is never preempted, and alone it fits, so that everything admitted finishes.
//!
//! A step takes every decoding sequence first, then prompt chunks in the order of the [`Policy`].

use super::batch::{StepBatch, WantLogits};
use super::pace::Pace;
use super::policy::{Policy, is_due};
use super::sequence::{Generation, Running};
use crate::cache::{BLOCK, CacheSizes, Caches, OutOfCache, PAGE, PrefixCache, Rank, Reservation};
use crate::engine::{FinishReason, Submission};
use std::time::{Duration, Instant};

/// Tokens for which everything that runs should be able to go on when a request is admitted.
const HEADROOM: usize = 64;

/// Limits of the scheduler.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Sequences that run at once.
    pub(crate) max_sequences: usize,
    /// Tokens of one step; not below `max_sequences`.
    pub(crate) step_tokens: usize,
    /// Rows of the vocabulary.
    pub(crate) vocab: usize,
    /// Order of prompts.
    pub(crate) policy: Policy,
    /// Longest wanted time between two tokens.
    pub(crate) between_tokens: Duration,
    /// Whether computed prefixes are kept.
    pub(crate) prefix_caching: bool,
    /// Tokens before the first checkpoint inside a prompt; the next ones stand at its doublings.
    pub(crate) checkpoint_interval: usize,
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

/// The rows of one step.
#[derive(Default)]
pub(crate) struct StepPlan {
    pub(crate) batch: StepBatch,
    pub(crate) shares: Vec<Scheduled>,
    /// Rows that are no decode rows.
    pub(crate) prompt_rows: usize,
    /// Checkpoints that the shares will make.
    checkpoints: usize,
}

/// Requests that wait and run.
pub(crate) struct Scheduler {
    limits: Limits,
    sizes: CacheSizes,
    recurrent: bool,
    caches: Caches,
    prefix: PrefixCache,
    /// In order of arrival, as is `running`.
    waiting: Vec<Generation>,
    pub(crate) running: Vec<Running>,
    arrivals: u64,
    preemptions: u64,
    pace: Pace,
}

impl Scheduler {
    pub(crate) fn new(limits: Limits, sizes: &CacheSizes, recurrent: bool) -> Self {
        Self {
            limits,
            sizes: *sizes,
            recurrent,
            caches: Caches::new(sizes, recurrent),
            prefix: PrefixCache::new(sizes, recurrent, limits.prefix_caching),
            waiting: Vec::new(),
            running: Vec::new(),
            arrivals: 0,
            preemptions: 0,
            pace: Pace::default(),
        }
    }

    pub(crate) fn add(&mut self, submission: Submission, queued: Instant) {
        self.waiting.push(Generation::new(submission, queued, self.arrivals, self.limits.vocab));
        self.arrivals += 1;
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn preemptions(&self) -> u64 {
        self.preemptions
    }

    pub(crate) fn prefix(&self) -> &PrefixCache {
        &self.prefix
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// KV pages that running sequences hold, as a fraction of all.
    pub(crate) fn kv_usage(&self) -> f64 {
        let (_, all) = self.caches.pages();
        if all == 0 { 0.0 } else { 1.0 - self.available() as f64 / all as f64 }
    }

    /// Pages that are free or can be.
    fn available(&self) -> usize {
        self.caches.pages().0 + self.prefix.evictable()
    }

    /// Learns how long a step with so many prompt rows took.
    pub(crate) fn observe(&mut self, prompt_rows: usize, elapsed: Duration) {
        self.pace.observe(prompt_rows, elapsed);
    }

    /// Whether an idle scheduler holds nothing but the prefix cache, and that is in order.
    pub(crate) fn check_idle(&self) -> Result<(), String> {
        self.prefix.check(true)?;
        match self.caches.is_idle_but(self.prefix.pages(), self.prefix.checkpoints()) {
            true => Ok(()),
            false => Err("pages or slots are missing although nothing runs".into()),
        }
    }

    /// Forgets everything cached. Nothing may run.
    pub(crate) fn reset(&mut self) {
        self.caches = Caches::new(&self.sizes, self.recurrent);
        self.prefix = PrefixCache::new(&self.sizes, self.recurrent, self.limits.prefix_caching);
    }

    /// Drops requests whose client has gone and ends those past their deadline. Returns how many had gone.
    pub(crate) fn reap(&mut self, now: Instant) -> u64 {
        let mut gone = 0;
        for index in (0..self.waiting.len()).rev() {
            if self.waiting[index].is_cancelled() {
                gone += 1;
                drop(self.waiting.remove(index));
            } else if self.waiting[index].is_past_deadline(now) {
                self.waiting.remove(index).finish(FinishReason::Deadline);
            }
        }
        for index in (0..self.running.len()).rev() {
            if self.running[index].generation.is_cancelled() {
                gone += 1;
                drop(self.remove(index));
            } else if self.running[index].generation.is_past_deadline(now) {
                self.remove(index).finish(FinishReason::Deadline);
            }
        }
        gone
    }

    /// Takes a sequence out; what it has computed stays in the prefix cache.
    pub(crate) fn remove(&mut self, index: usize) -> Generation {
        let mut running = self.running.remove(index);
        self.leave_prefix(&mut running);
        self.prefix.release(running.lease);
        running.generation
    }

    /// Takes a sequence out whose cache is not to be trusted.
    pub(crate) fn discard(&mut self, index: usize) -> Generation {
        let running = self.running.remove(index);
        self.prefix.release(running.lease);
        running.generation
    }

    /// Ends everything that runs or waits, and forgets everything cached.
    pub(crate) fn clear(&mut self, mut end: impl FnMut(Generation)) {
        while !self.running.is_empty() {
            end(self.discard(self.running.len() - 1));
        }
        self.waiting.drain(..).for_each(end);
        self.reset();
    }

    /// Admits what fits, in the order of the policy. Returns how many.
    pub(crate) fn admit(&mut self) -> usize {
        let mut admitted = 0;
        while self.running.len() < self.limits.max_sequences {
            let rank = |generation: &Generation| self.limits.policy.rank(generation, generation.tokens.len());
            let Some(first) = (0..self.waiting.len()).min_by_key(|index| rank(&self.waiting[*index])) else { break };
            let Some(running) = self.start(first) else { break };
            let arrival = running.generation.arrival;
            let place = self.running.partition_point(|other| other.generation.arrival < arrival);
            self.running.insert(place, running);
            admitted += 1;
        }
        admitted
    }

    /// Makes a waiting request a running one if its prompt fits.
    fn start(&mut self, index: usize) -> Option<Running> {
        let generation = &self.waiting[index];
        let tokens = generation.tokens.len();
        // The last token is computed in any case: its row yields the next one.
        let most = if generation.needs_every_row() { 0 } else { tokens - 1 };
        let hit = self.prefix.find(SALT, &generation.tokens, most);
        let (lease, len, known) = (hit.lease, hit.len, hit.known);
        let growing = |generation: &Generation| {
            let most = generation.most_tokens().min(generation.tokens.len() + HEADROOM);
            most.div_ceil(PAGE)
        };
        let needed = growing(generation) - len / PAGE;
        let promised: usize = self.running.iter().map(|r| growing(&r.generation).saturating_sub(r.cache.pages())).sum();
        if needed + promised > self.available() && !self.running.is_empty() {
            self.prefix.release(lease);
            return None;
        }
        let Ok(cache) = self.caches.resume(hit) else {
            self.prefix.release(lease);
            return None;
        };
        let checkpoints = self.checkpoints(len, known, tokens);
        Some(Running::new(self.waiting.remove(index), cache, lease, checkpoints))
    }

    /// Where a sequence of `tokens` tokens, `len` of them cached, should leave its state: at the end of the prompt, where
    /// it leaves what the prefix cache knows, and at doublings of the interval.
    fn checkpoints(&self, len: usize, known: usize, tokens: usize) -> Vec<usize> {
        if !self.prefix.wants_checkpoints() {
            return Vec::new();
        }
        let end = (tokens - 1) / BLOCK * BLOCK;
        let interval = self.limits.checkpoint_interval.next_multiple_of(BLOCK).max(BLOCK);
        let doublings = std::iter::successors(Some(interval), |position| position.checked_mul(2));
        let mut positions: Vec<usize> = doublings.take_while(|position| *position < end).collect();
        positions.extend([known / BLOCK * BLOCK, end]);
        positions.retain(|position| *position > len && *position <= end);
        positions.sort_unstable();
        positions.dedup();
        positions
    }

    /// Chooses the next step's rows. Empty when nothing runs.
    pub(crate) fn schedule(&mut self, now: Instant) -> Result<StepPlan, OutOfCache> {
        let mut plan = StepPlan::default();
        self.schedule_decodes(&mut plan);
        self.schedule_prompts(&mut plan, now);
        if plan.shares.is_empty() && !self.running.is_empty() {
            self.schedule_first(&mut plan)?;
        }
        self.count_passed_over(&plan);
        Ok(plan)
    }

    /// One row of every decoding sequence, in order of arrival. Whoever lacks a page takes those of the last arrival,
    /// which has no row yet.
    fn schedule_decodes(&mut self, plan: &mut StepPlan) {
        let mut index = 0;
        while index < self.running.len() {
            if !self.running[index].is_decoding() || self.schedule_rows(plan, index, 1) {
                index += 1;
            } else if self.running.len() > 1 {
                self.preempt_last();
            } else {
                return;
            }
        }
    }

    /// Prompt chunks, as far as budget and pages go.
    fn schedule_prompts(&mut self, plan: &mut StepPlan, now: Instant) {
        let policy = self.limits.policy;
        let decoding = self.running.iter().filter(|running| running.is_decoding());
        let due = decoding.filter_map(|running| running.generation.next_token_due(self.limits.between_tokens)).min();
        let mut order: Vec<usize> = (0..self.running.len()).filter(|i| !self.running[*i].is_decoding()).collect();
        order.sort_by_key(|index| policy.rank(&self.running[*index].generation, self.running[*index].pending()));
        let some_due = order.iter().any(|index| is_due(&self.running[*index].generation));
        let left = due.map(|due| due.saturating_duration_since(now));
        let budget = self.limits.step_tokens.saturating_sub(plan.batch.rows());
        let mut budget = policy.prompt_rows(budget, left, &self.pace, some_due);
        for index in order {
            let running = &self.running[index];
            let held = running.cache.pages() * PAGE - running.cache.len();
            let rows = running.pending().min(budget).min(held + self.available() * PAGE);
            if rows > 0 && self.schedule_rows(plan, index, rows) {
                plan.prompt_rows += rows;
                budget -= rows;
            }
        }
    }

    /// When nothing could get a page, the first arrival gets the pages of the last.
    fn schedule_first(&mut self, plan: &mut StepPlan) -> Result<(), OutOfCache> {
        loop {
            let rows = self.running[0].pending().min(self.limits.step_tokens).min(PAGE);
            if self.schedule_rows(plan, 0, rows) {
                plan.prompt_rows += rows;
                return Ok(());
            }
            if self.running.len() == 1 {
                return Err(OutOfCache { group: "KV" });
            }
            self.preempt_last();
        }
    }

    /// Adds rows of a sequence to the step. False if there is no room for them.
    fn schedule_rows(&mut self, plan: &mut StepPlan, index: usize, rows: usize) -> bool {
        let running = &self.running[index];
        let (start, end) = (running.cache.len(), running.cache.len() + rows);
        let missing = end.div_ceil(PAGE).saturating_sub(running.cache.pages());
        let free = self.caches.pages().0;
        self.prefix.evict_pages(missing.saturating_sub(free));
        let wanted = running.checkpoints.iter().filter(|position| (start + 1..=end).contains(position));
        let mut kept: Vec<usize> = wanted.copied().collect();
        if !kept.is_empty() {
            let room = self.prefix.make_room(plan.checkpoints + kept.len()).saturating_sub(plan.checkpoints);
            kept.drain(..kept.len().saturating_sub(room));
        }
        let running = &self.running[index];
        let Ok(reservation) = self.caches.reserve_keeping(&running.cache, rows, &kept) else { return false };
        let completes = rows == running.pending();
        let want = match (running.wants_prompt_logprobs().is_some(), completes && running.generation.generates()) {
            (true, _) => WantLogits::All,
            (false, true) => WantLogits::Choice(running.generation.selection()),
            (false, false) => WantLogits::None,
        };
        plan.batch.push(&running.cache, &reservation, &running.generation.tokens[start..end], want);
        plan.checkpoints += kept.len();
        plan.shares.push(Scheduled { index, rows, want, reservation });
        true
    }

    /// Lets the last arrival that runs wait again.
    fn preempt_last(&mut self) {
        let Some(mut running) = self.running.pop() else { return };
        self.leave_prefix(&mut running);
        self.prefix.release(running.lease);
        let generation = running.preempt();
        let place = self.waiting.partition_point(|other| other.arrival < generation.arrival);
        self.waiting.insert(place, generation);
        self.preemptions += 1;
    }

    /// Charges everyone whose prompt is not complete with the rows that later arrivals got and those held back.
    fn count_passed_over(&mut self, plan: &StepPlan) {
        let prompts: Vec<(u64, usize)> = (plan.shares.iter())
            .map(|share| (&self.running[share.index], share.rows))
            .filter(|(running, _)| !running.is_decoding())
            .map(|(running, rows)| (running.generation.arrival, rows))
            .collect();
        let pending: usize = self.running.iter().filter(|r| !r.is_decoding()).map(Running::pending).sum();
        let budget = self.limits.step_tokens.saturating_sub(plan.batch.rows());
        let held_back = budget.min(pending - plan.prompt_rows.min(pending));
        let charge = |generation: &mut Generation| {
            let later = prompts.iter().filter(|(arrival, _)| *arrival > generation.arrival);
            let rows: usize = later.map(|(_, rows)| rows).sum();
            generation.passed_over = generation.passed_over.saturating_add(rows + held_back);
        };
        self.waiting.iter_mut().for_each(charge);
        let running = self.running.iter_mut().filter(|running| !running.is_decoding());
        running.map(|running| &mut running.generation).for_each(charge);
    }

    /// Makes a sequence's computed rows part of it, and of the prefix cache where that is of use to others.
    pub(crate) fn commit(&mut self, index: usize, reservation: Reservation, rows: usize) {
        let running = &mut self.running[index];
        let prompt = running.generation.prompt_len();
        let before = running.cache.len();
        let made = running.cache.commit(reservation, rows);
        let complete = before < prompt && running.cache.len() >= prompt;
        if made.is_empty() && (self.recurrent || !complete) {
            return;
        }
        let end = running.checkpoints.last().copied();
        let ranked = made.into_iter().map(|checkpoint| {
            let rank = if Some(checkpoint.position()) == end { Rank::TurnEnd } else { Rank::Inside };
            (rank, checkpoint)
        });
        let Running { generation, cache, lease, .. } = running;
        self.prefix.insert(lease, cache, &generation.tokens, ranked.collect());
    }

    /// Leaves what a sequence that stops has computed to the prefix cache.
    fn leave_prefix(&mut self, running: &mut Running) {
        let Running { generation, cache, lease, .. } = running;
        let checkpoint = cache.checkpoint().map(|checkpoint| (Rank::TurnEnd, checkpoint));
        self.prefix.insert(lease, cache, &generation.tokens, checkpoint.into_iter().collect());
    }
}

/// All requests share one prefix cache.
const SALT: u64 = 0;

#[cfg(test)]
mod tests;
