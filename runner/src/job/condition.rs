//! How a job really is: its record against its process and its HTTP port.

use super::log::tail;
use super::process::ProcessId;
use super::record::{ExitNote, server_process, url};
use super::store::JobDir;
use crate::http::{Endpoint, Health};
use atlas_schemas::job::{JobRecord, JobState};
use serde::Serialize;
use std::time::Duration;

/// A healthy server answers at once; a loaded one may take a moment.
const HEALTH_LIMIT: Duration = Duration::from_secs(3);
/// Log lines that explain a death.
pub(crate) const LAST_LINES: usize = 10;

/// What was found out about a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "condition", rename_all = "lowercase")]
pub(crate) enum Condition {
    /// The process runs and answers requests.
    Running,
    /// The process runs and is not ready yet.
    Starting {
        /// What it waits for.
        detail: String,
    },
    /// It was ready, its process runs, but it does not answer.
    Unhealthy {
        /// What it answers instead.
        detail: String,
    },
    /// It ended without being asked to.
    Dead {
        /// How, as far as is known.
        detail: String,
        /// The end of its log.
        last_lines: Vec<String>,
    },
    /// It was stopped.
    Stopped,
}

impl Condition {
    /// One word.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Starting { .. } => "starting",
            Self::Unhealthy { .. } => "unhealthy",
            Self::Dead { .. } => "dead",
            Self::Stopped => "stopped",
        }
    }

    /// What there is to say beyond the word.
    pub(crate) fn detail(&self) -> &str {
        match self {
            Self::Running | Self::Stopped => "",
            Self::Starting { detail } | Self::Unhealthy { detail } | Self::Dead { detail, .. } => detail,
        }
    }
}

/// Looks at the process (by number and start time) and asks the server itself.
pub(crate) async fn examine(job: &JobDir, record: &JobRecord) -> Condition {
    if record.state == JobState::Stopped {
        return Condition::Stopped;
    }
    let process = server_process(record);
    let alive = |process: Option<&ProcessId>| process.is_some_and(ProcessId::is_alive);
    if !alive(process.as_ref()) {
        if job.stop_requested() {
            return Condition::Stopped;
        }
        let launching = process.is_none() && record.state == JobState::Starting && alive(job.launcher().as_ref());
        return if launching { Condition::Starting { detail: "being launched".to_owned() } } else { dead(job, record) };
    }
    let health = match url(record) {
        None => Health::NotReady("has not bound its port yet".to_owned()),
        Some(url) => match Endpoint::new(&url, None) {
            Ok(endpoint) => endpoint.health(HEALTH_LIMIT).await,
            Err(error) => Health::Unreachable(error.to_string()),
        },
    };
    // It may have ended while it was asked.
    if !alive(process.as_ref()) {
        return dead(job, record);
    }
    match health {
        Health::Ready => Condition::Running,
        Health::NotReady(detail) | Health::Unreachable(detail) if record.state == JobState::Starting => {
            Condition::Starting { detail }
        }
        Health::NotReady(detail) | Health::Unreachable(detail) => Condition::Unhealthy { detail },
    }
}

fn dead(job: &JobDir, record: &JobRecord) -> Condition {
    let exit_code = record.ranks.first().and_then(|rank| rank.exit_code);
    // A launcher that saw the end knows more than the server, which perhaps was only told to go.
    let detail = match (job.exit_note(), &record.reason) {
        (_, Some(reason)) => reason.clone(),
        (Some(ExitNote { code, message: Some(message) }), _) => format!("exit code {code}: {message}"),
        (Some(ExitNote { code, message: None }), _) => format!("exit code {code}"),
        _ if exit_code.is_some() => format!("exit code {}", exit_code.unwrap_or_default()),
        _ if server_process(record).is_none() => "the launch was cut off before the server started".to_owned(),
        _ => "the process ended without a word: killed, out of memory, or the machine restarted".to_owned(),
    };
    Condition::Dead { detail, last_lines: last_lines(job) }
}

/// The end of a job's log.
pub(crate) fn last_lines(job: &JobDir) -> Vec<String> {
    let Ok(Some(mut file)) = job.open_log() else { return Vec::new() };
    tail(&mut file, LAST_LINES).unwrap_or_default().lines().map(str::to_owned).collect()
}
