//! `POST /v1/chat/completions`.

mod choice;
mod grammar;
mod messages;
mod output;
pub(crate) mod prompt;
pub(crate) mod request;
mod response;
mod tools;

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
use atlas_engine::text::parser::{CallIds, OutputParser};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use choice::ChatChoice;
use prompt::RenderedChat;
use request::ChatRequest;

/// The field that holds the prompt.
const FIELD: &str = "messages";

/// Answers a chat, as one object or as a stream.
pub(crate) async fn create(
    State(state): State<AppState>,
    admission: Admission,
    JsonBody { fields, memory }: JsonBody,
) -> Result<Response, ApiError> {
    let request = ChatRequest::parse(fields, &state, state.ready_model()?)?;
    let ChatRequest { model: name, prompt, held, parallel_tool_calls, logprobs, mut options } = request;
    let RenderedChat { ids, format, thinking, continuing } = prompt::render(&state, prompt).await?;
    drop(memory);
    breakers::resolve(&state, &mut options).await?;
    let model = state.ready_model()?;
    let grammar = match held.grammar(format.tools, thinking) {
        Some((grammar, field)) => Some(compile(model, grammar, &field).await?),
        None => None,
    };
    let max_tokens = room(model.engine.info(), ids.len(), options.max_tokens, FIELD)?;
    check_budget(options.choices, max_tokens, logprobs.unwrap_or(0), state.config().limits.max_output_units)?;
    let job = Job {
        id: &admission.request_id,
        field: FIELD,
        prompt: ids,
        options: &options,
        grammar,
        max_tokens,
        logprobs,
        prompt_logprobs: None,
        shown_specials: &model.markup_tokens,
        continuing,
        first_offset: 0,
        deadline: admission.deadline,
    };
    let choices = submit(&state, model, &job)?.into_iter().enumerate().map(|(index, text)| {
        let parser = OutputParser::new(format, CallIds::new(state.identity().seed()));
        ChatChoice::new(index, text, parser, parallel_tool_calls, logprobs.is_some())
    });
    let envelope = Envelope::new(&state, "chatcmpl", name, options.include_usage);
    if !options.stream {
        return Ok(Json(output::collect(&envelope, choices).await?).into_response());
    }
    let frames = choices.map(|choice| output::frames(&envelope, choice)).collect();
    let usage_chunk = options.include_usage.then(|| {
        let envelope = envelope.clone();
        move |usage| output::usage_chunk(&envelope, usage)
    });
    Ok(sse::respond(frames, usage_chunk, state.config().limits.keep_alive, admission))
}
