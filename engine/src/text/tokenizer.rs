//! `tokenizer.json` and `tokenizer_config.json`: text to token ids and back.

mod config;
mod model;
mod pieces;

use self::config::TokenizerConfig;
use self::model::SharedModel;
use self::pieces::PieceStyle;
use super::control::{ControlTokens, Segment};
use crate::errors::EngineError;
use serde::Deserialize;
use serde_json::Value as Json;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl,
};

type Inner = TokenizerImpl<SharedModel, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// The longest text that is encoded at once, in bytes. Encoding takes up to 150 bytes of memory for each.
pub const MAX_TEXT_BYTES: usize = 16 << 20;
/// The largest tokenizer file that is read, in bytes. (262144-entry vocabularies take about 35 MB.)
const MAX_FILE_BYTES: u64 = 256 << 20;

/// A tokenizer. Cheap to clone and safe to share.
#[derive(Clone)]
pub struct Tokenizer(Arc<Shared>);

struct Shared {
    /// With every added token.
    full: Inner,
    /// Without the control tokens, so that their spelling stays text. Shares the vocabulary with `full`.
    plain: Inner,
    /// Ids that `plain` gives to added tokens, where they are not the ids of `full`.
    plain_ids: HashMap<u32, u32>,
    controls: Arc<ControlTokens>,
    control_ids: HashSet<u32>,
    special_ids: HashSet<u32>,
    style: PieceStyle,
    vocab_size: usize,
    config: TokenizerConfig,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.0.vocab_size).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Builds a tokenizer from the contents of `tokenizer.json` and, where there is one, `tokenizer_config.json`.
    ///
    /// # Errors
    /// When a file is not what its name says, or its added tokens have ids that the tokenizer would not give them.
    pub fn from_bytes(tokenizer_json: &[u8], tokenizer_config: Option<&[u8]>) -> Result<Self, EngineError> {
        let config = match tokenizer_config {
            Some(bytes) => TokenizerConfig::parse(bytes)?,
            None => TokenizerConfig::default(),
        };
        Self::build(tokenizer_json, config)
    }

    /// Reads `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` of a model folder. Only the first
    /// is required; a template file takes the place of the one in the configuration.
    ///
    /// # Errors
    /// When a file cannot be read or is malformed.
    pub fn from_dir(dir: &Path) -> Result<Self, EngineError> {
        let tokenizer = read_optional(&dir.join("tokenizer.json"))?
            .ok_or_else(|| EngineError::Tokenizer(format!("{} has no tokenizer.json", dir.display())))?;
        let mut config = match read_optional(&dir.join("tokenizer_config.json"))? {
            Some(bytes) => TokenizerConfig::parse(&bytes)?,
            None => TokenizerConfig::default(),
        };
        if let Some(template) = read_optional(&dir.join("chat_template.jinja"))? {
            let template = String::from_utf8(template)
                .map_err(|_| EngineError::Template("chat_template.jinja is not UTF-8".into()))?;
            config.chat_template = Some(template);
        }
        Self::build(&tokenizer, config)
    }

    fn build(tokenizer_json: &[u8], config: TokenizerConfig) -> Result<Self, EngineError> {
        let head: Head = serde_json::from_slice(tokenizer_json)
            .map_err(|e| EngineError::Tokenizer(format!("tokenizer.json is not valid: {e}")))?;
        let (added, changed) = declared_tokens(&head)?;
        let style = PieceStyle::of(&head.decoder);
        let full: Result<Inner, _> = match changed {
            None => serde_json::from_slice(tokenizer_json),
            Some(added_tokens) => serde_json::from_slice(tokenizer_json).and_then(|mut json: Json| {
                json["added_tokens"] = added_tokens;
                serde_json::from_value(json)
            }),
        };
        let mut full =
            full.map_err(|e| EngineError::Tokenizer(format!("tokenizer.json is not valid or not supported: {e}")))?;
        // Length is the caller's business; a tokenizer.json must not cut prompts short.
        full.with_truncation(None).map_err(library_error)?;
        full.with_padding(None);
        for (id, token) in &added {
            let actual = full.token_to_id(&token.content);
            if actual != Some(*id) {
                let message = format!("added token {:?} has id {id} in tokenizer.json, but {actual:?}", token.content);
                return Err(EngineError::Tokenizer(format!("{message} by the order of the vocabulary")));
            }
        }
        let (plain, plain_ids) = without_control_tokens(&full, &added)?;
        let is_control = |token: &&Declared| looks_like_control(&token.1);
        let vocab_size =
            full.get_model().vocab_end().max(added.iter().map(|(id, _)| *id as usize + 1).max().unwrap_or(0));
        Ok(Self(Arc::new(Shared {
            plain,
            plain_ids,
            controls: Arc::new(ControlTokens::new(added.iter().filter(is_control).map(|(_, t)| t.content.clone()))?),
            control_ids: added.iter().filter(is_control).map(|(id, _)| *id).collect(),
            special_ids: added.iter().filter(|(_, t)| t.special).map(|(id, _)| *id).collect(),
            style,
            vocab_size,
            config,
            full,
        })))
    }

    /// Token ids of `text`.
    ///
    /// `add_special` adds what the tokenizer puts around a text (often a beginning-of-sequence token).
    /// `parse_special` turns the spelling of control tokens into these tokens; without it, `<|im_start|>` is text
    /// like any other, and no control token can come out.
    ///
    /// # Errors
    /// When the text is longer than [`MAX_TEXT_BYTES`] or the tokenizer has no token for it.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>, EngineError> {
        if text.len() > MAX_TEXT_BYTES {
            let message = format!("the text has {} bytes; at most {MAX_TEXT_BYTES} are encoded", text.len());
            return Err(EngineError::Tokenizer(message));
        }
        let mut ids = match parse_special {
            true => self.0.full.encode_fast(text, false).map_err(library_error)?.get_ids().to_vec(),
            false => self.encode_plain(text)?,
        };
        if add_special {
            ids = self.surround(ids)?;
        }
        Ok(ids)
    }

    /// Token ids of a rendered prompt: control tokens count in trusted segments only.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_segments(&self, segments: &[Segment], add_special: bool) -> Result<Vec<u32>, EngineError> {
        let mut ids = Vec::new();
        for segment in segments {
            ids.extend(self.encode(&segment.text, false, segment.trusted)?);
        }
        if add_special { self.surround(ids) } else { Ok(ids) }
    }

    fn encode_plain(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        let shared = &self.0;
        let encode = |text: &str| -> Result<Vec<u32>, EngineError> {
            let encoding = shared.plain.encode_fast(text, false).map_err(library_error)?;
            Ok(encoding.get_ids().iter().map(|id| *shared.plain_ids.get(id).unwrap_or(id)).collect())
        };
        let ids = encode(text)?;
        if !ids.iter().any(|id| shared.control_ids.contains(id)) {
            return Ok(ids);
        }
        // Some vocabularies hold control tokens as ordinary pieces too: cut each spelling after its first character.
        let mut ids = Vec::new();
        let mut done = 0;
        for range in shared.controls.find(text) {
            let first = text[range.clone()].chars().next().map_or(0, char::len_utf8);
            ids.extend(encode(&text[done..range.start + first])?);
            done = range.start + first;
        }
        ids.extend(encode(&text[done..])?);
        match ids.iter().any(|id| shared.control_ids.contains(id)) {
            false => Ok(ids),
            true => Err(EngineError::Tokenizer("plain text would become control tokens with this vocabulary".into())),
        }
    }

    fn surround(&self, ids: Vec<u32>) -> Result<Vec<u32>, EngineError> {
        // An empty text shows what the post-processor adds; where it puts the text is where its own tokens split.
        let (before, after) = self.0.full.get_post_processor().map_or(Ok(Default::default()), surrounding)?;
        Ok([before, ids, after].concat())
    }

    /// Text of token ids. Unknown ids are left out; with `skip_special`, special tokens are too. Bytes that are no
    /// UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            if !(skip_special && self.is_special(id)) {
                bytes.extend(self.token_bytes(id).unwrap_or_default());
            }
        }
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        };
        match self.strips_first_space() && text.starts_with(' ') {
            true => text[1..].to_owned(),
            false => text,
        }
    }

    /// The bytes that a token stands for inside a text, or `None` for an unknown id.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let token = self.0.full.id_to_token(id)?;
        let added = self.0.full.get_added_vocabulary().get_added_tokens_decoder().contains_key(&id);
        Some(self.0.style.bytes(token, added))
    }

    /// The id of a token by its exact spelling in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.full.token_to_id(token)
    }

    /// The spelling of a token in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.full.id_to_token(id)
    }

    /// One more than the highest token id. The model's output layer may have more rows.
    pub fn vocab_size(&self) -> usize {
        self.0.vocab_size
    }

    /// Whether the token is marked special, so that `skip_special` leaves it out.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.special_ids.contains(&id)
    }

    /// The tokens whose spelling must not come from message contents.
    pub fn control_tokens(&self) -> &Arc<ControlTokens> {
        &self.0.controls
    }

    /// Whether a text's first space is the tokenizer's own and is not shown.
    pub(crate) fn strips_first_space(&self) -> bool {
        self.0.style.strips_first_space()
    }

    /// Spelling of the beginning-of-sequence token.
    pub fn bos_token(&self) -> Option<&str> {
        self.0.config.bos_token.as_deref()
    }

    /// Spelling of the end-of-sequence token.
    pub fn eos_token(&self) -> Option<&str> {
        self.0.config.eos_token.as_deref()
    }

    /// Spelling of the padding token.
    pub fn pad_token(&self) -> Option<&str> {
        self.0.config.pad_token.as_deref()
    }

    /// Id of the beginning-of-sequence token.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos_token().and_then(|t| self.token_to_id(t))
    }

    /// Id of the end-of-sequence token. (`generation_config.json` may name more.)
    pub fn eos_id(&self) -> Option<u32> {
        self.eos_token().and_then(|t| self.token_to_id(t))
    }

    /// Id of the padding token.
    pub fn pad_id(&self) -> Option<u32> {
        self.pad_token().and_then(|t| self.token_to_id(t))
    }

    /// Source of the chat template, if the model has one.
    pub fn chat_template(&self) -> Option<String> {
        self.0.config.chat_template.clone()
    }
}

/// Ids that the post-processor puts before and after a single text.
fn surrounding(post: &PostProcessorWrapper) -> Result<(Vec<u32>, Vec<u32>), EngineError> {
    use tokenizers::{Encoding, PostProcessor as _};
    const TEXT: u32 = u32::MAX;
    let text = Encoding::from_tokens(vec![tokenizers::Token::new(TEXT, String::new(), (0, 0))], 0);
    let done = post.process(text, None, true).map_err(library_error)?;
    let ids = done.get_ids();
    let at = ids.iter().position(|&id| id == TEXT).unwrap_or(ids.len());
    Ok((ids[..at].to_vec(), ids.get(at + 1..).unwrap_or_default().to_vec()))
}

/// The parts of a tokenizer.json that are looked at here. (The vocabulary is left to the library.)
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    added_tokens: Vec<Json>,
    #[serde(default)]
    decoder: Json,
}

/// An added token and its id.
type Declared = (u32, AddedToken);

/// The added tokens, and the list as it should be where it must change.
///
/// Control tokens are always matched in the raw text: matching after normalisation would let other spellings
/// (full-width brackets, other case) become control tokens.
fn declared_tokens(head: &Head) -> Result<(Vec<Declared>, Option<Json>), EngineError> {
    let mut list = head.added_tokens.clone();
    let mut tokens = Vec::with_capacity(list.len());
    for entry in &mut list {
        let id = entry["id"].as_u64().and_then(|id| u32::try_from(id).ok());
        let token: Result<AddedToken, _> = serde_json::from_value(entry.clone());
        let (Some(id), Ok(mut token)) = (id, token) else {
            return Err(EngineError::Tokenizer(format!("tokenizer.json: added_tokens has a malformed entry: {entry}")));
        };
        if looks_like_control(&token) && token.normalized {
            token.normalized = false;
            entry["normalized"] = false.into();
        }
        tokens.push((id, token));
    }
    let changed = list != head.added_tokens;
    Ok((tokens, changed.then_some(Json::Array(list))))
}

/// Special tokens, and added tokens in angle or square brackets (`<think>`, `[TOOL_CALLS]`). Others, such as runs of
/// spaces, are ordinary vocabulary.
fn looks_like_control(token: &AddedToken) -> bool {
    let text = token.content.as_str();
    let bracketed = |open, close| text.len() > 2 && text.starts_with(open) && text.ends_with(close);
    token.special || bracketed('<', '>') || bracketed('[', ']')
}

fn without_control_tokens(full: &Inner, added: &[Declared]) -> Result<(Inner, HashMap<u32, u32>), EngineError> {
    let mut plain = Inner::new(full.get_model().clone());
    plain.with_normalizer(full.get_normalizer().cloned()).map_err(library_error)?;
    plain.with_pre_tokenizer(full.get_pre_tokenizer().cloned());
    let ordinary: Vec<AddedToken> = added.iter().map(|(_, t)| t).filter(|t| !looks_like_control(t)).cloned().collect();
    plain.add_tokens(ordinary).map_err(library_error)?;
    let ids = added.iter().filter_map(|(id, t)| plain.token_to_id(&t.content).map(|plain_id| (plain_id, *id)));
    let ids = ids.filter(|(plain_id, id)| plain_id != id).collect();
    Ok((plain, ids))
}

fn read_optional(path: &Path) -> Result<Option<Vec<u8>>, EngineError> {
    let io = |source| EngineError::Io { path: path.display().to_string(), source };
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
        Ok(meta) if meta.len() > MAX_FILE_BYTES => {
            let message = format!("{} has {} bytes; at most {MAX_FILE_BYTES} are read", path.display(), meta.len());
            return Err(EngineError::Tokenizer(message));
        }
        Ok(_) => {}
    }
    std::fs::read(path).map(Some).map_err(io)
}

fn library_error(error: tokenizers::Error) -> EngineError {
    EngineError::Tokenizer(error.to_string())
}

#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) mod test_tokenizers;
