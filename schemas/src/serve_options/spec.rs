//! What is known about one option, and how its values are read.

use super::types::Shown;
use serde_json::{Map, Value};
use thiserror::Error;

/// One serve option: the single source of its recipe key, flag, documentation, default, range and validation.
#[derive(Debug)]
pub struct OptionSpec {
    /// The key in a recipe's `defaults`, in snake_case.
    pub key: &'static str,
    /// Further keys that mean the same, in snake_case: the portable aliases and the peers' spellings.
    pub aliases: &'static [&'static str],
    /// Heading in the documentation.
    pub group: &'static str,
    /// What values it takes.
    pub kind: OptionKind,
    /// Whether this build acts on it.
    pub status: Status,
    pub(super) doc_lines: &'static [&'static str],
    pub(super) default: fn() -> Value,
}

/// Whether this build acts on an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It does.
    Effective,
    /// The option is known and validated, but setting it changes nothing; say so when it is set.
    Accepted {
        /// Why not.
        why: &'static str,
    },
}

/// What values an option takes.
#[derive(Debug, Clone, Copy)]
pub enum OptionKind {
    /// A switch. On the command line: `--flag`, `--flag true`, `--no-flag`. With `tri_state`, absent (or `auto`) is
    /// different from both.
    Switch {
        /// Whether `auto` (leave it to the engine) is a value.
        tri_state: bool,
    },
    /// A whole number.
    Integer {
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
    },
    /// A number.
    Number {
        /// Smallest value.
        min: f64,
        /// Largest value.
        max: f64,
    },
    /// A text of at most 4096 bytes without control characters.
    Text,
    /// A text that is never shown.
    Secret,
    /// A path of the machine that serves.
    Path,
    /// One of a few names.
    Choice {
        /// The names.
        names: &'static [&'static str],
        /// Checks a value and returns its canonical spelling.
        canonical: fn(&str) -> Result<String, String>,
        /// What the bare flag (or `true`) means, if it may stand alone.
        bare: Option<&'static str>,
    },
    /// A text with its own small grammar.
    Pattern {
        /// The grammar, for people.
        shape: &'static str,
        /// The grammar, as an ECMA regular expression.
        regex: &'static str,
        /// Checks a value and returns its canonical spelling.
        canonical: fn(&str) -> Result<String, String>,
    },
    /// A mapping; on the command line a JSON object.
    Object,
}

/// Why a value is not one of an option's values.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{key}: {cause}")]
pub struct OptionError {
    /// The option's key.
    pub key: &'static str,
    /// What is wrong with the value. Never holds a secret.
    pub cause: String,
}

/// A value that was understood.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// In canonical form, of the JSON type that the schema promises.
    pub value: Value,
    /// Set when it was written in a form that peers use and ours do not; says how to write it.
    pub legacy: Option<String>,
}

impl Checked {
    fn plain(value: impl Into<Value>) -> Self {
        Self { value: value.into(), legacy: None }
    }

    fn legacy(value: impl Into<Value>, advice: impl Into<String>) -> Self {
        Self { value: value.into(), legacy: Some(advice.into()) }
    }
}

/// Longest text value, in bytes.
const MAX_TEXT: usize = 4096;

impl OptionSpec {
    /// The flag, with its dashes: `--max-seq-len`.
    pub fn flag(&self) -> String {
        flag_of(self.key)
    }

    /// Flags that mean the same, with their dashes.
    pub fn flag_aliases(&self) -> impl Iterator<Item = String> {
        self.aliases.iter().map(|alias| flag_of(alias))
    }

    /// The documentation as one paragraph.
    pub fn doc(&self) -> String {
        self.doc_lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
    }

    /// The default, `null` if the engine chooses.
    pub fn default_value(&self) -> Value {
        (self.default)()
    }

    /// Whether `name` is this option's key, an alias, or a flag (with or without dashes).
    pub fn is_named(&self, name: &str) -> bool {
        let name = name.trim_start_matches('-');
        std::iter::once(&self.key).chain(self.aliases).any(|known| same_name(known, name))
    }

    /// Whether the flag may stand without a value.
    pub fn is_bare(&self) -> bool {
        matches!(self.kind, OptionKind::Switch { .. } | OptionKind::Choice { bare: Some(_), .. })
    }

    /// Whether the value must never be shown.
    pub fn is_secret(&self) -> bool {
        matches!(self.kind, OptionKind::Secret)
    }

    /// The value as shown to people.
    pub fn show(&self, value: &Value) -> String {
        match value {
            _ if self.is_secret() && !value.is_null() => super::types::Secret::PLACEHOLDER.to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    /// Reads a value from the command line (`--flag TEXT`, `--set KEY=TEXT`).
    pub fn parse(&self, text: &str) -> Result<Value, OptionError> {
        let value = match self.kind {
            OptionKind::Switch { .. } => match text.to_ascii_lowercase().as_str() {
                "1" | "yes" => Value::Bool(true),
                "0" | "no" => Value::Bool(false),
                lower => Value::from(lower),
            },
            OptionKind::Number { .. } => text.parse::<f64>().map(Value::from).unwrap_or_else(|_| Value::from(text)),
            _ => Value::from(text),
        };
        self.check(&value).map(|checked| checked.value)
    }

    /// Checks a value from a recipe and brings it into canonical form.
    pub fn check(&self, value: &Value) -> Result<Checked, OptionError> {
        let checked = match self.kind {
            OptionKind::Switch { tri_state } => switch(value, tri_state),
            OptionKind::Integer { min, max } => integer(value, min, max),
            OptionKind::Number { min, max } => number(value, min, max),
            OptionKind::Text | OptionKind::Path => text(value).map(Checked::plain),
            OptionKind::Secret => secret(value),
            OptionKind::Choice { canonical, bare, .. } => choice(value, canonical, bare),
            OptionKind::Pattern { canonical, .. } => choice(value, canonical, None),
            OptionKind::Object => object(value),
        };
        checked.map_err(|cause| OptionError { key: self.key, cause })
    }

    /// The accepted values, for people: `1 to 64`, `fifo | slai`.
    pub fn values(&self) -> String {
        match self.kind {
            OptionKind::Switch { tri_state: true } => "true | false | auto".to_owned(),
            OptionKind::Switch { tri_state: false } => "true | false".to_owned(),
            OptionKind::Integer { min, max } if min == max => format!("{min}"),
            OptionKind::Integer { min, max } => format!("{min} to {max}"),
            OptionKind::Number { min, max } => format!("{min} to {max}"),
            OptionKind::Text => "text".to_owned(),
            OptionKind::Secret => "secret text".to_owned(),
            OptionKind::Path => "path".to_owned(),
            OptionKind::Choice { names, .. } => names.join(" | "),
            OptionKind::Pattern { shape, .. } => shape.to_owned(),
            OptionKind::Object => "mapping (JSON object)".to_owned(),
        }
    }
}

fn flag_of(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

fn same_name(key: &str, name: &str) -> bool {
    key.len() == name.len() && key.bytes().zip(name.bytes()).all(|(a, b)| a == b || (a == b'_' && b == b'-'))
}

fn switch(value: &Value, tri_state: bool) -> Result<Checked, String> {
    match value {
        Value::Bool(on) => Ok(Checked::plain(*on)),
        Value::String(text) => match (text.as_str(), tri_state) {
            ("true" | "on", _) => Ok(Checked::legacy(true, "write `true`")),
            ("false" | "off", _) => Ok(Checked::legacy(false, "write `false`")),
            ("auto", true) => Ok(Checked::plain(Value::Null)),
            _ => Err(format!("`{}` is not `true` or `false`", Shown(text))),
        },
        Value::Null if tri_state => Ok(Checked::plain(Value::Null)),
        other => Err(format!("{} is not `true` or `false`", describe(other))),
    }
}

fn integer(value: &Value, min: u64, max: u64) -> Result<Checked, String> {
    let out_of_range = |shown: &str| {
        if min == max {
            format!("{shown} is not supported; only {min} is")
        } else {
            format!("{shown} is not in {min} to {max}")
        }
    };
    let in_range =
        |number: u64| if (min..=max).contains(&number) { Ok(number) } else { Err(out_of_range(&number.to_string())) };
    match value {
        Value::Number(number) => match number.as_u64() {
            Some(number) => in_range(number).map(Checked::plain),
            None if number.is_i64() => Err(out_of_range(&number.to_string())),
            None => Err(format!("{number} is not a whole number")),
        },
        Value::String(text) => match text.parse::<u64>() {
            Ok(number) => in_range(number).map(|number| Checked::legacy(number, "write the number without quotes")),
            Err(_) if is_digits(text) => Err(out_of_range(&Shown(text).to_string())),
            Err(_) => Err(format!("`{}` is not a whole number", Shown(text))),
        },
        other => Err(format!("{} is not a whole number", describe(other))),
    }
}

fn is_digits(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn number(value: &Value, min: f64, max: f64) -> Result<Checked, String> {
    let (number, quoted) = match value {
        Value::Number(number) => (number.as_f64(), false),
        Value::String(text) => (text.parse::<f64>().ok(), true),
        other => return Err(format!("{} is not a number", describe(other))),
    };
    let Some(number) = number.filter(|number| number.is_finite()) else {
        return Err(format!("{} is not a number", describe(value)));
    };
    if !(min..=max).contains(&number) {
        return Err(format!("{number} is not in {min} to {max}"));
    }
    Ok(if quoted { Checked::legacy(number, "write the number without quotes") } else { Checked::plain(number) })
}

fn text(value: &Value) -> Result<String, String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        other => return Err(format!("{} is not a text", describe(other))),
    };
    if text.is_empty() {
        return Err("the text is empty".to_owned());
    }
    if text.len() > MAX_TEXT {
        return Err(format!("the text has {} bytes, the limit is {MAX_TEXT}", text.len()));
    }
    if text.chars().any(char::is_control) {
        return Err("the text holds a control character".to_owned());
    }
    Ok(text)
}

fn secret(value: &Value) -> Result<Checked, String> {
    // The causes of `text` are free of the text itself.
    if !value.is_string() {
        return Err("a secret must be a text; quote it".to_owned());
    }
    if value == super::types::Secret::PLACEHOLDER {
        return Err(super::types::PLACEHOLDER_READ.to_owned());
    }
    text(value).map(Checked::plain)
}

fn choice(
    value: &Value,
    canonical: fn(&str) -> Result<String, String>,
    bare: Option<&'static str>,
) -> Result<Checked, String> {
    match (value, bare) {
        (Value::String(text), _) => canonical(text).map(Checked::plain),
        (Value::Bool(true), Some(bare)) => Ok(Checked::plain(bare)),
        (Value::Bool(_), Some(_)) => canonical("false").map(Checked::plain),
        (Value::Number(number), _) => canonical(&number.to_string()).map(Checked::plain),
        (other, _) => canonical(&describe(other)).map(Checked::plain),
    }
}

fn object(value: &Value) -> Result<Checked, String> {
    match value {
        Value::Object(_) => Ok(Checked::plain(value.clone())),
        Value::String(text) if text.len() <= 64 * 1024 => {
            let map: Map<String, Value> =
                serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))?;
            Ok(Checked::plain(map))
        }
        Value::String(_) => Err("the JSON text is longer than 64 KiB".to_owned()),
        other => Err(format!("{} is not a mapping", describe(other))),
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "nothing (null)".to_owned(),
        Value::Bool(on) => format!("`{on}`"),
        Value::Number(number) => format!("{number}"),
        Value::String(text) => format!("`{}`", Shown(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    }
}
