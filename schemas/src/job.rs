//! A job: one launched model, as recorded in its job directory on every host. Secrets are never in it.

use crate::provenance::EffectiveOption;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Version of [`JobRecord`] that this build writes.
pub const JOB_RECORD_VERSION: u32 = 1;

/// Everything needed to know, reach, judge and stop a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRecord {
    /// Version of this format: [`JOB_RECORD_VERSION`].
    pub schema_version: u32,
    /// Random id, 12 lowercase hexadecimal digits. It says nothing about the job, so equal launches never collide.
    pub id: String,
    /// The recipe as it was asked for: `@atlas/tiny`, a path, or a model for `atlas serve`.
    pub recipe: String,
    /// sha256 of the recipe's canonical form, in hexadecimal; absent if no recipe was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe_hash: Option<String>,
    /// The model: a hub id, a folder, or `embedded`.
    pub model: String,
    /// Hub revision, if one is pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_revision: Option<String>,
    /// The recipe after resolution, before overrides; `null` if no recipe was used.
    #[serde(default)]
    pub resolved_recipe: Value,
    /// Every option with its value and where it came from, in the order of the documentation.
    pub options: Vec<EffectiveOption>,
    /// The command line of rank 0, the program first. Secrets are handed over by file or stdin and are not here.
    pub argv: Vec<String>,
    /// Address that rank 0 listens on.
    pub host: String,
    /// Port that rank 0 listens on; the real one where a free one was asked for, 0 until it is known.
    pub port: u16,
    /// Name of the model in the API.
    pub model_name: String,
    /// When the launch began, RFC 3339 in UTC.
    pub started_at: String,
    /// When the job ended, RFC 3339 in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// What the job is doing.
    pub state: JobState,
    /// Why the job failed or stopped, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// One process a rank; rank 0 serves HTTP.
    pub ranks: Vec<RankRecord>,
}

/// One process of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RankRecord {
    /// Rank, from 0.
    pub rank: u32,
    /// Host as it was named.
    pub host: String,
    /// Process id; absent before the process exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// When the kernel started that process, in clock ticks since boot. A process with the same pid but another start
    /// time is not this one and must never be signalled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_start_ticks: Option<u64>,
    /// The boot that pid and start time belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Log file on that host.
    pub log: String,
    /// Exit code, once the process ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// What a job is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Processes are being started, or load weights.
    Starting,
    /// The API answers.
    Ready,
    /// Asked to stop, not yet gone.
    Stopping,
    /// Ended because it was asked to; verified.
    Stopped,
    /// Ended by itself, or never became ready.
    Failed,
}

impl JobState {
    /// Whether processes may still exist.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Starting | Self::Ready | Self::Stopping)
    }

    /// The name in files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

impl std::fmt::Display for JobState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
