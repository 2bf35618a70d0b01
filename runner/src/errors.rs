//! Exit codes, and the one place where a failure becomes text.

use crate::output::GlobalArgs;
use thiserror::Error;

/// Wrong command line.
pub(crate) const USAGE: u8 = 2;

/// A command's failure. The variant decides the exit code, which tells the truth about what happened.
#[derive(Debug, Error)]
pub(crate) enum CliError {
    /// What was asked did not happen, or not everywhere (1).
    #[error("{0}")]
    Failed(String),
    /// The message was printed already; only the exit code is left (1).
    #[error("")]
    Reported,
    /// The command line or an option's value is wrong (2).
    #[error("{0}")]
    Usage(String),
    /// A gate could not judge: too noisy, or too few runs (3).
    #[error("{0}")]
    Inconclusive(String),
    /// Refused before anything was touched (4).
    #[error("{0}")]
    Refused(String),
    /// Ctrl-C or SIGTERM (130).
    #[error("interrupted")]
    Interrupted,
}

impl CliError {
    /// The process exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) | Self::Reported => 1,
            Self::Usage(_) => USAGE,
            Self::Inconclusive(_) => 3,
            Self::Refused(_) => 4,
            Self::Interrupted => 130,
        }
    }
}

impl From<atlas_engine::errors::EngineError> for CliError {
    fn from(error: atlas_engine::errors::EngineError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Prints an error to stderr, as one JSON object under `--json`.
pub(crate) fn report(error: &CliError, global: &GlobalArgs) {
    if matches!(error, CliError::Reported) {
        return;
    }
    if global.json {
        eprintln!("{}", serde_json::json!({ "error": error.to_string(), "exit_code": error.exit_code() }));
    } else {
        eprintln!("error: {error}");
    }
}
