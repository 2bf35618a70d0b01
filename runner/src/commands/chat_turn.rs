//! One answer of a chat: read from the stream, printed as it comes, kept for the history.

use crate::errors::CliError;
use crate::http::Endpoint;
use crate::output::{print_json_line, write_stdout};
use atlas_schemas::outputs::ChatTurn as TurnReport;
use serde_json::{Value, json};
use std::time::Instant;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// How answers are shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Screen {
    /// A person sits at a terminal.
    pub(super) interactive: bool,
    /// One JSON object a turn instead of text.
    pub(super) json: bool,
    /// Escape sequences may be used.
    pub(super) colour: bool,
    /// No statistics.
    pub(super) quiet: bool,
}

impl Screen {
    /// Foreign text without control characters, which could drive the terminal.
    pub(super) fn clean(&self, text: &str) -> String {
        text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
    }

    fn print(&self, text: &str) {
        if !self.json {
            write_stdout(&self.clean(text));
        }
    }

    /// Reasoning is dimmed on a terminal; in a pipe it goes to stderr, so that stdout holds the answers alone.
    fn print_reasoning(&self, text: &str) {
        match (self.json, self.colour) {
            (true, _) => {}
            (false, true) => write_stdout(&format!("{DIM}{}{PLAIN}", self.clean(text))),
            (false, false) => eprint!("{}", self.clean(text)),
        }
    }
}

/// A tool call, put together from its pieces.
#[derive(Debug, Default)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

/// One answer while it comes in.
#[derive(Debug)]
pub(super) struct ChatTurn {
    content: String,
    reasoning: String,
    calls: Vec<Call>,
    usage: Option<Value>,
    finish_reason: Option<String>,
    pieces: u64,
    sent: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl ChatTurn {
    pub(super) fn new() -> Self {
        Self {
            content: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            usage: None,
            finish_reason: None,
            pieces: 0,
            sent: Instant::now(),
            first: None,
            last: None,
        }
    }

    /// Sends the request and prints until the answer is whole. What came before an error or a drop stays in `self`.
    pub(super) async fn stream(
        &mut self,
        endpoint: &Endpoint,
        request: &Value,
        screen: &Screen,
    ) -> Result<(), CliError> {
        self.sent = Instant::now();
        let mut events = endpoint.chat_stream(request).await?;
        while let Some(event) = events.next().await? {
            if event["usage"].is_object() {
                self.usage = Some(event["usage"].clone());
            }
            let Some(choice) = event.pointer("/choices/0") else { continue };
            if let Some(reason) = choice["finish_reason"].as_str() {
                self.finish_reason = Some(reason.to_owned());
            }
            self.add(&choice["delta"], screen);
        }
        Ok(())
    }

    fn add(&mut self, delta: &Value, screen: &Screen) {
        let text = |key: &str| delta[key].as_str().filter(|text| !text.is_empty());
        let mut news = false;
        if let Some(piece) = text("reasoning_content").or_else(|| text("reasoning")) {
            self.reasoning.push_str(piece);
            screen.print_reasoning(piece);
            news = true;
        }
        if let Some(piece) = text("content") {
            if self.content.is_empty() && !self.reasoning.is_empty() && screen.colour {
                screen.print("\n");
            }
            self.content.push_str(piece);
            screen.print(piece);
            news = true;
        }
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            self.add_call(piece);
            news = true;
        }
        if news {
            self.pieces += 1;
            self.last = Some(Instant::now());
            self.first = self.first.or(self.last);
        }
    }

    fn add_call(&mut self, piece: &Value) {
        /// More calls in one answer than any model makes.
        const MAX_CALLS: usize = 256;
        let index = piece["index"].as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
        if index >= MAX_CALLS {
            return;
        }
        if self.calls.len() <= index {
            self.calls.resize_with(index + 1, Call::default);
        }
        let Some(call) = self.calls.get_mut(index) else { return };
        let append = |target: &mut String, value: &Value| target.push_str(value.as_str().unwrap_or_default());
        append(&mut call.id, &piece["id"]);
        append(&mut call.name, &piece["function"]["name"]);
        append(&mut call.arguments, &piece["function"]["arguments"]);
    }

    /// Ends the printed answer: tool calls as cards, then the statistics on stderr.
    pub(super) fn finish(&self, screen: &Screen, prompt: &str) {
        if screen.json {
            print_json_line(&self.report(prompt));
            return;
        }
        if !self.content.is_empty() && !self.content.ends_with('\n') {
            screen.print("\n");
        }
        for call in &self.calls {
            screen.print(&card(&call.name, &call.arguments));
        }
        if !screen.quiet && self.first.is_some() {
            let line = self.statistics();
            if screen.colour { eprintln!("{DIM}{line}{PLAIN}") } else { eprintln!("{line}") }
        }
    }

    /// The answer as a message of the history.
    pub(super) fn message(&self) -> Value {
        let mut message = json!({ "role": "assistant", "content": self.content });
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls_json().into();
        }
        message
    }

    fn calls_json(&self) -> Vec<Value> {
        let call = |call: &Call| json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": call.arguments } });
        self.calls.iter().map(call).collect()
    }

    fn report(&self, prompt: &str) -> TurnReport {
        TurnReport {
            prompt: prompt.to_owned(),
            content: self.content.clone(),
            reasoning_content: self.reasoning.clone(),
            tool_calls: self.calls_json(),
            finish_reason: self.finish_reason.clone(),
            usage: self.usage.clone(),
            ttft_ms: self.ttft().map(|seconds| seconds * 1000.0),
            decode_tok_s: self.speed(),
        }
    }

    fn completion_tokens(&self) -> u64 {
        self.usage.as_ref().and_then(|usage| usage["completion_tokens"].as_u64()).unwrap_or(self.pieces)
    }

    /// Seconds from the request to the first piece.
    fn ttft(&self) -> Option<f64> {
        Some(self.first?.duration_since(self.sent).as_secs_f64())
    }

    /// Tokens a second after the first piece; none where so little time passed that the network's buffers, not the
    /// model, would be measured.
    fn speed(&self) -> Option<f64> {
        const LEAST_SECONDS: f64 = 0.02;
        let seconds = self.last?.duration_since(self.first?).as_secs_f64();
        let tokens = self.completion_tokens().saturating_sub(1);
        (seconds >= LEAST_SECONDS && tokens > 0).then(|| tokens as f64 / seconds)
    }

    fn statistics(&self) -> String {
        let mut parts = vec![format!("{} tokens", self.completion_tokens())];
        parts.extend(self.ttft().map(|seconds| format!("first after {seconds:.2} s")));
        parts.extend(self.speed().map(|speed| format!("{speed:.1} tok/s")));
        let cached =
            self.usage.as_ref().and_then(|usage| usage.pointer("/prompt_tokens_details/cached_tokens")?.as_u64());
        parts.extend(cached.filter(|count| *count > 0).map(|count| format!("{count} prompt tokens from the cache")));
        parts.extend(
            self.finish_reason
                .as_deref()
                .filter(|reason| *reason == "length")
                .map(|_| "cut at the token limit".to_owned()),
        );
        format!("[{}]", parts.join(", "))
    }
}

fn card(name: &str, arguments: &str) -> String {
    let pretty =
        serde_json::from_str::<Value>(arguments).ok().and_then(|value| serde_json::to_string_pretty(&value).ok());
    let body = pretty.unwrap_or_else(|| arguments.to_owned());
    let lines: String = body.lines().map(|line| format!("│ {line}\n")).collect();
    format!("┌ call {name}\n{lines}└\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCREEN: Screen = Screen { interactive: false, json: true, colour: false, quiet: true };

    #[test]
    fn pieces_become_one_message() {
        let mut turn = ChatTurn::new();
        for delta in [
            json!({ "role": "assistant", "content": "" }),
            json!({ "reasoning_content": "hm" }),
            json!({ "content": "Hel" }),
            json!({ "content": "lo" }),
            json!({ "tool_calls": [{ "index": 0, "id": "c1", "function": { "name": "f", "arguments": "{\"a\"" } }] }),
            json!({ "tool_calls": [{ "index": 0, "function": { "arguments": ":1}" } }] }),
            json!({ "tool_calls": [{ "index": 99_999_999_999_u64, "function": { "arguments": "x" } }] }),
        ] {
            turn.add(&delta, &SCREEN);
        }
        let message = turn.message();
        assert_eq!(message["content"], "Hello");
        assert_eq!(message["tool_calls"][0]["id"], "c1");
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
        assert_eq!(message["tool_calls"].as_array().unwrap().len(), 1);
        let report = turn.report("hi");
        assert_eq!(report.reasoning_content, "hm");
        assert!(report.ttft_ms.is_some());
    }

    #[test]
    fn foreign_text_cannot_drive_the_terminal() {
        assert_eq!(SCREEN.clean("a\x1b[31mb\u{9b}c\r\n\td\x07"), "a[31mbc\n\td");
    }

    #[test]
    fn a_call_is_shown_as_a_card() {
        assert_eq!(card("f", "{\"a\":1}"), "┌ call f\n│ {\n│   \"a\": 1\n│ }\n└\n");
        assert_eq!(card("f", "{broken"), "┌ call f\n│ {broken\n└\n");
    }
}
