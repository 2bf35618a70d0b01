//! Reading the fields at the top level that are more than a scalar, and the model's name.

use super::reader::{MAX_PROSE, Reader};
use super::{Benchmark, EMBEDDED_MODEL, Hook, RecipeGates};
use crate::gate::SUITE_NAMES;
use crate::hardware::HardwareClass;
use crate::serve_options::{self, shown};
use crate::suggest;
use crate::yaml::{Node, NodeValue};
use serde_json::{Map, Value};

/// Reads `model`.
pub(super) fn model(reader: &mut Reader<'_>, node: &Node) -> Option<String> {
    let text = reader.text(node, "model")?;
    if let Err((problem, help)) = check_model(&text) {
        reader.error(node.span, "model", format!("`{}` {problem}", shown(&text))).help(help);
        return None;
    }
    Some(text)
}

/// A model is `embedded`, a folder (it begins with `/`, `./`, `../` or `~/`) or a hub id `owner/name`.
fn check_model(text: &str) -> Result<(), (&'static str, &'static str)> {
    const FORM: &str = "write a hub id (`owner/name`), a folder (`./folder`), or `embedded`";
    if text == EMBEDDED_MODEL || ["/", "./", "../", "~/"].iter().any(|prefix| text.starts_with(prefix)) {
        return Ok(());
    }
    if text.contains(':') {
        return Err(("names a file of a repository", "GGUF files are not supported; name a repository of safetensors"));
    }
    let parts: Vec<&str> = text.split('/').collect();
    let is_name = |part: &&str| {
        !part.is_empty()
            && part.len() <= 96
            && !part.starts_with(['-', '.'])
            && !part.contains("..")
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    if parts.len() == 2 && parts.iter().all(is_name) { Ok(()) } else { Err(("is not a model's name", FORM)) }
}

/// Reads `model_revision`: a commit, tag or branch.
pub(super) fn revision(reader: &mut Reader<'_>, node: &Node) -> Option<String> {
    let text = reader.text(node, "model_revision")?;
    let valid = text.len() <= 128
        && !text.starts_with(['-', '/', '.'])
        && !text.contains("..")
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    if !valid {
        reader.error(node.span, "model_revision", format!("`{}` is not a commit, tag or branch", shown(&text)));
        return None;
    }
    Some(text)
}

/// Reads `pre_exec`.
pub(super) fn hooks(reader: &mut Reader<'_>, node: &Node) -> Vec<Hook> {
    let mut hooks = Vec::new();
    for item in reader.list(node, "pre_exec") {
        if !matches!(item.value, NodeValue::Map(_)) {
            hooks.extend(command_text(reader, item, "pre_exec").map(Hook::Command));
            continue;
        }
        let (mut copy, mut dest, mut source_host) = (None, None, None);
        for entry in reader.map(item, "pre_exec") {
            match entry.key.as_str() {
                "copy" => copy = reader.text(&entry.value, "pre_exec.copy"),
                "dest" => dest = reader.text(&entry.value, "pre_exec.dest"),
                "source_host" => source_host = reader.text(&entry.value, "pre_exec.source_host"),
                _ => drop(reader.unknown_key(entry, "pre_exec", &["copy", "dest", "source_host"])),
            }
        }
        match (copy, dest) {
            (Some(copy), Some(dest)) => hooks.push(Hook::Copy { copy, dest, source_host }),
            _ => drop(reader.error(item.span, "pre_exec", "a copy needs `copy` and `dest`")),
        }
    }
    hooks
}

/// Reads a list of commands.
pub(super) fn commands(reader: &mut Reader<'_>, node: &Node, field: &str) -> Vec<String> {
    let mut commands = Vec::new();
    for item in reader.list(node, field) {
        commands.extend(command_text(reader, item, field));
    }
    commands
}

fn command_text(reader: &mut Reader<'_>, node: &Node, field: &str) -> Option<String> {
    let text = reader.prose(node, field)?;
    if text.trim().is_empty() {
        reader.error(node.span, field, format!("`{field}` holds an empty command"));
        return None;
    }
    Some(text)
}

/// Reads `command`: every `{placeholder}` must be an option or a fact of the recipe.
pub(super) fn command(reader: &mut Reader<'_>, node: &Node) -> Option<String> {
    const FACTS: &[&str] = &["model", "model_revision", "rank", "world_size", "master_addr", "master_port"];
    let text = command_text(reader, node, "command")?;
    for name in placeholders(&text) {
        if FACTS.contains(&name) || serve_options::find(name).is_some() {
            continue;
        }
        reader
            .error(
                node.span,
                "command",
                format!("`{{{}}}` is no option, so the command would hold it literally", shown(name)),
            )
            .did_you_mean(|| serve_options::nearest(name).or_else(|| suggest::nearest(name, FACTS.iter().copied())));
    }
    Some(text)
}

/// The names in braces that look like placeholders (`{port}`, but not `{"json": 1}`).
fn placeholders(text: &str) -> Vec<&str> {
    let bodies = text.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(body, _)| body);
    bodies
        .filter(|body| {
            !body.is_empty() && body.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        })
        .collect()
}

/// Reads `benchmark`. A key that the block does not have is an argument in other runners' files.
pub(super) fn benchmark(reader: &mut Reader<'_>, node: &Node) -> Option<Benchmark> {
    const KEYS: &[&str] = &["framework", "timeout", "schedule", "args"];
    if matches!(node.value, NodeValue::Scalar(Value::Null)) {
        return None;
    }
    let mut benchmark = Benchmark { framework: None, timeout: None, schedule: Value::Null, args: Map::new() };
    for entry in reader.map(node, "benchmark") {
        match entry.key.as_str() {
            "framework" => benchmark.framework = reader.text(&entry.value, "benchmark.framework"),
            "timeout" => benchmark.timeout = reader.integer(&entry.value, "benchmark.timeout", 1, 31_536_000),
            "schedule" => benchmark.schedule = entry.value.to_json(),
            "args" => {
                for argument in reader.map(&entry.value, "benchmark.args") {
                    benchmark.args.insert(argument.key.clone(), argument.value.to_json());
                }
            }
            _ if reader.strict => drop(reader.unknown_key(entry, "benchmark", KEYS)),
            _ => {
                let field = format!("benchmark.{}", entry.shown_key());
                let message = format!("`{}` is an argument of the benchmark program", entry.shown_key());
                reader.warning(entry.key_span, &field, message).help("write it under `benchmark.args`");
                benchmark.args.insert(entry.key.clone(), entry.value.to_json());
            }
        }
    }
    Some(benchmark)
}

/// Reads `gates`.
pub(super) fn gates(reader: &mut Reader<'_>, node: &Node) -> Option<RecipeGates> {
    let (mut suites, mut classes) = (None, None);
    for entry in reader.map(node, "gates") {
        match entry.key.as_str() {
            "suites" => suites = names(reader, &entry.value, "gates.suites", SUITE_NAMES),
            "classes" => {
                classes = names(reader, &entry.value, "gates.classes", &HardwareClass::ALL.map(HardwareClass::as_str))
            }
            _ => drop(reader.unknown_key(entry, "gates", &["suites", "classes"])),
        }
    }
    match (suites, classes) {
        (Some(suites), Some(classes)) => {
            let classes = classes.iter().filter_map(|class| class.parse().ok()).collect();
            Some(RecipeGates { suites, classes })
        }
        (None, None) if !matches!(&node.value, NodeValue::Map(entries) if entries.is_empty()) => None,
        (suites, _) => {
            let missing = if suites.is_none() { "suites" } else { "classes" };
            reader.error(node.span, "gates", format!("`gates` needs a list `{missing}`"));
            None
        }
    }
}

/// A list of known names, at least one, none twice.
fn names(reader: &mut Reader<'_>, node: &Node, field: &str, known: &[&'static str]) -> Option<Vec<String>> {
    let mut found: Vec<String> = Vec::new();
    let items = reader.list(node, field);
    if items.is_empty() {
        reader.error(node.span, field, format!("`{field}` must be a list of: {}", known.join(", ")));
        return None;
    }
    for item in items {
        let Some(name) = reader.text(item, field) else { continue };
        if !known.contains(&name.as_str()) {
            reader
                .error(item.span, field, format!("`{}` is not one of: {}", shown(&name), known.join(", ")))
                .did_you_mean(|| suggest::nearest(&name, known.iter().copied()));
        } else if found.contains(&name) {
            reader.error(item.span, field, format!("`{name}` is listed twice"));
        } else {
            found.push(name);
        }
    }
    Some(found)
}

/// Reads `container`.
pub(super) fn container(reader: &mut Reader<'_>, node: &Node) -> Option<String> {
    let text = reader.text(node, "container")?;
    let message = "`container` has no effect: Atlas runs without containers";
    reader.lenient(node.span, "container", message).help("remove it");
    (text.len() <= MAX_PROSE).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_hub_ids_folders_or_embedded() {
        for good in ["embedded", "Qwen/Qwen3.5-0.8B", "./model", "../x", "/srv/models/x", "~/models/x", "a/b_c-d.e"] {
            assert!(check_model(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "model",
            "a/b/c",
            "../../etc/passwd\0",
            "-oProxyCommand/x",
            "a/..",
            "a/b c",
            "unsloth/x:Q4_K_M",
            "/",
            "a/",
        ] {
            assert_eq!(check_model(bad).is_err(), !bad.starts_with(['/', '.']), "{bad}");
        }
    }

    #[test]
    fn placeholders_are_names_in_braces() {
        assert_eq!(placeholders("serve {model} --port {port} --x '{\"a\": {}}' {Nope}"), ["model", "port"]);
    }
}
