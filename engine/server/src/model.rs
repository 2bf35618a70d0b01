//! The loaded model as the server uses it.

use crate::breakers::DefaultBreakers;
use crate::error::ApiError;
use crate::grammars::Grammars;
use atlas_engine::engine::EngineHandle;
use atlas_engine::sampling::grammar::GrammarCompiler;
use atlas_engine::text::chat_template::{ChatInput, ChatTemplate};
use atlas_engine::text::parser::{ReasoningFormat, ToolFormat};
use atlas_engine::text::tokenizer::Tokenizer;
use serde_json::{Value, json};

/// Everything that belongs to the model: the engine, and how text goes in and out.
#[derive(Clone)]
pub struct ServedModel {
    pub(crate) engine: EngineHandle,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) tools: ToolFormat,
    pub(crate) reasoning: ReasoningFormat,
    /// Special tokens that are markup of tool calls or reasoning, and so must reach the parser as text.
    pub(crate) markup_tokens: Vec<u32>,
    /// Whether the template opens a block of reasoning where thinking is asked for; where it has not, none is expected.
    pub(crate) template_opens_reasoning: bool,
    pub(crate) grammars: Grammars,
    pub(crate) default_breakers: DefaultBreakers,
    /// Bytes of the longest token.
    longest_token: usize,
}

impl ServedModel {
    /// Without a template, only `/v1/completions` works. The formats say how the model writes tool calls and reasoning.
    pub fn new(
        engine: EngineHandle,
        tokenizer: Tokenizer,
        template: Option<ChatTemplate>,
        tools: ToolFormat,
        reasoning: ReasoningFormat,
    ) -> Self {
        let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        let longest_token = ids.filter_map(|id| Some(tokenizer.token_bytes(id)?.len())).max().unwrap_or(1).max(1);
        let markup = ["<think>", "</think>", "<tool_call>", "</tool_call>"];
        let markup_tokens = markup.into_iter().filter_map(|token| tokenizer.token_to_id(token)).collect();
        let template_opens_reasoning =
            template.as_ref().is_some_and(|template| opens_reasoning(template, &tokenizer, reasoning));
        let grammars = Grammars::new(GrammarCompiler::new(&tokenizer, &engine.info().eos_tokens));
        Self {
            engine,
            tokenizer,
            template,
            tools,
            reasoning,
            markup_tokens,
            template_opens_reasoning,
            grammars,
            default_breakers: DefaultBreakers::default(),
            longest_token,
        }
    }

    /// Token ids of a client's text. Control tokens in it count, as a prompt that the client templated has them.
    pub(crate) fn encode(&self, text: &str, add_special: bool, field: &'static str) -> Result<Vec<u32>, ApiError> {
        self.check_length(text.len(), field)?;
        self.tokenizer.encode(text, add_special, true).map_err(|error| ApiError::field(field, error))
    }

    /// Refuses a text that cannot fit the context even in the longest tokens, before any work is spent on it.
    pub(crate) fn check_length(&self, bytes: usize, field: &'static str) -> Result<(), ApiError> {
        let (least, max_context) = (bytes / self.longest_token, self.engine.info().max_context);
        if least > max_context { Err(ApiError::context_length(field, least, max_context)) } else { Ok(()) }
    }
}

/// Whether a chat that asks for thinking is rendered with an open block of reasoning at its end.
fn opens_reasoning(template: &ChatTemplate, tokenizer: &Tokenizer, reasoning: ReasoningFormat) -> bool {
    let messages = json!([{ "role": "user", "content": "Hello" }]);
    let Value::Object(kwargs) = json!({ "enable_thinking": true, "thinking": true }) else { return false };
    let input = ChatInput {
        messages: &messages,
        tools: None,
        add_generation_prompt: true,
        continue_final_message: false,
        kwargs: &kwargs,
    };
    let segments = template.render_segments(&input, tokenizer.control_tokens()).unwrap_or_default();
    segments.last().is_some_and(|segment| reasoning.opened_by(&segment.text))
}
