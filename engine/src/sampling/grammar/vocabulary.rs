//! A tokenizer's tokens as the library wants them: bytes in a trie.

use crate::text::tokenizer::Tokenizer;
use std::sync::Arc;
use toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};

/// The trie of all tokens. Special tokens and `eos` stand for no text: no regular expression matches them.
///
/// Token bytes are those that a text gets, so that what the grammar sees is what the client does. Tokenisation is left
/// to the model: no text is forced to a canonical one.
pub(super) fn environment(tokenizer: &Tokenizer, eos: &[u32]) -> TokEnv {
    let size = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    let words: Vec<Vec<u8>> = (0..size)
        .map(|id| {
            let mut bytes = tokenizer.token_bytes(id).unwrap_or_default();
            if (tokenizer.is_special(id) || eos.contains(&id)) && !bytes.is_empty() {
                bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
            }
            bytes
        })
        .collect();
    let trie = TokTrie::from(&TokRxInfo::new(size, INVALID_TOKEN), &words);
    let eos: Vec<u32> = eos.iter().copied().filter(|id| *id < size).collect();
    let trie = if eos.is_empty() { trie } else { trie.with_eos_tokens(&eos) };
    Arc::new(ApproximateTokEnv::new(trie))
}
