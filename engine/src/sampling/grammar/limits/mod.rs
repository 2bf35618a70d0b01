//! What a grammar may be at most. The library's own limits are stated too, so that none is implicit.
//!
//! Its fuel bounds most work, but not all: the time and memory of a long concatenation of optional parts grow with
//! the square of its length, and those of `multipleOf` with its value. So these are bounded before.

mod lark;
mod schema;

use super::{Grammar, GrammarError};
use llguidance::api::ParserLimits;

/// Bytes of a grammar's text, its schemas included.
const MAX_BYTES: usize = 1 << 20;
/// Bytes of a Lark grammar.
const MAX_LARK_BYTES: usize = 32 << 10;
/// Bytes of regular expressions, in one and in all of a grammar.
const MAX_REGEX_BYTES: usize = 8 << 10;
const MAX_REGEXES_BYTES: usize = 32 << 10;
/// Texts of a choice, which is one row of the parser.
const MAX_CHOICES: usize = 1024;
/// Open brackets inside each other in a regular expression or Lark grammar.
const MAX_NESTING: usize = 100;
/// Bytes of a compiled grammar's tables, which every output copies.
pub(super) const MAX_TABLE_BYTES: usize = 16 << 20;

/// Bounds on time and memory: a grammar compiles in some hundred milliseconds at most, a mask takes some ten.
pub(super) fn parser_limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2500,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 50_000,
        max_grammar_size: 250_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

/// What the parts of one grammar have used up together.
#[derive(Debug, Default)]
pub(super) struct Budget {
    regex_bytes: usize,
    multiples: schema::Multiples,
}

impl Budget {
    /// Refuses what is too large or too deep before any work is spent on it.
    pub(super) fn check(&mut self, grammar: &Grammar) -> Result<(), GrammarError> {
        match grammar {
            Grammar::JsonSchema { schema, .. } => schema::check(schema, self),
            Grammar::Regex(regex) => {
                check_text(regex, MAX_REGEX_BYTES)?;
                self.regex(regex.len())
            }
            Grammar::Lark(text) => {
                check_text(text, MAX_LARK_BYTES)?;
                lark::check(text, self)
            }
            Grammar::Choice(texts) => match texts.iter().any(String::is_empty) {
                true => Err(invalid("a text to choose is empty")),
                false if (1..=MAX_CHOICES).contains(&texts.len()) => Ok(()),
                false => Err(invalid(format!("a choice has 1 to {MAX_CHOICES} texts, not {}", texts.len()))),
            },
        }
    }

    /// Takes a regular expression of so many bytes into account.
    fn regex(&mut self, bytes: usize) -> Result<(), GrammarError> {
        self.regex_bytes = self.regex_bytes.saturating_add(bytes);
        match bytes > MAX_REGEX_BYTES || self.regex_bytes > MAX_REGEXES_BYTES {
            true => Err(invalid(format!(
                "its regular expressions are too long: one may have {MAX_REGEX_BYTES} bytes, all {MAX_REGEXES_BYTES}, \
                 with all that they refer to"
            ))),
            false => Ok(()),
        }
    }
}

/// Refuses a grammar whose text is too long.
pub(super) fn check_bytes(bytes: usize) -> Result<(), GrammarError> {
    match bytes > MAX_BYTES {
        true => Err(invalid(format!("the grammar has {bytes} bytes; at most {MAX_BYTES} are compiled"))),
        false => Ok(()),
    }
}

fn check_text(text: &str, most: usize) -> Result<(), GrammarError> {
    if text.trim().is_empty() {
        return Err(invalid("the grammar is empty"));
    }
    if text.len() > most {
        return Err(invalid(format!("it has {} bytes; at most {most} are compiled", text.len())));
    }
    if nesting(text) > MAX_NESTING {
        return Err(invalid(format!("brackets are nested more than {MAX_NESTING} deep")));
    }
    Ok(())
}

fn invalid(message: impl Into<String>) -> GrammarError {
    GrammarError::Invalid(message.into())
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

    #[test]
    fn size_and_depth_are_bounded() {
        let refused = |grammar: Grammar| Budget::default().check(&grammar).unwrap_err().to_string();
        assert!(refused(Grammar::Regex("(".repeat(4000))).contains("nested"));
        assert!(
            refused(Grammar::Lark(format!("start: {}\"a\"{}", "(".repeat(200), ")".repeat(200)))).contains("nested")
        );
        assert!(refused(Grammar::Regex("a".repeat(MAX_REGEX_BYTES + 1))).contains("8193 bytes"));
        assert!(refused(Grammar::Lark("a".repeat(MAX_LARK_BYTES + 1))).contains("bytes"));
        assert!(refused(Grammar::Lark(" \n".into())).contains("empty"));
        assert!(refused(Grammar::Choice(vec![])).contains("1 to"));
        assert!(refused(Grammar::Choice(vec!["a".into(); MAX_CHOICES + 1])).contains("1 to"));
        assert!(refused(Grammar::Choice(vec![String::new()])).contains("empty"));
        assert_eq!(Budget::default().check(&Grammar::Regex("(a|b)[cd]{2}".into())), Ok(()));
        let mut budget = Budget::default();
        let long = Grammar::Regex("a".repeat(MAX_REGEX_BYTES));
        assert!((0..4).all(|_| budget.check(&long).is_ok()));
        assert!(budget.check(&long).unwrap_err().to_string().contains("too long"));
    }
}
