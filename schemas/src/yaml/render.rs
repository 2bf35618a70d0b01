//! Diagnostics as text for people, and as annotations for a hosted CI.

use super::{Diagnostic, Severity};
use std::fmt::Write;

/// Widest part of a line that is shown.
const WIDTH: usize = 100;

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
        let (shown, caret_at, caret_length) = crop(line, diagnostic.column, diagnostic.end_column);
        let label = suggestion.take().map(|text| format!(" {text}")).unwrap_or_default();
        let _ = writeln!(out, "{pad} |");
        let _ = writeln!(out, "{} | {shown}", diagnostic.line);
        let _ = writeln!(out, "{pad} | {}{}{label}", " ".repeat(caret_at), "^".repeat(caret_length));
    }
    for help in suggestion.iter().chain(&diagnostic.help) {
        let _ = writeln!(out, "{pad} = help: {help}");
    }
    out
}

/// The part of a line around the marked columns, where the mark begins in it, and how long it is. Tabs and control
/// characters become spaces, so that the caret stands under what it means.
fn crop(line: &str, column: usize, end_column: usize) -> (String, usize, usize) {
    let chars: Vec<char> = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let start = column.saturating_sub(1).min(chars.len());
    let from = if chars.len() <= WIDTH { 0 } else { start.saturating_sub(WIDTH / 3) };
    let to = (from + WIDTH).min(chars.len());
    let mut shown: String = chars[from..to].iter().collect();
    let mut caret = start - from;
    if from > 0 {
        shown.insert(0, '…');
        caret += 1;
    }
    if to < chars.len() {
        shown.push('…');
    }
    let length = end_column.saturating_sub(column).min((from + WIDTH).saturating_sub(start)).max(1);
    (shown, caret, length)
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
