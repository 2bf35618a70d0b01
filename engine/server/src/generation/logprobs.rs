//! Tokens with their log-probabilities, matched to the text they stand for.

use atlas_engine::engine::TokenLogprobs;
use atlas_engine::text::tokenizer::Tokenizer;
use std::collections::VecDeque;

/// JSON has no infinity; this stands for the log-probability of an impossible token, as at OpenAI.
pub(crate) const FLOOR: f32 = -9999.0;

/// A token as text, with its log-probability and rivals.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScoredToken {
    pub(crate) token: TokenText,
    /// `None` for the first token of an echoed prompt, which nothing precedes.
    pub(crate) logprob: Option<f32>,
    /// Likeliest tokens, best first.
    pub(crate) top: Vec<(TokenText, f32)>,
    /// Where the token's text begins in the whole text, in characters.
    pub(crate) offset: usize,
}

/// What one token stands for; a part of a character is possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenText {
    pub(crate) bytes: Vec<u8>,
}

impl TokenText {
    pub(crate) fn of(tokenizer: &Tokenizer, id: u32) -> Self {
        Self { bytes: tokenizer.token_bytes(id).unwrap_or_default() }
    }

    /// As text, with U+FFFD for what is no whole character.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// As text if it is whole characters, else as `bytes:\xe2\x82`, which keeps different tokens apart.
    pub(crate) fn key(&self) -> String {
        match std::str::from_utf8(&self.bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => self.bytes.iter().fold(String::from("bytes:"), |key, byte| format!("{key}\\x{byte:02x}")),
        }
    }
}

/// Makes a [`ScoredToken`].
pub(crate) fn score(tokenizer: &Tokenizer, id: u32, logprobs: Option<TokenLogprobs>, offset: usize) -> ScoredToken {
    let (logprob, top) = logprobs.map_or((None, Vec::new()), |logprobs| (Some(logprobs.logprob), logprobs.top));
    let top = top.into_iter().map(|(id, logprob)| (TokenText::of(tokenizer, id), logprob)).collect();
    ScoredToken { token: TokenText::of(tokenizer, id), logprob, top, offset }
}

/// Tokens whose text is still held back.
///
/// A token is let go together with the first character of its text; one whose text a stop string cut off never is.
#[derive(Debug, Default)]
pub(crate) struct HeldTokens {
    /// Each with the byte at which its text begins.
    held: VecDeque<(usize, ScoredToken)>,
}

impl HeldTokens {
    pub(crate) fn push(&mut self, begins: usize, token: ScoredToken) {
        self.held.push_back((begins, token));
    }

    /// The tokens whose text begins before byte `end`.
    pub(crate) fn release(&mut self, end: usize) -> Vec<ScoredToken> {
        let count = self.held.partition_point(|(begins, _)| *begins < end);
        self.held.drain(..count).map(|(_, token)| token).collect()
    }

    /// All that is left, at an end that cuts nothing off.
    pub(crate) fn release_all(&mut self) -> Vec<ScoredToken> {
        self.held.drain(..).map(|(_, token)| token).collect()
    }
}
