//! From a file's bytes to a recipe, or to everything that is wrong with it.

use super::reader::Reader;
use super::rules::{self, Places};
use super::{EMBEDDED_MODEL, RECIPE_VERSION, Recipe, Runtime, SCHEMA_FILE, Strictness, fields, metadata, options};
use crate::serve_options::{self, OptionSet, shown};
use crate::yaml::{self, Diagnostic, Entry, Node, NodeValue, Problems, Span};
use std::collections::{BTreeMap, HashSet};

/// Every key at the top level.
pub(super) const TOP_LEVEL: &[&str] = &[
    "recipe_version",
    "model",
    "model_revision",
    "runtime",
    "container",
    "min_nodes",
    "max_nodes",
    "metadata",
    "defaults",
    "env",
    "command",
    "pre_exec",
    "post_exec",
    "post_commands",
    "stop_after_post",
    "benchmark",
    "gates",
];

/// Keys of other runners that have no meaning here, and why.
const RETIRED: &[(&str, &str)] = &[
    ("mode", "use `min_nodes` and `max_nodes`"),
    ("solo_only", "write `max_nodes: 1`"),
    ("cluster_only", "write `min_nodes: 2`"),
    ("runtime_version", "the engine is part of the `atlas` binary"),
    ("runtime_config", "every setting has its own key, under `defaults`"),
    ("mods", "it changes containers, and Atlas uses none"),
    ("builder", "it builds containers, and Atlas uses none"),
    ("builder_config", "it builds containers, and Atlas uses none"),
    ("executor_config", "it configures containers, and Atlas uses none"),
    ("distribution_config", "weights go to the hosts that need them by themselves"),
];

/// The outcome of reading a recipe.
#[derive(Debug, Clone)]
pub struct Parsed {
    /// The recipe, if there was no error.
    pub recipe: Option<Recipe>,
    /// Every error and warning, in the order of the file.
    pub diagnostics: Vec<Diagnostic>,
    /// Whether it was judged as one of our own.
    pub strict: bool,
}

impl Parsed {
    /// The recipe, or every error and warning.
    pub fn into_result(self) -> Result<(Recipe, Vec<Diagnostic>), Vec<Diagnostic>> {
        match self.recipe {
            Some(recipe) => Ok((recipe, self.diagnostics)),
            None => Err(self.diagnostics),
        }
    }
}

/// Reads a recipe. `name` is how the file is called in messages.
pub fn parse(name: &str, bytes: &[u8], strictness: Strictness) -> Parsed {
    let refused = |diagnostic: Box<Diagnostic>| Parsed { recipe: None, diagnostics: vec![*diagnostic], strict: false };
    let source = match yaml::check_bytes(name, bytes) {
        Ok(source) => source,
        Err(diagnostic) => return refused(diagnostic),
    };
    let mut problems = Problems::default();
    let root = match yaml::parse(&source, &mut problems) {
        Ok(root) => root,
        Err(diagnostic) => return refused(diagnostic),
    };
    let strict = match strictness {
        Strictness::Own => true,
        Strictness::Foreign => false,
        Strictness::Detect => names_our_schema(source.text),
    };
    let mut reader = Reader { source, strict, problems };
    let recipe = read(&mut reader, &root);
    let diagnostics = reader.problems.into_sorted(&source);
    let recipe = recipe.filter(|_| !diagnostics.iter().any(Diagnostic::is_error));
    Parsed { recipe, diagnostics, strict }
}

/// Whether a comment at the head of the file names the schema of Atlas recipes.
fn names_our_schema(text: &str) -> bool {
    let head =
        text.lines().map(str::trim).take_while(|line| line.is_empty() || line.starts_with('#') || *line == "---");
    head.filter(|line| line.starts_with('#'))
        .any(|line| line.contains("$schema=") && line.trim_end().ends_with(SCHEMA_FILE))
}

/// What has been read so far.
#[derive(Default)]
struct Draft<'n> {
    model: Option<String>,
    model_revision: Option<String>,
    container: Option<String>,
    min_nodes: Option<u32>,
    max_nodes: Option<u32>,
    metadata: metadata::Metadata,
    defaults: OptionSet,
    env: Option<&'n Node>,
    command: Option<String>,
    pre_exec: Vec<super::Hook>,
    post_exec: Vec<String>,
    post_commands: Vec<String>,
    stop_after_post: bool,
    benchmark: Option<super::Benchmark>,
    gates: Option<super::RecipeGates>,
}

fn read(reader: &mut Reader<'_>, root: &Node) -> Option<Recipe> {
    let NodeValue::Map(entries) = &root.value else {
        reader.error(root.span, "", format!("a recipe is a mapping, not {}", root.kind()));
        return None;
    };
    let mut draft = Draft::default();
    let mut places = Places::default();
    let mut seen: HashSet<&str> = HashSet::new();
    for entry in entries {
        // Repeated and merge keys are reported already.
        if entry.key == "<<" || !seen.insert(&entry.key) {
            continue;
        }
        read_entry(reader, entry, &mut draft, &mut places);
    }
    let mut env = BTreeMap::new();
    let mut env_keys: Vec<&str> = Vec::new();
    if let Some(node) = draft.env {
        env = options::read_env(reader, node, &mut draft.defaults, &mut places);
        if let NodeValue::Map(entries) = &node.value {
            env_keys = entries.iter().map(|entry| entry.key.as_str()).collect();
        }
    }
    options::answer_mentions(reader, &env_keys);
    require(reader, root, &seen);
    if draft.model.as_deref() == Some(EMBEDDED_MODEL) && draft.model_revision.is_some() {
        let span = places.options.get("model_revision").copied().unwrap_or_default();
        reader.error(span, "model_revision", "the embedded model has no revisions").help("remove `model_revision`");
    }
    let facts =
        rules::Facts { options: &draft.defaults, min_nodes: draft.min_nodes.unwrap_or(1), max_nodes: draft.max_nodes };
    report_violations(reader, &facts, &places);
    Some(Recipe {
        recipe_version: RECIPE_VERSION.to_owned(),
        model: draft.model?,
        model_revision: draft.model_revision,
        runtime: Runtime::Atlas,
        container: draft.container,
        min_nodes: draft.min_nodes.unwrap_or(1),
        max_nodes: draft.max_nodes,
        metadata: draft.metadata,
        defaults: draft.defaults,
        env,
        command: draft.command,
        pre_exec: draft.pre_exec,
        post_exec: draft.post_exec,
        post_commands: draft.post_commands,
        stop_after_post: draft.stop_after_post,
        benchmark: draft.benchmark,
        gates: draft.gates,
    })
}

fn read_entry<'n>(reader: &mut Reader<'_>, entry: &'n Entry, draft: &mut Draft<'n>, places: &mut Places) {
    let node = &entry.value;
    match entry.key.as_str() {
        "recipe_version" => version(reader, node),
        "model" => draft.model = fields::model(reader, node),
        "model_revision" => {
            places.options.insert("model_revision", entry.key_span);
            draft.model_revision = unless_null(node, |node| fields::revision(reader, node));
        }
        "runtime" => runtime(reader, node),
        "container" => draft.container = unless_null(node, |node| fields::container(reader, node)),
        "min_nodes" => {
            places.options.insert("min_nodes", entry.key_span);
            draft.min_nodes = nodes(reader, node, "min_nodes");
        }
        "max_nodes" => {
            places.options.insert("max_nodes", entry.key_span);
            draft.max_nodes = unless_null(node, |node| nodes(reader, node, "max_nodes"));
        }
        "metadata" => draft.metadata = metadata::read(reader, node),
        "defaults" => draft.defaults = options::read(reader, node, places),
        "env" => draft.env = Some(node),
        "command" => draft.command = unless_null(node, |node| fields::command(reader, node)),
        "pre_exec" => draft.pre_exec = fields::hooks(reader, node),
        "post_exec" => draft.post_exec = fields::commands(reader, node, "post_exec"),
        "post_commands" => draft.post_commands = fields::commands(reader, node, "post_commands"),
        "stop_after_post" => draft.stop_after_post = reader.switch(node, "stop_after_post").unwrap_or(false),
        "benchmark" => draft.benchmark = fields::benchmark(reader, node),
        "gates" => draft.gates = fields::gates(reader, node),
        _ => unknown_key(reader, entry, draft),
    }
}

fn unless_null<'n, T>(node: &'n Node, read: impl FnOnce(&'n Node) -> Option<T>) -> Option<T> {
    if matches!(node.value, NodeValue::Scalar(serde_json::Value::Null)) { None } else { read(node) }
}

fn unknown_key(reader: &mut Reader<'_>, entry: &Entry, draft: &mut Draft<'_>) {
    let key = entry.key.as_str();
    let switched_on = entry.value.to_json() == serde_json::Value::Bool(true);
    match (key, switched_on, reader.strict) {
        // Legacy spellings of the node counts.
        ("solo_only", true, false) => {
            draft.max_nodes = draft.max_nodes.or(Some(1));
            reader.warning(entry.key_span, key, "`solo_only` is a legacy spelling").help("write `max_nodes: 1`");
            return;
        }
        ("cluster_only", true, false) => {
            draft.min_nodes = draft.min_nodes.or(Some(2));
            reader.warning(entry.key_span, key, "`cluster_only` is a legacy spelling").help("write `min_nodes: 2`");
            return;
        }
        _ => {}
    }
    let retired = RETIRED.iter().find(|(retired, _)| *retired == key).map(|(_, why)| (*why).to_owned());
    let moved = if serve_options::find(key).is_some() {
        Some(format!("`{}` is an option and belongs under `defaults`", entry.shown_key()))
    } else if metadata::is_key(key) {
        Some(format!("`{}` belongs under `metadata`", entry.shown_key()))
    } else {
        None
    };
    let help = retired.or(moved);
    let known = if help.is_some() { &[] } else { TOP_LEVEL };
    let mut report = reader.unknown_key(entry, "", known);
    if let Some(help) = help {
        report.help(help);
    }
}

fn version(reader: &mut Reader<'_>, node: &Node) {
    if matches!(&node.value, NodeValue::Scalar(serde_json::Value::Number(_))) && reader.raw(node) == RECIPE_VERSION {
        reader.lenient(node.span, "recipe_version", "the version is a text").help("write `recipe_version: \"2\"`");
        return;
    }
    match reader.text(node, "recipe_version") {
        Some(version) if version != RECIPE_VERSION => {
            let message = format!("recipe version `{}` is not supported", shown(&version));
            reader.error(node.span, "recipe_version", message).help("this build reads version \"2\"");
        }
        _ => {}
    }
}

fn runtime(reader: &mut Reader<'_>, node: &Node) {
    match reader.text(node, "runtime") {
        Some(name) if name != "atlas" => {
            let known = ["vllm", "sglang", "llama-cpp", "llama_cpp", "trtllm", "eugr-vllm"];
            let message = if known.contains(&name.as_str()) {
                format!("this recipe is for {name}; Atlas runs recipes with `runtime: atlas`")
            } else {
                format!("unknown runtime `{}`", shown(&name))
            };
            reader.error(node.span, "runtime", message).did_you_mean(|| crate::suggest::nearest(&name, ["atlas"]));
        }
        _ => {}
    }
}

fn nodes(reader: &mut Reader<'_>, node: &Node, field: &str) -> Option<u32> {
    reader.integer(node, field, 1, 1024).and_then(|count| u32::try_from(count).ok())
}

/// Reports what every recipe must have and this one has not.
fn require(reader: &mut Reader<'_>, root: &Node, seen: &HashSet<&str>) {
    let start = Span { length: 0, ..root.span };
    // A misspelt key is reported as such, with this name as what was meant.
    let missing = |name: &str| {
        !seen.contains(name) && !seen.iter().take(100).any(|key| crate::suggest::nearest(key, [name]).is_some())
    };
    if missing("recipe_version") {
        let message = "`recipe_version` is missing";
        reader.lenient(start, "recipe_version", message).help("add `recipe_version: \"2\"`");
    }
    if missing("model") {
        let help = "add `model: owner/name` (a hub id), a folder, or `embedded`";
        reader.error(start, "model", "`model` is missing").help(help);
    }
    if missing("runtime") {
        reader.error(start, "runtime", "`runtime` is missing").help("add `runtime: atlas`");
    }
}

fn report_violations(reader: &mut Reader<'_>, facts: &rules::Facts<'_>, places: &Places) {
    for violation in rules::check(facts) {
        let span = places.of(&violation);
        let field = violation.keys.first().copied().unwrap_or_default();
        let field = if field.ends_with("_nodes") { field.to_owned() } else { format!("defaults.{field}") };
        let mut report = match violation.breach {
            rules::Breach::Conflict => reader.error(span, &field, violation.message),
            rules::Breach::Redundant | rules::Breach::Policy => reader.lenient(span, &field, violation.message),
        };
        report.help(violation.help);
    }
}
