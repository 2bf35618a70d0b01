//! Bounds of Lark grammars: how long their terminals are when all that they refer to is put in.
//!
//! A terminal is one regular expression. Twenty that each name the next one twice make one of a million parts.

use super::super::GrammarError;
use super::{Budget, invalid, schema};
use serde_json::Value;
use std::collections::HashMap;

/// Terminals that refer to terminals, and so on.
const MAX_CHAIN: usize = 64;

/// A terminal or rule: the bytes of its own literals, and the terminals it names.
#[derive(Debug, Default)]
struct Definition<'a> {
    bytes: usize,
    names: Vec<&'a str>,
}

/// Checks a grammar and takes its terminals and schemas into account.
pub(super) fn check(text: &str, budget: &mut Budget) -> Result<(), GrammarError> {
    let definitions = scan(text, budget)?;
    let mut lengths = HashMap::new();
    let mut names: Vec<&&str> = definitions.keys().collect();
    names.sort_unstable();
    for name in names {
        let length = length(name, &definitions, &mut lengths, 0)?;
        if is_terminal(name) {
            budget.regex(length)?;
        }
    }
    Ok(())
}

fn length<'a>(
    name: &'a str,
    definitions: &HashMap<&'a str, Definition<'a>>,
    known: &mut HashMap<&'a str, usize>,
    chain: usize,
) -> Result<usize, GrammarError> {
    if let Some(length) = known.get(name) {
        return Ok(*length);
    }
    if chain > MAX_CHAIN {
        return Err(invalid(format!("terminal {name} refers to itself, or through more than {MAX_CHAIN} others")));
    }
    let Some(definition) = definitions.get(name) else { return Ok(1) };
    let mut sum = definition.bytes;
    for name in &definition.names {
        sum = sum.saturating_add(length(name, definitions, known, chain + 1)?);
    }
    known.insert(name, sum);
    Ok(sum)
}

fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(|c: char| c.is_ascii_uppercase())
}

/// Reads the definitions, roughly: what is no Lark is left to the library to refuse.
fn scan<'a>(text: &'a str, budget: &mut Budget) -> Result<HashMap<&'a str, Definition<'a>>, GrammarError> {
    let mut definitions: HashMap<&str, Definition<'_>> = HashMap::new();
    let mut current = "";
    // The latest name outside brackets: what a colon after it defines.
    let mut latest = "";
    let mut brackets = 0usize;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let used = match first {
            '"' => literal(rest, '"'),
            '/' if !rest.starts_with("//") => literal(rest, '/'),
            '/' | '#' => rest.find('\n').unwrap_or(rest.len()),
            '<' => rest.find(['>', ' ', '\t', '\n']).map_or(rest.len(), |end| end + 1),
            '%' => directive(rest, budget)?,
            '@' => 1 + name(&rest[1..]),
            _ => name(rest).max(first.len_utf8()),
        };
        let token = &rest[..used];
        rest = &rest[used..];
        match first {
            '"' | '/' if !token.starts_with("//") => definitions.entry(current).or_default().bytes += used,
            '[' | '{' => brackets += 1,
            ']' | '}' => brackets = brackets.saturating_sub(1),
            ':' => {
                if let Some(definition) = definitions.get_mut(current).filter(|d| d.names.last() == Some(&latest)) {
                    definition.names.pop();
                }
                current = latest;
                definitions.entry(current).or_default();
            }
            _ if first.is_ascii_alphabetic() || first == '_' => {
                if brackets == 0 {
                    latest = token;
                }
                if is_terminal(token) {
                    definitions.entry(current).or_default().names.push(token);
                }
            }
            _ => {}
        }
    }
    Ok(definitions)
}

/// Bytes of a literal that opens and closes with `quote`; at least one.
fn literal(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Bytes of a name at the beginning of the text.
fn name(text: &str) -> usize {
    text.bytes().take_while(|b| b.is_ascii_alphanumeric() || b"_-".contains(b)).count()
}

/// Bytes of `%json {…}`, whose schema is checked, or of another directive's name.
fn directive(text: &str, budget: &mut Budget) -> Result<usize, GrammarError> {
    let end = 1 + name(&text[1..]);
    if &text[..end] != "%json" {
        return Ok(end);
    }
    let mut values = serde_json::Deserializer::from_str(&text[end..]).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => {
            schema::check(&value, budget)?;
            Ok(end + values.byte_offset())
        }
        Some(Err(error)) => Err(invalid(format!("%json: {error}"))),
        None => Ok(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), GrammarError> {
        super::check(text, &mut Budget::default())
    }

    #[test]
    fn terminals_are_measured_with_what_they_refer_to() {
        let sizes = |text: &str| -> Vec<(String, usize, usize)> {
            let mut sizes: Vec<_> = scan(text, &mut Budget::default())
                .unwrap()
                .iter()
                .map(|(name, d)| ((*name).to_owned(), d.bytes, d.names.len()))
                .collect();
            sizes.sort();
            sizes
        };
        let text =
            "start: expr // a comment: X\nexpr[lazy]: (A | B)+ \"A\"\nA.2: B B /a\\/:b/ # C: D\n\n_B: \"\\\":\"\n";
        let expected = [("A", 7, 2), ("_B", 5, 0), ("expr", 3, 2), ("start", 0, 0)];
        assert_eq!(sizes(text), expected.map(|(name, bytes, names)| (name.to_owned(), bytes, names)));
    }

    #[test]
    fn doubling_and_rings_are_refused() {
        let doubling = |levels: usize| {
            (0..levels).fold("start: T0".to_owned(), |text, i| format!("{text}\nT{i}: T{} T{}", i + 1, i + 1))
                + &format!("\nT{levels}: (\"x\" | \"yy\")?")
        };
        assert_eq!(check(&doubling(6)), Ok(()));
        for levels in [11, 20, 60] {
            assert!(check(&doubling(levels)).unwrap_err().to_string().contains("too long"), "{levels}");
        }
        assert!(check("start: A\nA: \"a\" B\nB: A").unwrap_err().to_string().contains("refers to itself"));
        // The same on one line, after a statement.
        assert!(check("start: A\n%llguidance {} A: B B B B").is_ok());
        assert!(check(&doubling(20).replace("start: T0\n", "start: T0\n%llguidance {} ")).is_err());
    }

    #[test]
    fn schemas_inside_are_checked() {
        assert_eq!(check("start: %json { \"type\": \"object\", \"A\": [\":\"] } \"x\""), Ok(()));
        assert!(check("start: %json { \"multipleOf\": 999983 }").unwrap_err().to_string().contains("multipleOf"));
        assert!(check("start: %json { \"multipleOf\"").unwrap_err().to_string().contains("%json"));
    }
}
