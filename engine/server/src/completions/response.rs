//! The JSON of text completions; a stream's chunks have the same form.

use crate::generation::logprobs::ScoredToken;
use crate::generation::usage::Usage;
use serde::Serialize;
use serde_json::{Map, Value};

/// `text_completion`.
#[derive(Debug, Serialize)]
pub(crate) struct Completion<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<Choice>,
    /// Absent from chunks unless asked for; then `null` in all but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<Usage>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) finish_reason: Option<&'static str>,
}

/// Parallel lists, one entry a token.
#[derive(Debug, Serialize)]
pub(crate) struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    /// Rivals by their text, and the token itself.
    top_logprobs: Vec<Option<Map<String, Value>>>,
    /// In characters.
    text_offset: Vec<usize>,
}

impl Logprobs {
    pub(crate) fn of(scored: Vec<ScoredToken>) -> Self {
        let mut lists = Self {
            tokens: Vec::with_capacity(scored.len()),
            token_logprobs: Vec::with_capacity(scored.len()),
            top_logprobs: Vec::with_capacity(scored.len()),
            text_offset: Vec::with_capacity(scored.len()),
        };
        for token in scored {
            lists.tokens.push(token.token.key());
            lists.token_logprobs.push(token.logprob.map(finite));
            lists.top_logprobs.push(token.logprob.map(|own| {
                let mut top: Map<_, _> =
                    token.top.iter().map(|(rival, logprob)| (rival.key(), finite(*logprob).into())).collect();
                top.insert(token.token.key(), finite(own).into());
                top
            }));
            lists.text_offset.push(token.offset);
        }
        lists
    }
}

/// JSON has no infinity.
fn finite(logprob: f32) -> f32 {
    logprob.max(crate::generation::logprobs::FLOOR)
}
