//! Diagnostics as text for people, and as annotations for a hosted CI.

use super::{Diagnostic, Severity};
use std::fmt::Write;

/// A diagnostic with its snippet and a caret, ending in a newline.
pub fn render(diagnostic: &Diagnostic) -> String {
    let severity = match diagnostic.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let mut out = format!("{severity}: {}\n", diagnostic.message);
    let gutter = diagnostic.line.to_string().len();
    let pad = " ".repeat(gutter);
    if diagnostic.line == 0 {
        let _ = writeln!(out, "{pad}--> {}", diagnostic.file);
    } else {
        let _ = writeln!(out, "{pad}--> {}:{}:{}", diagnostic.file, diagnostic.line, diagnostic.column);
    }
    let mut suggestion = diagnostic.did_you_mean.as_ref().map(|name| format!("did you mean `{name}`?"));
    if let Some(line) = &diagnostic.snippet {
        let caret_at = diagnostic.snippet_column.saturating_sub(1);
        let room = line.chars().count().saturating_sub(caret_at).max(1);
        let caret_length = diagnostic.end_column.saturating_sub(diagnostic.column).clamp(1, room);
        let label = suggestion.take().map(|text| format!(" {text}")).unwrap_or_default();
        let _ = writeln!(out, "{pad} |");
        let _ = writeln!(out, "{} | {line}", diagnostic.line);
        let _ = writeln!(out, "{pad} | {}{}{label}", " ".repeat(caret_at), "^".repeat(caret_length));
    }
    for help in suggestion.iter().chain(&diagnostic.help) {
        let _ = writeln!(out, "{pad} = help: {help}");
    }
    out
}

/// A diagnostic as a workflow command (`::error file=…`), ending in a newline.
pub fn render_github(diagnostic: &Diagnostic) -> String {
    let severity = match diagnostic.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let mut message = diagnostic.message.clone();
    if let Some(name) = &diagnostic.did_you_mean {
        let _ = write!(message, " (did you mean `{name}`?)");
    }
    if let Some(help) = &diagnostic.help {
        let _ = write!(message, "\n{help}");
    }
    let property = |text: &str| data(text).replace(':', "%3A").replace(',', "%2C");
    let mut place = format!("file={}", property(&diagnostic.file));
    if diagnostic.line > 0 {
        let _ = write!(place, ",line={},col={}", diagnostic.line, diagnostic.column);
    }
    let title = if diagnostic.field.is_empty() { "recipe" } else { &diagnostic.field };
    format!("::{severity} {place},title={}::{}\n", property(title), data(&message))
}

fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}
