//! From a model's name to the folder that holds it.

use crate::embedded::NAME as EMBEDDED;
use crate::errors::CliError;
use atlas_hub::{Cache, HubConfig, RepoId, Revision, missing_files, shards};
use std::path::{Path, PathBuf};

/// Where a model's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ModelSource {
    /// Inside this binary.
    Embedded,
    /// A folder with `config.json` and safetensors.
    Folder(PathBuf),
}

impl ModelSource {
    /// As `atlas serve` takes it.
    pub(crate) fn argument(&self) -> String {
        match self {
            Self::Embedded => EMBEDDED.to_owned(),
            Self::Folder(path) => path.display().to_string(),
        }
    }
}

/// A model by its name: here, or at the hub.
#[derive(Debug, Clone)]
pub(crate) enum Located {
    /// On this machine.
    Here(ModelSource),
    /// Not whole on this machine; a hub may have it.
    AtHub(HubModel),
}

/// A model that has to be fetched first.
#[derive(Debug, Clone)]
pub(crate) struct HubModel {
    /// The repository.
    pub(crate) repo: RepoId,
    /// Its revision.
    pub(crate) revision: Revision,
    /// Whether the network may be used.
    pub(crate) offline: bool,
    problem: String,
}

impl HubModel {
    /// Where the network is of no use: what is missing, and how to get it.
    pub(crate) fn missing(&self) -> CliError {
        let Self { repo, revision, problem, .. } = self;
        let at = if *revision == Revision::default() { String::new() } else { format!(" --revision {revision}") };
        let name = repo.as_str().rsplit('/').next().unwrap_or_default();
        let cache = hub_cache().unwrap_or_default();
        CliError::Refused(format!(
            "the model {repo} {problem}\n  get it with `atlas pull {repo}{at}` or `huggingface-cli download {repo}{at}`, or \
             into a folder with `huggingface-cli download {repo}{at} --local-dir {name}` and name that folder\n  (looked \
             in {})",
            cache.display()
        ))
    }
}

/// The hub as the environment names it.
pub(crate) fn hub_config() -> Result<HubConfig, CliError> {
    let config = HubConfig::from_environment(|name| std::env::var(name).ok());
    config.map_err(|error| CliError::Usage(error.to_string()))
}

/// Where the Hugging Face cache is.
pub(crate) fn hub_cache() -> Option<PathBuf> {
    hub_config().ok().map(|config| config.cache)
}

/// Finds a model: `embedded`, a folder, or a hub id, in the Hugging Face cache or not. Touches neither disk nor network.
pub(crate) fn look(model: &str, revision: Option<&str>) -> Result<Located, CliError> {
    if model == EMBEDDED {
        return Ok(Located::Here(ModelSource::Embedded));
    }
    let folder = Path::new(model);
    if folder.is_dir() {
        return match missing_files(folder).as_slice() {
            [] => Ok(Located::Here(ModelSource::Folder(folder.to_owned()))),
            some => Err(CliError::Refused(format!("{model} is not a whole model: {} missing", some.join(", ")))),
        };
    }
    let mut wanted = wish(model, revision)?;
    match Cache::new(&hub_config()?).look(&wanted.repo, &wanted.revision) {
        Ok(snapshot) => Ok(Located::Here(ModelSource::Folder(snapshot.folder))),
        Err(problem) => {
            wanted.problem = problem;
            Ok(Located::AtHub(wanted))
        }
    }
}

/// A hub id with its revision, whether its files are here or not.
pub(crate) fn wish(model: &str, revision: Option<&str>) -> Result<HubModel, CliError> {
    let (repo, at) = model.split_once('@').map_or((model, None), |(repo, at)| (repo, Some(at)));
    let Ok(repo) = RepoId::parse(repo) else {
        return Err(CliError::Refused(format!(
            "`{model}` is neither a folder on this machine nor a hub id (`owner/name`, `owner/name@revision`) nor \
             `{EMBEDDED}`"
        )));
    };
    if let (Some(at), Some(revision)) = (at, revision)
        && at != revision
    {
        return Err(CliError::Usage(format!("two revisions: `{at}` in the name, and `{revision}`")));
    }
    let revision = revision.or(at).map_or_else(|| Ok(Revision::default()), Revision::parse);
    let revision = revision.map_err(|error| CliError::Usage(error.to_string()))?;
    Ok(HubModel { repo, revision, offline: hub_config()?.offline, problem: String::new() })
}

/// Finds a model on this machine. Nothing is downloaded; the error says how to get what is missing.
pub(crate) fn locate(model: &str, revision: Option<&str>) -> Result<ModelSource, CliError> {
    match look(model, revision)? {
        Located::Here(source) => Ok(source),
        Located::AtHub(model) => Err(model.missing()),
    }
}

/// The safetensors files of a model folder: those of the index where there is one, else all.
pub(crate) fn weight_files(folder: &Path) -> Vec<PathBuf> {
    if let Ok(index) = std::fs::read_to_string(folder.join("model.safetensors.index.json")) {
        return shards(&index).unwrap_or_default().into_iter().map(|shard| folder.join(shard)).collect();
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "safetensors")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_must_be_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let name = path.display().to_string();
        std::fs::write(path.join("config.json"), "{}").unwrap();
        std::fs::write(
            path.join("model.safetensors.index.json"),
            r#"{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#,
        )
        .unwrap();
        std::fs::write(path.join("m-1.safetensors"), "").unwrap();
        let error = locate(&name, None).unwrap_err();
        assert_eq!((error.exit_code(), error.to_string().contains("m-2.safetensors")), (4, true));
        std::fs::write(path.join("m-2.safetensors"), "").unwrap();
        assert_eq!(locate(&name, None).unwrap(), ModelSource::Folder(path.to_owned()));
        assert_eq!(weight_files(path).len(), 2);
    }

    #[test]
    fn what_is_not_here_comes_with_advice() {
        for error in [
            locate("no-such-org/no-such-model", Some("v2")).unwrap_err(),
            locate("no-such-org/no-such-model@v2", None).unwrap_err(),
        ] {
            assert_eq!(error.exit_code(), 4);
            let text = error.to_string();
            assert!(text.contains("huggingface-cli download no-such-org/no-such-model --revision v2"), "{text}");
            assert!(text.contains("atlas pull no-such-org/no-such-model --revision v2"), "{text}");
        }
        for name in ["../x", "a/b/c", "a/../b", "/no/such", "a--b/c", "-o/x", ""] {
            assert!(locate(name, None).unwrap_err().to_string().contains("neither a folder"), "{name}");
        }
        for (name, revision) in [("a/b@../x", None), ("a/b", Some("../../x")), ("a/b@v1", Some("v2"))] {
            assert_eq!(locate(name, revision).unwrap_err().exit_code(), 2, "{name}");
        }
        assert_eq!(locate("embedded", None).unwrap(), ModelSource::Embedded);
    }
}
