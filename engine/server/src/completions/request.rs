//! A completion request, parsed.

use crate::chat::request::requested_model;
use crate::error::ApiError;
use crate::fields::{Fields, kind};
use crate::generation::logprobs::{ScoredToken, score};
use crate::model::ServedModel;
use crate::options::{MAX_TOP_LOGPROBS, Options, token_id};
use crate::state::AppState;
use crate::structured::{Bound, bound};
use crate::unsupported::refuse_rest;
use atlas_engine::engine::TokenLogprobs;
use atlas_engine::text::detokenizer::Detokenizer;
use atlas_engine::text::tokenizer::Tokenizer;
use serde_json::Value;

/// Everything a completion request asks for.
#[derive(Debug)]
pub(crate) struct CompletionRequest {
    pub(crate) model: String,
    pub(crate) prompts: Vec<Prompt>,
    /// Whether text prompts get what the tokenizer puts around a text.
    pub(crate) add_special_tokens: bool,
    pub(crate) echo: bool,
    pub(crate) logprobs: Option<usize>,
    /// What the completions are held to.
    pub(crate) bound: Option<Bound>,
    pub(crate) options: Options,
}

/// A prompt as it was sent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// A prompt in tokens.
#[derive(Debug)]
pub(crate) struct EncodedPrompt {
    pub(crate) ids: Vec<u32>,
    /// Present if it is to be repeated.
    pub(crate) echo: Option<Echo>,
}

/// A prompt to be repeated before its completion.
#[derive(Debug, Clone)]
pub(crate) struct Echo {
    pub(crate) text: String,
    ids: Vec<u32>,
    /// Where each token begins in `text`, in characters.
    offsets: Vec<usize>,
}

impl CompletionRequest {
    pub(crate) fn parse(mut fields: Fields, state: &AppState, model: &ServedModel) -> Result<Self, ApiError> {
        let config = state.config();
        let name = requested_model(&mut fields, state)?;
        let options = Options::take(&mut fields, 0, config, model.engine.info(), state.identity())?;
        let logprobs = fields.count("logprobs", 0..=MAX_TOP_LOGPROBS)?;
        let echo = fields.boolean("echo")?.unwrap_or(false);
        if options.max_tokens == Some(0) && !(echo && logprobs.is_some()) {
            return Err(fields.error("max_tokens", "0 is for scoring a prompt: it needs `echo: true` and `logprobs`"));
        }
        let best_of = fields.count("best_of", 1..=config.limits.max_choices)?;
        if best_of.is_some_and(|best_of| best_of != options.choices) {
            return Err(ApiError::unsupported("best_of", "choosing among more completions than `n` is not supported"));
        }
        let bound = bound(&mut fields)?;
        let add_special_tokens = fields.boolean("add_special_tokens")?.unwrap_or(true);
        let prompt = fields.take("prompt").ok_or_else(|| fields.error("prompt", "is required"))?;
        let prompts = prompts(prompt, model.engine.info().vocab_size)?;
        let limit = config.limits.max_choices;
        if prompts.len() * options.choices > limit {
            let problem = format!("{} prompts times `n` is more than {limit} choices", prompts.len());
            return Err(ApiError::field("prompt", problem));
        }
        refuse_rest(fields)?;
        Ok(Self { model: name, prompts, add_special_tokens, echo, logprobs, bound, options })
    }
}

/// A string, strings, token ids, or lists of token ids.
fn prompts(value: Value, vocab_size: usize) -> Result<Vec<Prompt>, ApiError> {
    let items = match value {
        Value::String(text) => return Ok(vec![Prompt::Text(text)]),
        Value::Array(items) => items,
        other => return Err(ApiError::field("prompt", format!("must be text or token ids, not {}", kind(&other)))),
    };
    let ids = |items: &[Value], name: &str| -> Result<Prompt, ApiError> {
        let id = |(index, item)| token_id(item, &format!("{name}[{index}]"), vocab_size);
        Ok(Prompt::Ids(items.iter().enumerate().map(id).collect::<Result<_, _>>()?))
    };
    match items.first() {
        None => Err(ApiError::field("prompt", "the prompt is empty")),
        Some(Value::Number(_)) => Ok(vec![ids(&items, "prompt")?]),
        Some(_) => items
            .into_iter()
            .enumerate()
            .map(|(index, item)| match item {
                Value::String(text) => Ok(Prompt::Text(text)),
                Value::Array(inner) => ids(&inner, &format!("prompt[{index}]")),
                other => {
                    let problem = format!("must be text or token ids like the others, not {}", kind(&other));
                    Err(ApiError::field(format!("prompt[{index}]"), problem))
                }
            })
            .collect(),
    }
}

/// Turns the request's prompts into ids, away from the threads that serve connections: a text may be megabytes long.
pub(crate) async fn encode(state: &AppState, request: &mut CompletionRequest) -> Result<Vec<EncodedPrompt>, ApiError> {
    let state = state.clone();
    let prompts = std::mem::take(&mut request.prompts);
    let (add_special, echo) = (request.add_special_tokens, request.echo);
    let work = move || -> Result<Vec<EncodedPrompt>, ApiError> {
        let model = state.ready_model()?;
        let encode = |prompt| {
            let (ids, text) = match prompt {
                Prompt::Ids(ids) => (ids, None),
                Prompt::Text(text) => (model.encode(&text, add_special, "prompt")?, Some(text)),
            };
            let echo = echo.then(|| Echo::new(&model.tokenizer, &ids, text));
            Ok(EncodedPrompt { ids, echo })
        };
        prompts.into_iter().map(encode).collect()
    };
    tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::internal("the prompt could not be tokenised"))?
}

impl Echo {
    /// Finds the place of each token in the prompt's text, which is given unless the prompt came as ids.
    fn new(tokenizer: &Tokenizer, ids: &[u32], text: Option<String>) -> Self {
        let mut detokenizer = Detokenizer::new(tokenizer, false);
        let mut offsets = Vec::with_capacity(ids.len());
        let mut decoded = String::new();
        let mut chars = 0;
        for id in ids {
            offsets.push(chars);
            let piece = detokenizer.push(*id);
            chars += piece.chars().count();
            decoded.push_str(&piece);
        }
        decoded.push_str(&detokenizer.finish());
        let ids = ids.to_vec();
        let Some(text) = text else { return Self { text: decoded, ids, offsets } };
        // What the tokenizer put before the text is not part of it.
        let lead = decoded.strip_suffix(text.as_str()).map_or(0, |lead| lead.chars().count());
        offsets.iter_mut().for_each(|offset| *offset = offset.saturating_sub(lead));
        Self { text, ids, offsets }
    }

    /// The prompt's tokens with their log-probabilities; the first has none.
    pub(crate) fn scored(&self, tokenizer: &Tokenizer, logprobs: Vec<TokenLogprobs>) -> Vec<ScoredToken> {
        let logprobs = std::iter::once(None).chain(logprobs.into_iter().map(Some));
        let tokens = self.ids.iter().zip(&self.offsets).zip(logprobs);
        tokens.map(|((id, offset), logprobs)| score(tokenizer, *id, logprobs, *offset)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_prompts() {
        let read = |text: &str| prompts(serde_json::from_str(text).unwrap(), 10);
        let text = |text: &str| Prompt::Text(text.into());
        assert_eq!(read(r#""a""#).unwrap(), [text("a")]);
        assert_eq!(read(r#"["a", "b"]"#).unwrap(), [text("a"), text("b")]);
        assert_eq!(read("[1, 2]").unwrap(), [Prompt::Ids(vec![1, 2])]);
        assert_eq!(read("[[1], [2, 9]]").unwrap(), [Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 9])]);
        let bad =
            ["[]", "3", "{}", "[1, \"a\"]", "[true]", "[[1], 2]", "[10]", "[-1]", "[1.5]", "[[[1]]]", "[4294967296]"];
        for text in bad {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
