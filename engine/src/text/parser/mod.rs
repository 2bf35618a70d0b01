//! The model's text as it streams: content, reasoning and tool calls told apart.
//!
//! [`OutputParser`] is a state machine over the text. What it returns does not depend on how the text is cut into
//! pieces, except for where deltas of one kind are divided. It holds back only what can still become a marker, or
//! newlines that a following marker would swallow, and looks at each character a bounded number of times.

mod hermes;
mod json;
mod unescape;

use self::hermes::HermesCall;
use crate::sampling::noise::philox;

/// How tool calls are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ToolFormat {
    /// Tool calls are not looked for.
    #[default]
    None,
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, one block per call.
    Hermes,
}

/// How reasoning is set apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ReasoningFormat {
    /// Reasoning is not looked for.
    #[default]
    None,
    /// `<think>…</think>` before the content.
    ThinkTags,
}

impl ReasoningFormat {
    /// Whether output after this prompt begins inside a reasoning block, because the prompt opens one at its end.
    pub fn opened_by(self, prompt: &str) -> bool {
        self == Self::ThinkTags && prompt.trim_end().ends_with(THINK)
    }

    /// Whether this prompt closes a reasoning block at its end, so that the output begins after it.
    pub fn closed_by(self, prompt: &str) -> bool {
        self == Self::ThinkTags && prompt.trim_end().ends_with(END_THINK)
    }

    /// Whether a text that the output continues leaves a reasoning block open.
    pub fn left_open_by(self, text: &str) -> bool {
        let last = |marker| text.rfind(marker).map_or(0, |at| at + 1);
        self == Self::ThinkTags && last(THINK) > last(END_THINK)
    }
}

/// What to expect in an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutputFormat {
    /// How tool calls are written.
    pub tools: ToolFormat,
    /// How reasoning is set apart.
    pub reasoning: ReasoningFormat,
    /// The prompt has opened a reasoning block; see [`ReasoningFormat::opened_by`].
    pub starts_in_reasoning: bool,
}

/// A piece of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// Text for the user.
    Content(String),
    /// Text of the reasoning, without its markers.
    Reasoning(String),
    /// A call begins. Calls follow each other; `index` counts them from 0.
    ToolCallStart {
        /// Which call.
        index: usize,
        /// Its id, `call_` and 24 hexadecimal digits.
        id: String,
        /// The function's name.
        name: String,
    },
    /// More of a call's arguments: the pieces of a call together are a JSON text, unless the model broke off.
    ToolCallArguments {
        /// Which call.
        index: usize,
        /// Never empty.
        fragment: String,
    },
    /// A call is over.
    ToolCallEnd {
        /// Which call.
        index: usize,
    },
}

/// Makes the ids of tool calls: the same ones from the same seed.
#[derive(Debug, Clone)]
pub struct CallIds {
    seed: u64,
    made: u32,
}

impl CallIds {
    /// Take a random seed for each output.
    pub fn new(seed: u64) -> Self {
        Self { seed, made: 0 }
    }

    fn next(&mut self) -> String {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let [a, b, c, _] = philox([self.made, 0, 0, u32::MAX], key);
        self.made += 1;
        format!("call_{a:08x}{b:08x}{c:08x}")
    }
}

const THINK: &str = "<think>";
const END_THINK: &str = "</think>";
const CALL: &str = "<tool_call>";
const END_CALL: &str = "</tool_call>";

/// Which text the parser is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Content,
    Reasoning,
}

#[derive(Debug)]
enum State {
    Text,
    /// After an opener, in the JSON of a call.
    Call(Box<HermesCall>),
    /// After the JSON of a call, before its closer.
    AfterCall,
}

/// Splits one output into [`Delta`]s.
#[derive(Debug)]
pub struct OutputParser {
    format: OutputFormat,
    ids: CallIds,
    state: State,
    kind: Kind,
    /// Text that has come but is not used yet.
    buffer: String,
    /// Newlines at the end of the text so far; a marker swallows them, other text brings them out.
    newlines: usize,
    /// Newlines are dropped, since a marker came just before.
    after_marker: bool,
    /// Something other than newlines has been said in this kind of text.
    spoke: bool,
    calls: usize,
    out: Vec<Delta>,
}

impl OutputParser {
    /// A parser for one output.
    pub fn new(format: OutputFormat, ids: CallIds) -> Self {
        let inside = format.starts_in_reasoning && format.reasoning != ReasoningFormat::None;
        Self {
            format,
            ids,
            state: State::Text,
            kind: if inside { Kind::Reasoning } else { Kind::Content },
            buffer: String::new(),
            newlines: 0,
            after_marker: inside,
            spoke: false,
            calls: 0,
            out: Vec::new(),
        }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.buffer.push_str(text);
        self.run(false);
        std::mem::take(&mut self.out)
    }

    /// The end of the output. A reasoning block that is open was reasoning; a call that has not begun was text.
    pub fn finish(&mut self) -> Vec<Delta> {
        self.run(true);
        if let State::Call(call) = std::mem::replace(&mut self.state, State::Text) {
            self.abandon(*call);
        }
        let newlines = "\n".repeat(std::mem::take(&mut self.newlines));
        self.emit(&newlines);
        std::mem::take(&mut self.out)
    }

    fn run(&mut self, last: bool) {
        let buffer = std::mem::take(&mut self.buffer);
        let mut rest = buffer.as_str();
        while !rest.is_empty() {
            let used = match &mut self.state {
                State::Text => self.text(rest, last),
                State::Call(_) => self.call(rest),
                State::AfterCall => self.after_call(rest, last),
            };
            match used {
                Some(used) => rest = &rest[used..],
                None => break,
            }
        }
        self.buffer = rest.to_owned();
    }

    /// Uses up text before the next marker, and the marker. `None` when all that is left may become a marker.
    fn text(&mut self, rest: &str, last: bool) -> Option<usize> {
        let leading = rest.len() - rest.trim_start_matches('\n').len();
        for (at, _) in rest.match_indices('<') {
            let here = &rest[at..];
            // Whether `<think>` is a marker depends on what was said before it.
            let spoke = self.spoke || at > leading;
            let Some(marker) = self.markers(spoke).find(|m| here.starts_with(m) || (!last && m.starts_with(here)))
            else {
                continue;
            };
            self.say(&rest[..at]);
            if here.len() < marker.len() {
                return (at > 0).then_some(at);
            }
            self.mark(marker);
            return Some(at + marker.len());
        }
        self.say(rest);
        Some(rest.len())
    }

    /// The markers that count here.
    fn markers(&self, spoke: bool) -> impl Iterator<Item = &'static str> + use<> {
        let think = self.format.reasoning == ReasoningFormat::ThinkTags;
        let call = (self.format.tools == ToolFormat::Hermes).then_some(CALL);
        let opener = (think && !spoke).then_some(THINK);
        let closer = (think && self.kind == Kind::Reasoning).then_some(END_THINK);
        call.into_iter().chain(opener).chain(closer)
    }

    fn mark(&mut self, marker: &'static str) {
        match marker {
            CALL => self.state = State::Call(Box::new(HermesCall::new(CALL))),
            THINK => self.turn(Kind::Reasoning),
            _ => self.turn(Kind::Content),
        }
    }

    /// A marker was passed: newlines around it go.
    fn turn(&mut self, kind: Kind) {
        self.kind = kind;
        self.newlines = 0;
        self.after_marker = true;
        self.spoke = kind == Kind::Content;
    }

    /// Text of the current kind. Newlines at its end wait for what follows.
    fn say(&mut self, text: &str) {
        let text = if self.after_marker { text.trim_start_matches('\n') } else { text };
        if text.is_empty() {
            return;
        }
        self.after_marker = false;
        let body = text.trim_end_matches('\n');
        if !body.is_empty() {
            let newlines = "\n".repeat(std::mem::take(&mut self.newlines));
            self.spoke = true;
            self.emit(&newlines);
            self.emit(body);
        }
        self.newlines += text.len() - body.len();
        if self.markers(self.spoke).next().is_none() {
            let newlines = "\n".repeat(std::mem::take(&mut self.newlines));
            self.emit(&newlines);
        }
    }

    fn call(&mut self, rest: &str) -> Option<usize> {
        let State::Call(mut call) = std::mem::replace(&mut self.state, State::Text) else { return None };
        for (at, c) in rest.char_indices() {
            let Ok(event) = call.feed(c) else {
                // This character is text again, and may begin a marker.
                self.abandon(*call);
                return Some(at);
            };
            if event.starts {
                self.start_call(call.name().to_owned());
            }
            if event.ends {
                self.pass_arguments(&mut call);
                self.out.push(Delta::ToolCallEnd { index: self.calls - 1 });
                self.state = State::AfterCall;
                return Some(at + c.len_utf8());
            }
        }
        self.pass_arguments(&mut call);
        self.state = State::Call(call);
        Some(rest.len())
    }

    fn start_call(&mut self, name: String) {
        let (index, id) = (self.calls, self.ids.next());
        self.calls += 1;
        self.kind = Kind::Content;
        self.newlines = 0;
        self.spoke = true;
        self.out.push(Delta::ToolCallStart { index, id, name });
    }

    /// Arguments wait in a call that has not started.
    fn pass_arguments(&mut self, call: &mut HermesCall) {
        if call.has_started() {
            let fragment = call.take_arguments();
            if !fragment.is_empty() {
                self.out.push(Delta::ToolCallArguments { index: self.calls - 1, fragment });
            }
        }
    }

    /// A block that is no call: all of it is text. If its call has begun, the call ends here as it is.
    fn abandon(&mut self, mut call: HermesCall) {
        if call.has_started() {
            self.pass_arguments(&mut call);
            self.out.push(Delta::ToolCallEnd { index: self.calls - 1 });
            self.after_marker = false;
            return;
        }
        self.say(&call.into_text());
    }

    /// Between the JSON of a call and what follows: its closer, another call's JSON or opener, or text.
    fn after_call(&mut self, rest: &str, last: bool) -> Option<usize> {
        let here = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let skipped = rest.len() - here.len();
        if here.is_empty() {
            return Some(rest.len());
        }
        if here.starts_with(END_CALL) {
            self.state = State::Text;
            self.turn(Kind::Content);
            return Some(skipped + END_CALL.len());
        }
        if here.starts_with('{') {
            self.state = State::Call(Box::new(HermesCall::new("")));
            return Some(skipped);
        }
        if !last && END_CALL.starts_with(here) {
            return (skipped > 0).then_some(skipped);
        }
        self.state = State::Text;
        self.turn(Kind::Content);
        Some(skipped)
    }

    fn emit(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match (self.out.last_mut(), self.kind) {
            (Some(Delta::Content(said)), Kind::Content) | (Some(Delta::Reasoning(said)), Kind::Reasoning) => {
                said.push_str(text);
            }
            (_, Kind::Content) => self.out.push(Delta::Content(text.to_owned())),
            (_, Kind::Reasoning) => self.out.push(Delta::Reasoning(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests;
