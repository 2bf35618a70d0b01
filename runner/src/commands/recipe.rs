//! `atlas recipe`: look at recipes, check them, write them.

mod list;
mod new;
mod schema;
mod show;
mod validate;

use crate::errors::CliError;
use crate::output::GlobalArgs;
use crate::recipe::ResolveError;
use clap::{Args, Subcommand};

/// Look at recipes, check them, write them.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct RecipeArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(list::ListArgs),
    Show(show::ShowArgs),
    Validate(validate::ValidateArgs),
    Schema(schema::SchemaArgs),
    New(new::NewArgs),
}

impl RecipeArgs {
    /// Runs the action.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        match self.action {
            Action::List(args) => args.run(global),
            Action::Show(args) => args.run(global),
            Action::Validate(args) => args.run(global),
            Action::Schema(args) => args.run(global),
            Action::New(args) => args.run(global),
        }
    }
}

impl From<ResolveError> for CliError {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::NotFound(message) => Self::Failed(message),
            // The rendered diagnostics begin with `error: `, which is put before every message.
            ResolveError::Invalid { .. } => {
                let text = error.to_string();
                Self::Failed(text.strip_prefix("error: ").map_or(text.clone(), str::to_owned))
            }
        }
    }
}

impl From<crate::recipe::OverrideError> for CliError {
    fn from(error: crate::recipe::OverrideError) -> Self {
        Self::Usage(error.to_string())
    }
}
