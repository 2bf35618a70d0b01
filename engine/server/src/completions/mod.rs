//! `POST /v1/completions`.

mod output;
mod request;
mod response;

use crate::admission::Admission;
use crate::breakers;
use crate::envelope::Envelope;
use crate::error::ApiError;
use crate::generation::submit::{Job, room, submit};
use crate::grammars::compile;
use crate::guard::body::JsonBody;
use crate::options::check_budget;
use crate::sse;
use crate::state::AppState;
use crate::structured::Bound;
use atlas_engine::sampling::grammar::OutputGrammar;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use output::TextChoice;
use request::CompletionRequest;

/// The field that holds the prompt.
const FIELD: &str = "prompt";
/// Tokens generated when neither the request nor the server says how many; OpenAI's number.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Completes one or more texts, as one object or as a stream.
pub(crate) async fn create(
    State(state): State<AppState>,
    admission: Admission,
    JsonBody { fields, memory }: JsonBody,
) -> Result<Response, ApiError> {
    let mut request = CompletionRequest::parse(fields, &state, state.ready_model()?)?;
    let prompts = request::encode(&state, &mut request).await?;
    drop(memory);
    breakers::resolve(&state, &mut request.options).await?;
    let model = state.ready_model()?;
    let grammar = match request.bound.take() {
        Some(Bound { field, grammar }) => Some(compile(model, OutputGrammar::content(grammar), &field).await?),
        None => None,
    };
    let options = request.options;
    let wanted = Some(options.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS));
    let prompt_logprobs = request.logprobs.filter(|_| request.echo);
    let mut scored_tokens = 0;
    let mut rooms = Vec::new();
    for prompt in &prompts {
        let tokens = room(model.engine.info(), prompt.ids.len(), wanted, FIELD)?;
        rooms.push(tokens);
        scored_tokens += tokens + if prompt_logprobs.is_some() { prompt.ids.len() } else { 0 };
    }
    let limit = state.config().limits.max_output_units;
    check_budget(options.choices, scored_tokens, request.logprobs.unwrap_or(0), limit)?;
    let mut choices = Vec::new();
    for (prompt, max_tokens) in prompts.into_iter().zip(rooms) {
        let echo = prompt.echo;
        let job = Job {
            id: &admission.request_id,
            field: FIELD,
            prompt: prompt.ids,
            options: &options,
            grammar: grammar.clone(),
            max_tokens,
            logprobs: request.logprobs,
            prompt_logprobs,
            shown_specials: &[],
            continuing: true,
            first_offset: echo.as_ref().map_or(0, |echo| echo.text.chars().count()),
            deadline: admission.deadline,
        };
        for (number, text) in submit(&state, model, &job)?.into_iter().enumerate() {
            let logprobs = request.logprobs.is_some();
            choices.push(TextChoice::new(choices.len(), number == 0, text, echo.clone(), logprobs));
        }
    }
    let envelope = Envelope::new(&state, "cmpl", request.model, options.include_usage);
    if !options.stream {
        return Ok(Json(output::collect(&envelope, choices).await?).into_response());
    }
    let frames = choices.into_iter().map(|choice| output::frames(&envelope, choice)).collect();
    let usage_chunk = options.include_usage.then(|| {
        let envelope = envelope.clone();
        move |usage| output::usage_chunk(&envelope, usage)
    });
    Ok(sse::respond(frames, usage_chunk, state.config().limits.keep_alive, admission))
}
