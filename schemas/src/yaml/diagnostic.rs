//! One problem in a file: what, where, why, and what to do.

use super::{Source, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The file is not usable.
    Error,
    /// The file is usable; somebody should look at this.
    Warning,
}

/// A problem in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// File, as it was named.
    pub file: String,
    /// Line from 1; 0 if the problem has no place.
    pub line: usize,
    /// Column from 1, in characters; 0 if the problem has no place.
    pub column: usize,
    /// Column after the last character, on the same line.
    pub end_column: usize,
    /// The field, as in `defaults.max_seq_len`; empty if no field is concerned.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// What was probably meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub did_you_mean: Option<String>,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// The line of the file, or of a long line the part around the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snippet: Option<String>,
    /// Where in `snippet` the problem begins, from 1; 0 without a snippet.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub snippet_column: usize,
    #[serde(skip)]
    span: Span,
}

impl Diagnostic {
    /// A problem that makes the file unusable.
    pub fn error(file: &str, span: Span, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            file: file.to_owned(),
            line: span.line,
            column: span.column,
            end_column: span.column,
            field: String::new(),
            message: message.into(),
            did_you_mean: None,
            help: None,
            snippet: None,
            snippet_column: 0,
            span,
        }
    }

    /// A problem that somebody should look at.
    pub fn warning(file: &str, span: Span, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(file, span, message) }
    }

    /// Sets the field.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = field.into();
        self
    }

    /// Sets what was probably meant.
    #[must_use]
    pub fn did_you_mean(mut self, name: Option<impl Into<String>>) -> Self {
        self.did_you_mean = name.map(Into::into);
        self
    }

    /// Sets what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Takes the line of the file in.
    #[must_use]
    pub fn snippet_from(mut self, source: &Source<'_>) -> Self {
        if self.line == 0 {
            return self;
        }
        let Some(line) = source.text.lines().nth(self.line - 1) else { return self };
        let in_line = self.span.slice(source.text).lines().next().unwrap_or_default().trim_end();
        self.end_column = self.column + in_line.chars().count().max(1);
        let (part, column) = crop(line.trim_end(), self.column);
        self.snippet = Some(without_secret(&part));
        self.snippet_column = column;
        self
    }

    /// Whether the file is unusable.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// Longest part of a line that is taken, in characters.
const WIDTH: usize = 100;

/// The part of a line around a column, and the column in it. Control characters become spaces, so that a caret stands
/// under what it means.
fn crop(line: &str, column: usize) -> (String, usize) {
    let start = column.saturating_sub(1);
    // A line that fits is taken whole.
    let from = if line.len() <= WIDTH { 0 } else { start.saturating_sub(WIDTH / 3) };
    let mut rest = line.chars().skip(from);
    let mut part: String = rest.by_ref().take(WIDTH).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if rest.next().is_some() {
        part.push('…');
    }
    if from == 0 {
        return (part, start + 1);
    }
    part.insert(0, '…');
    (part, start - from + 2)
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// The line, with the value of anything that is called like a secret hidden.
fn without_secret(line: &str) -> String {
    const WORDS: [&str; 5] = ["api_key", "auth_token", "token", "secret", "password"];
    let Some((key, value)) = line.split_once(':') else { return line.to_owned() };
    let lower = key.to_ascii_lowercase().replace('-', "_");
    let names_a_secret = WORDS.iter().any(|word| lower.ends_with(word) || lower.ends_with(&format!("{word}\"")));
    if names_a_secret && !value.trim().is_empty() {
        return format!("{key}: {}", crate::serve_options::Secret::PLACEHOLDER);
    }
    line.to_owned()
}
