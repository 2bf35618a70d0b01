//! What is written down about a job. Secrets are not.

use super::process::ProcessId;
use serde::{Deserialize, Serialize};

/// `job.json` of a job directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobRecord {
    /// Random, unique on this machine.
    pub(crate) id: String,
    /// The recipe as it was named on the command line.
    pub(crate) recipe: String,
    /// The recipe's short name.
    pub(crate) name: String,
    /// The model, as the recipe names it.
    pub(crate) model: String,
    /// How far it got.
    pub(crate) state: JobState,
    /// When it was started, RFC 3339, UTC.
    pub(crate) started_at: String,
    /// Whether it outlives the `atlas run` that started it.
    pub(crate) detached: bool,
    /// Where it serves, once the port is bound.
    pub(crate) url: Option<String>,
    /// The server's command line.
    pub(crate) argv: Vec<String>,
    /// The server process.
    pub(crate) process: Option<ProcessId>,
    /// The `atlas run` that started it.
    pub(crate) launcher: Option<ProcessId>,
}

/// How far a job got, as far as anybody could write it down. Whether it still runs is another question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum JobState {
    /// Being launched.
    Starting,
    /// It answered its self-test.
    Ready,
    /// Stopped on request, verified.
    Stopped,
    /// The launch failed or the process died under the eyes of its launcher.
    Failed,
}

/// `exit.json`: the last words of a server process that ended by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExitNote {
    /// Exit code.
    pub(crate) code: u8,
    /// Why, if it failed.
    pub(crate) message: Option<String>,
}
