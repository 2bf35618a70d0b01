//! One choice of a chat: its text, split into content, reasoning and tool calls.

use crate::error::ApiError;
use crate::generation::logprobs::ScoredToken;
use crate::generation::text_stream::{End, Piece, STOP, TOOL_CALLS, TextStream};
use atlas_engine::text::parser::{Delta, OutputParser};

/// What a choice delivers, in order; `End` comes last, unless an error does.
#[derive(Debug)]
pub(crate) enum ChatPiece {
    /// More of the message, and the tokens that begin in it. Either may be empty.
    Deltas(Vec<Delta>, Vec<ScoredToken>),
    /// The end.
    End(End),
}

/// A choice that is being generated. Dropping it cancels it.
pub(crate) struct ChatChoice {
    /// Its place among the choices.
    pub(crate) index: usize,
    /// Whether log-probabilities were asked for.
    pub(crate) logprobs: bool,
    text: TextStream,
    parser: OutputParser,
    /// Whether more than one tool call is wanted.
    parallel: bool,
    called: bool,
    pending_end: Option<End>,
}

impl ChatChoice {
    pub(crate) fn new(index: usize, text: TextStream, parser: OutputParser, parallel: bool, logprobs: bool) -> Self {
        Self { index, logprobs, text, parser, parallel, called: false, pending_end: None }
    }

    /// The next piece; `None` after the end.
    pub(crate) async fn next(&mut self) -> Option<Result<ChatPiece, ApiError>> {
        if let Some(end) = self.pending_end.take() {
            return Some(Ok(ChatPiece::End(end)));
        }
        let piece = match self.text.next().await? {
            Ok(Piece::Text(scored)) => {
                let deltas = self.parser.push(&scored.text);
                ChatPiece::Deltas(self.accept(deltas), scored.tokens)
            }
            Ok(Piece::Prompt(_)) => ChatPiece::Deltas(Vec::new(), Vec::new()),
            Ok(Piece::End(mut end)) => {
                let deltas = self.parser.finish();
                let deltas = self.accept(deltas);
                if self.called && end.reason == STOP {
                    end.reason = TOOL_CALLS;
                }
                self.pending_end.get_or_insert(end);
                ChatPiece::Deltas(deltas, Vec::new())
            }
            Err(error) => return Some(Err(error)),
        };
        Some(Ok(piece))
    }

    /// Notes finished calls. If only one is wanted, the choice ends with it and what follows is left out.
    fn accept(&mut self, mut deltas: Vec<Delta>) -> Vec<Delta> {
        let Some(first) = deltas.iter().position(|delta| matches!(delta, Delta::ToolCallEnd { .. })) else {
            return deltas;
        };
        self.called = true;
        if !self.parallel {
            deltas.truncate(first + 1);
            self.pending_end = Some(self.text.finish_early());
        }
        deltas
    }
}
