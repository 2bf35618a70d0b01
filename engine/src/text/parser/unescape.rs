//! Decodes a JSON string that arrives character by character.

use super::json::NotJson;

#[derive(Debug, Clone, Copy)]
enum Escape {
    None,
    Backslash,
    Unicode { digits: u8, unit: u16 },
}

/// A decoder for what stands between the quotes. Lone surrogates become U+FFFD; raw control characters are kept.
#[derive(Debug)]
pub(super) struct Unescape {
    escape: Escape,
    high: Option<u16>,
}

impl Unescape {
    pub(super) fn new() -> Self {
        Self { escape: Escape::None, high: None }
    }

    /// Takes a character and appends what is decoded to `out`; true when it is the closing quote.
    pub(super) fn feed(&mut self, c: char, out: &mut String) -> Result<bool, NotJson> {
        match self.escape {
            Escape::None if c == '\\' => self.escape = Escape::Backslash,
            Escape::None => {
                self.flush(out);
                if c == '"' {
                    return Ok(true);
                }
                out.push(c);
            }
            Escape::Backslash if c == 'u' => self.escape = Escape::Unicode { digits: 0, unit: 0 },
            Escape::Backslash => {
                self.escape = Escape::None;
                self.flush(out);
                out.push(match c {
                    '"' | '\\' | '/' => c,
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    _ => return Err(NotJson),
                });
            }
            Escape::Unicode { digits, unit } => {
                let digit = c.to_digit(16).ok_or(NotJson)? as u16;
                let unit = unit << 4 | digit;
                self.escape = Escape::Unicode { digits: digits + 1, unit };
                if digits == 3 {
                    self.escape = Escape::None;
                    self.unit(unit, out);
                }
            }
        }
        Ok(false)
    }

    fn unit(&mut self, unit: u16, out: &mut String) {
        if (0xD800..0xDC00).contains(&unit) {
            self.flush(out);
            self.high = Some(unit);
            return;
        }
        if !(0xDC00..0xE000).contains(&unit) {
            self.flush(out);
        }
        let units = self.high.take().into_iter().chain([unit]);
        out.extend(char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)));
    }

    /// A high surrogate that nothing completes any more.
    fn flush(&mut self, out: &mut String) {
        if self.high.take().is_some() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &str) -> Option<String> {
        let (mut decoder, mut out) = (Unescape::new(), String::new());
        for c in text.chars() {
            if decoder.feed(c, &mut out).ok()? {
                return Some(out);
            }
        }
        None
    }

    #[test]
    fn every_escape() {
        for text in [r#"a\"b\\c\/d\b\f\n\r\t\u00e9é""#, r#"\ud83d\ude00""#, r#"""#, r#"\u0041\uFFFF""#] {
            let expected: String = serde_json::from_str(&format!("\"{text}")).unwrap();
            assert_eq!(decode(text), Some(expected), "{text}");
        }
        assert_eq!(decode(r#"\ud83dx\ude00\ud83d\ud83d\ude00\ud83d""#).unwrap(), "\u{FFFD}x\u{FFFD}\u{FFFD}😀\u{FFFD}");
        assert_eq!(decode(r#"\ud83d\n\ud83dA""#).unwrap(), "\u{FFFD}\n\u{FFFD}A");
        for broken in [r#"\x""#, r#"\u12g4""#, r#"\u123"#, "open"] {
            assert_eq!(decode(broken), None, "{broken}");
        }
    }
}
