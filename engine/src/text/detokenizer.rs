//! Token ids to text as they arrive, never half a character.

use super::tokenizer::Tokenizer;

/// Turns a growing list of token ids into text. The pieces together are [`Tokenizer::decode`] of all ids.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// The beginning of a character whose other bytes have not come yet; at most three bytes.
    pending: Vec<u8>,
    /// Whether the next text is the first and loses its tokenizer-made space.
    strip_space: bool,
}

impl Detokenizer {
    /// For a text that begins with the first id pushed.
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> Self {
        let strip_space = tokenizer.strips_first_space();
        Self { tokenizer: tokenizer.clone(), skip_special, pending: Vec::new(), strip_space }
    }

    /// For a text that goes on after another, as a completion does after its prompt: its first space is shown.
    pub fn continuing(tokenizer: &Tokenizer, skip_special: bool) -> Self {
        Self { strip_space: false, ..Self::new(tokenizer, skip_special) }
    }

    /// Takes the next id and returns the characters that are complete now.
    ///
    /// Bytes that cannot become a character give U+FFFD as soon as that is certain.
    pub fn push(&mut self, id: u32) -> String {
        if self.skip_special && self.tokenizer.is_special(id) {
            return String::new();
        }
        self.pending.extend(self.tokenizer.token_bytes(id).unwrap_or_default());
        let mut text = String::new();
        let mut done = 0;
        loop {
            let rest = &self.pending[done..];
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    done = self.pending.len();
                    break;
                }
                Err(error) => {
                    let (valid, _) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    done += valid.len();
                    let Some(invalid) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    done += invalid;
                }
            }
        }
        self.pending.drain(..done);
        self.without_first_space(text)
    }

    /// What is left: U+FFFD for a character that was never completed.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned();
        self.without_first_space(text)
    }

    fn without_first_space(&mut self, mut text: String) -> String {
        if self.strip_space && !text.is_empty() {
            self.strip_space = false;
            if text.starts_with(' ') {
                text.remove(0);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokenizer::test_tokenizers::{sentencepiece, tiny};
    use super::*;
    use proptest::prelude::*;

    fn pieces(tokenizer: &Tokenizer, ids: &[u32], skip: bool) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(tokenizer, skip);
        let mut out: Vec<String> = ids.iter().map(|&id| detokenizer.push(id)).collect();
        out.push(detokenizer.finish());
        out
    }

    #[test]
    fn emoji_come_whole() {
        let tokenizer = tiny();
        let text = "Grüße, 世界 👩‍👩‍👧‍👦🇳🇴!";
        let ids = tokenizer.encode(text, false, true).unwrap();
        let out = pieces(tokenizer, &ids, true);
        assert!(out.iter().any(String::is_empty), "no character was split over tokens: {out:?}");
        assert!(out.iter().all(|piece| !piece.contains(char::REPLACEMENT_CHARACTER)), "{out:?}");
        assert_eq!(out.concat(), text);
    }

    #[test]
    fn hopeless_bytes_are_replaced_at_once_and_unfinished_ones_at_the_end() {
        let tokenizer = tiny();
        let byte = |b: u8| (0..256).find(|&id| tokenizer.token_bytes(id) == Some(vec![b])).unwrap();
        assert_eq!(pieces(tokenizer, &[byte(0x80), byte(b'a')], true), ["\u{FFFD}", "a", ""]);
        assert_eq!(pieces(tokenizer, &[byte(0xF0), byte(0x9F), byte(b'a')], true), ["", "", "\u{FFFD}a", ""]);
        assert_eq!(pieces(tokenizer, &[byte(0xE4), byte(0xB8)], true), ["", "", "\u{FFFD}"]);
    }

    #[test]
    fn the_first_space_belongs_to_the_tokenizer_only_at_the_beginning() {
        let tokenizer = sentencepiece();
        let ids = tokenizer.encode("hi hi 😀", false, true).unwrap();
        assert_eq!(pieces(&tokenizer, &ids, true).concat(), "hi hi 😀");
        let mut after = Detokenizer::continuing(&tokenizer, true);
        assert_eq!(after.push(ids[0]), " hi");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn pieces_are_the_whole(ids in prop::collection::vec(0u32..4100, 0..60), skip: bool) {
            let tokenizer = tiny();
            prop_assert_eq!(pieces(tokenizer, &ids, skip).concat(), tokenizer.decode(&ids, skip));
        }

        #[test]
        fn random_bytes_too(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let tokenizer = tiny();
            let ids: Vec<u32> =
                bytes.iter().map(|&b| (0..256).find(|&id| tokenizer.token_bytes(id) == Some(vec![b])).unwrap()).collect();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            prop_assert_eq!(tokenizer.decode(&ids, true), text.clone());
            prop_assert_eq!(pieces(tokenizer, &ids, true).concat(), text);
        }
    }
}
