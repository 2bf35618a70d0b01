//! YAML with places: a document becomes a tree of [`Node`]s that know their line and column, under limits that no
//! hostile file gets past.
//!
//! The tree is read by the typed readers (recipes, registries …), which report every problem at once as
//! [`Diagnostic`]s. Duplicate and merge keys are found here, so that they too are reported together with the rest.

mod diagnostic;
mod node;
mod problems;
mod render;

pub use diagnostic::{Diagnostic, Severity};
pub use node::{Entry, Node, NodeValue, Span};
pub use problems::Problems;
pub use render::{render, render_github};

use crate::serve_options::shown;
use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy};
use std::collections::HashMap;

/// Longest file that is read at all, in bytes. The longest published recipe has a fiftieth of this.
pub const MAX_BYTES: usize = 256 * 1024;
/// Deepest nesting of mappings and lists.
const MAX_DEPTH: usize = 24;
/// Most scalars, lists and mappings in a file.
const MAX_NODES: usize = 5_000;
/// Most events that aliases may repeat.
const MAX_REPLAYED: usize = 1_000;

/// A file's text with its name, for messages.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// Name as it is shown, usually a path.
    pub name: &'a str,
    /// The text.
    pub text: &'a str,
}

/// Checks length, encoding and control characters, in this order, before anything is parsed.
///
/// # Errors
/// One diagnostic that says what is wrong and where.
pub fn check_bytes<'a>(name: &'a str, bytes: &'a [u8]) -> Result<Source<'a>, Box<Diagnostic>> {
    if bytes.len() > MAX_BYTES {
        return Err(Box::new(too_long(name, bytes.len() as u64)));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]).into_owned();
        let span = Span::at_offset(&before, before.len());
        Box::new(Diagnostic::error(name, span, "the file is not UTF-8").help("save it as UTF-8 text"))
    })?;
    let source = Source { name, text };
    let control = |c: char| (c.is_control() && !matches!(c, '\n' | '\r' | '\t')) || c == '\u{feff}';
    let text_after_bom = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some(found) = text_after_bom.find(control) {
        let offset = found + (text.len() - text_after_bom.len());
        let code = text[offset..].chars().next().map_or(0, u32::from);
        let message = format!("control character U+{code:04X} in the file");
        return Err(Box::new(
            Diagnostic::error(name, Span::at_offset(text, offset), message).help("remove it").snippet_from(&source),
        ));
    }
    Ok(source)
}

/// The refusal of a file by its length alone; for callers that know the length before they read.
pub fn too_long(name: &str, bytes: u64) -> Diagnostic {
    let message = format!("the file has {bytes} bytes; at most {MAX_BYTES} are read");
    Diagnostic::error(name, Span::default(), message)
        .help("a recipe holds settings, not data; check that this is the right file")
}

/// Parses one document. Duplicate and merge keys are reported in `problems`, and parsing goes on.
///
/// # Errors
/// One diagnostic, if the text is not YAML or goes beyond the limits.
pub fn parse(source: &Source<'_>, problems: &mut Problems) -> Result<Node, Box<Diagnostic>> {
    let budget = serde_saphyr::budget! {
        max_events: 3 * MAX_NODES,
        max_aliases: 100,
        max_anchors: 50,
        max_recorded_anchor_events: MAX_REPLAYED,
        max_recorded_anchor_bytes: MAX_BYTES,
        max_depth: MAX_DEPTH,
        flow_nesting_limit: MAX_DEPTH,
        max_documents: 1,
        max_nodes: MAX_NODES,
        max_total_scalar_bytes: MAX_BYTES,
    };
    let options = serde_saphyr::options! {
        budget: budget,
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        merge_keys: MergeKeyPolicy::AsOrdinary,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPLAYED, max_replay_stack_depth: 8 },
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        strict_booleans: true,
        with_snippet: false,
    };
    if source.text.trim().is_empty() {
        return Err(Box::new(Diagnostic::error(source.name, Span::default(), "the file is empty")));
    }
    let root: Node = serde_saphyr::from_str_with_options(source.text, options).map_err(|error| {
        let location = error.location();
        let span = location.map(|location| Span::of(source.text, &location)).unwrap_or_default();
        Box::new(Diagnostic::error(source.name, span, syntax_message(&error)).snippet_from(source))
    })?;
    find_bad_keys(source, &root, problems);
    Ok(root)
}

/// The parser's complaint in the words of a recipe's author.
fn syntax_message(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    if let Error::Budget { breach, .. } = error.without_snippet() {
        return beyond_limits(breach);
    }
    let text = error.without_snippet().to_string();
    if let Error::AliasReplayLimitExceeded { .. } | Error::AliasReplayStackDepthExceeded { .. } =
        error.without_snippet()
    {
        return "anchors and aliases repeat too much".to_owned();
    }
    if text.contains("budget breached") {
        return "anchors and aliases repeat too much".to_owned();
    }
    if text.starts_with("recursion limit") {
        return format!("nested deeper than {MAX_DEPTH} levels");
    }
    if text.starts_with("recursive references") {
        return "an alias stands inside itself".to_owned();
    }
    if text.starts_with("expected string scalar") || text.starts_with("cannot deserialize null into string") {
        return "a key must be a text".to_owned();
    }
    // The parser may end its own message with the place, which the diagnostic shows already.
    let cut = text.find(" at line ").or_else(|| text.find(" (line "));
    let text = cut.map_or(text.as_str(), |cut| &text[..cut]);
    let one_line: Vec<&str> = text.split_whitespace().collect();
    format!("not valid YAML: {}", shown(&one_line.join(" ")))
}

fn beyond_limits(breach: &serde_saphyr::budget::BudgetBreach) -> String {
    use serde_saphyr::budget::BudgetBreach;
    match breach {
        BudgetBreach::Depth { .. } => format!("nested deeper than {MAX_DEPTH} levels"),
        BudgetBreach::Documents { .. } => "the file holds more than one document".to_owned(),
        BudgetBreach::Anchors { .. } => "too many anchors".to_owned(),
        BudgetBreach::Aliases { .. }
        | BudgetBreach::AliasAnchorRatio { .. }
        | BudgetBreach::RecordedAnchorEvents { .. }
        | BudgetBreach::RecordedAnchorBytes { .. } => "anchors and aliases repeat too much".to_owned(),
        _ => format!("more than {MAX_NODES} values"),
    }
}

/// Reports keys that occur twice in a mapping and merge keys, anywhere in the tree.
fn find_bad_keys(source: &Source<'_>, node: &Node, problems: &mut Problems) {
    match &node.value {
        NodeValue::List(items) => items.iter().for_each(|item| find_bad_keys(source, item, problems)),
        NodeValue::Map(entries) => {
            let mut seen: HashMap<&str, Span> = HashMap::new();
            for entry in entries {
                if entry.key == "<<" {
                    problems.add(Severity::Error, || {
                        Diagnostic::error(source.name, entry.key_span, "merge keys (`<<`) are not supported")
                            .help("write the keys out")
                            .snippet_from(source)
                    });
                } else if let Some(first) = seen.insert(&entry.key, entry.key_span) {
                    problems.add(Severity::Error, || {
                        let message =
                            format!("`{}` is set twice; the first is in line {}", entry.shown_key(), first.line);
                        Diagnostic::error(source.name, entry.key_span, message)
                            .help("keep one of the two")
                            .snippet_from(source)
                    });
                }
                find_bad_keys(source, &entry.value, problems);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
