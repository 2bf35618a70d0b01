//! `tojson` as transformers defines it: Python's `json.dumps` without escaping other alphabets or HTML.

use super::super::control::is_mark;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// The deepest nesting that is written.
const MAX_DEPTH: usize = 130;
/// The widest indentation.
const MAX_INDENT: usize = 64;

/// The filter. A first positional argument is `ensure_ascii` when it is a boolean, else `indent`.
pub(super) fn tojson(state: &State, value: &Value, first: Option<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let mut ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let mut indent: Option<Value> = kwargs.get("indent")?;
    match first {
        Some(flag) if flag.kind() == ValueKind::Bool => ascii = ascii.or(Some(flag.is_true())),
        other => indent = indent.or(other),
    }
    let indent = match indent.filter(|v| !v.is_none() && !v.is_undefined()) {
        None => None,
        Some(width) => Some(width.as_usize().filter(|&n| n <= MAX_INDENT).ok_or_else(|| {
            Error::new(ErrorKind::InvalidOperation, format!("tojson: indent must be 0 to {MAX_INDENT}, not {width}"))
        })?),
    };
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let (item, key) = match separators.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }, ": "),
        Some([item, key]) => (item.as_str(), key.as_str()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators must be two strings")),
    };
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let format = Format { ascii: ascii.unwrap_or(false), indent, item, key, sort_keys };
    let mut writer = Writer { state, format, out: String::new(), paid: 0 };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Format<'a> {
    ascii: bool,
    indent: Option<usize>,
    item: &'a str,
    key: &'a str,
    sort_keys: bool,
}

struct Writer<'a, 'env, 'format> {
    state: &'a State<'a, 'env>,
    format: Format<'format>,
    out: String,
    /// Bytes of `out` that fuel was paid for.
    paid: usize,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        // Shared values can make a small input a huge output: pay while it grows.
        self.state.consume_fuel(1 + ((self.out.len() - self.paid) / 64) as u64)?;
        self.paid = self.out.len();
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: the value nests too deeply"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => write_string(&mut self.out, value.as_str().unwrap_or_default(), self.format.ascii),
            ValueKind::Seq | ValueKind::Iterable => {
                self.list('[', ']', value.try_iter()?.map(|v| (None, v)), depth)?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.format.sort_keys {
                    keys.sort_by_key(ToString::to_string);
                }
                let entries = keys.into_iter().map(|key| value.get_item(&key).map(|v| (Some(key), v)));
                let entries: Vec<_> = entries.collect::<Result<_, _>>()?;
                self.list('{', '}', entries.into_iter(), depth)?;
            }
            other => {
                let message = format!("tojson: {other} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(())
    }

    fn list(
        &mut self,
        open: char,
        close: char,
        items: impl Iterator<Item = (Option<Value>, Value)>,
        depth: usize,
    ) -> Result<(), Error> {
        self.out.push(open);
        let mut empty = true;
        for (key, item) in items {
            if !empty {
                self.out.push_str(self.format.item);
            }
            empty = false;
            self.new_line(depth + 1);
            if let Some(key) = key {
                self.key(&key)?;
                self.out.push_str(self.format.key);
            }
            self.value(&item, depth + 1)?;
        }
        if !empty {
            self.new_line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(width) = self.format.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', width * depth));
        }
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        let text = match key.kind() {
            ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
            ValueKind::None => "null".to_owned(),
            ValueKind::Bool => key.to_string().to_lowercase(),
            ValueKind::Number if key.is_integer() => key.to_string(),
            ValueKind::Number => float(f64::try_from(key.clone())?),
            other => {
                let message = format!("tojson: a {other} cannot be a key");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        };
        write_string(&mut self.out, &text, self.format.ascii);
        Ok(())
    }
}

fn write_string(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && c > '~' && !is_mark(c)) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Python's `repr` of a float: the shortest digits that read back, exponents from 1e16 and below 1e-4.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity".into() } else { "-Infinity".into() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = value.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_those_of_python() {
        let cases = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
            (123456789.125, "123456789.125"),
            (f64::INFINITY, "Infinity"),
            (f64::NAN, "NaN"),
        ];
        for (value, text) in cases {
            assert_eq!(float(value), text);
        }
    }
}
