//! One choice: the engine's tokens become text, held back where a stop string may begin.

use crate::error::ApiError;
use crate::generation::logprobs::{HeldTokens, ScoredToken, score};
use crate::metrics::TokenWatch;
use crate::state::{AppState, Phase};
use atlas_engine::engine::{self, FinishReason, GenerateEvent, GenerateStream, TokenEvent, TokenLogprobs};
use atlas_engine::text::detokenizer::Detokenizer;
use atlas_engine::text::stop::StopMatcher;
use atlas_engine::text::tokenizer::Tokenizer;
use tokio::sync::watch;

/// `finish_reason` after a stop token or stop string.
pub(crate) const STOP: &str = "stop";
/// `finish_reason` of a chat that called tools.
pub(crate) const TOOL_CALLS: &str = "tool_calls";

/// What a choice delivers, in order; `End` comes last, unless an error does.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Log-probabilities of the prompt's tokens from the second on.
    Prompt(Vec<TokenLogprobs>),
    /// Text, possibly none.
    Text(ScoredText),
    /// The end.
    End(End),
}

/// Text, and the tokens that begin in it if log-probabilities were asked for. Either may be empty.
#[derive(Debug, Default)]
pub(crate) struct ScoredText {
    pub(crate) text: String,
    pub(crate) tokens: Vec<ScoredToken>,
}

/// How a choice ended.
#[derive(Debug, Clone)]
pub(crate) struct End {
    /// `finish_reason`.
    pub(crate) reason: &'static str,
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) cached_tokens: usize,
}

/// The parts of a choice that depend on the request.
#[derive(Debug)]
pub(crate) struct TextOptions {
    pub(crate) prompt_tokens: usize,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) logprobs: bool,
    /// Special tokens that are shown as text; the others are left out.
    pub(crate) shown_specials: Vec<u32>,
    /// The first space is shown, because the text goes on after another.
    pub(crate) continuing: bool,
    /// Characters of an echoed prompt; token offsets begin there.
    pub(crate) first_offset: usize,
}

/// A choice's tokens as text. Dropping it cancels the generation.
pub(crate) struct TextStream {
    state: AppState,
    events: GenerateStream,
    phase: watch::Receiver<Phase>,
    tokenizer: Tokenizer,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    options: TextOptions,
    held: HeldTokens,
    /// Bytes and characters of text made from tokens so far, and bytes of it let through.
    made: usize,
    made_chars: usize,
    released: usize,
    end: End,
    watch: TokenWatch,
    /// The end that is still to be delivered after the last text.
    pending_end: Option<(&'static str, Option<engine::Usage>)>,
    done: bool,
}

impl TextStream {
    pub(crate) fn new(
        state: AppState,
        tokenizer: &Tokenizer,
        events: GenerateStream,
        mut options: TextOptions,
    ) -> Self {
        let detokenizer = match options.continuing {
            true => Detokenizer::continuing(tokenizer, false),
            false => Detokenizer::new(tokenizer, false),
        };
        let prompt_tokens = options.prompt_tokens;
        Self {
            events,
            phase: state.subscribe(),
            state,
            tokenizer: tokenizer.clone(),
            detokenizer,
            stops: StopMatcher::new(std::mem::take(&mut options.stop)),
            options,
            held: HeldTokens::default(),
            made: 0,
            made_chars: 0,
            released: 0,
            end: End { reason: STOP, prompt_tokens, completion_tokens: 0, cached_tokens: 0 },
            watch: TokenWatch::start(),
            pending_end: None,
            done: false,
        }
    }

    /// The next piece; `None` after the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        if self.done {
            return None;
        }
        if let Some((reason, usage)) = self.pending_end.take() {
            return Some(Ok(Piece::End(self.finish(reason, usage.as_ref()))));
        }
        let event = tokio::select! {
            biased;
            event = self.events.next() => event,
            _ = self.phase.wait_for(|phase| *phase == Phase::Failed) => None,
        };
        let piece = self.on_event(event);
        self.done |= piece.is_err();
        Some(piece)
    }

    /// What makes its text.
    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Ends the choice now, as for a consumer that wanted one tool call and has it.
    pub(crate) fn finish_early(&mut self) -> End {
        self.finish(TOOL_CALLS, None)
    }

    fn on_event(&mut self, event: Option<GenerateEvent>) -> Result<Piece, ApiError> {
        match event {
            Some(GenerateEvent::Started { cached_tokens }) => {
                self.end.cached_tokens = cached_tokens;
                self.state.metrics().started(self.end.prompt_tokens, cached_tokens);
                Ok(Piece::Text(ScoredText::default()))
            }
            Some(GenerateEvent::PromptLogprobs(logprobs)) => Ok(Piece::Prompt(logprobs)),
            Some(GenerateEvent::Token(token)) => Ok(Piece::Text(self.on_token(token))),
            Some(GenerateEvent::Finished { reason, usage }) => self.on_finished(reason, usage),
            Some(GenerateEvent::Failed(message)) => {
                self.state.metrics().finished("error", &self.watch, self.counts(), None);
                Err(ApiError::internal(format!("the engine failed on this request: {message}")))
            }
            None => {
                // The engine dropped the request without a word.
                self.state.engine_is_silent();
                Err(ApiError::internal("the engine has failed"))
            }
        }
    }

    fn on_token(&mut self, token: TokenEvent) -> ScoredText {
        self.watch.token(self.state.metrics());
        self.end.completion_tokens += 1;
        if self.options.stop_tokens.contains(&token.id) {
            return ScoredText::default();
        }
        let begins = self.made;
        let hidden = self.tokenizer.is_special(token.id) && !self.options.shown_specials.contains(&token.id);
        let text = if hidden { String::new() } else { self.detokenizer.push(token.id) };
        if self.options.logprobs {
            let offset = self.options.first_offset + self.made_chars;
            self.held.push(begins, score(&self.tokenizer, token.id, token.logprobs, offset));
        }
        self.on_text(&text)
    }

    /// Passes text through the stop matcher.
    fn on_text(&mut self, text: &str) -> ScoredText {
        self.made += text.len();
        self.made_chars += text.chars().count();
        let out = self.stops.push(text);
        self.released += out.text.len();
        if out.stopped.is_some() {
            self.pending_end = Some((STOP, None));
        }
        ScoredText { text: out.text, tokens: self.held.release(self.released) }
    }

    /// Lets the rest of the text through; the end follows it.
    fn on_finished(&mut self, reason: FinishReason, usage: engine::Usage) -> Result<Piece, ApiError> {
        let reason = match reason {
            FinishReason::Stop => STOP,
            FinishReason::Length => "length",
            FinishReason::Deadline => self.state.config().deadline_finish.as_str(),
            FinishReason::Shutdown => {
                self.state.metrics().finished("abort", &self.watch, self.counts(), Some(&usage));
                return Err(ApiError::unavailable(
                    "server_stopping",
                    "the server shut down before the answer was complete",
                ));
            }
        };
        let rest = self.detokenizer.finish();
        let mut last = self.on_text(&rest);
        if self.pending_end.is_none() {
            last.text.push_str(&self.stops.finish());
            last.tokens.extend(self.held.release_all());
            self.pending_end = Some((reason, Some(usage)));
        }
        Ok(Piece::Text(last))
    }

    fn finish(&mut self, reason: &'static str, usage: Option<&engine::Usage>) -> End {
        self.done = true;
        self.end.reason = reason;
        self.state.metrics().finished(reason, &self.watch, self.counts(), usage);
        self.end.clone()
    }

    fn counts(&self) -> (usize, usize) {
        (self.end.prompt_tokens, self.end.completion_tokens)
    }
}
