//! Output of `atlas bench`.

use crate::hardware::HostFacts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Version of [`BenchRecord`] that this build writes.
pub const BENCH_VERSION: u32 = 1;

/// One benchmark: a row for every combination of prompt length, output length and concurrency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchRecord {
    /// Version of this format: [`BENCH_VERSION`].
    pub schema_version: u32,
    /// What was measured: a model folder, a recipe, a URL, or a synthetic configuration.
    pub target: String,
    /// sha256 of the recipe's canonical form, if a recipe was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe_hash: Option<String>,
    /// sha256 over the weights' manifest, if the weights are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_hash: Option<String>,
    /// sha256 of the measured binary, if the engine is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_hash: Option<String>,
    /// Version of Atlas.
    pub atlas_version: String,
    /// When the measurement began, RFC 3339 in UTC.
    pub recorded_at: String,
    /// Facts of the machine, if the target runs on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<HostFacts>,
    /// Rates of the memory that the fractions of rows are of, where they were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryRates>,
    /// The measurements.
    pub rows: Vec<BenchRow>,
}

/// What a device's memory can do, in bytes a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryRates {
    /// Streaming reads.
    pub read_bytes_per_s: f64,
    /// A copy, read and written bytes counted; absent where it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_bytes_per_s: Option<f64>,
}

/// Floating-point operations of a prompt's matrix products, a multiply-add counting as two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrefillFlops {
    /// Products with weights, without embedding and output projection.
    pub linear: u64,
    /// Soft-max attention: queries with keys, probabilities with values.
    pub attention: u64,
}

/// One combination; numbers are medians over the runs, raw values stand beside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchRow {
    /// Prompt tokens of each stream.
    pub prompt_tokens: u32,
    /// Generated tokens of each stream.
    pub decode_tokens: u32,
    /// Streams at once.
    pub concurrency: u32,
    /// Runs.
    pub runs: u32,
    /// Prompt tokens a second, all streams together.
    pub prefill_tok_s: f64,
    /// Generated tokens a second while all streams decode together; 0 when each generates a single token.
    pub decode_tok_s: f64,
    /// Milliseconds from request to first token.
    pub ttft_ms: f64,
    /// Bytes of weights that one generated token reads; absent for a foreign endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_bytes_per_token: Option<u64>,
    /// Bytes of weights, keys, values and states that a decode step of all streams reads; absent for a served model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_step: Option<u64>,
    /// Operations of one stream's prompt; absent for a served model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_flops: Option<PrefillFlops>,
    /// `decode_tok_s` as a fraction of what the machine's memory bandwidth allows; absent where that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_roofline_fraction: Option<f64>,
    /// Every run, in order.
    pub raw: BenchRaw,
}

/// The runs behind a row's medians.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchRaw {
    /// See [`BenchRow::prefill_tok_s`].
    pub prefill_tok_s: Vec<f64>,
    /// See [`BenchRow::decode_tok_s`].
    pub decode_tok_s: Vec<f64>,
    /// See [`BenchRow::ttft_ms`].
    pub ttft_ms: Vec<f64>,
}
