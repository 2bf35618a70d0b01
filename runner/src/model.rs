//! From a model's name to the folder that holds it.

use crate::embedded::NAME as EMBEDDED;
use crate::errors::CliError;
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

/// Finds a model on this machine: `embedded`, a folder, or a hub id in the Hugging Face cache. Nothing is downloaded;
/// the error says how to get what is missing.
pub(crate) fn locate(model: &str, revision: Option<&str>) -> Result<ModelSource, CliError> {
    if model == EMBEDDED {
        return Ok(ModelSource::Embedded);
    }
    let folder = Path::new(model);
    if folder.is_dir() {
        let missing = missing_files(folder);
        return match missing.as_slice() {
            [] => Ok(ModelSource::Folder(folder.to_owned())),
            some => Err(CliError::Refused(format!("{model} is not a whole model: {} missing", some.join(", ")))),
        };
    }
    if !is_hub_id(model) {
        return Err(CliError::Refused(format!(
            "`{model}` is neither a folder on this machine nor a hub id (`owner/name`) nor `{EMBEDDED}`"
        )));
    }
    let cache = hub_cache().ok_or_else(|| CliError::Failed("no Hugging Face cache: set HOME or HF_HOME".to_owned()))?;
    let problem = match snapshot(&cache, model, revision) {
        None => "is not on this machine".to_owned(),
        Some(folder) => match missing_files(&folder).as_slice() {
            [] => return Ok(ModelSource::Folder(folder)),
            some => format!("is not whole in the cache: {} missing", some.join(", ")),
        },
    };
    let at = revision.map(|revision| format!(" --revision {revision}")).unwrap_or_default();
    let name = model.rsplit('/').next().unwrap_or(model);
    Err(CliError::Refused(format!(
        "the model {model} {problem}\n  get it with `huggingface-cli download {model}{at}`, or into a folder with \
         `huggingface-cli download {model}{at} --local-dir {name}` and name that folder\n  (looked in {})",
        cache.display()
    )))
}

/// `HF_HUB_CACHE`, else `hub` in `HF_HOME`, else `~/.cache/huggingface/hub`.
pub(crate) fn hub_cache() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("HF_HUB_CACHE")
        .or_else(|| Some(variable("HF_HOME")?.join("hub")))
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("huggingface/hub")))
        .or_else(|| Some(variable("HOME")?.join(".cache/huggingface/hub")))
}

/// Two plain path components; nothing that leads elsewhere.
fn is_hub_id(model: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && !part.contains("--")
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
    };
    matches!(model.split('/').collect::<Vec<_>>().as_slice(), [owner, name] if plain(owner) && plain(name))
}

/// `models--OWNER--NAME/snapshots/COMMIT`, where a branch's commit stands in `refs/BRANCH`.
fn snapshot(cache: &Path, model: &str, revision: Option<&str>) -> Option<PathBuf> {
    let revision = revision.unwrap_or("main");
    let plain =
        |name: &str| !name.is_empty() && name.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    if !plain(revision) {
        return None;
    }
    let repository = cache.join(format!("models--{}", model.replace('/', "--")));
    let commit =
        std::fs::read_to_string(repository.join("refs").join(revision)).unwrap_or_else(|_| revision.to_owned());
    let commit = commit.trim();
    let folder = repository.join("snapshots").join(commit);
    (plain(commit) && !commit.contains('/') && folder.is_dir()).then_some(folder)
}

/// What a folder lacks to be a model: its configuration, or weight files that the index names. (A folder with the
/// configuration alone, as an interrupted download leaves it, is not a model.)
fn missing_files(folder: &Path) -> Vec<String> {
    let mut missing = Vec::new();
    if !folder.join("config.json").is_file() {
        missing.push("config.json".to_owned());
    }
    match std::fs::read_to_string(folder.join("model.safetensors.index.json")) {
        Ok(index) => missing.extend(shards(&index).into_iter().filter(|shard| !folder.join(shard).is_file())),
        Err(_) if weight_files(folder).is_empty() => missing.push("model.safetensors".to_owned()),
        Err(_) => {}
    }
    missing.sort();
    missing
}

/// The shard files that an index names, each once.
fn shards(index: &str) -> Vec<String> {
    let index: serde_json::Value = serde_json::from_str(index).unwrap_or_default();
    let map = index.get("weight_map").and_then(serde_json::Value::as_object);
    let names: std::collections::BTreeSet<&str> =
        map.into_iter().flatten().filter_map(|(_, file)| file.as_str()).collect();
    names.into_iter().map(str::to_owned).collect()
}

/// The safetensors files of a model folder: those of the index where there is one, else all.
pub(crate) fn weight_files(folder: &Path) -> Vec<PathBuf> {
    if let Ok(index) = std::fs::read_to_string(folder.join("model.safetensors.index.json")) {
        return shards(&index).into_iter().map(|shard| folder.join(shard)).collect();
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "safetensors")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn a_configuration_alone_is_not_a_model() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert_eq!(missing_files(path), ["config.json", "model.safetensors"]);
        write(&path.join("config.json"), "{}");
        write(
            &path.join("model.safetensors.index.json"),
            r#"{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-1.safetensors"}}"#,
        );
        write(&path.join("m-1.safetensors"), "");
        assert_eq!(missing_files(path), ["m-2.safetensors"]);
        let error = locate(&path.display().to_string(), None).unwrap_err();
        assert_eq!(error.exit_code(), 4);
        write(&path.join("m-2.safetensors"), "");
        assert_eq!(locate(&path.display().to_string(), None).unwrap(), ModelSource::Folder(path.to_owned()));
        assert_eq!(weight_files(path).len(), 2);
    }

    #[test]
    fn snapshots_are_found_by_branch_and_by_commit() {
        let cache = tempfile::tempdir().unwrap();
        let repository = cache.path().join("models--org--m");
        write(&repository.join("refs/main"), "abc\n");
        write(&repository.join("snapshots/abc/config.json"), "{}");
        let expected = Some(repository.join("snapshots/abc"));
        assert_eq!(snapshot(cache.path(), "org/m", None), expected);
        assert_eq!(snapshot(cache.path(), "org/m", Some("abc")), expected);
        assert_eq!(snapshot(cache.path(), "org/m", Some("other")), None);
        assert_eq!(snapshot(cache.path(), "org/other", None), None);
        write(&repository.join("refs/evil"), "../../..\n");
        for outside in ["../../x", "..", "evil", "/etc"] {
            assert_eq!(snapshot(cache.path(), "org/m", Some(outside)), None, "{outside}");
        }
    }

    #[test]
    fn what_is_not_here_comes_with_advice() {
        let error = locate("no-such-org/no-such-model", Some("v2")).unwrap_err();
        assert_eq!(error.exit_code(), 4);
        assert!(error.to_string().contains("huggingface-cli download no-such-org/no-such-model --revision v2"));
        for name in ["../x", "a/b/c", "a/../b", "/no/such", "a--b/c", "-o/x", ""] {
            assert!(locate(name, None).unwrap_err().to_string().contains("neither a folder"), "{name}");
        }
        assert_eq!(locate("embedded", None).unwrap(), ModelSource::Embedded);
    }
}
