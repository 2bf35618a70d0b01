//! Where the runner meets the engine: a model's files become a served model.

use crate::errors::CliError;
use crate::memory_fit::MemoryNeed;
use crate::model::ModelSource;
use atlas_schemas::serve_options::ServeOptions;
use atlas_server::ServedModel;
use serde_json::Value;

/// Loads the model and starts its engine. Blocks for as long as loading takes.
pub(crate) fn start(_model: &ModelSource, _options: &ServeOptions) -> Result<ServedModel, CliError> {
    Err(CliError::Failed("this build has no engine yet".to_owned()))
}

/// The checkpoint's `generation_config.json`, if it has one.
pub(crate) fn generation_config(model: &ModelSource) -> Result<Option<Value>, CliError> {
    let ModelSource::Folder(folder) = model else { return Ok(None) };
    let path = folder.join("generation_config.json");
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| CliError::Failed(format!("{}: {error}", path.display())))?,
    };
    serde_json::from_str(&text).map(Some).map_err(|error| CliError::Failed(format!("{}: {error}", path.display())))
}

/// What serving the model takes at least: its weights, and the caches of one sequence at full context length.
pub(crate) fn memory_need(_model: &ModelSource, _options: &ServeOptions) -> Result<MemoryNeed, CliError> {
    Err(CliError::Failed("this build has no engine yet".to_owned()))
}

/// Generates with the embedded model and compares with its known tokens. Returns what was done.
pub(crate) fn self_test() -> Result<String, CliError> {
    Err(CliError::Failed("this build has no engine yet".to_owned()))
}
