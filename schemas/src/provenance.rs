//! Where a value came from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Who decided a value. Later ones win.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Nobody: the option's default.
    Default,
    /// The recipe.
    Recipe,
    /// The command line.
    Cli,
    /// Atlas itself, to keep a promise (a recipe's public address without an API key becomes loopback).
    Policy,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Recipe => "recipe",
            Self::Cli => "cli",
            Self::Policy => "policy",
        })
    }
}

/// One option's value and where it came from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EffectiveOption {
    /// The option's key.
    pub key: String,
    /// The value; `null` if the engine chooses. A secret is a placeholder.
    pub value: Value,
    /// Who decided it.
    pub source: Source,
    /// Set when this build does not act on the option: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_effect: Option<String>,
}
