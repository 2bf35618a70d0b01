//! From a vocabulary entry to the bytes it stands for.

use serde_json::Value;

/// How a tokenizer spells bytes in its vocabulary, read off its decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceStyle {
    /// GPT-2's alphabet: one printable character per byte.
    ByteLevel,
    /// SentencePiece: `▁` for a space, `<0xHH>` for a byte.
    SentencePiece { strips_first_space: bool },
    /// The entry is the text.
    Verbatim,
}

impl PieceStyle {
    /// Reads the `decoder` of a tokenizer.json.
    pub(super) fn of(decoder: &Value) -> Self {
        let list = match decoder["type"].as_str() {
            Some("Sequence") => decoder["decoders"].as_array().map(Vec::as_slice).unwrap_or_default(),
            _ => std::slice::from_ref(decoder),
        };
        let of_type = |name: &str| list.iter().find(|d| d["type"] == name);
        if of_type("ByteLevel").is_some() {
            return Self::ByteLevel;
        }
        if let Some(metaspace) = of_type("Metaspace") {
            let never = metaspace["prepend_scheme"] == "never" || metaspace["add_prefix_space"] == false;
            return Self::SentencePiece { strips_first_space: !never };
        }
        let strip = of_type("Strip").is_some_and(|d| d["content"] == " " && d["start"].as_u64() >= Some(1));
        let spaces = list.iter().any(|d| d["type"] == "Replace" && d["pattern"]["String"] == "▁");
        match spaces || of_type("ByteFallback").is_some() {
            true => Self::SentencePiece { strips_first_space: strip },
            false => Self::Verbatim,
        }
    }

    pub(super) fn strips_first_space(self) -> bool {
        self == Self::SentencePiece { strips_first_space: true }
    }

    /// The bytes of a vocabulary entry. `added` tokens are spelt as they are.
    pub(super) fn bytes(self, token: String, added: bool) -> Vec<u8> {
        match self {
            _ if added => token.into_bytes(),
            Self::Verbatim => token.into_bytes(),
            Self::ByteLevel => match token.chars().map(byte_of_char).collect::<Option<Vec<u8>>>() {
                Some(bytes) => bytes,
                None => token.into_bytes(),
            },
            Self::SentencePiece { .. } => match byte_of_fallback(&token) {
                Some(byte) => vec![byte],
                None => token.replace('▁', " ").into_bytes(),
            },
        }
    }
}

/// The byte behind a character of the byte-level alphabet: printable Latin-1 characters stand for themselves, the
/// other 68 bytes, in order, are U+0100 onwards.
fn byte_of_char(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

fn byte_of_fallback(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_byte_alphabet_is_a_bijection() {
        let alphabet = (0..=0x200).filter_map(char::from_u32).filter_map(|c| byte_of_char(c).map(|b| (b, c)));
        let bytes: std::collections::BTreeMap<u8, char> = alphabet.clone().collect();
        assert_eq!((bytes.len(), alphabet.count()), (256, 256));
        assert_eq!((bytes[&b' '], bytes[&b'\n'], bytes[&b'A']), ('Ġ', 'Ċ', 'A'));
    }

    #[test]
    fn styles_are_read_off_the_decoder() {
        let llama2 = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
        let style = PieceStyle::of(&llama2);
        assert_eq!(style, PieceStyle::SentencePiece { strips_first_space: true });
        assert_eq!(style.bytes("▁a▁b".into(), false), b" a b");
        assert_eq!(style.bytes("<0xF0>".into(), false), [0xF0]);
        assert_eq!(style.bytes("<0xZZ>".into(), false), b"<0xZZ>");
        assert_eq!(PieceStyle::of(&json!({"type": "ByteLevel"})), PieceStyle::ByteLevel);
        assert_eq!(PieceStyle::ByteLevel.bytes("Ġé".into(), false), [b' ', 0xE9]);
        assert_eq!(PieceStyle::ByteLevel.bytes("é".into(), true), "é".as_bytes());
        assert_eq!(PieceStyle::of(&Value::Null), PieceStyle::Verbatim);
        let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"});
        assert_eq!(PieceStyle::of(&metaspace), PieceStyle::SentencePiece { strips_first_space: false });
    }
}
