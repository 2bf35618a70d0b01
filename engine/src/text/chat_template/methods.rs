//! Python's methods on strings, dicts and lists, which look through the marks around control tokens.

use super::super::control::{CLOSE, ControlTokens, OPEN, is_mark, without_marks, wrapped};
use minijinja::value::{ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, escape_formatter};
use minijinja_contrib::pycompat::unknown_method_callback;
use std::borrow::Cow;
use std::sync::Arc;

/// Defines the methods and the filters that compare or rebuild strings.
pub(super) fn install(environment: &mut Environment<'_>, controls: &Arc<ControlTokens>) {
    let for_filter = Arc::clone(controls);
    environment.add_filter("replace", move |state: &State, text: &str, old: &str, new: &str| {
        replace(state, &for_filter, text, old, new, None)
    });
    environment.set_formatter(|out, state, value| {
        pay_for(state, value)?;
        escape_formatter(out, state, value)
    });
    let controls = Arc::clone(controls);
    environment.set_unknown_method_callback(move |state, value, method, args| {
        if value.kind() == ValueKind::String
            && let Some(text) = value.as_str()
            && let Some(result) = string_method(state, &controls, text, method, args)
        {
            return result;
        }
        unknown_method_callback(state, value, method, args)
    });
}

/// Pays for showing a list or dict before that is done: one that holds itself twice, in a few levels, is huge.
fn pay_for(state: &State, value: &Value) -> Result<(), Error> {
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        let is_map = value.kind() == ValueKind::Map;
        for item in value.try_iter()? {
            state.consume_fuel(1)?;
            let shown = if is_map { value.get_item(&item)? } else { item };
            pay_for(state, &shown)?;
        }
    }
    Ok(())
}

/// The methods that differ from the library's or that it lacks.
fn string_method(
    state: &State,
    controls: &ControlTokens,
    text: &str,
    method: &str,
    args: &[Value],
) -> Option<Result<Value, Error>> {
    Some(match method {
        "split" => from_args(args).and_then(|(sep, max)| split(state, text, sep, max, false)),
        "rsplit" => from_args(args).and_then(|(sep, max)| split(state, text, sep, max, true)),
        "replace" => from_args(args).and_then(|(old, new, count): (&str, &str, Option<i64>)| {
            replace(state, controls, text, old, new, count.and_then(|n| usize::try_from(n).ok()))
        }),
        "startswith" => from_args(args).and_then(|(part,)| any_part(text, part, |text, part| text.starts_with(part))),
        "endswith" => from_args(args).and_then(|(part,)| any_part(text, part, |text, part| text.ends_with(part))),
        "removeprefix" => from_args(args).map(|(part,): (&str,)| remove_end(text, part, true)),
        "removesuffix" => from_args(args).map(|(part,): (&str,)| remove_end(text, part, false)),
        _ => return None,
    })
}

/// `split` and `rsplit`. A control token is found with its marks; they go with it.
fn split(state: &State, text: &str, sep: Option<&str>, max: Option<i64>, right: bool) -> Result<Value, Error> {
    let max = max.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    let Some(sep) = sep else { return Ok(split_whitespace(text, max, right)) };
    if sep.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "split: the separator is empty"));
    }
    let places = occurrences(text, sep);
    state.consume_fuel(places.len() as u64)?;
    let chosen = match right {
        true => &places[places.len().saturating_sub(max)..],
        false => &places[..places.len().min(max)],
    };
    let mut parts = Vec::with_capacity(chosen.len() + 1);
    let mut done = 0;
    for &(start, end) in chosen {
        parts.push(&text[done..start]);
        done = end;
    }
    parts.push(&text[done..]);
    Ok(parts.into_iter().map(Value::from).collect())
}

fn split_whitespace(text: &str, max: usize, right: bool) -> Value {
    let mut parts = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let at = if right { rest.rfind(char::is_whitespace) } else { rest.find(char::is_whitespace) };
        let (part, remainder) = match at {
            Some(at) if parts.len() < max => {
                let width = rest[at..].chars().next().map_or(1, char::len_utf8);
                let (left, right_part) = (&rest[..at], &rest[at + width..]);
                if right { (right_part, left.trim_end()) } else { (left, right_part.trim_start()) }
            }
            _ => (rest, ""),
        };
        parts.push(part);
        rest = remainder;
    }
    if right {
        parts.reverse();
    }
    parts.into_iter().map(Value::from).collect()
}

/// Byte ranges of `sep` from left to right, each with the marks directly around it.
fn occurrences(text: &str, sep: &str) -> Vec<(usize, usize)> {
    text.match_indices(sep)
        .map(|(start, _)| {
            let end = start + sep.len();
            match text[..start].ends_with(OPEN) && text[end..].starts_with(CLOSE) {
                true => (start - OPEN.len_utf8(), end + CLOSE.len_utf8()),
                false => (start, end),
            }
        })
        .collect()
}

/// Replaces; a control token that only arises by this is marked.
fn replace(
    state: &State,
    controls: &ControlTokens,
    text: &str,
    old: &str,
    new: &str,
    count: Option<usize>,
) -> Result<Value, Error> {
    let matches = text.len() / old.len().max(1) + 1;
    let growth = matches.min(count.unwrap_or(usize::MAX)).saturating_mul(new.len());
    state.consume_fuel(((text.len() + growth) / 64) as u64)?;
    let count = count.unwrap_or(usize::MAX);
    let marked = wrapped(old);
    let made = match !old.is_empty() && text.contains(&marked) {
        // All of a content's own control tokens are marked, so these are the occurrences.
        true => text.replacen(&marked, new, count),
        false => text.replacen(old, new, count),
    };
    Ok(Value::from(match text.len() {
        0 => made,
        _ => controls.mark_new(made, &[text, new]),
    }))
}

/// `startswith` and `endswith`: a string or a tuple of strings.
fn any_part(text: &str, part: &Value, test: impl Fn(&str, &str) -> bool) -> Result<Value, Error> {
    let text = without_marks(text);
    if let Some(part) = part.as_str() {
        return Ok(test(&text, &without_marks(part)).into());
    }
    let mut found = false;
    for part in part.try_iter()? {
        let Some(part) = part.as_str() else {
            return Err(Error::new(ErrorKind::InvalidOperation, "startswith and endswith compare with strings only"));
        };
        found |= test(&text, &without_marks(part));
    }
    Ok(found.into())
}

fn remove_end(text: &str, part: &str, start: bool) -> Value {
    let candidates = [Cow::Borrowed(part), Cow::Owned(wrapped(part))];
    let trimmed = text.trim_matches(|c| is_mark(c) && c != OPEN && c != CLOSE);
    for candidate in candidates.iter().filter(|c| !c.is_empty()) {
        let rest = match start {
            true => trimmed.strip_prefix(&**candidate),
            false => trimmed.strip_suffix(&**candidate),
        };
        if let Some(rest) = rest {
            return Value::from(rest);
        }
    }
    Value::from(text)
}
