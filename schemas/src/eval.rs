//! What `atlas eval tools|qa|perplexity` print under `--json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Accuracy over a file of cases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EvalRecord {
    /// `tools` or `qa`.
    pub task: String,
    /// What was given on the command line.
    pub target: String,
    /// Name of the model.
    pub model: String,
    /// Cases.
    pub cases: usize,
    /// Cases that passed.
    pub passed: usize,
    /// `passed / cases`.
    pub accuracy: f64,
    /// The same by category.
    pub categories: BTreeMap<String, CategoryScore>,
    /// One entry a case, in the file's order.
    pub results: Vec<CaseResult>,
}

/// Accuracy over one category.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CategoryScore {
    /// Cases.
    pub cases: usize,
    /// Cases that passed.
    pub passed: usize,
    /// `passed / cases`.
    pub accuracy: f64,
}

/// One case's outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaseResult {
    /// The case.
    pub id: String,
    /// Its category.
    pub category: String,
    /// Whether it passed.
    pub passed: bool,
    /// What was expected.
    pub expected: serde_json::Value,
    /// What came: the calls, or the answer's text.
    pub got: serde_json::Value,
}

/// Perplexity over a text: `exp(-mean log-probability)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PerplexityRecord {
    /// What was given on the command line.
    pub target: String,
    /// Name of the model.
    pub model: String,
    /// Documents in the text.
    pub documents: usize,
    /// Over every token but the first of each document.
    pub perplexity: f64,
    /// Tokens scored.
    pub tokens: usize,
    /// Over the tokens of assistant turns; absent when the text has none.
    pub assistant_perplexity: Option<f64>,
    /// Assistant tokens scored.
    pub assistant_tokens: usize,
}
