//! What a grammar may be at most. The library's own limits are stated too, so that none is implicit.

use super::{Grammar, GrammarError};
use llguidance::api::ParserLimits;
use serde_json::Value;

/// Bytes of a grammar's text, its schemas included.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// Texts of a choice.
const MAX_CHOICES: usize = 4096;
/// Open brackets inside each other in a regular expression or Lark grammar.
const MAX_NESTING: usize = 100;
/// Objects and arrays inside each other in a schema.
const MAX_DEPTH: usize = 100;

/// Bounds on time and memory: a grammar compiles in some hundred milliseconds at most, a mask takes some ten.
pub(super) fn parser_limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 50_000,
        max_grammar_size: 250_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

/// Refuses what is too large or too deep before any work is spent on it.
pub(super) fn check(grammar: &Grammar) -> Result<(), GrammarError> {
    let invalid = |message: String| Err(GrammarError::Invalid(message));
    match grammar {
        Grammar::JsonSchema { schema, .. } => {
            let depth = depth(schema, 0);
            if depth > MAX_DEPTH {
                return invalid(format!("the schema is nested more than {MAX_DEPTH} deep"));
            }
        }
        Grammar::Regex(text) | Grammar::Lark(text) => {
            if text.trim().is_empty() {
                return invalid("the grammar is empty".into());
            }
            check_bytes(text.len())?;
            if nesting(text) > MAX_NESTING {
                return invalid(format!("brackets are nested more than {MAX_NESTING} deep"));
            }
        }
        Grammar::Choice(texts) => {
            if texts.is_empty() || texts.len() > MAX_CHOICES {
                return invalid(format!("a choice has 1 to {MAX_CHOICES} texts, not {}", texts.len()));
            }
            if texts.iter().any(String::is_empty) {
                return invalid("a text to choose is empty".into());
            }
        }
    }
    Ok(())
}

/// Refuses a grammar whose text is too long.
pub(super) fn check_bytes(bytes: usize) -> Result<(), GrammarError> {
    match bytes > MAX_BYTES {
        true => Err(GrammarError::Invalid(format!("the grammar has {bytes} bytes; at most {MAX_BYTES} are compiled"))),
        false => Ok(()),
    }
}

fn depth(value: &Value, above: usize) -> usize {
    if above > MAX_DEPTH {
        return above;
    }
    match value {
        Value::Array(items) => items.iter().map(|item| depth(item, above + 1)).max().unwrap_or(above + 1),
        Value::Object(fields) => fields.values().map(|field| depth(field, above + 1)).max().unwrap_or(above + 1),
        _ => above,
    }
}

/// The most brackets that are open at once. Those in literals count too: a harmless grammar has few.
fn nesting(text: &str) -> usize {
    let (mut open, mut most) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => {
                open += 1;
                most = most.max(open);
            }
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn size_and_depth_are_bounded() {
        let refused = |grammar: Grammar| check(&grammar).unwrap_err().to_string();
        assert!(refused(Grammar::Regex("(".repeat(60_000))).contains("nested"));
        assert!(refused(Grammar::Lark(format!("start: {}\"a\"{}", "(".repeat(200), ")".repeat(200)))).contains("nested"));
        assert!(refused(Grammar::Regex("a".repeat(MAX_BYTES + 1))).contains("bytes"));
        assert!(refused(Grammar::Lark(" \n".into())).contains("empty"));
        assert!(refused(Grammar::Choice(vec![])).contains("1 to"));
        assert!(refused(Grammar::Choice(vec![String::new()])).contains("empty"));
        let deep = (0..101).fold(json!({}), |inner, _| json!({ "items": inner }));
        assert!(refused(Grammar::JsonSchema { schema: deep, strict: false }).contains("deep"));
        let fine = (0..98).fold(json!({}), |inner, _| json!({ "items": inner }));
        assert_eq!(check(&Grammar::JsonSchema { schema: fine, strict: true }), Ok(()));
        assert_eq!(check(&Grammar::Regex("(a|b)[cd]{2}".into())), Ok(()));
    }
}
