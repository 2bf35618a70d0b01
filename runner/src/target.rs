//! What is measured: a running endpoint, or a model or recipe that is started for the time of the measurement.

use crate::engine_host;
use crate::errors::CliError;
use crate::host::memory::this_machine;
use crate::interrupt::Interrupt;
use atlas_engine::explain::explain;
use atlas_engine::model::LoadOptions;
use atlas_engine::weights::ModelFiles;
use atlas_gates::client::Client;
use atlas_gates::launch::{Launched, Launcher, ProcessLauncher};
use atlas_gates::probe::Yardstick;
use atlas_gates::provenance;
use atlas_gates::record::TokenWork;
use serde_json::Value;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// A started model must be ready by then; a URL that is given should be ready already.
const START_LIMIT: Duration = Duration::from_secs(1800);
const READY_LIMIT: Duration = Duration::from_secs(60);

/// How the thing to measure was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// An endpoint that runs already.
    Url(String),
    /// `@REGISTRY/NAME` or a YAML file.
    Recipe(String),
    /// `embedded`, a folder, or a hub id.
    Model(String),
}

impl FromStr for Target {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.to_owned();
        Ok(if text.starts_with("http://") || text.starts_with("https://") {
            Self::Url(text)
        } else if text.starts_with('@') || text.ends_with(".yaml") || text.ends_with(".yml") {
            Self::Recipe(text)
        } else {
            Self::Model(text)
        })
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Url(name) | Self::Recipe(name) | Self::Model(name) => f.write_str(name),
        }
    }
}

impl Target {
    /// The last part of the name, without an ending: records and baselines are filed under it.
    pub(crate) fn short_name(&self) -> String {
        let name = self.to_string();
        let last = name.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let stem = last.strip_suffix(".yaml").or(last.strip_suffix(".yml")).unwrap_or(last);
        stem.trim_start_matches('@').to_owned()
    }
}

/// A ready target.
#[derive(Debug)]
pub(crate) struct Ready {
    /// How to ask it.
    pub(crate) client: Client,
    /// The model's name on this machine, if it was started here.
    pub(crate) model: Option<String>,
    /// sha256 of the recipe, if one was run.
    pub(crate) recipe_hash: Option<String>,
}

impl Ready {
    /// What a token costs, from the model's files. Nothing is known about an endpoint that was not started here.
    pub(crate) fn work(&self) -> Result<TokenWork, CliError> {
        let Some(model) = &self.model else { return Ok(TokenWork::default()) };
        let total = explain(&engine_host::open(model)?, &LoadOptions::default(), this_machine())?.total;
        Ok(TokenWork {
            weight_bytes: Some(total.weight_bytes),
            weight_bytes_per_token: Some(total.weight_bytes_per_token),
            flops_per_token: Some(total.flops_per_token),
        })
    }

    /// sha256 over the model's weight files. Reads all of them.
    pub(crate) fn weights_hash(&self) -> Result<Option<String>, CliError> {
        let Some(model) = &self.model else { return Ok(None) };
        let files = match engine_host::open(model)? {
            ModelFiles::Embedded(files) => {
                let weights = files.iter().filter(|(name, _)| name.ends_with(".safetensors"));
                weights.map(|(name, bytes)| ((*name).to_owned(), provenance::sha256(bytes))).collect()
            }
            ModelFiles::Folder(folder) => {
                let files = crate::model::weight_files(&folder);
                files.iter().map(|path| hash_file(path)).collect::<Result<_, _>>()?
            }
        };
        Ok(provenance::weights_hash(files))
    }
}

fn hash_file(path: &Path) -> Result<(String, String), CliError> {
    let hash =
        provenance::sha256_file(path).map_err(|error| CliError::Failed(format!("{}: {error}", path.display())))?;
    Ok((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), hash))
}

/// The kernels' own vector code as the machine's yardstick.
pub(crate) const YARDSTICK: Yardstick =
    Yardstick { method: "kernels-1", read: atlas_kernels::probe_read, compute: atlas_kernels::probe_fma };

/// sha256 of this executable, which is also the one that serves what is started here.
pub(crate) fn binary_sha256() -> Option<String> {
    provenance::sha256_file(&std::env::current_exe().ok()?).ok()
}

/// Starts `target` if it does not run, waits until it is ready, does `work` and stops it again, whatever came of it. A
/// signal ends all of it.
pub(crate) async fn measured<T>(
    target: &Target,
    interrupt: &Interrupt,
    work: impl AsyncFnOnce(Ready) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let launched = match target {
        Target::Url(_) => None,
        _ => Some(interrupt.or(launch(target)).await??),
    };
    let outcome = interrupt.or(ready_then(target, launched.as_ref(), work)).await.and_then(|result| result);
    if let Some(launched) = launched {
        launched.stop().await;
    }
    outcome
}

/// The key of the endpoint, from the environment: a command line can be read by everyone on the machine.
fn api_key() -> Option<String> {
    std::env::var("ATLAS_API_KEY").ok().filter(|key| !key.is_empty())
}

async fn launch(target: &Target) -> Result<Launched, CliError> {
    let program = std::env::current_exe().map_err(|error| CliError::Failed(format!("this executable: {error}")))?;
    let name = target.to_string();
    let arguments = match target {
        Target::Recipe(_) => vec!["run", &name, "--hosts", "localhost", "--port", "0", "--json"],
        _ => vec!["serve", &name, "--port", "0", "--json"],
    };
    let arguments = arguments.into_iter().map(str::to_owned).collect();
    let launcher = ProcessLauncher { program, arguments, limit: START_LIMIT };
    launcher.launch().await.map_err(|error| CliError::Failed(error.to_string()))
}

async fn ready_then<T>(
    target: &Target,
    launched: Option<&Launched>,
    work: impl AsyncFnOnce(Ready) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let failed = |error: atlas_gates::client::ClientError| CliError::Failed(error.to_string());
    let url = launched.map_or_else(|| target.to_string(), |launched| launched.url.clone());
    let client = Client::new(&url, api_key()).map_err(|error| CliError::Usage(error.to_string()))?;
    client.wait_ready(READY_LIMIT).await.map_err(failed)?;
    let said = |field: &str| launched.and_then(|launched| launched.ready.get(field)).and_then(Value::as_str);
    let model = match target {
        Target::Url(_) => None,
        Target::Recipe(_) => said("model").map(str::to_owned),
        Target::Model(model) => Some(model.clone()),
    };
    let recipe_hash = said("recipe_hash").map(str::to_owned);
    work(Ready { client, model, recipe_hash }).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        text.parse().unwrap()
    }

    #[test]
    fn targets_are_told_apart() {
        assert_eq!(target("http://h:1/v1"), Target::Url("http://h:1/v1".into()));
        assert_eq!(target("@atlas/tiny"), Target::Recipe("@atlas/tiny".into()));
        assert_eq!(target("recipes/tiny/tiny.yaml"), Target::Recipe("recipes/tiny/tiny.yaml".into()));
        for model in ["embedded", "./models/x", "org/model"] {
            assert_eq!(target(model), Target::Model(model.into()));
        }
    }

    #[test]
    fn short_names_are_stems() {
        for (name, short) in [
            ("@atlas/tiny", "tiny"),
            ("@tiny", "tiny"),
            ("recipes/tiny/tiny.yaml", "tiny"),
            ("a/qwen3.5-0.8b/", "qwen3.5-0.8b"),
            ("embedded", "embedded"),
        ] {
            assert_eq!(target(name).short_name(), short);
        }
    }
}
