//! One file a subcommand. Each has its `Args` and a `run` that returns when the work is done or has failed.

use crate::errors::CliError;
use crate::output::GlobalArgs;
use clap::Subcommand;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {}

impl Command {
    /// Runs the command.
    pub(crate) fn run(self, _global: &GlobalArgs) -> Result<(), CliError> {
        match self {}
    }
}
