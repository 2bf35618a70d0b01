//! The options that somebody set, before defaults are filled in.

use super::{OPTIONS, OptionError, OptionSpec, ServeOptions};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;

/// Canonical values of the options that were set, by key. Printing and serialising it hides secrets.
#[derive(Clone, PartialEq, Default)]
pub struct OptionSet {
    values: BTreeMap<&'static str, Value>,
}

impl OptionSet {
    /// Sets an option from a typed value; the value is checked. Returns the value that it replaces.
    pub fn set(&mut self, spec: &'static OptionSpec, value: &Value) -> Result<Option<Value>, OptionError> {
        spec.check(value).map(|checked| self.values.insert(spec.key, checked.value))
    }

    /// Sets an option from text, as on the command line.
    pub fn set_text(&mut self, spec: &'static OptionSpec, text: &str) -> Result<Option<Value>, OptionError> {
        spec.parse(text).map(|value| self.values.insert(spec.key, value))
    }

    /// The value of a key, if it was set.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// Whether a key was set.
    pub fn contains(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Unsets a key.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.values.remove(key)
    }

    /// Whether nothing was set.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// What was set, in the table's order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static OptionSpec, &Value)> {
        OPTIONS.iter().filter_map(|spec| self.values.get(spec.key).map(|value| (spec, value)))
    }

    /// Takes over every option that `other` sets.
    pub fn extend(&mut self, other: &Self) {
        self.values.extend(other.values.iter().map(|(key, value)| (*key, value.clone())));
    }

    /// The complete options: what was set, and the defaults of everything else.
    pub fn resolve(&self) -> ServeOptions {
        let map: Map<String, Value> =
            self.values.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        // Canonical values deserialise by construction; the table's tests prove it for every option.
        serde_json::from_value(Value::Object(map)).unwrap_or_default()
    }

    /// The options as JSON without secrets, keys in the table's order.
    pub fn to_json(&self) -> Value {
        let shown = self.iter().map(|(spec, value)| {
            let value = if spec.is_secret() { Value::from(spec.show(value)) } else { value.clone() };
            (spec.key.to_owned(), value)
        });
        Value::Object(shown.collect())
    }
}

impl fmt::Debug for OptionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(spec, value)| (spec.key, spec.show(value)))).finish()
    }
}

impl Serialize for OptionSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}
