//! Checks one JSON value that arrives character by character.

/// The text is not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotJson;

/// The deepest nesting that is accepted.
const MAX_DEPTH: usize = 128;

/// Where a value stands after a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It goes on.
    More,
    /// It ended with this character.
    Done,
    /// It ended before this character (a number does not know its end).
    DoneBefore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
}

#[derive(Debug)]
enum Token {
    None,
    /// In a string: how many more characters belong to an escape; `None` right after a backslash.
    String {
        is_key: bool,
        escape: Option<u8>,
    },
    /// In `true`, `false` or `null`: the letters to come.
    Literal(&'static str),
    Number(String),
}

/// A validator for one value. Control characters inside strings, which models write, are let through; see
/// [`Self::in_string`].
#[derive(Debug)]
pub(super) struct JsonScanner {
    stack: Vec<char>,
    expect: Expect,
    token: Token,
}

impl JsonScanner {
    pub(super) fn new() -> Self {
        Self { stack: Vec::new(), expect: Expect::Value, token: Token::None }
    }

    /// Whether the next character is inside a string.
    pub(super) fn in_string(&self) -> bool {
        matches!(self.token, Token::String { .. })
    }

    pub(super) fn feed(&mut self, c: char) -> Result<Progress, NotJson> {
        match &mut self.token {
            Token::None => self.structure(c),
            Token::String { is_key, escape } => match (escape.as_mut(), c) {
                (Some(0), '"') => {
                    let is_key = *is_key;
                    self.token = Token::None;
                    if is_key {
                        self.expect = Expect::Colon;
                        return Ok(Progress::More);
                    }
                    Ok(self.value_ended())
                }
                (Some(0), '\\') => {
                    *escape = None;
                    Ok(Progress::More)
                }
                (Some(0), _) => Ok(Progress::More),
                (Some(digits), c) if c.is_ascii_hexdigit() => {
                    *digits -= 1;
                    Ok(Progress::More)
                }
                (None, 'u') => {
                    *escape = Some(4);
                    Ok(Progress::More)
                }
                (None, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => {
                    *escape = Some(0);
                    Ok(Progress::More)
                }
                _ => Err(NotJson),
            },
            Token::Literal(rest) => {
                *rest = rest.strip_prefix(c).ok_or(NotJson)?;
                if !rest.is_empty() {
                    return Ok(Progress::More);
                }
                self.token = Token::None;
                Ok(self.value_ended())
            }
            Token::Number(digits) => {
                if matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E') {
                    digits.push(c);
                    return Ok(Progress::More);
                }
                if !is_number(digits) {
                    return Err(NotJson);
                }
                self.token = Token::None;
                match self.value_ended() {
                    Progress::Done => Ok(Progress::DoneBefore),
                    _ => self.structure(c),
                }
            }
        }
    }

    /// A character between tokens.
    fn structure(&mut self, c: char) -> Result<Progress, NotJson> {
        match (self.expect, c) {
            (_, ' ' | '\t' | '\r' | '\n') => return Ok(Progress::More),
            (Expect::ValueOrEnd | Expect::CommaOrEnd, ']') => return self.close('['),
            (Expect::KeyOrEnd | Expect::CommaOrEnd, '}') => return self.close('{'),
            (Expect::Value | Expect::ValueOrEnd, _) => self.begin_value(c)?,
            (Expect::Key | Expect::KeyOrEnd, '"') => self.token = Token::String { is_key: true, escape: Some(0) },
            (Expect::Colon, ':') => self.expect = Expect::Value,
            (Expect::CommaOrEnd, ',') => {
                self.expect = if self.stack.last() == Some(&'{') { Expect::Key } else { Expect::Value };
            }
            _ => return Err(NotJson),
        }
        Ok(Progress::More)
    }

    fn begin_value(&mut self, c: char) -> Result<(), NotJson> {
        match c {
            '{' | '[' if self.stack.len() < MAX_DEPTH => {
                self.stack.push(c);
                self.expect = if c == '{' { Expect::KeyOrEnd } else { Expect::ValueOrEnd };
            }
            '"' => self.token = Token::String { is_key: false, escape: Some(0) },
            't' => self.token = Token::Literal("rue"),
            'f' => self.token = Token::Literal("alse"),
            'n' => self.token = Token::Literal("ull"),
            '-' | '0'..='9' => self.token = Token::Number(c.to_string()),
            _ => return Err(NotJson),
        }
        Ok(())
    }

    fn close(&mut self, open: char) -> Result<Progress, NotJson> {
        match self.stack.pop() {
            Some(top) if top == open => Ok(self.value_ended()),
            _ => Err(NotJson),
        }
    }

    fn value_ended(&mut self) -> Progress {
        self.expect = Expect::CommaOrEnd;
        if self.stack.is_empty() { Progress::Done } else { Progress::More }
    }
}

/// The number grammar of RFC 8259.
fn is_number(text: &str) -> bool {
    let digits = |s: &str| s.len() - s.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let text = text.strip_prefix('-').unwrap_or(text);
    let whole = digits(text);
    if whole == 0 || (whole > 1 && text.starts_with('0')) {
        return false;
    }
    let mut rest = &text[whole..];
    if let Some(fraction) = rest.strip_prefix('.') {
        let count = digits(fraction);
        if count == 0 {
            return false;
        }
        rest = &fraction[count..];
    }
    match rest.strip_prefix(['e', 'E']) {
        None => rest.is_empty(),
        Some(exponent) => {
            let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            !exponent.is_empty() && digits(exponent) == exponent.len()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Whether the scanner takes exactly this text (with a space after it, which ends numbers) as one value.
    fn accepts(text: &str) -> bool {
        let mut scanner = JsonScanner::new();
        let mut chars = text.chars().chain([' ']).enumerate();
        let end = chars.find_map(|(i, c)| match scanner.feed(c) {
            Ok(Progress::More) => None,
            Ok(Progress::Done) => Some(Ok(i + 1)),
            Ok(Progress::DoneBefore) => Some(Ok(i)),
            Err(NotJson) => Some(Err(NotJson)),
        });
        end == Some(Ok(text.trim_end().chars().count()))
    }

    #[test]
    fn nesting_is_bounded() {
        assert!(accepts(&("[".repeat(128) + &"]".repeat(128))));
        assert!(!accepts(&("[".repeat(129) + &"]".repeat(129))));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn agrees_with_serde_json(text in r#"([{}\[\]:, ]|"(a|\\n|\\u00e9|\\x|\\)?"|-?[0-9]{1,2}|\.5|[eE]\+?1|true|false|null|nul|é){0,8}"#) {
            let expected = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
            prop_assert_eq!(accepts(&text), expected, "{}", text);
        }
    }
}
