//! A chat request, parsed.

use crate::chat::grammar::Held;
use crate::chat::messages::messages;
use crate::chat::tools::{Tools, tools};
use crate::config::RequestDefaults;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::model::ServedModel;
use crate::options::{MAX_TOP_LOGPROBS, Options};
use crate::state::AppState;
use crate::structured::bound;
use crate::unsupported::refuse_rest;
use serde_json::{Map, Value};

/// Everything a chat request asks for.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    /// The name by which the model was asked for.
    pub(crate) model: String,
    pub(crate) prompt: ChatPrompt,
    pub(crate) held: Held,
    pub(crate) parallel_tool_calls: bool,
    pub(crate) logprobs: Option<usize>,
    pub(crate) options: Options,
}

/// What the template renders.
#[derive(Debug)]
pub(crate) struct ChatPrompt {
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Vec<Value>,
    pub(crate) add_generation_prompt: bool,
    pub(crate) continue_final_message: bool,
    /// Template variables.
    pub(crate) kwargs: Map<String, Value>,
}

impl ChatRequest {
    pub(crate) fn parse(mut fields: Fields, state: &AppState, model: &ServedModel) -> Result<Self, ApiError> {
        let config = state.config();
        let name = requested_model(&mut fields, state)?;
        let options = Options::take(&mut fields, 1, config, model.engine.info(), state.identity())?;
        let logprobs = logprobs(&mut fields)?;
        let bound = bound(&mut fields)?;
        if fields.boolean("echo")?.unwrap_or(false) {
            return Err(ApiError::unsupported("echo", "chats are not echoed; use /v1/completions"));
        }
        let (prompt, tools) = ChatPrompt::take(&mut fields, &config.defaults)?;
        refuse_rest(fields)?;
        if let Some(bound) = bound.as_ref().filter(|_| prompt.continue_final_message) {
            return Err(ApiError::field(&bound.field, "cannot be used together with continue_final_message"));
        }
        let held = Held::new(bound, &tools, config.tool_grammar);
        Ok(Self { model: name, prompt, held, parallel_tool_calls: tools.parallel, logprobs, options })
    }
}

impl ChatPrompt {
    /// Takes the fields that shape the prompt, and what else they say about tools.
    pub(crate) fn take(fields: &mut Fields, defaults: &RequestDefaults) -> Result<(Self, Tools), ApiError> {
        let mut tools = tools(fields)?;
        let messages = messages(fields)?;
        let continue_final_message = fields.boolean("continue_final_message")?.unwrap_or(false);
        let add_generation_prompt = fields.boolean("add_generation_prompt")?.unwrap_or(!continue_final_message);
        if continue_final_message && add_generation_prompt {
            let problem = "cannot be used together with add_generation_prompt";
            return Err(fields.error("continue_final_message", problem));
        }
        let kwargs = template_kwargs(fields, defaults)?;
        let list = std::mem::take(&mut tools.list);
        let prompt = Self { messages, tools: list, add_generation_prompt, continue_final_message, kwargs };
        Ok((prompt, tools))
    }
}

/// `model`, which may be left out.
pub(crate) fn requested_model(fields: &mut Fields, state: &AppState) -> Result<String, ApiError> {
    let config = state.config();
    match fields.string("model")? {
        None => Ok(config.model_name.clone()),
        Some(name) if config.serves(&name) => Ok(name),
        Some(name) => Err(ApiError::model_not_found(&name, config.names())),
    }
}

/// The number of rivals to report, if log-probabilities are asked for at all.
fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(fields.error("top_logprobs", "needs `logprobs: true`")),
    }
}

/// The server's template variables, those of the request over them, and what the fields about thinking say.
fn template_kwargs(fields: &mut Fields, defaults: &RequestDefaults) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs = defaults.template_kwargs.clone();
    for (name, value) in fields.object("chat_template_kwargs")?.unwrap_or_default() {
        const RESERVED: [&str; 5] =
            ["messages", "tools", "documents", "add_generation_prompt", "continue_final_message"];
        if RESERVED.contains(&name.as_str()) {
            let problem = "is a field of its own and cannot be set here";
            return Err(ApiError::field(format!("chat_template_kwargs.{name}"), problem));
        }
        kwargs.insert(name, value);
    }
    if let Some(effort) = fields.string("reasoning_effort")? {
        const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
        if !EFFORTS.contains(&effort.as_str()) {
            return Err(fields.error("reasoning_effort", format!("must be one of {}", EFFORTS.join(", "))));
        }
        set_thinking(&mut kwargs, effort != "none");
        kwargs.insert("reasoning_effort".into(), effort.into());
    }
    if let Some(thinking) = fields.boolean("enable_thinking")? {
        set_thinking(&mut kwargs, thinking);
    }
    if defaults.disable_thinking {
        kwargs.remove("reasoning_effort");
        set_thinking(&mut kwargs, false);
    }
    Ok(kwargs)
}

/// Families disagree on the name of the switch.
fn set_thinking(kwargs: &mut Map<String, Value>, on: bool) {
    kwargs.insert("enable_thinking".into(), on.into());
    kwargs.insert("thinking".into(), on.into());
}
