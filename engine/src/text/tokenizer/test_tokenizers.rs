//! Tokenizers for tests of the whole crate.

use super::Tokenizer;
use serde_json::json;
use std::path::PathBuf;
use std::sync::LazyLock;

/// The folder with the text files of the embedded model.
pub(crate) fn tiny_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/atlas-tiny")
}

/// The tokenizer of the embedded model: byte-level BPE, 4096 entries.
pub(crate) fn tiny() -> &'static Tokenizer {
    static TINY: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::from_dir(&tiny_dir()).expect("fixture"));
    &TINY
}

/// One token for each byte, and the special tokens `<eos>` (256), `<think>` (257), `</think>` (258), `<tool_call>`
/// (259) and `</tool_call>` (260).
pub(crate) fn bytes() -> Tokenizer {
    let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
    let mut letters: Vec<char> = alphabet.into_iter().collect();
    letters.sort_unstable();
    let vocab: serde_json::Map<_, _> = letters.iter().enumerate().map(|(id, c)| (c.to_string(), id.into())).collect();
    let specials = ["<eos>", "<think>", "</think>", "<tool_call>", "</tool_call>"];
    let added = |(index, content): (usize, &&str)| {
        json!({"id": 256 + index, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": specials.iter().enumerate().map(added).collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": []}
    });
    let config = br#"{"eos_token": "<eos>"}"#;
    Tokenizer::from_bytes(json.to_string().as_bytes(), Some(config)).expect("test tokenizer")
}

/// A SentencePiece-like tokenizer with byte fallback, a beginning-of-sequence token, a run of spaces as an ordinary
/// added token, and a control token that is also a mergeable piece.
pub(crate) fn sentencepiece() -> Tokenizer {
    let mut vocab = serde_json::Map::new();
    for special in ["<unk>", "<s>", "</s>"] {
        vocab.insert(special.into(), vocab.len().into());
    }
    for byte in 0..=255u8 {
        vocab.insert(format!("<0x{byte:02X}>"), vocab.len().into());
    }
    for piece in ["▁", "h", "i", "hi", "▁hi", "<", "s", ">", "s>"] {
        vocab.insert(piece.into(), vocab.len().into());
    }
    let spaces = vocab.len();
    let added = |id: usize, content: &str, special: bool| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": special})
    };
    let json = json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true),
                         added(spaces, "   ", false)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
                  "vocab": vocab, "merges": [["h", "i"], ["▁", "hi"], ["s", ">"], ["<", "s>"]]}
    });
    let config = br#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}}"#;
    Tokenizer::from_bytes(json.to_string().as_bytes(), Some(config)).expect("test tokenizer")
}
