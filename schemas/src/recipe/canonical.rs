//! The canonical form of a recipe, and its hash.

use super::Recipe;
use crate::serve_options::OptionSet;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// sha256, in hexadecimal, of what runs when `recipe` is launched with `options` (its own, or with overrides).
pub fn canonical_hash(recipe: &Recipe, options: &OptionSet) -> String {
    let canonical = json!({
        "recipe_version": recipe.recipe_version,
        "model": recipe.model,
        "model_revision": recipe.model_revision,
        "runtime": recipe.runtime,
        "min_nodes": recipe.min_nodes,
        "max_nodes": recipe.max_nodes,
        "options": options_for_hash(options),
        "env": recipe.env,
        "command": recipe.command,
        "pre_exec": recipe.pre_exec,
        "post_exec": recipe.post_exec,
    });
    let digest = Sha256::digest(sorted(canonical).to_string().as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The options that change results: those that differ from their defaults, without the network group (a port or an
/// API key changes no answer, and a hash of a secret would betray it).
pub fn options_for_hash(options: &OptionSet) -> Value {
    let pairs = options
        .iter()
        .filter(|(spec, value)| spec.group != "Network" && spec.key != "model_name" && **value != spec.default_value())
        .map(|(spec, value)| (spec.key.to_owned(), value.clone()));
    Value::Object(pairs.collect())
}

/// The value with the keys of every mapping in order.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut pairs: Vec<(String, Value)> = map.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(Map::from_iter(pairs))
        }
        Value::Array(items) => items.into_iter().map(sorted).collect(),
        other => other,
    }
}
