//! Chat choices as one object or as frames of a stream.

use crate::chat::choice::{ChatChoice, ChatPiece};
use crate::chat::response::{
    ChatChunk, ChatCompletion, Choice, ChunkChoice, DeltaBody, Function, FunctionDelta, Logprobs, Message, ToolCall,
    ToolCallDelta,
};
use crate::envelope::Envelope;
use crate::error::ApiError;
use crate::generation::logprobs::ScoredToken;
use crate::generation::text_stream::End;
use crate::generation::usage::Usage;
use crate::sse::{Frame, Frames, json};
use atlas_engine::text::parser::Delta;
use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt};

/// Runs all choices to their end. The first error cancels them.
pub(crate) async fn collect(
    envelope: &Envelope,
    choices: impl Iterator<Item = ChatChoice>,
) -> Result<ChatCompletion<'_>, ApiError> {
    let mut usage = Usage::default();
    let mut finished = Vec::new();
    for (choice, used) in try_join_all(choices.map(collect_choice)).await? {
        usage += used;
        finished.push(choice);
    }
    Ok(ChatCompletion {
        id: &envelope.id,
        object: "chat.completion",
        created: envelope.created,
        model: &envelope.model,
        choices: finished,
        usage,
    })
}

async fn collect_choice(mut choice: ChatChoice) -> Result<(Choice, Usage), ApiError> {
    let mut message = Message { role: "assistant", ..Message::default() };
    let mut tokens = Vec::new();
    while let Some(piece) = choice.next().await {
        match piece? {
            ChatPiece::Deltas(deltas, more) => {
                tokens.extend(more);
                deltas.into_iter().for_each(|delta| message.add(delta));
            }
            ChatPiece::End(end) => {
                if message.content.is_none() && message.tool_calls.is_empty() {
                    message.content = Some(String::new());
                }
                message.reasoning.clone_from(&message.reasoning_content);
                let usage = Usage::of(&end, choice.index == 0);
                let logprobs = choice.logprobs.then(|| Logprobs::of(tokens));
                return Ok((Choice { index: choice.index, message, logprobs, finish_reason: end.reason }, usage));
            }
        }
    }
    Err(ApiError::internal("the generation ended without an end"))
}

impl Message {
    fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Content(text) => self.content.get_or_insert_default().push_str(&text),
            Delta::Reasoning(text) => self.reasoning_content.get_or_insert_default().push_str(&text),
            Delta::ToolCallStart { id, name, .. } => {
                let function = Function { name, arguments: String::new() };
                self.tool_calls.push(ToolCall { id, kind: "function", function });
            }
            Delta::ToolCallArguments { fragment, .. } => {
                if let Some(call) = self.tool_calls.last_mut() {
                    call.function.arguments.push_str(&fragment);
                }
            }
            Delta::ToolCallEnd { .. } => {}
        }
    }
}

/// A choice as frames: its role comes with its first delta, its end in a chunk of its own.
pub(crate) fn frames(envelope: &Envelope, choice: ChatChoice) -> Frames {
    let writer = Writer { envelope: envelope.clone(), index: choice.index, logprobs: choice.logprobs, begun: false };
    let pieces = stream::unfold((choice, writer), async |(mut choice, mut writer)| {
        let frames = match choice.next().await? {
            Ok(ChatPiece::Deltas(deltas, tokens)) => writer.deltas(deltas, tokens).map(Frame::Chunk).map(Ok).collect(),
            Ok(ChatPiece::End(end)) => {
                let usage = Usage::of(&end, choice.index == 0);
                vec![Ok(Frame::Chunk(writer.end(&end))), Ok(Frame::Ended(usage))]
            }
            Err(error) => vec![Err(error)],
        };
        Some((stream::iter(frames), (choice, writer)))
    });
    pieces.flatten().boxed()
}

/// Writes the chunks of one choice.
struct Writer {
    envelope: Envelope,
    index: usize,
    logprobs: bool,
    begun: bool,
}

impl Writer {
    /// A chunk a delta. The tokens go with the first; without any delta they get a chunk of their own.
    fn deltas(&mut self, deltas: Vec<Delta>, tokens: Vec<ScoredToken>) -> impl Iterator<Item = String> {
        let mut bodies: Vec<_> = deltas.into_iter().filter_map(body).collect();
        if bodies.is_empty() && !tokens.is_empty() {
            bodies.push(DeltaBody::default());
        }
        let mut logprobs = (self.logprobs && !tokens.is_empty()).then(|| Logprobs::of(tokens));
        bodies.into_iter().map(move |body| self.chunk(body, logprobs.take(), None))
    }

    fn end(&mut self, end: &End) -> String {
        self.chunk(DeltaBody::default(), None, Some(end.reason))
    }

    fn chunk(
        &mut self,
        mut delta: DeltaBody,
        logprobs: Option<Logprobs>,
        finish_reason: Option<&'static str>,
    ) -> String {
        if !std::mem::replace(&mut self.begun, true) {
            delta.role = Some("assistant");
            if delta.tool_calls.is_none() && delta.reasoning.is_none() {
                delta.content.get_or_insert_default();
            }
        }
        let choice = ChunkChoice { index: self.index, delta, logprobs, finish_reason };
        json(&chunk(&self.envelope, vec![choice], self.envelope.include_usage.then_some(None)))
    }
}

fn body(delta: Delta) -> Option<DeltaBody> {
    let call = |index, id: Option<String>, name, arguments| {
        let kind = id.as_ref().map(|_| "function");
        let call = ToolCallDelta { index, id, kind, function: FunctionDelta { name, arguments } };
        DeltaBody { tool_calls: Some([call]), ..DeltaBody::default() }
    };
    match delta {
        Delta::Content(text) => Some(DeltaBody { content: Some(text), ..DeltaBody::default() }),
        Delta::Reasoning(text) => {
            Some(DeltaBody { reasoning_content: Some(text.clone()), reasoning: Some(text), ..DeltaBody::default() })
        }
        Delta::ToolCallStart { index, id, name } => Some(call(index, Some(id), Some(name), String::new())),
        Delta::ToolCallArguments { index, fragment } => Some(call(index, None, None, fragment)),
        Delta::ToolCallEnd { .. } => None,
    }
}

/// The chunk after the last choice.
pub(crate) fn usage_chunk(envelope: &Envelope, usage: Usage) -> String {
    json(&chunk(envelope, Vec::new(), Some(Some(usage))))
}

fn chunk(envelope: &Envelope, choices: Vec<ChunkChoice>, usage: Option<Option<Usage>>) -> ChatChunk<'_> {
    ChatChunk {
        id: &envelope.id,
        object: "chat.completion.chunk",
        created: envelope.created,
        model: &envelope.model,
        choices,
        usage,
    }
}
