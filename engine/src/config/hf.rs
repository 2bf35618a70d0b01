//! Reading a checkpoint's configuration files and choosing its family.

use super::generation::GenerationConfig;
use super::quant::Quantization;
use super::spec::ModelSpec;
use crate::errors::EngineError;
use crate::families;
use crate::weights::ModelFiles;
use serde_json::Value;

/// The largest configuration file that is read, in bytes.
const MAX_JSON: u64 = 16 << 20;

/// Reads one JSON file of the model; `None` when it does not exist.
pub fn read_json(files: &ModelFiles, name: &str) -> Result<Option<Value>, EngineError> {
    let Some(bytes) = files.read(name, MAX_JSON)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| EngineError::Config {
        path: files.display(name),
        message: format!("line {} column {}: {error}", error.line(), error.column()),
    })
}

/// Reads `config.json` (and `hf_quant_config.json`) and returns the model as data.
pub fn load_spec(files: &ModelFiles) -> Result<ModelSpec, EngineError> {
    let path = files.display("config.json");
    let config = read_json(files, "config.json")?.ok_or_else(|| EngineError::Config {
        path: path.clone(),
        message: "there is no such file; a model folder holds config.json, tokenizer.json and *.safetensors".into(),
    })?;
    let quantization = Quantization::read(&path, &config, read_json(files, "hf_quant_config.json")?.as_ref())?;
    families::read(&path, &config, quantization)
}

/// Reads `generation_config.json`; defaults when there is none.
pub fn load_generation(files: &ModelFiles) -> Result<GenerationConfig, EngineError> {
    read_json(files, "generation_config.json")?
        .map_or_else(|| Ok(GenerationConfig::default()), |v| GenerationConfig::read(&v))
}
