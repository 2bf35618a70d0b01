//! Puts a reply together, from one piece or from many.

use super::wire::{CallDelta, Chunk, Logprobs, Message, ToolCall, Usage};
use std::time::Duration;

/// A finished answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    /// The text.
    pub text: String,
    /// The reasoning before it.
    pub reasoning: String,
    /// The calls, in order.
    pub tool_calls: Vec<ToolCall>,
    /// Why the generation ended.
    pub finish_reason: Option<String>,
    /// Each reported token with its log-probability (none for the first token of an echoed prompt).
    pub tokens: Vec<(String, Option<f64>)>,
    /// Token counts.
    pub usage: Option<Usage>,
    /// When what came.
    pub timing: Timing,
}

/// Times since the request was sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Timing {
    /// Arrival of each streamed piece that carried output; one entry when not streamed.
    pub pieces: Vec<Duration>,
    /// Arrival of the finish reason, which comes with the last token.
    pub finished: Duration,
}

impl Timing {
    /// Arrival of the first output.
    pub fn first(&self) -> Option<Duration> {
        self.pieces.first().copied()
    }
}

impl Reply {
    /// Adds a piece that arrived `at`. A piece that carries the server's error returns it.
    pub(super) fn add(&mut self, chunk: Chunk, at: Duration) -> Result<(), String> {
        if let Some(error) = chunk.error {
            return Err(error.get("message").and_then(|m| m.as_str()).map_or_else(|| error.to_string(), str::to_owned));
        }
        self.usage = chunk.usage.or(self.usage);
        for choice in chunk.choices {
            let mut output = false;
            if let Some(text) = choice.text {
                output |= !text.is_empty();
                self.text.push_str(&text);
            }
            for message in [choice.delta, choice.message].into_iter().flatten() {
                output |= self.add_message(message)?;
            }
            if let Some(logprobs) = choice.logprobs {
                output |= self.add_logprobs(logprobs);
            }
            if output {
                self.timing.pieces.push(at);
            }
            if choice.finish_reason.is_some() {
                self.finish_reason = choice.finish_reason;
                self.timing.finished = at;
            }
        }
        Ok(())
    }

    fn add_message(&mut self, message: Message) -> Result<bool, String> {
        let (content, reasoning) = (message.content.unwrap_or_default(), message.reasoning_content.unwrap_or_default());
        let calls = message.tool_calls.unwrap_or_default();
        let output = !content.is_empty() || !reasoning.is_empty() || !calls.is_empty();
        self.text.push_str(&content);
        self.reasoning.push_str(&reasoning);
        for (position, call) in calls.into_iter().enumerate() {
            self.add_call(position, call)?;
        }
        Ok(output)
    }

    /// Streamed calls say their index; whole ones come in order.
    fn add_call(&mut self, position: usize, call: CallDelta) -> Result<(), String> {
        let index = call.index.unwrap_or(position);
        if index > self.tool_calls.len() {
            return Err(format!("tool call {index} came before tool call {}", self.tool_calls.len()));
        }
        if index == self.tool_calls.len() {
            self.tool_calls.push(ToolCall::default());
        }
        let entry = &mut self.tool_calls[index];
        entry.name.push_str(&call.function.name.unwrap_or_default());
        entry.arguments.push_str(&call.function.arguments.unwrap_or_default());
        Ok(())
    }

    fn add_logprobs(&mut self, logprobs: Logprobs) -> bool {
        let before = self.tokens.len();
        self.tokens.extend(logprobs.content.unwrap_or_default().into_iter().map(|t| (t.token, Some(t.logprob))));
        let values = logprobs.token_logprobs.unwrap_or_default();
        let names = logprobs.tokens.unwrap_or_default();
        self.tokens.extend(names.into_iter().zip(values));
        self.tokens.len() > before
    }
}
