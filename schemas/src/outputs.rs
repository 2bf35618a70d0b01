//! What commands print with `--json`.

use crate::hardware::HostFacts;
use crate::job::JobRecord;
use crate::provenance::EffectiveOption;
use crate::yaml::Diagnostic;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `atlas run --dry-run --json`: what a launch would do. Nothing was touched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunPlan {
    /// Recipe as it was named.
    pub recipe: String,
    /// Hash of the recipe with its overrides.
    pub recipe_hash: String,
    /// The model.
    pub model: String,
    /// Where the model's files are; absent if they are not here yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// Hosts, the head first.
    pub hosts: Vec<String>,
    /// Address that the server would listen on.
    pub host: String,
    /// Port that the server would listen on.
    pub port: u16,
    /// Whether that port is free.
    pub port_free: bool,
    /// The command line of rank 0, the program first, without secrets.
    pub argv: Vec<String>,
    /// Environment that the recipe adds.
    #[serde(default)]
    pub env: std::collections::BTreeMap<String, String>,
    /// Every option with its value and where it came from.
    pub options: Vec<EffectiveOption>,
    /// Memory that the launch needs and has; absent if the model's files are not here yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryFit>,
    /// What should be looked at, for people.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Why the launch would be refused; empty if it would not.
    #[serde(default)]
    pub refusals: Vec<String>,
}

/// Memory that a model needs on a device, against what is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryFit {
    /// Weights in bytes.
    pub weight_bytes: u64,
    /// KV cache in bytes, at the served context and sequences.
    pub kv_bytes: u64,
    /// Recurrent state in bytes.
    pub state_bytes: u64,
    /// Buffers of a step in bytes.
    pub buffer_bytes: u64,
    /// What may be used, in bytes.
    pub budget_bytes: u64,
    /// Whether it fits.
    pub fits: bool,
}

/// `atlas status --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatusReport {
    /// Jobs, the newest first.
    pub jobs: Vec<JobStatus>,
}

/// A job as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobStatus {
    /// The record, with its state corrected by what was found.
    pub job: JobRecord,
    /// Whether every rank's process is the recorded one and lives.
    pub alive: bool,
    /// Whether the API answers that it is ready; absent if it was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Address of the API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// `atlas explain --json`: what a model costs, before anything is loaded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainReport {
    /// Model or recipe as it was named.
    pub target: String,
    /// Family, as in `qwen3_5`.
    pub family: String,
    /// Hardware that the bound is for.
    pub hardware: String,
    /// Every sublayer, in order of execution.
    pub sublayers: Vec<SublayerCost>,
    /// The sum.
    pub total: Cost,
    /// Whether it fits the hardware's memory; absent if that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fits: Option<bool>,
    /// Tokens a second that memory bandwidth allows one stream; absent if the bandwidth is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_tok_s_bound: Option<f64>,
}

/// One sublayer's cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SublayerCost {
    /// Name, as in `layers.3.attention`.
    pub name: String,
    /// Parameters.
    pub params: u64,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Floating-point operations a token, attention over context aside.
    pub flops_per_token: u64,
    /// Bytes of KV cache a token.
    pub kv_bytes_per_token: u64,
    /// Bytes of recurrent state a sequence.
    pub state_bytes_per_sequence: u64,
}

/// A cost.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Parameters.
    pub params: u64,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Floating-point operations a token, attention over context aside.
    pub flops_per_token: u64,
    /// Bytes of KV cache a token.
    pub kv_bytes_per_token: u64,
    /// Bytes of recurrent state a sequence.
    pub state_bytes_per_sequence: u64,
}

/// `atlas doctor --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DoctorReport {
    /// Version of Atlas.
    pub atlas_version: String,
    /// What the machine is made of.
    pub facts: HostFacts,
    /// Every check, in the order in which they ran.
    pub checks: Vec<DoctorCheck>,
    /// Whether nothing would stop a run.
    pub ok: bool,
}

/// One check of the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DoctorCheck {
    /// Name, as in `memory`.
    pub name: String,
    /// Outcome.
    pub status: CheckStatus,
    /// What was found.
    pub detail: String,
    /// What to do, if something should be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
}

/// Outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// As it should be.
    Ok,
    /// A run works, but something should be looked at.
    Warning,
    /// A run would not work.
    Error,
}

/// `atlas recipe list --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecipeList {
    /// Every recipe that was found, broken ones too.
    pub recipes: Vec<RecipeListEntry>,
}

/// One recipe of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecipeListEntry {
    /// How to name it: `@atlas/tiny`.
    pub name: String,
    /// Where it comes from: a registry's name, or a path.
    pub origin: String,
    /// The model; absent if the recipe is broken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What it is for, in a sentence or a few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Parameters in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<String>,
    /// Hosts that are needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Hash; absent if the recipe is broken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// What is wrong with it; empty if nothing is.
    #[serde(default)]
    pub errors: Vec<String>,
}

/// `atlas recipe show --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecipeReport {
    /// Recipe as it was named.
    pub name: String,
    /// Where it comes from: a registry's name, or a path.
    pub origin: String,
    /// Hash, overrides included.
    pub hash: String,
    /// The recipe in canonical spelling, before overrides.
    pub recipe: Value,
    /// Every option with its value and where it came from.
    pub options: Vec<EffectiveOption>,
    /// What should be looked at.
    #[serde(default)]
    pub diagnostics: Vec<Diagnostic>,
    /// What this build cannot do of it.
    #[serde(default)]
    pub refusals: Vec<String>,
}

/// `atlas recipe validate --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ValidationReport {
    /// Whether every file is valid.
    pub valid: bool,
    /// Every file, in the order in which they were named.
    pub files: Vec<FileReport>,
}

/// One validated file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileReport {
    /// File as it was named.
    pub file: String,
    /// Whether it is valid; warnings do not make it invalid.
    pub valid: bool,
    /// Whether it was judged as one of our own.
    pub strict: bool,
    /// Hash; absent if it is invalid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Every error and warning, in the order of the file.
    pub diagnostics: Vec<Diagnostic>,
}
