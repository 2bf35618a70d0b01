//! From messages to prompt ids, and the parser that fits what the model will answer to them.

use crate::chat::request::ChatPrompt;
use crate::error::ApiError;
use crate::model::ServedModel;
use crate::state::AppState;
use atlas_engine::sampling::grammar::Thinking;
use atlas_engine::text::chat_template::ChatInput;
use atlas_engine::text::control::Segment;
use atlas_engine::text::parser::{OutputFormat, ReasoningFormat, ToolFormat};
use serde_json::{Map, Value};

/// A chat in tokens.
#[derive(Debug)]
pub(crate) struct RenderedChat {
    pub(crate) ids: Vec<u32>,
    /// What the parser looks for in the answer.
    pub(crate) format: OutputFormat,
    /// What the answer may think before it is held to a grammar.
    pub(crate) thinking: Thinking,
    /// Whether the answer goes on with the last message.
    pub(crate) continuing: bool,
}

/// Renders and tokenises, away from the threads that serve connections: a chat may be megabytes long.
pub(crate) async fn render(state: &AppState, chat: ChatPrompt) -> Result<RenderedChat, ApiError> {
    let state = state.clone();
    let work = move || render_now(state.ready_model()?, chat);
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::internal("the chat could not be rendered"))?
}

fn render_now(model: &ServedModel, chat: ChatPrompt) -> Result<RenderedChat, ApiError> {
    let template = model.template.as_ref().ok_or_else(|| {
        ApiError::bad_request("this model has no chat template; use /v1/completions with a prompt of your own")
    })?;
    let tools = (!chat.tools.is_empty()).then(|| Value::Array(chat.tools));
    let messages = Value::Array(chat.messages);
    let input = ChatInput {
        messages: &messages,
        tools: tools.as_ref(),
        add_generation_prompt: chat.add_generation_prompt,
        continue_final_message: chat.continue_final_message,
        kwargs: &chat.kwargs,
    };
    let refused = |error| ApiError::field("messages", error);
    let segments = template.render_segments(&input, model.tokenizer.control_tokens()).map_err(refused)?;
    model.check_length(segments.iter().map(|segment| segment.text.len()).sum(), "messages")?;
    let format = OutputFormat {
        tools: if tools.is_some() { model.tools } else { ToolFormat::None },
        reasoning: model.reasoning,
        starts_in_reasoning: starts_in_reasoning(model, &messages, &segments, chat.continue_final_message),
    };
    let thinking = thinking(model, &segments, &format, &chat.kwargs, chat.continue_final_message);
    let ids = model.tokenizer.encode_segments(&segments, false).map_err(refused)?;
    Ok(RenderedChat { ids, format, thinking, continuing: chat.continue_final_message })
}

/// Whether the answer ends a block of reasoning, may begin one, or neither: the prompt has closed one or would have
/// opened it, the message to be continued has had its chance, or the client wants none.
fn thinking(
    model: &ServedModel,
    segments: &[Segment],
    format: &OutputFormat,
    kwargs: &Map<String, Value>,
    continuing: bool,
) -> Thinking {
    let closed = || segments.last().is_some_and(|segment| model.reasoning.closed_by(&segment.text));
    if format.starts_in_reasoning {
        Thinking::Open
    } else if continuing || closed() || kwargs.get("enable_thinking") == Some(&Value::Bool(false)) {
        Thinking::No
    } else if model.reasoning == ReasoningFormat::ThinkTags && !model.template_opens_reasoning {
        Thinking::Maybe
    } else {
        Thinking::No
    }
}

/// Whether the answer begins inside a reasoning block: one that the template opened at the end of the prompt, or that
/// the message to be continued left open.
fn starts_in_reasoning(model: &ServedModel, messages: &Value, segments: &[Segment], continuing: bool) -> bool {
    if continuing {
        let last = messages.as_array().and_then(|messages| messages.last());
        let content = last.and_then(|message| message["content"].as_str()).unwrap_or_default();
        return model.reasoning.left_open_by(content);
    }
    segments.last().is_some_and(|segment| segment.trusted && model.reasoning.opened_by(&segment.text))
}
