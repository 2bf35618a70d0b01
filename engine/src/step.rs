//! The hot path, top to bottom: schedule, batch, execute, sample, commit, emit.

use crate::backend::Backend;
use crate::errors::EngineError;
use crate::sampling::{RowOutput, SamplingError, logprobs};
use crate::schedule::scheduler::{Scheduled, Scheduler};
use crate::schedule::sequence::Running;

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StepCounts {
    /// Prompt rows computed.
    pub(crate) prompt_tokens: u64,
    /// Tokens generated.
    pub(crate) generated: u64,
}

/// Computes one step of everything that runs. On an error the step's reservations are rolled back.
pub(crate) fn step(scheduler: &mut Scheduler, backend: &mut dyn Backend) -> Result<StepCounts, EngineError> {
    let (batch, scheduled) = scheduler.schedule().map_err(|error| EngineError::Memory(error.to_string()))?;
    let output = backend.execute(&batch, None)?;
    let mut rows = output.rows.as_slice();
    let mut counts = StepCounts::default();
    let mut ended = Vec::new();
    for share in scheduled {
        let index = share.index;
        let sequence = &mut scheduler.running[index];
        let own;
        (own, rows) = rows.split_at(share.want.count(share.rows).min(rows.len()));
        match advance(sequence, share, own, &mut counts) {
            Err(error) => ended.push((index, Err(sequence.sampler.explain(error)))),
            Ok(()) => ended.extend(sequence.ended().map(|reason| (index, Ok(reason)))),
        }
    }
    ended.sort_unstable_by_key(|(index, _)| *index);
    for (index, outcome) in ended.into_iter().rev() {
        let sequence = scheduler.remove(index);
        match outcome {
            Ok(reason) => sequence.finish(reason),
            Err(message) => sequence.fail(&message),
        }
    }
    Ok(counts)
}

/// Commits a sequence's rows and chooses its next token when the row before it is there.
fn advance(
    sequence: &mut Running,
    share: Scheduled,
    outputs: &[RowOutput<'_>],
    counts: &mut StepCounts,
) -> Result<(), SamplingError> {
    let start = sequence.cache.len();
    let completes = share.rows == sequence.pending();
    let prompt_top = sequence.wants_prompt_logprobs();
    counts.prompt_tokens += sequence.prompt_len().saturating_sub(start).min(share.rows) as u64;
    sequence.cache.commit(share.reservation, share.rows);
    if let Some(top) = prompt_top {
        let next_tokens = sequence.tokens[start + 1..].iter();
        let of_row = |(output, token): (&RowOutput<'_>, &u32)| Ok(logprobs(output.logits()?, *token, top));
        let found: Vec<_> = outputs.iter().zip(next_tokens).map(of_row).collect::<Result<_, _>>()?;
        sequence.add_prompt_logprobs(found);
    }
    if let Some(last) = outputs.last().filter(|_| completes && sequence.generates()) {
        let token = sequence.sampler.choose_from(last, sequence.tokens.len() as u64)?;
        let logprobs = match sequence.wants_logprobs() {
            Some(top) => Some(logprobs(last.logits()?, token, top)),
            None => None,
        };
        sequence.add_token(token, logprobs);
        counts.generated += 1;
    }
    Ok(())
}
