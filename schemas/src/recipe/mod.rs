//! The recipe: which model, with which options, on how many hosts, and what it must prove.
//!
//! The format is version 2 of the one that sparkrun uses, closed: every key has a type here, and an unknown key is an
//! error. [`parse`] reads a file and reports every problem at once.

mod canonical;
mod environment;
mod fields;
mod metadata;
mod options;
mod parse;
mod reader;
pub mod rules;

pub use canonical::{canonical_hash, options_for_hash};
pub use environment::{ENVIRONMENT, EnvironmentAnswer, EnvironmentFact};
pub use metadata::{ArenaBenchmark, Metadata};
pub use parse::{Parsed, parse};

use crate::hardware::HardwareClass;
use crate::serve_options::{OptionSet, ServeOptions};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The recipe format that this build reads.
pub const RECIPE_VERSION: &str = "2";
/// What marks a recipe as written for Atlas: the file's first comment names this schema.
pub const SCHEMA_FILE: &str = "recipe.schema.json";
/// Where editors find the schema.
pub const SCHEMA_URL: &str =
    "https://raw.githubusercontent.com/atlas-inference/atlas/main/schemas/json/recipe.schema.json";
/// The model that is inside the `atlas` binary.
pub const EMBEDDED_MODEL: &str = "embedded";

/// How a recipe is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// One of ours: anything out of place is an error.
    Own,
    /// From elsewhere: prose in informational fields, legacy spellings and redundant keys are warnings; anything that
    /// would change results, or is unknown, stays an error.
    Foreign,
    /// [`Self::Own`] if the file's head names our schema, else [`Self::Foreign`].
    Detect,
}

/// A recipe. Built by [`parse`] only, so that one in hand is a valid one.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Atlas recipe")]
pub struct Recipe {
    /// Version of the format: `"2"`.
    #[schemars(extend("enum" = ["2"]))]
    pub recipe_version: String,
    /// The model: a hub id (`owner/name`), a folder, or `embedded`.
    #[schemars(length(min = 1))]
    pub model: String,
    /// Hub revision: a commit, tag or branch. A lock pins it to a commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_revision: Option<String>,
    /// What runs the model: `atlas`.
    pub runtime: Runtime,
    /// Container image of other runners. Atlas uses no containers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Hosts that are needed at least.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1024))]
    pub min_nodes: u32,
    /// Hosts that are used at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_nodes: Option<u32>,
    /// What people and tools may know about the recipe. It changes nothing.
    #[serde(default)]
    pub metadata: Metadata,
    /// Serve options; each is also a flag of `atlas serve`.
    #[serde(default)]
    #[schemars(with = "ServeOptions")]
    pub defaults: OptionSet,
    /// Environment variables of the engine's process.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Command line that starts the server, with `{key}` for options. By default the embedded engine is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Commands that run on every host before the server starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pre_exec: Vec<Hook>,
    /// Commands that run on the head host once the server is ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub post_exec: Vec<String>,
    /// Commands that run on the machine that launched, once the server is ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub post_commands: Vec<String>,
    /// Stop the server after the post commands.
    #[serde(default)]
    pub stop_after_post: bool,
    /// How other runners benchmark the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub benchmark: Option<Benchmark>,
    /// What the recipe must prove, and where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gates: Option<RecipeGates>,
}

fn one() -> u32 {
    1
}

/// What runs the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// The engine in this binary.
    Atlas,
}

/// A step before the server starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged, deny_unknown_fields)]
pub enum Hook {
    /// A shell command.
    Command(String),
    /// A file that is copied to every host.
    Copy {
        /// File on the source host.
        copy: String,
        /// Where it goes.
        dest: String,
        /// Host that has the file; by default the machine that launches.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source_host: Option<String>,
    },
}

/// How other runners benchmark the model. Atlas measures with gates and `atlas bench`, and only carries this along.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Benchmark {
    /// Benchmark program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framework: Option<String>,
    /// Time limit in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
    /// Order of the measurements.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub schedule: Value,
    /// Arguments of the benchmark program.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub args: Map<String, Value>,
}

/// What a recipe must prove, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecipeGates {
    /// Suites, by name.
    #[schemars(length(min = 1))]
    pub suites: Vec<String>,
    /// Hardware classes that the suites must pass on.
    #[schemars(length(min = 1))]
    pub classes: Vec<HardwareClass>,
}

impl Recipe {
    /// What this recipe asks for and this build cannot do. Validation passes; a launch must refuse and say so.
    pub fn refusals(&self) -> Vec<String> {
        let executable = [
            (self.command.is_some(), "command"),
            (!self.pre_exec.is_empty(), "pre_exec"),
            (!self.post_exec.is_empty(), "post_exec"),
            (!self.post_commands.is_empty(), "post_commands"),
            (self.stop_after_post, "stop_after_post"),
        ];
        let mut refusals: Vec<String> = executable
            .into_iter()
            .filter(|(present, _)| *present)
            .map(|(_, key)| format!("`{key}`: this build does not run commands from recipes"))
            .collect();
        if self.min_nodes > 1 {
            refusals.push(format!("`min_nodes: {}`: this build runs on one host", self.min_nodes));
        }
        refusals
    }

    /// sha256 of what runs: model, revision, options (defaults and network options aside), environment, topology and
    /// commands. Comments, metadata and gates do not count.
    pub fn hash(&self) -> String {
        canonical_hash(self, &self.defaults)
    }
}
