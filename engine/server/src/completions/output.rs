//! Text choices as one object or as frames of a stream.

use crate::completions::request::Echo;
use crate::completions::response::{Choice, Completion, Logprobs};
use crate::envelope::Envelope;
use crate::error::ApiError;
use crate::generation::logprobs::ScoredToken;
use crate::generation::text_stream::{Piece, ScoredText, TextStream};
use crate::generation::usage::Usage;
use crate::sse::{Frame, Frames, json};
use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt};

/// One completion that is being generated. Dropping it cancels it.
pub(crate) struct TextChoice {
    index: usize,
    /// The first of its prompt, on whose account the prompt's tokens go.
    first: bool,
    text: TextStream,
    /// The prompt, until it has been repeated.
    echo: Option<Echo>,
    logprobs: bool,
}

/// What a choice delivers, in order.
enum TextPiece {
    Text(ScoredText),
    End(&'static str, Usage),
}

impl TextChoice {
    pub(crate) fn new(index: usize, first: bool, text: TextStream, echo: Option<Echo>, logprobs: bool) -> Self {
        Self { index, first, text, echo, logprobs }
    }

    async fn next(&mut self) -> Option<Result<TextPiece, ApiError>> {
        // Without log-probabilities nothing has to be waited for.
        if let Some(echo) = self.echo.take_if(|_| !self.logprobs) {
            return Some(Ok(TextPiece::Text(ScoredText { text: echo.text, tokens: Vec::new() })));
        }
        let piece = match self.text.next().await? {
            Ok(Piece::Prompt(logprobs)) => TextPiece::Text(self.echo.take().map_or_else(ScoredText::default, |echo| {
                let tokens = echo.scored(self.text.tokenizer(), logprobs);
                ScoredText { text: echo.text, tokens }
            })),
            Ok(Piece::Text(text)) => TextPiece::Text(text),
            Ok(Piece::End(end)) => TextPiece::End(end.reason, Usage::of(&end, self.first)),
            Err(error) => return Some(Err(error)),
        };
        Some(Ok(piece))
    }

    fn logprobs(&self, tokens: Vec<ScoredToken>) -> Option<Logprobs> {
        self.logprobs.then(|| Logprobs::of(tokens))
    }
}

/// Runs all choices to their end. The first error cancels them.
pub(crate) async fn collect(envelope: &Envelope, choices: Vec<TextChoice>) -> Result<Completion<'_>, ApiError> {
    let mut usage = Usage::default();
    let mut finished = Vec::new();
    for (choice, used) in try_join_all(choices.into_iter().map(collect_choice)).await? {
        usage += used;
        finished.push(choice);
    }
    Ok(completion(envelope, finished, Some(Some(usage))))
}

async fn collect_choice(mut choice: TextChoice) -> Result<(Choice, Usage), ApiError> {
    let mut all = ScoredText::default();
    while let Some(piece) = choice.next().await {
        match piece? {
            TextPiece::Text(more) => {
                all.text.push_str(&more.text);
                all.tokens.extend(more.tokens);
            }
            TextPiece::End(reason, usage) => {
                let logprobs = choice.logprobs(all.tokens);
                let index = choice.index;
                return Ok((Choice { index, text: all.text, logprobs, finish_reason: Some(reason) }, usage));
            }
        }
    }
    Err(ApiError::internal("the generation ended without an end"))
}

/// A choice as frames: a chunk for each piece of text and one for the end.
pub(crate) fn frames(envelope: &Envelope, choice: TextChoice) -> Frames {
    let envelope = envelope.clone();
    let pieces = stream::unfold((choice, envelope), async |(mut choice, envelope)| {
        let index = choice.index;
        let write = |text, logprobs, finish_reason| {
            let choice = Choice { index, text, logprobs, finish_reason };
            json(&completion(&envelope, vec![choice], envelope.include_usage.then_some(None)))
        };
        let frames = match choice.next().await? {
            Ok(TextPiece::Text(piece)) if piece.text.is_empty() && piece.tokens.is_empty() => Vec::new(),
            Ok(TextPiece::Text(piece)) => {
                vec![Ok(Frame::Chunk(write(piece.text, choice.logprobs(piece.tokens), None)))]
            }
            Ok(TextPiece::End(reason, usage)) => {
                vec![Ok(Frame::Chunk(write(String::new(), None, Some(reason)))), Ok(Frame::Ended(usage))]
            }
            Err(error) => vec![Err(error)],
        };
        Some((stream::iter(frames), (choice, envelope)))
    });
    pieces.flatten().boxed()
}

/// The chunk after the last choice.
pub(crate) fn usage_chunk(envelope: &Envelope, usage: Usage) -> String {
    json(&completion(envelope, Vec::new(), Some(Some(usage))))
}

fn completion(envelope: &Envelope, choices: Vec<Choice>, usage: Option<Option<Usage>>) -> Completion<'_> {
    Completion {
        id: &envelope.id,
        object: "text_completion",
        created: envelope.created,
        model: &envelope.model,
        choices,
        usage,
    }
}
