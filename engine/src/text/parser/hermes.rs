//! One Hermes call, character by character: `{"name": …, "arguments": {…}}`.
//!
//! Keys may come in any order; `parameters` is accepted for `arguments`; arguments may be an object, the same written
//! as a string, null or absent. The arguments' own text is passed on as it comes, apart from control characters
//! inside strings, which are escaped.

use super::json::{JsonScanner, NotJson, Progress};
use super::unescape::Unescape;

/// What a character brought about, besides perhaps more arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Event {
    /// The call is certain: its name is known and its arguments have begun, or it has none.
    pub(super) starts: bool,
    /// The call's object is closed.
    pub(super) ends: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    Other,
}

#[derive(Debug)]
enum Phase {
    /// Before the opening brace.
    Open,
    /// Before a key; the object may also close if it is empty.
    Key {
        first: bool,
    },
    InKey(Unescape, String),
    Colon(Field),
    Value(Field),
    Name(Unescape, String),
    Arguments,
    ArgumentsText(Unescape),
    /// In a value that does not matter.
    Skip(JsonScanner),
    /// After a value.
    Comma,
    Closed,
}

/// The state of one call.
#[derive(Debug)]
pub(super) struct HermesCall {
    phase: Phase,
    /// All of the block, opener included, until the call starts: it may still turn out to be text.
    raw: String,
    name: Option<String>,
    arguments: Option<Arguments>,
    started: bool,
}

/// The arguments object on its way through.
#[derive(Debug)]
struct Arguments {
    scanner: JsonScanner,
    complete: bool,
    /// Text not yet taken.
    out: String,
}

impl Arguments {
    fn feed(&mut self, c: char) -> Result<(), NotJson> {
        if self.complete {
            return if c.is_ascii_whitespace() { Ok(()) } else { Err(NotJson) };
        }
        let in_string = self.scanner.in_string();
        self.complete = self.scanner.feed(c)? == Progress::Done;
        match c {
            '\n' if in_string => self.out.push_str("\\n"),
            '\t' if in_string => self.out.push_str("\\t"),
            c if in_string && c < ' ' => self.out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => self.out.push(c),
        }
        Ok(())
    }
}

impl HermesCall {
    /// A call whose opener was `opener`.
    pub(super) fn new(opener: &str) -> Self {
        Self { phase: Phase::Open, raw: opener.to_owned(), name: None, arguments: None, started: false }
    }

    /// Whether [`Event::starts`] was reported.
    pub(super) fn has_started(&self) -> bool {
        self.started
    }

    /// The function's name, once the call has started.
    pub(super) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Arguments that came since the last time.
    pub(super) fn take_arguments(&mut self) -> String {
        self.arguments.as_mut().map(|a| std::mem::take(&mut a.out)).unwrap_or_default()
    }

    /// The block as text, for a call that has not started.
    pub(super) fn into_text(self) -> String {
        self.raw
    }

    /// Takes a character. After an error the character was not used and the call is over.
    pub(super) fn feed(&mut self, c: char) -> Result<Event, NotJson> {
        let space = matches!(c, ' ' | '\t' | '\r' | '\n');
        let phase = std::mem::replace(&mut self.phase, Phase::Closed);
        self.phase = match phase {
            between @ (Phase::Open | Phase::Key { .. } | Phase::Colon(_) | Phase::Value(_) | Phase::Comma) if space => {
                between
            }
            Phase::Open if c == '{' => Phase::Key { first: true },
            Phase::Key { .. } if c == '"' => Phase::InKey(Unescape::new(), String::new()),
            Phase::Key { first: true } | Phase::Comma if c == '}' => return self.close(),
            Phase::InKey(mut decoder, mut key) => match decoder.feed(c, &mut key)? {
                false => Phase::InKey(decoder, key),
                true => Phase::Colon(self.field(&key)?),
            },
            Phase::Colon(field) if c == ':' => Phase::Value(field),
            Phase::Value(field) => self.begin_value(field, c)?,
            Phase::Name(mut decoder, mut name) => match decoder.feed(c, &mut name)? {
                false => Phase::Name(decoder, name),
                true if name.is_empty() => return Err(NotJson),
                true => {
                    self.name = Some(name);
                    Phase::Comma
                }
            },
            Phase::Arguments => {
                let arguments = self.arguments.as_mut().ok_or(NotJson)?;
                arguments.feed(c)?;
                if arguments.complete { Phase::Comma } else { Phase::Arguments }
            }
            Phase::ArgumentsText(mut decoder) => match self.feed_text(&mut decoder, c)? {
                false => Phase::ArgumentsText(decoder),
                true => Phase::Comma,
            },
            Phase::Skip(mut scanner) => match scanner.feed(c)? {
                Progress::More => Phase::Skip(scanner),
                Progress::Done => Phase::Comma,
                Progress::DoneBefore => {
                    self.phase = Phase::Comma;
                    return self.feed(c);
                }
            },
            Phase::Comma if c == ',' => Phase::Key { first: false },
            _ => return Err(NotJson),
        };
        if self.started {
            return Ok(Event::default());
        }
        self.raw.push(c);
        let begun = self.arguments.as_ref().is_some_and(|a| !a.out.is_empty());
        Ok(Event { starts: begun && self.name.is_some() && self.start(), ends: false })
    }

    /// True the first time.
    fn start(&mut self) -> bool {
        self.raw = String::new();
        !std::mem::replace(&mut self.started, true)
    }

    fn field(&self, key: &str) -> Result<Field, NotJson> {
        match key {
            "name" if self.name.is_none() => Ok(Field::Name),
            "arguments" | "parameters" if self.arguments.is_none() => Ok(Field::Arguments),
            // A second name or second arguments: which ones are meant?
            "name" | "arguments" | "parameters" => Err(NotJson),
            _ => Ok(Field::Other),
        }
    }

    fn begin_value(&mut self, field: Field, c: char) -> Result<Phase, NotJson> {
        let arguments = || Some(Arguments { scanner: JsonScanner::new(), complete: false, out: String::new() });
        match (field, c) {
            (Field::Name, '"') => Ok(Phase::Name(Unescape::new(), String::new())),
            (Field::Arguments, '{') => {
                self.arguments = arguments();
                if let Some(arguments) = &mut self.arguments {
                    arguments.feed(c)?;
                }
                Ok(Phase::Arguments)
            }
            (Field::Arguments, '"') => {
                self.arguments = arguments();
                Ok(Phase::ArgumentsText(Unescape::new()))
            }
            (Field::Arguments, 'n') | (Field::Other, _) => {
                let mut scanner = JsonScanner::new();
                scanner.feed(c)?;
                Ok(Phase::Skip(scanner))
            }
            _ => Err(NotJson),
        }
    }

    /// Arguments inside a string: what is decoded must be an object. True at the closing quote.
    fn feed_text(&mut self, decoder: &mut Unescape, c: char) -> Result<bool, NotJson> {
        let arguments = self.arguments.as_mut().ok_or(NotJson)?;
        let mut decoded = String::new();
        let closed = decoder.feed(c, &mut decoded)?;
        for c in decoded.chars() {
            let first = arguments.out.is_empty() && !self.started;
            if first && c.is_ascii_whitespace() {
                continue;
            }
            if first && c != '{' {
                return Err(NotJson);
            }
            arguments.feed(c)?;
        }
        if closed && !arguments.complete {
            // An empty string means no arguments; anything else was cut off.
            if self.started || !arguments.out.is_empty() {
                return Err(NotJson);
            }
            self.arguments = None;
        }
        Ok(closed)
    }

    /// The call's closing brace.
    fn close(&mut self) -> Result<Event, NotJson> {
        if self.name.is_none() {
            return Err(NotJson);
        }
        if self.arguments.is_none() {
            self.arguments = Some(Arguments { scanner: JsonScanner::new(), complete: true, out: "{}".into() });
        }
        Ok(Event { starts: self.start(), ends: true })
    }
}
