//! Locks: exactly which bytes a recipe means.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Version of [`Lock`] that this build writes.
pub const LOCK_VERSION: u32 = 1;

/// `NAME.lock.yaml` beside a recipe: every byte that it uses, by sha256.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lock {
    /// Version of this format: [`LOCK_VERSION`].
    pub schema_version: u32,
    /// Name of the recipe.
    pub recipe: String,
    /// Hash of the recipe that was locked.
    pub recipe_hash: String,
    /// When it was locked, RFC 3339 in UTC.
    pub locked_at: String,
    /// The model.
    pub model: LockedModel,
    /// The model that drafts, if the recipe has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_model: Option<LockedModel>,
    /// Where the recipe came from, if from a registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<LockedRegistry>,
}

/// One model's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LockedModel {
    /// Hub id.
    pub model: String,
    /// Commit of the hub repository.
    pub revision: String,
    /// Every file, sorted by path.
    pub files: Vec<LockedFile>,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LockedFile {
    /// Path inside the repository, with `/`.
    pub path: String,
    /// Length in bytes.
    pub size: u64,
    /// sha256 in hexadecimal.
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub sha256: String,
}

/// A registry at a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LockedRegistry {
    /// Name.
    pub name: String,
    /// Address.
    pub url: String,
    /// Commit.
    pub commit: String,
}
