//! Where the runner meets the engine: a model's files become a served model.

use crate::errors::CliError;
use crate::memory_fit::MemoryNeed;
use crate::model::ModelSource;
use atlas_schemas::serve_options::ServeOptions;

/// Loads the model and starts its engine. Blocks for as long as loading takes.
pub(crate) fn start(_model: &ModelSource, _options: &ServeOptions) -> Result<std::convert::Infallible, CliError> {
    Err(CliError::Failed("this build has no engine yet".to_owned()))
}

/// What serving the model takes at least: its weights, and the caches of one sequence at full context length.
pub(crate) fn memory_need(_model: &ModelSource, _options: &ServeOptions) -> Result<MemoryNeed, CliError> {
    Err(CliError::Failed("this build has no engine yet".to_owned()))
}

/// Generates with the embedded model and compares with its known tokens. Returns what was done.
pub(crate) fn self_test() -> Result<String, CliError> {
    Err(CliError::Failed("this build has no engine yet".to_owned()))
}
