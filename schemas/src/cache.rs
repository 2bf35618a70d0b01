//! What `atlas pull` and `atlas cache` print with `--json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `atlas pull --json`: a model that is on this machine now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PullReport {
    /// `owner/name`.
    pub model: String,
    /// The revision that was asked for.
    pub revision: String,
    /// The commit that it means.
    pub commit: String,
    /// The folder with the files.
    pub folder: String,
    /// How many files had to be fetched.
    pub fetched: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// The files.
    pub files: Vec<PulledFile>,
}

/// A verified file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PulledFile {
    /// Path in the repository.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// sha256 in hexadecimal.
    pub sha256: String,
}

/// `atlas cache list --json`: the models in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheList {
    /// The cache's folder.
    pub cache: String,
    /// Bytes on disk; what is shared counts once.
    pub bytes: u64,
    /// The models.
    pub models: Vec<CachedModel>,
}

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CachedModel {
    /// `owner/name`.
    pub model: String,
    /// Bytes on disk; what its revisions share counts once.
    pub bytes: u64,
    /// How many of them belong to downloads that did not finish.
    pub unfinished_bytes: u64,
    /// Its revisions.
    pub revisions: Vec<CachedRevision>,
}

/// A revision in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CachedRevision {
    /// The commit.
    pub commit: String,
    /// Branches and tags that mean it.
    pub names: Vec<String>,
    /// How many files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether its files were verified and have not changed since.
    pub verified: bool,
    /// Why it cannot be used; `null` if it can.
    pub problem: Option<String>,
}

/// `atlas cache verify --json`: what reading every file found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheVerification {
    /// The cache's folder.
    pub cache: String,
    /// Whether nothing is wrong.
    pub whole: bool,
    /// The models that were read.
    pub models: Vec<VerifiedModel>,
}

/// A model that was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifiedModel {
    /// `owner/name`.
    pub model: String,
    /// Files that were read.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What is wrong.
    pub problems: Vec<CacheProblem>,
}

/// Something wrong in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheProblem {
    /// Where.
    pub path: String,
    /// What.
    pub problem: String,
}

/// `atlas cache prune --json`: what could go, or went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CachePruning {
    /// The cache's folder.
    pub cache: String,
    /// Whether it was only shown.
    pub dry_run: bool,
    /// Bytes that became free, or would.
    pub bytes: u64,
    /// One thing each.
    pub items: Vec<PruneItem>,
}

/// Something that can go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneItem {
    /// The model it belongs to.
    pub model: String,
    /// `named`, `unfinished`, `unreferenced` or `detached`.
    pub reason: String,
    /// Its files and folders.
    pub paths: Vec<String>,
    /// Its bytes.
    pub bytes: u64,
    /// `would go`, `removed`, `in use`, or what went wrong.
    pub outcome: String,
}
