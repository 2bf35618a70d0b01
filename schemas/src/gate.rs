//! Gates: a suite says what is measured, a baseline promises, a record proves.

use crate::hardware::{HardwareClass, HostFacts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Version of the gate formats that this build writes.
pub const GATE_VERSION: u32 = 1;

/// Names that a recipe's `gates.suites` may hold.
pub const SUITE_NAMES: &[&str] = &[
    "decode",
    "prefill",
    "ttft",
    "concurrency",
    "consistency",
    "state-poisoning",
    "perplexity",
    "tools",
    "qa",
    "speculation",
    "soak",
];

/// A suite: what is measured, and how each metric is judged. Written by people, in YAML.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateSuite {
    /// Version of this format: [`GATE_VERSION`].
    pub schema_version: u32,
    /// Name; also the file's stem.
    pub name: String,
    /// What the suite shows, in a sentence.
    pub description: String,
    /// Which measurement is made.
    pub measure: GateMeasure,
    /// Numbers of the measurement (prompt lengths, concurrency, cases …); the measurement knows its own keys.
    #[serde(default)]
    pub params: Map<String, Value>,
    /// Measured runs after the warm-up; at least 1.
    #[schemars(range(min = 1, max = 1000))]
    pub runs: u32,
    /// Runs that are thrown away first.
    #[serde(default)]
    pub warmup_runs: u32,
    /// Time after which the suite fails, in seconds.
    #[schemars(range(min = 1))]
    pub timeout_s: u32,
    /// Every metric that the measurement reports, with its judgement. A metric that is listed and not measured fails.
    pub metrics: Vec<MetricSpec>,
}

/// A kind of measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GateMeasure {
    /// Generated tokens a second of one stream.
    Decode,
    /// Prompt tokens a second.
    Prefill,
    /// Time to the first token, cold and with a warm prefix.
    Ttft,
    /// Throughput and latency under several streams.
    Concurrency,
    /// One row, one result, over HTTP: batching, chunking and cache hits change nothing.
    Consistency,
    /// Interleaved sessions on models with recurrent state stay apart.
    StatePoisoning,
    /// Perplexity of a text.
    Perplexity,
    /// Tool calls, compared by structure.
    Tools,
    /// Questions with known answers.
    Qa,
    /// Accepted drafts a step.
    Speculation,
    /// Hours of mixed traffic.
    Soak,
}

/// How one metric is judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricSpec {
    /// Name, as in `decode_tok_s`.
    pub name: String,
    /// Unit, as in `tok/s`, `ms`, `%`; empty for a plain number.
    #[serde(default)]
    pub unit: String,
    /// Which way is better.
    pub direction: Direction,
    /// What is compared with what.
    pub kind: Comparison,
    /// How much worse than the baseline still passes: in the metric's unit for `absolute`, a fraction for `relative`
    /// and `roofline` (0.05 is 5 %). Not used by `exact`.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub tolerance: f64,
    /// Fewer runs than this are inconclusive.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    pub minimum_runs: u32,
    /// A spread above this (fraction of the median) is inconclusive. Absent: the spread is not judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub max_spread: Option<f64>,
}

fn one() -> u32 {
    1
}

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Throughput, accuracy.
    HigherIsBetter,
    /// Latency, perplexity, failures.
    LowerIsBetter,
    /// Any change is a failure.
    Equal,
}

/// What is compared with what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Comparison {
    /// Median equal to the baseline's, bit for bit.
    Exact,
    /// Median within `tolerance` of the baseline's, in the metric's unit.
    Absolute,
    /// Median within the fraction `tolerance` of the baseline's.
    Relative,
    /// The fraction of the machine's own roofline within the fraction `tolerance` of the baseline's fraction, so that
    /// a slower sister machine passes and a slower engine does not.
    Roofline,
}

/// One metric as measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricValue {
    /// Unit, as in the suite.
    #[serde(default)]
    pub unit: String,
    /// Every run's value, in order.
    pub values: Vec<f64>,
    /// Number of runs.
    pub n: u32,
    /// Median of the values.
    pub median: f64,
    /// Largest deviation from the median as a fraction of it (0 when the median is 0 and all values agree).
    pub spread: f64,
    /// The median as a fraction of the machine's roofline, for metrics that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roofline_fraction: Option<f64>,
}

/// What exactly was measured. Two measurements are comparable if suite, recipe and class agree; hashes say what changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateSubject {
    /// Suite name.
    pub suite: String,
    /// sha256 of the suite's canonical form.
    pub suite_hash: String,
    /// Recipe as it was named.
    pub recipe: String,
    /// sha256 of the recipe's canonical form, overrides included.
    pub recipe_hash: String,
    /// sha256 over the weights' manifest (path, size and sha256 of every file, sorted by path).
    pub weights_hash: String,
    /// Version and build of the engine: sha256 of the binary.
    pub engine_hash: String,
    /// Version of Atlas.
    pub atlas_version: String,
    /// Class of the machine.
    pub hardware_class: HardwareClass,
    /// Facts of the machine, measured speeds included.
    pub hardware: HostFacts,
}

/// A promise: the numbers that later records are compared with. Committed, written by `atlas gate bless`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateBaseline {
    /// Version of this format: [`GATE_VERSION`].
    pub schema_version: u32,
    /// What was measured.
    pub subject: GateSubject,
    /// When it was blessed, RFC 3339 in UTC.
    pub blessed_at: String,
    /// Source revision that was measured, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_commit: Option<String>,
    /// Why this became the baseline.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// The promised metrics, by name.
    pub metrics: BTreeMap<String, MetricValue>,
}

/// A proof: one measurement, and how it was judged if it was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateRecord {
    /// Version of this format: [`GATE_VERSION`].
    pub schema_version: u32,
    /// What was measured.
    pub subject: GateSubject,
    /// When the measurement began, RFC 3339 in UTC.
    pub recorded_at: String,
    /// Seconds that it took.
    pub duration_s: f64,
    /// Source revision that was measured, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_commit: Option<String>,
    /// Whether the source tree had uncommitted changes, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_dirty: Option<bool>,
    /// The measured metrics, by name.
    pub metrics: BTreeMap<String, MetricValue>,
    /// Conditions that make the numbers doubtful (throttling, other load), for people.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Judgement of a record or of one of its metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As good as promised.
    Pass,
    /// Too noisy, or too few runs, to say.
    Inconclusive,
    /// Worse than promised, or the baseline or a metric is missing.
    Fail,
}

impl Verdict {
    /// The worse of two: a failure outweighs an inconclusive metric, which outweighs a pass.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Fail, _) | (_, Self::Fail) => Self::Fail,
            (Self::Inconclusive, _) | (_, Self::Inconclusive) => Self::Inconclusive,
            _ => Self::Pass,
        }
    }

    /// Exit code of a check: 0, 3 or 1.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Inconclusive => 3,
            Self::Fail => 1,
        }
    }

    /// The name in files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Inconclusive => "inconclusive",
            Self::Fail => "fail",
        }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Comparison of one record with its baseline: the output of `atlas gate check --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateReport {
    /// Version of this format: [`GATE_VERSION`].
    pub schema_version: u32,
    /// Suite name.
    pub suite: String,
    /// Recipe as it was named.
    pub recipe: String,
    /// Class of the machine.
    pub hardware_class: HardwareClass,
    /// The worst of the metrics' verdicts.
    pub verdict: Verdict,
    /// Why, when no metric could be compared at all (no baseline, other suite …).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Every metric of the suite.
    pub metrics: Vec<MetricReport>,
    /// Conditions that make the numbers doubtful, for people.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Comparison of one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricReport {
    /// Name.
    pub name: String,
    /// Unit.
    #[serde(default)]
    pub unit: String,
    /// Judgement.
    pub verdict: Verdict,
    /// The compared value of the baseline (its roofline fraction for `roofline`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<f64>,
    /// The compared value of the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
    /// The worst value that would pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// Number of runs.
    pub n: u32,
    /// Spread of the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
    /// Why, in a sentence.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_verdict_wins() {
        use Verdict::{Fail, Inconclusive, Pass};
        assert_eq!(Pass.and(Pass), Pass);
        assert_eq!(Pass.and(Inconclusive), Inconclusive);
        assert_eq!(Inconclusive.and(Fail), Fail);
        assert_eq!(Fail.and(Pass), Fail);
        assert_eq!([Pass, Inconclusive, Fail].map(Verdict::exit_code), [0, 3, 1]);
    }
}
