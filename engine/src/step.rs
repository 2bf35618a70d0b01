//! The hot path, top to bottom: schedule, batch, execute, sample, commit, emit.

use crate::backend::Backend;
use crate::errors::EngineError;
use crate::sampling::{RowOutput, SamplingError, logprobs};
use crate::schedule::scheduler::{Scheduled, Scheduler, StepPlan};
use std::time::Instant;

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StepCounts {
    /// Sequences in the step.
    pub(crate) sequences: u64,
    /// Prompt rows computed.
    pub(crate) prompt_tokens: u64,
    /// Tokens generated.
    pub(crate) generated: u64,
}

/// Computes one step of everything that runs. On an error the step's reservations are rolled back.
pub(crate) fn step(scheduler: &mut Scheduler, backend: &mut dyn Backend) -> Result<StepCounts, EngineError> {
    let begun = Instant::now();
    let plan = scheduler.schedule(begun).map_err(|error| EngineError::Memory(error.to_string()))?;
    let StepPlan { batch, shares, prompt_rows, .. } = plan;
    let output = backend.execute(&batch, None)?;
    scheduler.observe(prompt_rows, begun.elapsed());
    let mut rows = output.rows.as_slice();
    let mut counts = StepCounts { sequences: shares.len() as u64, ..StepCounts::default() };
    let mut ended = Vec::new();
    for share in shares {
        let index = share.index;
        let own;
        (own, rows) = rows.split_at(share.want.count(share.rows).min(rows.len()));
        match advance(scheduler, share, own, &mut counts) {
            Err(error) => ended.push((index, Err(scheduler.running[index].generation.sampler.explain(error)))),
            Ok(()) => ended.extend(scheduler.running[index].generation.ended().map(|reason| (index, Ok(reason)))),
        }
    }
    ended.sort_unstable_by_key(|(index, _)| *index);
    for (index, outcome) in ended.into_iter().rev() {
        match outcome {
            Ok(reason) => scheduler.remove(index).finish(reason),
            Err(message) => scheduler.discard(index).fail(&message),
        }
    }
    Ok(counts)
}

/// Commits a sequence's rows and chooses its next token when the row before it is there.
fn advance(
    scheduler: &mut Scheduler,
    share: Scheduled,
    outputs: &[RowOutput<'_>],
    counts: &mut StepCounts,
) -> Result<(), SamplingError> {
    let sequence = &scheduler.running[share.index];
    let start = sequence.cache.len();
    let completes = share.rows == sequence.pending();
    let prompt_top = sequence.wants_prompt_logprobs();
    counts.prompt_tokens += sequence.generation.prompt_len().saturating_sub(start).min(share.rows) as u64;
    scheduler.commit(share.index, share.reservation, share.rows);
    let sequence = &mut scheduler.running[share.index];
    if let Some(top) = prompt_top {
        let next_tokens = sequence.generation.tokens[start + 1..].iter();
        let of_row = |(output, token): (&RowOutput<'_>, &u32)| Ok(logprobs(output.logits()?, *token, top));
        let found: Vec<_> = outputs.iter().zip(next_tokens).map(of_row).collect::<Result<_, _>>()?;
        sequence.add_prompt_logprobs(found);
    }
    let generation = &mut sequence.generation;
    if let Some(last) = outputs.last().filter(|_| completes && generation.generates()) {
        let token = generation.sampler.choose_from(last, generation.tokens.len() as u64)?;
        let logprobs = match generation.wants_logprobs() {
            Some(top) => Some(logprobs(last.logits()?, token, top)),
            None => None,
        };
        generation.add_token(token, logprobs);
        counts.generated += 1;
    }
    Ok(())
}
