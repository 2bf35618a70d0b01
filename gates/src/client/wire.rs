//! The parts of the OpenAI formats that gates send and read. Unknown fields in replies are ignored.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Choices common to chat and plain completions.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f64,
    /// Seed of sampled requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The most tokens to generate.
    pub max_tokens: u32,
    /// Generate exactly `max_tokens`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignore_eos: bool,
}

/// Body of `/v1/chat/completions`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ChatRequest {
    /// Served model.
    pub model: String,
    /// The conversation, as OpenAI writes it.
    pub messages: Vec<Value>,
    /// Functions the model may call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    /// Sampling choices.
    #[serde(flatten)]
    pub sampling: Sampling,
    /// Whether each generated token comes with its log-probability.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub logprobs: bool,
}

/// Body of `/v1/completions`, with the prompt as token ids.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CompletionRequest {
    /// Served model.
    pub model: String,
    /// Prompt token ids.
    pub prompt: Vec<u32>,
    /// Sampling choices.
    #[serde(flatten)]
    pub sampling: Sampling,
    /// `Some(0)` reports each token's own log-probability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u32>,
    /// Whether the prompt's own tokens are reported too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub echo: bool,
}

/// A call the model made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Function name.
    pub name: String,
    /// Arguments as JSON text, as the model wrote them.
    pub arguments: String,
}

/// Token counts of a reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Usage {
    /// Tokens in the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    #[serde(default)]
    pub completion_tokens: u32,
}

/// One entry of `/v1/models`. Fields beyond `id` are extensions; a roofline needs the last two.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct ModelCard {
    /// Name under which the model is served.
    pub id: String,
    /// Context length.
    #[serde(default)]
    pub max_model_len: Option<u64>,
    /// Version of the engine that serves.
    #[serde(default)]
    pub engine_version: Option<String>,
    /// sha256 over the weight files.
    #[serde(default)]
    pub weights_hash: Option<String>,
    /// Bytes of weights in memory.
    #[serde(default)]
    pub weight_bytes: Option<u64>,
    /// Bytes of weights read for one decoded token.
    #[serde(default)]
    pub weight_bytes_per_token: Option<u64>,
    /// Floating-point operations for one prefilled token.
    #[serde(default)]
    pub flops_per_token: Option<u64>,
}

/// `/v1/models`.
#[derive(Debug, Deserialize)]
pub(super) struct ModelList {
    pub(super) data: Vec<ModelCard>,
}

/// `/tokenize`.
#[derive(Debug, Deserialize)]
pub(super) struct Tokenized {
    pub(super) tokens: Vec<u32>,
}

/// A whole reply or one streamed piece, of either API.
#[derive(Debug, Deserialize)]
pub(super) struct Chunk {
    #[serde(default)]
    pub(super) choices: Vec<Choice>,
    #[serde(default)]
    pub(super) usage: Option<Usage>,
    #[serde(default)]
    pub(super) error: Option<Value>,
}

/// One choice: `delta` when streamed, `message` when not, `text` from plain completions.
#[derive(Debug, Deserialize)]
pub(super) struct Choice {
    #[serde(default)]
    pub(super) delta: Option<Message>,
    #[serde(default)]
    pub(super) message: Option<Message>,
    #[serde(default)]
    pub(super) text: Option<String>,
    #[serde(default)]
    pub(super) logprobs: Option<Logprobs>,
    #[serde(default)]
    pub(super) finish_reason: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Message {
    #[serde(default)]
    pub(super) content: Option<String>,
    #[serde(default)]
    pub(super) reasoning_content: Option<String>,
    #[serde(default)]
    pub(super) tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct CallDelta {
    #[serde(default)]
    pub(super) index: Option<usize>,
    #[serde(default)]
    pub(super) function: FunctionDelta,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct FunctionDelta {
    #[serde(default)]
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) arguments: Option<String>,
}

/// Chat lists objects under `content`; plain completions list columns.
#[derive(Debug, Deserialize)]
pub(super) struct Logprobs {
    #[serde(default)]
    pub(super) content: Option<Vec<TokenLogprob>>,
    #[serde(default)]
    pub(super) tokens: Option<Vec<String>>,
    #[serde(default)]
    pub(super) token_logprobs: Option<Vec<Option<f64>>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TokenLogprob {
    pub(super) token: String,
    pub(super) logprob: f64,
}
