//! The JSON of chat answers: whole completions and chunks of a stream.

use crate::generation::logprobs::{FLOOR, ScoredToken, TokenText};
use crate::generation::usage::Usage;
use serde::Serialize;

/// `chat.completion`.
#[derive(Debug, Serialize)]
pub(crate) struct ChatCompletion<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<Choice>,
    pub(crate) usage: Usage,
}

#[derive(Debug, Serialize)]
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) message: Message,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) finish_reason: &'static str,
}

/// The assistant's message. Reasoning has two names because clients disagree.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Message {
    pub(crate) role: &'static str,
    pub(crate) content: Option<String>,
    pub(crate) refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning: Option<String>,
    /// Absent rather than empty: some clients wait for calls when the field is there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ToolCall>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) function: Function,
}

#[derive(Debug, Serialize)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) arguments: String,
}

/// `chat.completion.chunk`.
#[derive(Debug, Serialize)]
pub(crate) struct ChatChunk<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<ChunkChoice>,
    /// Absent unless asked for; then `null` in all chunks but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<Usage>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ChunkChoice {
    pub(crate) index: usize,
    pub(crate) delta: DeltaBody,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) finish_reason: Option<&'static str>,
}

/// What a chunk adds to the message.
#[derive(Debug, Default, Serialize)]
pub(crate) struct DeltaBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_calls: Option<[ToolCallDelta; 1]>,
}

/// The beginning of a call (`id`, `type`, `name`), or more of its arguments.
#[derive(Debug, Serialize)]
pub(crate) struct ToolCallDelta {
    pub(crate) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    pub(crate) function: FunctionDelta,
}

#[derive(Debug, Serialize)]
pub(crate) struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) arguments: String,
}

/// Log-probabilities of the generated tokens, reasoning and markup included.
#[derive(Debug, Serialize)]
pub(crate) struct Logprobs {
    content: Vec<TokenLogprob>,
    refusal: Option<()>,
}

#[derive(Debug, Serialize)]
struct TokenLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
    top_logprobs: Vec<TopLogprob>,
}

#[derive(Debug, Serialize)]
struct TopLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl Logprobs {
    pub(crate) fn of(tokens: Vec<ScoredToken>) -> Self {
        Self { content: tokens.into_iter().map(TokenLogprob::of).collect(), refusal: None }
    }
}

impl TokenLogprob {
    fn of(scored: ScoredToken) -> Self {
        let top = |(token, logprob): (TokenText, f32)| TopLogprob {
            token: token.text(),
            logprob: logprob.max(FLOOR),
            bytes: token.bytes,
        };
        Self {
            token: scored.token.text(),
            logprob: scored.logprob.unwrap_or(FLOOR).max(FLOOR),
            bytes: scored.token.bytes,
            top_logprobs: scored.top.into_iter().map(top).collect(),
        }
    }
}
