//! What a gate exchanges with files: suites (what to measure), records (what was measured), baselines (what is
//! promised) and reports (the judgement).

use crate::hardware::{CpuFacts, GpuFacts, HardwareClass};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the gate formats that this build reads and writes.
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

/// A suite: one measurement and the rules that judge its metrics. Read from `gates/suites/NAME.yaml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateSuite {
    /// Version of this format: [`GATE_VERSION`].
    pub schema_version: u32,
    /// The suite's name, as `--suite` takes it.
    pub name: String,
    /// What the suite proves, in a sentence.
    pub description: String,
    /// Measured repetitions; each gives one raw value per metric.
    #[schemars(range(min = 1, max = 100))]
    pub runs: u32,
    /// Repetitions before the measured ones, thrown away.
    #[serde(default)]
    #[schemars(range(max = 100))]
    pub warmup: u32,
    /// Seconds after which the measurement is given up as failed.
    #[schemars(range(min = 1, max = 86400))]
    pub timeout_s: u32,
    /// What is measured.
    pub measure: Measure,
    /// How each metric that the measurement yields is judged. Every metric needs a rule.
    pub metrics: BTreeMap<String, MetricRule>,
}

/// The kinds of measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Tokens a second after the first: `decode_tok_s_cN` for N requests at once (sum over them).
    Decode(DecodeMeasure),
    /// Prompt tokens a second: `prefill_tok_s_pN` for prompts of N tokens.
    Prefill(PrefillMeasure),
    /// Milliseconds to the first token: `ttft_cold_ms` for an unseen prompt, `ttft_warm_ms` for the same again.
    Ttft(TtftMeasure),
    /// Perplexity over documents: `perplexity_all`, `perplexity_assistant`.
    Perplexity(PerplexityMeasure),
    /// Function calling: `tools_accuracy` and one `tools_CATEGORY` a category.
    Tools(CasesMeasure),
    /// Questions with one exact answer: `qa_accuracy` and one `qa_CATEGORY` a category.
    Qa(CasesMeasure),
    /// Equal results alone and in company: `consistency_mismatches`, `consistency_comparisons`.
    Consistency(ConsistencyMeasure),
}

/// Parameters of [`Measure::Decode`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecodeMeasure {
    /// Tokens in each prompt.
    pub prompt_tokens: u32,
    /// Tokens to generate.
    pub decode_tokens: u32,
    /// Numbers of requests that run at once.
    pub concurrency: Vec<u32>,
}

/// Parameters of [`Measure::Prefill`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrefillMeasure {
    /// Prompt lengths in tokens.
    pub prompt_tokens: Vec<u32>,
}

/// Parameters of [`Measure::Ttft`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TtftMeasure {
    /// Tokens in the prompt.
    pub prompt_tokens: u32,
}

/// Parameters of [`Measure::Perplexity`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PerplexityMeasure {
    /// Text: a data set built into Atlas (`perplexity`), or a path.
    pub text: String,
    /// Where one document ends and the next begins; itself neither fed nor scored.
    pub separator: String,
    /// What opens an assistant turn; the tokens after it are assistant tokens.
    pub assistant_start: String,
    /// What closes an assistant turn; itself the last assistant token.
    pub assistant_end: String,
    /// The most tokens of a document that are scored with one context; longer documents are cut there.
    pub window: u32,
}

/// Parameters of [`Measure::Tools`] and [`Measure::Qa`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CasesMeasure {
    /// Cases: a data set built into Atlas (`tool_calls`, `qa`), or a path to a JSON-lines file.
    pub cases: String,
    /// The most tokens an answer may have.
    pub max_tokens: u32,
    /// Cases that run at once.
    pub concurrency: u32,
}

/// Parameters of [`Measure::Consistency`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsistencyMeasure {
    /// Different prompts.
    pub prompts: u32,
    /// Tokens to generate for each.
    pub max_tokens: u32,
    /// Numbers of requests that run at once, one pass each.
    pub batches: Vec<u32>,
    /// Seed of the order of requests and of the sampled requests.
    pub seed: u64,
}

/// How one metric is judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricRule {
    /// Unit of the values, for people.
    pub unit: String,
    /// Which way is better.
    pub direction: Direction,
    /// What the tolerance is a measure of.
    pub kind: MetricKind,
    /// How much worse than the baseline still passes: in units (`absolute`), or as a fraction of the baseline
    /// (`relative`, `roofline`). Zero for `exact`.
    #[serde(default)]
    pub tolerance: f64,
    /// Fewer raw values than this cannot be judged.
    #[serde(default = "one")]
    pub min_runs: u32,
    /// The only value that may be promised; another cannot be blessed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub must_be: Option<f64>,
}

fn one() -> u32 {
    1
}

/// Which way a metric is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
    /// A deviation to either side is worse.
    Either,
}

/// What is compared with the baseline, and what the tolerance is a measure of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MetricKind {
    /// Every raw value equals the baseline's.
    Exact,
    /// The median may be worse by the tolerance, in the metric's unit.
    Absolute,
    /// The median may be worse by the tolerance, as a fraction of the baseline.
    Relative,
    /// As `relative`, but on the fraction of the machine's own roofline instead of the raw value.
    Roofline,
}

/// What a gate run measured, with everything needed to repeat it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateRecord {
    /// Version of this format: [`GATE_VERSION`].
    pub schema_version: u32,
    /// When the run began, RFC 3339 in UTC.
    pub started_at: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Hardware class.
    pub class: HardwareClass,
    /// What was measured.
    pub target: GateTarget,
    /// What served it.
    pub engine: EngineProvenance,
    /// Where.
    pub hardware: MachineFacts,
    /// The machine's own limits, probed in the same run.
    pub probe: Option<MachineProbe>,
    /// Results by suite.
    pub suites: BTreeMap<String, SuiteResult>,
}

/// The served model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateTarget {
    /// Short name; baselines are filed under it.
    pub name: String,
    /// Name under which the endpoint serves the model.
    pub model: String,
    /// sha256 of the recipe's text, when a recipe was run.
    pub recipe_hash: Option<String>,
    /// sha256 over the weight files, when known.
    pub weights_hash: Option<String>,
    /// Bytes of weights in memory, when known.
    pub weight_bytes: Option<u64>,
    /// Bytes of weights read for one decoded token, when known.
    pub weight_bytes_per_token: Option<u64>,
    /// Floating-point operations for one prefilled token, when known.
    pub flops_per_token: Option<u64>,
}

/// The engine that served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineProvenance {
    /// Version, as `atlas --version` prints it.
    pub version: String,
    /// sha256 of the executable, when it was started here.
    pub binary_sha256: Option<String>,
    /// State of the source tree in which the gate ran, when it was one.
    pub git: Option<GitState>,
}

/// State of a git work tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GitState {
    /// Commit at HEAD.
    pub commit: String,
    /// Whether tracked files differ from it.
    pub dirty: bool,
}

/// The machine, as far as it explains a number. Names and addresses do not: these facts are committed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineFacts {
    /// Operating system.
    pub os: String,
    /// Processor architecture.
    pub arch: String,
    /// The processor.
    pub cpu: CpuFacts,
    /// Physical memory in bytes; 0 if unknown.
    pub memory_bytes: u64,
    /// GPUs in device order.
    #[serde(default)]
    pub gpus: Vec<GpuFacts>,
}

/// What the machine can do, measured with all logical processors: once when the run begins, and before every run of a
/// speed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineProbe {
    /// Which implementation measured.
    pub method: String,
    /// Size of the buffer that was read, in bytes.
    pub working_set_bytes: u64,
    /// Bytes read a second; one value a pass.
    pub read_bytes_per_s: Samples,
    /// f32 operations a second (a multiply-add is two); one value a pass.
    pub flops: Samples,
}

/// Raw values and their summary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    /// One value a run, in order.
    pub values: Vec<f64>,
    /// Their median.
    pub median: f64,
    /// Their interquartile range.
    pub spread: f64,
}

/// One suite's results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SuiteResult {
    /// sha256 over the suite's measurement and its data; rules do not enter.
    pub suite_hash: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Metrics by name.
    pub metrics: BTreeMap<String, Measured>,
    /// What went wrong in single cases, for people; the first few.
    #[serde(default)]
    pub details: Vec<String>,
}

/// One measured metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Unit of the values.
    pub unit: String,
    /// Raw values and their summary.
    pub samples: Samples,
    /// The values as fractions of the machine's roofline, where that has a meaning: each divided by the limit that was
    /// probed just before its run.
    pub roofline: Option<Samples>,
}

/// What a recipe promises on a class of hardware. Kept in `gates/baselines/CLASS/NAME.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateBaseline {
    /// Version of this format: [`GATE_VERSION`].
    pub schema_version: u32,
    /// Hardware class.
    pub class: HardwareClass,
    /// Short name of the target.
    pub name: String,
    /// When it was blessed, RFC 3339 in UTC.
    pub blessed_at: String,
    /// Start of the run that it comes from, RFC 3339 in UTC.
    pub measured_at: String,
    /// What was measured.
    pub target: GateTarget,
    /// What served it.
    pub engine: EngineProvenance,
    /// Where.
    pub hardware: MachineFacts,
    /// The machine's own limits in that run.
    pub probe: Option<MachineProbe>,
    /// Promises by suite.
    pub suites: BTreeMap<String, BaselineSuite>,
}

/// One suite's promises.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BaselineSuite {
    /// sha256 over the suite's measurement and its data; another hash cannot be compared.
    pub suite_hash: String,
    /// Promises by metric.
    pub metrics: BTreeMap<String, BaselineMetric>,
}

/// One promised value and the rule that judges against it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BaselineMetric {
    /// Median of the blessed run.
    pub value: f64,
    /// Interquartile range of the blessed run.
    pub spread: f64,
    /// Number of raw values of the blessed run.
    pub runs: u32,
    /// Median of the blessed run's fractions of the machine's roofline.
    pub roofline_fraction: Option<f64>,
    /// The rule.
    pub rule: MetricRule,
}

/// The outcome of a comparison, from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As good as promised.
    Pass,
    /// Too noisy, or too few runs, to tell.
    Inconclusive,
    /// Worse than promised, or not shown.
    Fail,
}

impl Verdict {
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

/// The judgement of a record against a baseline: the output of `atlas gate check --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateReport {
    /// Version of this format: [`GATE_VERSION`].
    pub schema_version: u32,
    /// The worst of all verdicts.
    pub verdict: Verdict,
    /// Short name of the target.
    pub name: String,
    /// Hardware class.
    pub class: HardwareClass,
    /// Failures that belong to no single metric.
    pub problems: Vec<String>,
    /// Differences in provenance that do not decide, for people.
    pub notes: Vec<String>,
    /// One row a metric.
    pub rows: Vec<ReportRow>,
}

/// What a change must prove: the output of `atlas gate check --changed REF --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateChangeReport {
    /// Version of this format: [`GATE_VERSION`].
    pub schema_version: u32,
    /// The worst of all verdicts; a change that touches no recipe passes.
    pub verdict: Verdict,
    /// The revision that was compared with.
    pub reference: String,
    /// One entry a recipe that was added or changed.
    pub recipes: Vec<ChangedRecipe>,
}

/// One recipe of a change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangedRecipe {
    /// The file, relative to the repository.
    pub file: String,
    /// The worst of its verdicts.
    pub verdict: Verdict,
    /// What is wrong with the recipe or its proofs.
    pub problems: Vec<String>,
    /// One judgement a hardware class.
    pub reports: Vec<GateReport>,
}

/// The judgement of one metric. Values are fractions of the roofline where the kind is `roofline`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportRow {
    /// The suite.
    pub suite: String,
    /// The metric.
    pub metric: String,
    /// Unit of the raw value.
    pub unit: String,
    /// The judging rule; absent when only the record knows the metric.
    pub rule: Option<MetricRule>,
    /// The promised value.
    pub baseline: Option<f64>,
    /// The measured value.
    pub measured: Option<f64>,
    /// The raw median, in `unit`.
    pub raw: Option<f64>,
    /// Interquartile range of what is compared.
    pub spread: Option<f64>,
    /// Number of raw values.
    pub runs: usize,
    /// The judgement.
    pub verdict: Verdict,
    /// Why, in a sentence.
    pub reason: String,
}
