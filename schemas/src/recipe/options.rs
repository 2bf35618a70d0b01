//! Reading `defaults` and `env`.

use super::environment::{self, EnvironmentAnswer};
use super::reader::Reader;
use super::rules::Places;
use crate::serve_options::{self, OptionKind, OptionSet, OptionSpec, shown};
use crate::yaml::{Entry, Node, NodeValue};
use serde_json::Value;
use std::collections::BTreeMap;

/// Reads `defaults`, and remembers where each option stands.
pub(super) fn read(reader: &mut Reader<'_>, node: &Node, places: &mut Places) -> OptionSet {
    let mut options = OptionSet::default();
    for entry in reader.map(node, "defaults") {
        if entry.key == "<<" {
            continue;
        }
        let field = format!("defaults.{}", entry.shown_key());
        let Some(spec) = serve_options::find(&entry.key) else {
            unknown(reader, entry);
            continue;
        };
        if entry.key.contains('-') {
            let message = format!("keys are in snake_case: `{}`", entry.key.replace('-', "_"));
            reader.lenient(entry.key_span, &field, message);
        }
        if let Some(first) = places.options.get(spec.key) {
            let (line, first_key) = (first.line, first.slice(reader.source.text));
            // The same key twice is reported already.
            if first_key != entry.key {
                let message =
                    format!("`{}` is another name of `{first_key}`, which line {line} sets", entry.shown_key());
                reader.error(entry.key_span, &field, message).help("keep one of the two");
            }
            continue;
        }
        places.options.insert(spec.key, entry.key_span);
        let Some(value) = option_value(reader, spec, &entry.value, &field) else { continue };
        match spec.check(&value) {
            Ok(checked) if spec.key == "allow_unauthenticated" && checked.value == Value::Bool(true) => {
                reader
                    .error(entry.key_span, &field, "a recipe may not open the server to everybody")
                    .help("pass `--allow-unauthenticated` when you run it, or set `api_key_file`");
            }
            Ok(checked) => {
                if let Some(advice) = checked.legacy {
                    let message = format!("`{}` is written in another program's way", entry.shown_key());
                    reader.lenient(entry.value.span, &field, message).help(advice);
                }
                if spec.key == "api_key" {
                    reader
                        .lenient(entry.key_span, &field, "an API key stands in the recipe, where everybody can read it")
                        .help("use `api_key_file`");
                }
                if options.set(spec, &checked.value).is_err() {
                    reader.error(entry.value.span, &field, format!("`{}` has no usable value", entry.shown_key()));
                }
            }
            Err(error) => {
                let message = format!("`{}`: {}", entry.shown_key(), error.cause);
                reader.error(entry.value.span, &field, message).help(format!("values: {}", spec.values()));
            }
        }
    }
    options
}

/// The value as the option's check expects it: numbers in place of a text become the text that stands in the file.
fn option_value(reader: &mut Reader<'_>, spec: &OptionSpec, node: &Node, field: &str) -> Option<Value> {
    let textual = matches!(spec.kind, OptionKind::Text | OptionKind::Path | OptionKind::Secret);
    match &node.value {
        NodeValue::Scalar(Value::Null) if !matches!(spec.kind, OptionKind::Switch { tri_state: true }) => {
            reader
                .lenient(node.span, field, format!("`{}` has no value", spec.key))
                .help(format!("remove the key, or set one of: {}", spec.values()));
            None
        }
        NodeValue::Scalar(Value::Number(_) | Value::Bool(_)) if textual => reader.text(node, field).map(Value::from),
        _ => Some(node.to_json()),
    }
}

fn unknown(reader: &mut Reader<'_>, entry: &Entry) {
    let belongs_above = super::parse::TOP_LEVEL.contains(&entry.key.as_str());
    let mut report = reader.unknown_key(entry, "defaults", &[]);
    if belongs_above {
        report.help(format!("`{}` belongs to the top level of the recipe", entry.shown_key()));
    } else {
        report
            .did_you_mean(|| serve_options::nearest(&entry.key))
            .help("`atlas recipe schema --options` lists every option");
    }
}

/// Reads `env`. Variables of other engines become options or are answered.
pub(super) fn read_env(
    reader: &mut Reader<'_>,
    node: &Node,
    options: &mut OptionSet,
    places: &mut Places,
) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    for entry in reader.map(node, "env") {
        if entry.key == "<<" {
            continue;
        }
        let field = format!("env.{}", entry.shown_key());
        let name_is_valid = !entry.key.is_empty()
            && entry.key.len() <= 128
            && !entry.key.starts_with(|c: char| c.is_ascii_digit())
            && entry.key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !name_is_valid {
            reader.error(entry.key_span, &field, format!("`{}` is not a name of a variable", entry.shown_key()));
            continue;
        }
        if environment::decides_code(&entry.key) {
            reader
                .error(
                    entry.key_span,
                    &field,
                    format!("`{}` decides which code runs; a recipe may not set it", entry.key),
                )
                .help("set it in your own environment if you need it");
            continue;
        }
        if !matches!(&entry.value.value, NodeValue::Scalar(value) if !value.is_null()) {
            reader.error(entry.value.span, &field, format!("`{field}` must be a text, not {}", entry.value.kind()));
            continue;
        }
        let value = reader.raw(&entry.value);
        if value.contains('$') {
            reader
                .error(entry.value.span, &field, "variables inside values are not expanded".to_owned())
                .help("write the value itself");
            continue;
        }
        if entry.key.starts_with("ATLAS_") {
            answer(reader, entry, &value, options, places);
            continue;
        }
        if ["TOKEN", "SECRET", "PASSWORD", "API_KEY"].iter().any(|word| entry.key.contains(word)) {
            reader
                .lenient(
                    entry.key_span,
                    &field,
                    format!("`{}` looks like a secret, and everybody can read a recipe", entry.key),
                )
                .help("set it in your own environment");
        }
        env.insert(entry.key.clone(), value);
    }
    env
}

/// A variable of this or another engine: becomes an option, is answered, or is unknown.
fn answer(reader: &mut Reader<'_>, entry: &Entry, value: &str, options: &mut OptionSet, places: &mut Places) {
    let field = format!("env.{}", entry.key);
    let Some(fact) = environment::find(&entry.key) else {
        reader
            .error(entry.key_span, &field, format!("unknown variable `{}`", shown(&entry.key)))
            .did_you_mean(|| environment::nearest(&entry.key));
        return;
    };
    match fact.answer {
        EnvironmentAnswer::Ours => {
            reader
                .error(
                    entry.key_span,
                    &field,
                    format!("`{}` belongs to the person who runs Atlas, not to a recipe", fact.name),
                )
                .help("set it in your own environment");
        }
        EnvironmentAnswer::NotNeeded(why) => {
            reader.lenient(entry.key_span, &field, format!("`{}` is not needed: {why}", fact.name)).help("remove it");
        }
        EnvironmentAnswer::Option(key) => {
            reader
                .lenient(entry.key_span, &field, format!("`{}` is the option `{key}`", fact.name))
                .help(format!("write `{key}: {}` under `defaults`", shown(value)));
            let Some(spec) = serve_options::find(key) else { return };
            if options.contains(key) {
                reader
                    .error(entry.key_span, &field, format!("`{key}` is set under `defaults` too"))
                    .help("keep one of the two");
            } else if let Err(error) = options.set_text(spec, value) {
                reader.error(entry.value.span, &field, error.to_string()).help(format!("values: {}", spec.values()));
            } else {
                places.options.insert(spec.key, entry.key_span);
            }
        }
    }
}

/// Answers variables that a recipe only mentions, in prose or in comments.
pub(super) fn answer_mentions(reader: &mut Reader<'_>, env_keys: &[&str]) {
    for (offset, word) in environment::mentions(reader.source.text) {
        if env_keys.contains(&word) {
            continue;
        }
        let message = match environment::find(word).map(|fact| fact.answer) {
            Some(EnvironmentAnswer::Ours) => continue,
            Some(EnvironmentAnswer::NotNeeded(why)) => format!("`{word}` is mentioned, and is not needed: {why}"),
            Some(EnvironmentAnswer::Option(key)) => format!("`{word}` is mentioned; here it is the option `{key}`"),
            None => format!("`{}` is mentioned, and Atlas has no such variable", shown(word)),
        };
        let mut span = crate::yaml::Span::at_offset(reader.source.text, offset);
        span.length = word.len();
        reader.warning(span, "", message);
    }
}
