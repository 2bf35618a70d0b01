//! Reading typed values out of a tree, collecting every problem.

use crate::serve_options::shown;
use crate::suggest;
use crate::yaml::{Diagnostic, Entry, Node, NodeValue, Problems, Severity, Source, Span};
use serde_json::Value;

/// Longest text of an informational field, in bytes.
pub(super) const MAX_PROSE: usize = 16 * 1024;

/// Where problems are collected, and how they are judged.
pub(super) struct Reader<'a> {
    pub(super) source: Source<'a>,
    pub(super) strict: bool,
    pub(super) problems: Problems,
}

impl<'a> Reader<'a> {
    /// Adds a problem that makes the recipe unusable.
    pub(super) fn error(&mut self, span: Span, field: &str, message: impl Into<String>) -> Report<'_> {
        self.report(Severity::Error, span, field, message)
    }

    /// Adds a problem that is an error in our own recipes and a warning in foreign ones.
    pub(super) fn lenient(&mut self, span: Span, field: &str, message: impl Into<String>) -> Report<'_> {
        let severity = if self.strict { Severity::Error } else { Severity::Warning };
        self.report(severity, span, field, message)
    }

    /// Adds a remark.
    pub(super) fn warning(&mut self, span: Span, field: &str, message: impl Into<String>) -> Report<'_> {
        self.report(Severity::Warning, span, field, message)
    }

    fn report(&mut self, severity: Severity, span: Span, field: &str, message: impl Into<String>) -> Report<'_> {
        let source = self.source;
        Report(
            self.problems
                .add(severity, || Diagnostic::error(source.name, span, message).field(field).snippet_from(&source)),
        )
    }

    /// The scalar as the author wrote it, without quotes.
    pub(super) fn raw(&self, node: &Node) -> String {
        match &node.value {
            NodeValue::Scalar(Value::String(text)) => text.clone(),
            _ => node.span.slice(self.source.text).trim().to_owned(),
        }
    }

    /// The entries of a mapping; nothing and an empty value are an empty mapping.
    pub(super) fn map<'n>(&mut self, node: &'n Node, field: &str) -> &'n [Entry] {
        match &node.value {
            NodeValue::Map(entries) => entries,
            NodeValue::Scalar(Value::Null) => &[],
            _ => {
                self.error(node.span, field, format!("`{field}` must be a mapping, not {}", node.kind()));
                &[]
            }
        }
    }

    /// The items of a list.
    pub(super) fn list<'n>(&mut self, node: &'n Node, field: &str) -> &'n [Node] {
        match &node.value {
            NodeValue::List(items) => items,
            NodeValue::Scalar(Value::Null) => &[],
            _ => {
                self.error(node.span, field, format!("`{field}` must be a list, not {}", node.kind()));
                &[]
            }
        }
    }

    /// A text that is used as it is: not empty, without control characters, at most 4096 bytes.
    pub(super) fn text(&mut self, node: &Node, field: &str) -> Option<String> {
        let text = self.any_text(node, field)?;
        let problem = if text.trim().is_empty() {
            "is empty"
        } else if text.len() > 4096 {
            "is longer than 4096 bytes"
        } else if text.chars().any(char::is_control) {
            "holds a line break or another control character"
        } else {
            return Some(text);
        };
        self.error(node.span, field, format!("`{field}` {problem}"));
        None
    }

    /// A text of several lines at most, for people or a shell.
    pub(super) fn prose(&mut self, node: &Node, field: &str) -> Option<String> {
        let text = self.any_text(node, field)?;
        if text.len() > MAX_PROSE {
            self.error(node.span, field, format!("`{field}` is longer than {MAX_PROSE} bytes"));
            return None;
        }
        Some(text)
    }

    fn any_text(&mut self, node: &Node, field: &str) -> Option<String> {
        match &node.value {
            NodeValue::Scalar(Value::String(text)) => Some(text.clone()),
            NodeValue::Scalar(Value::Number(_) | Value::Bool(_)) => {
                let raw = self.raw(node);
                let help = format!("quote it: \"{}\"", shown(&raw));
                self.lenient(node.span, field, format!("`{field}` is a text, but {} stands here", node.kind()))
                    .help(help);
                Some(raw)
            }
            _ => {
                self.error(node.span, field, format!("`{field}` must be a text, not {}", node.kind()));
                None
            }
        }
    }

    /// A whole number from `min` to `max`.
    pub(super) fn integer(&mut self, node: &Node, field: &str, min: u64, max: u64) -> Option<u64> {
        let number = match &node.value {
            NodeValue::Scalar(Value::Number(number)) => number.as_u64(),
            NodeValue::Scalar(Value::String(text)) => {
                let number = text.parse().ok();
                if number.is_some() {
                    self.lenient(node.span, field, format!("`{field}` is a number, but a text stands here"))
                        .help("remove the quotes");
                }
                number
            }
            _ => None,
        };
        let valid = number.filter(|number| (min..=max).contains(number));
        if valid.is_none() {
            let raw = if matches!(node.value, NodeValue::Scalar(_)) {
                shown(&self.raw(node))
            } else {
                node.kind().to_owned()
            };
            self.error(node.span, field, format!("`{field}` must be a whole number from {min} to {max}, not {raw}"));
        }
        valid
    }

    /// True or false.
    pub(super) fn switch(&mut self, node: &Node, field: &str) -> Option<bool> {
        if let NodeValue::Scalar(Value::Bool(on)) = &node.value {
            return Some(*on);
        }
        let raw =
            if matches!(node.value, NodeValue::Scalar(_)) { shown(&self.raw(node)) } else { node.kind().to_owned() };
        self.error(node.span, field, format!("`{field}` must be true or false, not {raw}"));
        None
    }

    /// Reports a key that does not exist.
    pub(super) fn unknown_key(&mut self, entry: &Entry, place: &str, known: &[&'static str]) -> Report<'_> {
        let field = if place.is_empty() { entry.shown_key() } else { format!("{place}.{}", entry.shown_key()) };
        let location = if place.is_empty() { String::new() } else { format!(" in `{place}`") };
        let mut report = self.error(entry.key_span, &field, format!("unknown key `{}`{location}", entry.shown_key()));
        report.did_you_mean(|| suggest::nearest(&entry.key, known.iter().copied()));
        report
    }
}

/// A problem that was just added; help may still be given.
pub(super) struct Report<'r>(Option<&'r mut Diagnostic>);

impl Report<'_> {
    /// Says what to do.
    pub(super) fn help(&mut self, help: impl Into<String>) -> &mut Self {
        if let Some(diagnostic) = &mut self.0 {
            diagnostic.help = Some(help.into());
        }
        self
    }

    /// Says what was probably meant. It is only looked for if the problem is told.
    pub(super) fn did_you_mean<'n>(&mut self, nearest: impl FnOnce() -> Option<&'n str>) -> &mut Self {
        if let Some(diagnostic) = &mut self.0
            && let Some(name) = nearest()
        {
            diagnostic.did_you_mean = Some(name.to_owned());
        }
        self
    }
}
