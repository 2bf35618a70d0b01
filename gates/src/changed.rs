//! What a change must prove: which recipes it touches, and which committed record covers one.

use crate::data::DataError;
use crate::record;
use atlas_schemas::gate::GateRecord;
use atlas_schemas::hardware::HardwareClass;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use thiserror::Error;

/// The folder of recipes in a repository.
const RECIPES: &str = "recipes";

/// Why the change cannot be told.
#[derive(Debug, Error)]
pub enum ChangedError {
    /// Not something that git takes for a revision.
    #[error("`{0}` is not a git revision")]
    Reference(String),
    /// git failed.
    #[error("git {command}: {message}")]
    Git {
        /// Its arguments.
        command: String,
        /// What it said.
        message: String,
    },
}

/// Recipe files, relative to `root`, that the work tree has added or changed since it left `reference`. Locks are not
/// recipes; deleted files prove nothing.
pub fn recipes(root: &Path, reference: &str) -> Result<Vec<PathBuf>, ChangedError> {
    if reference.is_empty() || reference.starts_with('-') {
        return Err(ChangedError::Reference(reference.into()));
    }
    let base = git(root, &["merge-base", reference, "HEAD"])?;
    let changed =
        ["diff", "--name-only", "-z", "--no-renames", "--diff-filter=d", "--relative", base.trim(), "--", RECIPES];
    let added = ["ls-files", "-z", "--others", "--exclude-standard", "--", RECIPES];
    let names = git(root, &changed)? + &git(root, &added)?;
    let files: BTreeSet<&str> = names.split('\0').filter(|name| is_recipe(name)).collect();
    Ok(files.into_iter().map(PathBuf::from).collect())
}

fn is_recipe(name: &str) -> bool {
    name.ends_with(".yaml") && !name.ends_with(".lock.yaml")
}

fn git(root: &Path, arguments: &[&str]) -> Result<String, ChangedError> {
    let fail = |message: String| ChangedError::Git { command: arguments.join(" "), message };
    let output =
        Command::new("git").arg("-C").arg(root).args(arguments).output().map_err(|error| fail(error.to_string()))?;
    if !output.status.success() {
        return Err(fail(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    String::from_utf8(output.stdout).map_err(|_| fail("a file name is not UTF-8".into()))
}

/// The newest record below `folder/CLASS` of this target and recipe. A file that is no record is an error: a proof
/// that cannot be read proves nothing.
pub fn covering_record(
    folder: &Path,
    class: HardwareClass,
    name: &str,
    recipe_hash: &str,
) -> Result<Option<GateRecord>, DataError> {
    let mut newest: Option<GateRecord> = None;
    for path in json_files(&folder.join(class.as_str()))? {
        let record = record::read(&path)?;
        let covers = record.target.name == name
            && record.class == class
            && record.target.recipe_hash.as_deref() == Some(recipe_hash);
        if covers && newest.as_ref().is_none_or(|newest| newest.started_at < record.started_at) {
            newest = Some(record);
        }
    }
    Ok(newest)
}

fn json_files(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let fail = |source| DataError::Io { path: folder.into(), source };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(fail(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(fail)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        run(&folder, &["init", "-q", "-b", "main"]);
        write(&folder, "recipes/a/one.yaml", "1");
        write(&folder, "recipes/a/gone.yaml", "1");
        commit(&folder);
        run(&folder, &["checkout", "-q", "-b", "change"]);
        folder
    }

    fn run(folder: &tempfile::TempDir, arguments: &[&str]) {
        let identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"];
        let output = Command::new("git").arg("-C").arg(folder.path()).args(identity).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn write(folder: &tempfile::TempDir, name: &str, text: &str) {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn commit(folder: &tempfile::TempDir) {
        run(folder, &["add", "-A"]);
        run(folder, &["commit", "-q", "-m", "m"]);
    }

    #[test]
    fn recipes_changed_since_the_branch_point_are_found() {
        let folder = repository();
        assert!(recipes(folder.path(), "main").unwrap().is_empty());
        write(&folder, "recipes/b/two.yaml", "2");
        write(&folder, "recipes/b/two.lock.yaml", "2");
        write(&folder, "elsewhere.yaml", "2");
        commit(&folder);
        write(&folder, "recipes/a/one.yaml", "not committed");
        write(&folder, "recipes/c/three.yaml", "not even added");
        std::fs::remove_file(folder.path().join("recipes/a/gone.yaml")).unwrap();
        let found = recipes(folder.path(), "main").unwrap();
        let expected = ["recipes/a/one.yaml", "recipes/b/two.yaml", "recipes/c/three.yaml"];
        assert_eq!(found, expected.map(PathBuf::from));
        // What happened on main meanwhile is not this change's affair.
        run(&folder, &["stash", "-q", "-u"]);
        run(&folder, &["checkout", "-q", "main"]);
        write(&folder, "recipes/d/four.yaml", "4");
        commit(&folder);
        run(&folder, &["checkout", "-q", "change"]);
        assert_eq!(recipes(folder.path(), "main").unwrap(), [PathBuf::from("recipes/b/two.yaml")]);
    }

    #[test]
    fn a_reference_that_is_none_is_refused() {
        let folder = repository();
        assert!(matches!(recipes(folder.path(), "--output=/tmp/x"), Err(ChangedError::Reference(_))));
        let error = recipes(folder.path(), "no-such-branch").unwrap_err().to_string();
        assert!(error.contains("no-such-branch"), "{error}");
        let outside = tempfile::tempdir().unwrap();
        assert!(recipes(outside.path(), "main").is_err());
    }

    #[test]
    fn no_folder_is_no_record_and_a_broken_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let find = || covering_record(folder.path(), HardwareClass::Cpu, "tiny", "hash");
        assert_eq!(find().unwrap(), None);
        write(&folder, "cpu/broken.json", "{}");
        assert!(find().unwrap_err().to_string().contains("broken.json"));
    }
}
