//! Hosts and clusters that a user has named.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `hosts.yaml` of a user.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hosts {
    /// Hosts by name.
    #[serde(default)]
    pub hosts: BTreeMap<String, HostEntry>,
    /// Clusters by name: host names, the head first.
    #[serde(default)]
    pub clusters: BTreeMap<String, Vec<String>>,
    /// The cluster that is used when none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_cluster: Option<String>,
}

/// How a host is reached. What is absent comes from the SSH configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostEntry {
    /// Address or name; by default the entry's own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// User.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// SSH port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// Private key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity_file: Option<String>,
}
