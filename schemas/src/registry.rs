//! Registries: where recipes come from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `.sparkrun/registry.yaml` in a repository: what it offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegistryManifest {
    /// The registries of the repository.
    pub registries: Vec<RegistryEntry>,
}

/// One registry of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegistryEntry {
    /// Name, as in `@name/recipe`.
    pub name: String,
    /// What it offers, in a sentence.
    #[serde(default)]
    pub description: String,
    /// Folder of the recipes.
    #[serde(alias = "subpath")]
    pub recipes: String,
    /// Folder of tuning data of other runners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<String>,
    /// Folder of benchmark profiles of other runners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub benchmarks: Option<String>,
    /// Folder of container changes of other runners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mods: Option<String>,
    /// Whether it is searched.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Whether it is listed.
    #[serde(default = "yes")]
    pub visible: bool,
}

fn yes() -> bool {
    true
}

/// `registries.yaml` of a user: which registries are searched.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserRegistries {
    /// In the order of the search; `@atlas` comes before all of them.
    #[serde(default)]
    pub registries: Vec<UserRegistry>,
}

/// One registry of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserRegistry {
    /// Name, as in `@name/recipe`.
    pub name: String,
    /// Address of a git repository, or a folder.
    pub url: String,
    /// Folder of the recipes in it; by default what its own manifest says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipes: Option<String>,
    /// The commit that is used. It moves only with `atlas registry update`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Whether commands in its recipes run without asking.
    #[serde(default)]
    pub trusted: bool,
    /// Whether it is searched.
    #[serde(default = "yes")]
    pub enabled: bool,
}
