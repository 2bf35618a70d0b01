//! Handing a request's choices to the engine.

use crate::error::ApiError;
use crate::generation::text_stream::{TextOptions, TextStream};
use crate::model::ServedModel;
use crate::options::Options;
use crate::state::AppState;
use atlas_engine::engine::{GenerateRequest, ModelInfo, SubmitError};
use atlas_engine::sampling::grammar::CompiledGrammar;
use std::sync::Arc;
use std::time::Instant;

/// One prompt, to be answered `options.choices` times.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    /// Shown in logs.
    pub(crate) id: &'a str,
    /// The field that held the prompt, for errors.
    pub(crate) field: &'static str,
    pub(crate) prompt: Vec<u32>,
    pub(crate) options: &'a Options,
    /// What every choice is held to.
    pub(crate) grammar: Option<Arc<CompiledGrammar>>,
    /// After [`room`].
    pub(crate) max_tokens: usize,
    pub(crate) logprobs: Option<usize>,
    pub(crate) prompt_logprobs: Option<usize>,
    /// Special tokens that are shown as text.
    pub(crate) shown_specials: &'a [u32],
    pub(crate) continuing: bool,
    /// Characters of the echoed prompt.
    pub(crate) first_offset: usize,
    pub(crate) deadline: Instant,
}

/// How many tokens may be generated after a prompt: as many as were asked for, but no more than the context has left.
pub(crate) fn room(
    info: &ModelInfo,
    prompt_tokens: usize,
    wanted: Option<usize>,
    field: &'static str,
) -> Result<usize, ApiError> {
    let left = info.max_context.checked_sub(prompt_tokens).filter(|left| *left > 0 || wanted == Some(0));
    let left = left.ok_or_else(|| ApiError::context_length(field, prompt_tokens, info.max_context))?;
    Ok(wanted.map_or(left, |wanted| wanted.min(left)))
}

/// Submits every choice. If one is refused, those before it are cancelled.
pub(crate) fn submit(state: &AppState, model: &ServedModel, job: &Job<'_>) -> Result<Vec<TextStream>, ApiError> {
    (0..job.options.choices).map(|index| submit_choice(state, model, job, index)).collect()
}

fn submit_choice(state: &AppState, model: &ServedModel, job: &Job<'_>, index: usize) -> Result<TextStream, ApiError> {
    let request = GenerateRequest {
        id: format!("{}.{index}", job.id),
        prompt: job.prompt.clone(),
        max_tokens: job.max_tokens,
        sampling: job.options.sampling_of(index),
        grammar: job.grammar.clone(),
        stop_tokens: job.options.stop_tokens.clone(),
        logprobs: job.logprobs,
        // The prompt is the same for all choices.
        prompt_logprobs: job.prompt_logprobs.filter(|_| index == 0),
        deadline: Some(job.deadline),
    };
    let events = model.engine.submit(request).map_err(|error| {
        if error == SubmitError::NotRunning {
            state.engine_is_silent();
        }
        ApiError::from_submit(&error, job.field)
    })?;
    let options = TextOptions {
        prompt_tokens: job.prompt.len(),
        stop: job.options.stop.clone(),
        stop_tokens: job.options.stop_tokens.clone(),
        logprobs: job.logprobs.is_some(),
        shown_specials: job.shown_specials.to_vec(),
        continuing: job.continuing,
        first_offset: job.first_offset,
    };
    Ok(TextStream::new(state.clone(), &model.tokenizer, events, options))
}
