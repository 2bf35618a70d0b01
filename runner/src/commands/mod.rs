//! One file a subcommand. Each has its `Args` and a `run` that returns when the work is done or has failed.

mod recipe;

use crate::errors::CliError;
use crate::output::GlobalArgs;
use clap::Subcommand;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Recipe(recipe::RecipeArgs),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        match self {
            Self::Recipe(args) => args.run(global),
        }
    }
}
