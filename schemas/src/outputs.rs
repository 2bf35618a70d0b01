//! What commands print with `--json`.

use crate::job::{JobRecord, JobState};
use crate::provenance::EffectiveOption;
use crate::yaml::Diagnostic;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// `atlas run --dry-run --json`: what a launch would do. Nothing was touched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunPlan {
    /// Recipe as it was named.
    pub recipe: String,
    /// Hash of the recipe with its overrides.
    pub recipe_hash: String,
    /// The model as the recipe names it.
    pub model: String,
    /// Where the model is; `null` if it is not here.
    pub model_path: Option<String>,
    /// Hosts, the head first.
    pub hosts: Vec<String>,
    /// Address and port that the server would listen on; port 0 is any free one.
    pub address: String,
    /// Its URL.
    pub url: String,
    /// Name of the model in the API.
    pub model_name: String,
    /// Memory against need; `null` if the model is not here.
    pub memory: Option<MemoryFit>,
    /// The server's command line, the program first, without secrets.
    pub argv: Vec<String>,
    /// Environment that the recipe adds.
    pub env: BTreeMap<String, String>,
    /// Every option with its value and where it came from.
    pub options: Vec<EffectiveOption>,
    /// Why the launch would be refused; empty if it would not.
    pub refused: Vec<String>,
    /// What is not here yet, and how to get it; `null` if nothing is missing.
    pub missing: Option<String>,
}

/// Memory that a model needs, against what is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryFit {
    /// Weights in bytes.
    pub weight_bytes: u64,
    /// KV cache of one sequence at the served context, in bytes.
    pub kv_bytes: u64,
    /// Recurrent state of one sequence, in bytes.
    pub state_bytes: u64,
    /// Tokens that `kv_bytes` was computed for.
    pub context: u64,
    /// Sum of the above, in bytes.
    pub needed_bytes: u64,
    /// What may be used.
    pub available: AvailableMemory,
    /// Part of the available memory that the options let Atlas take, in percent.
    pub utilization_percent: u32,
    /// Whether it fits.
    pub fits: bool,
}

/// Memory that can be used without swapping or being killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AvailableMemory {
    /// Bytes, the smaller of the two below.
    pub bytes: u64,
    /// What the system has.
    pub system_bytes: u64,
    /// What the tightest control group leaves; `null` where none has a limit.
    pub cgroup_bytes: Option<u64>,
    /// Memory of the machine.
    pub total_bytes: u64,
}

/// `atlas run --json`: the job that runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunSummary {
    /// Id of the job.
    pub job: String,
    /// Recipe as it was named.
    pub recipe: String,
    /// Hash of the recipe with its overrides.
    pub recipe_hash: Option<String>,
    /// The model as the recipe names it.
    pub model: String,
    /// Name of the model in the API.
    pub model_name: String,
    /// URL of the API.
    pub url: String,
    /// Its port.
    pub port: u16,
    /// Process id of rank 0.
    pub pid: Option<u32>,
    /// What the job is doing.
    pub state: JobState,
    /// Whether it goes on running when the command ends.
    pub detached: bool,
    /// Log file.
    pub log: String,
}

/// One element of `atlas status --json`: a job as it is now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobStatus {
    /// What was found out about the job.
    pub condition: JobCondition,
    /// What there is to say beyond that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The end of the log of a job that died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_lines: Option<Vec<String>>,
    /// Log file.
    pub log: String,
    /// The record.
    #[serde(flatten)]
    pub record: JobRecord,
}

/// What was found out about a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobCondition {
    /// The process runs and answers requests.
    Running,
    /// The process runs and is not ready yet.
    Starting,
    /// It was ready, its process runs, but it does not answer.
    Unhealthy,
    /// It ended without being asked to.
    Dead,
    /// It was stopped.
    Stopped,
}

/// One element of `atlas stop --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StopOutcome {
    /// Id of the job.
    pub job: String,
    /// Recipe as it was named.
    pub recipe: String,
    /// Whether it is gone; verified.
    pub stopped: bool,
    /// How it ended, or why it did not.
    pub detail: String,
}

/// `atlas logs --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogTail {
    /// Id of the job.
    pub job: String,
    /// Log file.
    pub log: String,
    /// Its last lines.
    pub lines: Vec<String>,
}

/// What `atlas serve --json` prints, on one line, once requests are answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListeningEvent {
    /// `listening`.
    pub event: String,
    /// URL of the API.
    pub url: String,
    /// Address that was bound.
    pub host: String,
    /// Port that was bound; the real one where a free one was asked for.
    pub port: u16,
    /// Name of the model in the API.
    pub model: String,
}

/// What `atlas chat --json` prints, on one line, for every turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatTurn {
    /// What was said to the model.
    pub prompt: String,
    /// Its answer.
    pub content: String,
    /// Its reasoning; empty if there was none.
    pub reasoning_content: String,
    /// Its tool calls, as the API has them.
    pub tool_calls: Vec<Value>,
    /// Why the answer ended; `null` if it was broken off.
    pub finish_reason: Option<String>,
    /// Token counts, as the API has them; `null` if the server sent none.
    pub usage: Option<Value>,
    /// Milliseconds from the request to the first piece of the answer.
    pub ttft_ms: Option<f64>,
    /// Tokens a second after the first piece.
    pub decode_tok_s: Option<f64>,
}

/// `atlas explain --json`: what a model costs, before anything is loaded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainReport {
    /// Family, as in `qwen3_5`.
    pub family: String,
    /// Context length that memory was estimated for, in tokens.
    pub context: u64,
    /// Sequences that memory was estimated for.
    pub sequences: u64,
    /// Bytes of weights by format.
    pub weight_formats: BTreeMap<String, u64>,
    /// Every sublayer, in order of execution.
    pub sublayers: Vec<SublayerCost>,
    /// The sum.
    pub total: Cost,
    /// Weights, caches and activations in bytes.
    pub memory_bytes: u64,
    /// The machine compared with.
    pub hardware: ExplainHardware,
    /// Whether it fits.
    pub fits: bool,
    /// Tokens a second that memory bandwidth allows one sequence; `null` if the bandwidth is unknown.
    pub decode_tok_s_bound: Option<f64>,
    /// What the reader should know.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// A machine, as far as the bound needs it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainHardware {
    /// Name, as in `gb10`.
    pub name: String,
    /// Memory that a model may use, in bytes.
    pub memory_bytes: u64,
    /// Memory bandwidth in bytes a second; `null` if it was not measured.
    pub bandwidth: Option<f64>,
}

/// One sublayer's cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SublayerCost {
    /// Name, as in `layers.3.mlp`.
    pub name: String,
    /// Its cost.
    #[serde(flatten)]
    pub cost: Cost,
}

/// A cost.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// Parameters.
    pub params: u64,
    /// Bytes of weights as stored, scales included.
    pub weight_bytes: u64,
    /// Bytes of weights that one decoded token reads.
    pub weight_bytes_per_token: u64,
    /// Floating-point operations a token, attention over earlier tokens aside.
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
    /// Whether nothing would stop a run.
    pub ok: bool,
    /// Every check, in the order in which they ran.
    pub checks: Vec<DoctorCheck>,
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
    pub value: String,
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
    Warn,
    /// A run would not work.
    Fail,
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
    /// What else should be looked at, overrides included.
    #[serde(default)]
    pub notes: Vec<String>,
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
