//! Grammars: which texts an output may be.
//!
//! A [`Grammar`] is what a request asks for, a [`CompiledGrammar`] what the [`GrammarCompiler`] of a tokenizer makes of
//! it, and a [`Constraint`] one output on its way through it. Parsing and masks are llguidance's; here are the
//! vocabulary it works on, the limits of what it is asked, the cache, and the threads on which masks are computed
//! while the model computes logits.

mod compiler;
mod constraint;
mod limits;
mod masks;
mod output;
mod vocabulary;

pub use compiler::{CompiledGrammar, GrammarCompiler};
pub use constraint::Constraint;
pub use output::{Calls, Content, OutputGrammar, Thinking, ToolSchema};

use serde_json::{Value, json};
use thiserror::Error;

/// What an output may be.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// A JSON value that this schema accepts.
    JsonSchema {
        /// The schema.
        schema: Value,
        /// Whether keywords that cannot be enforced are errors; otherwise they are ignored.
        strict: bool,
    },
    /// A text that this regular expression matches as a whole.
    Regex(String),
    /// A text of this grammar, in llguidance's dialect of Lark.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// Why there is no output of a grammar. The message is for the person who wrote the grammar.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GrammarError {
    /// The grammar is not one, or is too large or too deep.
    #[error("{0}")]
    Invalid(String),
    /// The output can go no further, or its grammar is too complex to go on with.
    #[error("the grammar cannot be followed: {0}")]
    Stuck(String),
}

impl GrammarError {
    /// With `label` before its message.
    fn labelled(self, label: &str) -> Self {
        match self {
            Self::Invalid(problem) => Self::Invalid(format!("{label}{problem}")),
            Self::Stuck(problem) => Self::Stuck(problem),
        }
    }

    /// The library's message without its state dump and back traces.
    fn text(error: impl std::fmt::Display) -> String {
        const LONGEST: usize = 400;
        let text = error.to_string();
        let text =
            ["\n<", "<non-verbose/>"].iter().fold(text.as_str(), |text, end| text.split(end).next().unwrap_or(text));
        let mut short: String = text.trim().chars().take(LONGEST).collect();
        if short.len() < text.trim().len() {
            short.push('…');
        }
        short
    }
}

/// A schema as the library takes it: JSON on one line, at most one space after a separator.
///
/// Free white space would let a weak model write spaces for ever.
fn json_source(schema: &Value, strict: bool) -> Value {
    let layout = json!({
        "item_separator": ", ?",
        "key_separator": ": ?",
        "whitespace_flexible": false,
        "lenient": !strict,
    });
    match schema {
        Value::Object(fields) => {
            let mut fields = fields.clone();
            fields.insert("x-guidance".into(), layout);
            Value::Object(fields)
        }
        // `true`, `false` and what is no schema have no place for options.
        other => json!({ "allOf": [other], "x-guidance": layout }),
    }
}

#[cfg(test)]
mod tests;
