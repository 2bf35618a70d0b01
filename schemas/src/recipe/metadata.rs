//! What people and tools may know about a recipe. It changes nothing.

use super::reader::Reader;
use crate::serve_options::shown;
use crate::yaml::{Entry, Node, NodeValue};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// What people and tools may know about a recipe. It changes nothing.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Metadata {
    /// What the recipe is for, in a sentence or a few.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Who answers for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maintainer: Option<String>,
    /// Heading in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// Parameters in all, as in `27B`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9]+(\.[0-9]+)?[KMBT]?$"))]
    pub model_params: Option<String>,
    /// Parameters that one token uses, as in `3B`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9]+(\.[0-9]+)?[KMBT]?$"))]
    pub active_params: Option<String>,
    /// Format of the weights, as in `nvfp4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,31}$"))]
    pub model_dtype: Option<String>,
    /// Format of the KV cache, as in `fp8`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,31}$"))]
    pub kv_dtype: Option<String>,
    /// Quantisation of the checkpoint, as in `nvfp4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,31}$"))]
    pub quantization: Option<String>,
    /// Bits of a quantised weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub quant_bits: Option<u64>,
    /// Layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub num_layers: Option<u64>,
    /// Key and value heads a layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_536))]
    pub num_kv_heads: Option<u64>,
    /// Width of a head.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_536))]
    pub head_dim: Option<u64>,
    /// Memory of the weights, in GiB. `atlas explain` computes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub model_vram: Option<f64>,
    /// Memory of the KV cache a token, in GiB. `atlas explain` computes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub kv_vram_per_token: Option<f64>,
    /// Day of the last change, as in `2026-12-01`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"))]
    pub updated: Option<String>,
    /// Results on the Spark Arena leaderboard.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spark_arena_benchmarks: Vec<ArenaBenchmark>,
}

/// A result on the Spark Arena leaderboard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArenaBenchmark {
    /// Devices.
    pub tp: u64,
    /// Id of the result.
    pub uuid: String,
}

const KEYS: &[&str] = &[
    "description",
    "maintainer",
    "category",
    "model_params",
    "active_params",
    "model_dtype",
    "kv_dtype",
    "quantization",
    "quant_bits",
    "num_layers",
    "num_kv_heads",
    "head_dim",
    "model_vram",
    "kv_vram_per_token",
    "updated",
    "spark_arena_benchmarks",
];

/// Whether `metadata` has this key.
pub(super) fn is_key(key: &str) -> bool {
    KEYS.contains(&key)
}

/// Reads the block. A value of the wrong kind is prose where a foreign recipe has it, and is left out.
pub(super) fn read(reader: &mut Reader<'_>, node: &Node) -> Metadata {
    let mut metadata = Metadata::default();
    for entry in reader.map(node, "metadata") {
        let field = format!("metadata.{}", entry.shown_key());
        if is_null(&entry.value) && is_key(&entry.key) {
            continue;
        }
        match entry.key.as_str() {
            "description" => metadata.description = reader.prose(&entry.value, &field),
            "maintainer" => metadata.maintainer = reader.prose(&entry.value, &field),
            "category" => metadata.category = reader.prose(&entry.value, &field),
            "model_params" => metadata.model_params = word(reader, entry, &field, is_amount, "an amount such as `27B`"),
            "active_params" => {
                metadata.active_params = word(reader, entry, &field, is_amount, "an amount such as `3B`")
            }
            "model_dtype" => metadata.model_dtype = word(reader, entry, &field, is_word, "a format such as `nvfp4`"),
            "kv_dtype" => metadata.kv_dtype = word(reader, entry, &field, is_word, "a format such as `fp8`"),
            "quantization" => metadata.quantization = word(reader, entry, &field, is_word, "a format such as `nvfp4`"),
            "updated" => metadata.updated = word(reader, entry, &field, is_day, "a day such as `2026-12-01`"),
            "quant_bits" => metadata.quant_bits = count(reader, entry, &field, 64),
            "num_layers" => metadata.num_layers = count(reader, entry, &field, 10_000),
            "num_kv_heads" => metadata.num_kv_heads = count(reader, entry, &field, 65_536),
            "head_dim" => metadata.head_dim = count(reader, entry, &field, 65_536),
            "model_vram" => metadata.model_vram = size(reader, entry, &field),
            "kv_vram_per_token" => metadata.kv_vram_per_token = size(reader, entry, &field),
            "spark_arena_benchmarks" => metadata.spark_arena_benchmarks = arena(reader, &entry.value, &field),
            _ => drop(reader.unknown_key(entry, "metadata", KEYS)),
        }
    }
    metadata
}

fn is_null(node: &Node) -> bool {
    matches!(node.value, NodeValue::Scalar(Value::Null))
}

/// A word of a fixed form. Prose in its place is reported and left out.
fn word(reader: &mut Reader<'_>, entry: &Entry, field: &str, is_valid: fn(&str) -> bool, form: &str) -> Option<String> {
    if !matches!(entry.value.value, NodeValue::Scalar(_)) {
        reader.lenient(entry.value.span, field, format!("`{field}` must be {form}, not {}", entry.value.kind()));
        return None;
    }
    let text = reader.raw(&entry.value);
    if is_valid(&text) {
        return Some(text);
    }
    reader
        .lenient(entry.value.span, field, format!("`{field}` must be {form}, not `{}`", shown(&text)))
        .help("put prose into `metadata.description`");
    None
}

fn count(reader: &mut Reader<'_>, entry: &Entry, field: &str, max: u64) -> Option<u64> {
    let number = match &entry.value.value {
        NodeValue::Scalar(Value::Number(number)) => number.as_u64().filter(|number| (1..=max).contains(number)),
        _ => None,
    };
    if number.is_none() {
        reader.lenient(entry.value.span, field, format!("`{field}` must be a whole number from 1 to {max}"));
    }
    number
}

fn size(reader: &mut Reader<'_>, entry: &Entry, field: &str) -> Option<f64> {
    let number = match &entry.value.value {
        NodeValue::Scalar(Value::Number(number)) => number.as_f64().filter(|number| *number >= 0.0),
        _ => None,
    };
    if number.is_none() {
        reader.lenient(entry.value.span, field, format!("`{field}` must be a number of GiB"));
    }
    number
}

fn arena(reader: &mut Reader<'_>, node: &Node, field: &str) -> Vec<ArenaBenchmark> {
    let mut benchmarks = Vec::new();
    for item in reader.list(node, field) {
        let (mut tp, mut uuid) = (None, None);
        for entry in reader.map(item, field) {
            match entry.key.as_str() {
                "tp" => tp = reader.integer(&entry.value, &format!("{field}.tp"), 1, 1024),
                "uuid" => uuid = reader.text(&entry.value, &format!("{field}.uuid")),
                _ => drop(reader.unknown_key(entry, field, &["tp", "uuid"])),
            }
        }
        match (tp, uuid) {
            (Some(tp), Some(uuid)) => benchmarks.push(ArenaBenchmark { tp, uuid }),
            _ => drop(reader.lenient(item.span, field, "a benchmark needs `tp` and `uuid`")),
        }
    }
    benchmarks
}

fn is_word(text: &str) -> bool {
    text.len() <= 32
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._+-".contains(c))
}

fn is_amount(text: &str) -> bool {
    let digits = text.strip_suffix(['K', 'M', 'B', 'T']).unwrap_or(text);
    digits.len() <= 12
        && digits.split('.').count() <= 2
        && digits.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_day(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let number = |part: &str, digits: usize| if part.len() == digits { part.parse::<u32>().ok() } else { None };
    match parts.as_slice() {
        [year, month, day] => {
            number(year, 4).is_some()
                && number(month, 2).is_some_and(|month| (1..=12).contains(&month))
                && number(day, 2).is_some_and(|day| (1..=31).contains(&day))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_list_equals_the_struct() {
        let schema = schemars::schema_for!(Metadata).to_value();
        let properties: Vec<&str> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(properties.len(), KEYS.len());
        assert!(KEYS.iter().all(|key| properties.contains(key)));
    }

    #[test]
    fn words_amounts_and_days_have_a_form() {
        assert!(["nvfp4", "Q4_K_M", "fp8-e4m3", "int4+awq"].iter().all(|text| is_word(text)));
        assert!(["NVFP4 weights, BF16 attention", "", "-x", "a(b)"].iter().all(|text| !is_word(text)));
        assert!(["27B", "0.8B", "135M", "1000"].iter().all(|text| is_amount(text)));
        assert!(["about 27B", "27 B", "1.2.3B", ".5B", "B", ""].iter().all(|text| !is_amount(text)));
        assert!(is_day("2026-12-01") && !is_day("2026-13-01") && !is_day("December 2026"));
    }
}
