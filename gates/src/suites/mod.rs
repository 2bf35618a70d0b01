//! Suites: what they are, where they come from, and how one is measured.

pub mod cases;
mod consistency;
pub mod perplexity;
pub mod throughput;

use crate::client::ClientError;
use crate::data::{self, DataError};
use crate::endpoint::Endpoint;
use crate::probe::Pass;
use crate::progress::Progress;
use crate::{provenance, stats};
use atlas_schemas::eval::CaseResult;
use atlas_schemas::gate::{
    CasesMeasure, GATE_VERSION, GateSuite, Measure, Measured, MetricKind, PerplexityMeasure, SuiteResult,
};
use cases::Task;
use futures_util::{StreamExt, TryStreamExt, stream};
use perplexity::{Markers, PerplexityPlan, PerplexityTally};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The suites of this repository, in the order in which they run: quick and telling first.
const BUILT_IN: [(&str, &str); 7] = [
    ("consistency", include_str!("../../suites/consistency.yaml")),
    ("qa", include_str!("../../suites/qa.yaml")),
    ("tools", include_str!("../../suites/tools.yaml")),
    ("perplexity", include_str!("../../suites/perplexity.yaml")),
    ("ttft", include_str!("../../suites/ttft.yaml")),
    ("prefill", include_str!("../../suites/prefill.yaml")),
    ("decode", include_str!("../../suites/decode.yaml")),
];
/// How many failed cases a result describes.
const MAX_DETAILS: usize = 20;
/// Windows of a perplexity text that are scored at once.
const PERPLEXITY_CONCURRENCY: usize = 4;

/// Why a suite could not be measured.
#[derive(Debug, Error)]
pub enum SuiteError {
    /// The suite's file is wrong.
    #[error("{origin}: {message}")]
    Definition {
        /// File or built-in name.
        origin: String,
        /// What is wrong, with line and column where known.
        message: String,
    },
    /// Its data are wrong.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The endpoint failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The endpoint failed on one case.
    #[error("case {id}: {source}")]
    Case {
        /// The case.
        id: String,
        /// How.
        source: ClientError,
    },
    /// The endpoint answered, but not with what was asked.
    #[error("{0}")]
    Endpoint(String),
}

/// One value of one run.
#[derive(Debug, Clone, PartialEq)]
struct Measurement {
    metric: String,
    value: f64,
    work: Option<Work>,
}

/// What the machine must do for a value of one.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Work {
    /// Bytes to read.
    Bytes(f64),
    /// Floating-point operations.
    Flops(f64),
}

/// Names of the built-in suites, in running order.
pub fn built_in() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

/// A built-in suite by name, or a suite from a YAML file.
pub fn load(name: &str) -> Result<GateSuite, SuiteError> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(built_in, _)| *built_in == name) {
        return parse(text, name);
    }
    if !Path::new(name).exists() {
        let names: Vec<&str> = built_in().collect();
        let message = format!("no such suite and no such file; built in are {}", names.join(", "));
        return Err(SuiteError::Definition { origin: name.into(), message });
    }
    parse(&data::read(Path::new(name))?, name)
}

/// Reads and checks a suite.
pub fn parse(text: &str, origin: &str) -> Result<GateSuite, SuiteError> {
    let fail = |message: String| SuiteError::Definition { origin: origin.into(), message };
    let suite: GateSuite = serde_saphyr::from_str(text).map_err(|error| fail(error.to_string()))?;
    match check(&suite) {
        problems if problems.is_empty() => Ok(suite),
        problems => Err(fail(problems.join("; "))),
    }
}

/// Everything a suite's types cannot say.
fn check(suite: &GateSuite) -> Vec<String> {
    let mut problems = Vec::new();
    let mut need = |good: bool, problem: &str| {
        if !good {
            problems.push(problem.to_owned());
        }
    };
    let name_ok = !suite.name.is_empty() && suite.name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    need(name_ok, "name: a word of lower-case letters and dashes");
    need(suite.schema_version == GATE_VERSION, &format!("schema_version: this Atlas reads {GATE_VERSION}"));
    need((1..=86400).contains(&suite.timeout_s), "timeout_s: 1 to 86400");
    need((1..=100).contains(&suite.runs), "runs: 1 to 100");
    need(suite.warmup <= 100, "warmup: at most 100");
    need(!suite.metrics.is_empty(), "metrics: at least one");
    let positive = |values: &[u32]| !values.is_empty() && values.iter().all(|value| (1..=1 << 20).contains(value));
    match &suite.measure {
        Measure::Decode(m) => {
            need(positive(&[m.prompt_tokens]), "prompt_tokens: at least 1");
            need((2..=1 << 20).contains(&m.decode_tokens), "decode_tokens: at least 2");
            need(positive(&m.concurrency), "concurrency: a list of numbers, each at least 1");
        }
        Measure::Prefill(m) => need(positive(&m.prompt_tokens), "prompt_tokens: a list of numbers, each at least 1"),
        Measure::Ttft(m) => need(positive(&[m.prompt_tokens]), "prompt_tokens: at least 1"),
        Measure::Perplexity(m) => need(m.window >= 2, "window: at least 2"),
        Measure::Tools(m) | Measure::Qa(m) => {
            need(positive(&[m.max_tokens, m.concurrency]), "max_tokens and concurrency: at least 1");
        }
        Measure::Consistency(m) => {
            need(positive(&[m.prompts, m.max_tokens]), "prompts and max_tokens: at least 1");
            need(positive(&m.batches), "batches: a list of numbers, each at least 1");
        }
    }
    for (metric, rule) in &suite.metrics {
        need(rule.tolerance.is_finite() && rule.tolerance >= 0.0, &format!("{metric}: tolerance: not negative"));
        let exact = rule.kind == MetricKind::Exact;
        need(!exact || rule.tolerance == 0.0, &format!("{metric}: an exact metric has no tolerance"));
        need((1..=suite.runs).contains(&rule.min_runs), &format!("{metric}: min_runs: 1 to runs ({})", suite.runs));
    }
    problems
}

/// sha256 over a suite's measurement and the data it uses. Names of data files do not enter, their content does.
pub fn hash(suite: &GateSuite) -> Result<String, DataError> {
    let mut measure = suite.measure.clone();
    let data = match &mut measure {
        Measure::Tools(m) | Measure::Qa(m) => data::load(&std::mem::take(&mut m.cases))?,
        Measure::Perplexity(m) => data::load(&std::mem::take(&mut m.text))?,
        _ => String::new(),
    };
    let text = format!("{}\n{}\n{data}", suite.name, serde_json::to_string(&measure).unwrap_or_default());
    Ok(provenance::sha256(text.as_bytes()))
}

/// Measures a suite. `look` probes the machine before every run of a speed, so that speeds become fractions of what the
/// machine could do at that time; it may know nothing.
pub async fn run(
    suite: &GateSuite,
    endpoint: &Endpoint,
    look: impl AsyncFnMut() -> Option<Pass>,
    progress: &Progress,
) -> Result<SuiteResult, SuiteError> {
    let limit = Duration::from_secs(suite.timeout_s.into());
    let result = tokio::time::timeout(limit, measure(suite, endpoint, look, progress)).await;
    result.unwrap_or_else(|_| {
        Err(SuiteError::Endpoint(format!("suite {} took longer than its {} s", suite.name, suite.timeout_s)))
    })
}

async fn measure(
    suite: &GateSuite,
    endpoint: &Endpoint,
    mut look: impl AsyncFnMut() -> Option<Pass>,
    progress: &Progress,
) -> Result<SuiteResult, SuiteError> {
    let start = Instant::now();
    let mut values: BTreeMap<String, Values> = BTreeMap::new();
    let mut details = Vec::new();
    for run in 0..suite.warmup + suite.runs {
        let measured_run = run >= suite.warmup;
        let machine = if measured_run && is_speed(&suite.measure) { look().await } else { None };
        let (measurements, described) = once(suite, endpoint, progress).await?;
        if measured_run {
            for measurement in measurements {
                values.entry(measurement.metric.clone()).or_default().add(&measurement, machine);
            }
            details.extend(described);
        }
    }
    details.truncate(MAX_DETAILS);
    let mut metrics = BTreeMap::new();
    for (name, values) in values {
        let rule = suite.metrics.get(&name).ok_or_else(|| SuiteError::Definition {
            origin: suite.name.clone(),
            message: format!("metrics: {name} is measured but has no rule"),
        })?;
        metrics.insert(name, values.measured(&rule.unit));
    }
    Ok(SuiteResult { suite_hash: hash(suite)?, seconds: start.elapsed().as_secs_f64(), metrics, details })
}

fn is_speed(measure: &Measure) -> bool {
    matches!(measure, Measure::Decode(_) | Measure::Prefill(_))
}

/// One metric's values, and the same as fractions of the roofline.
#[derive(Debug, Default)]
struct Values {
    raw: Vec<f64>,
    fractions: Vec<f64>,
}

impl Values {
    fn add(&mut self, measurement: &Measurement, machine: Option<Pass>) {
        self.raw.push(measurement.value);
        if let (Some(work), Some(machine)) = (measurement.work, machine) {
            self.fractions.push(match work {
                Work::Bytes(bytes) => measurement.value * bytes / machine.read_bytes_per_s,
                Work::Flops(flops) => measurement.value * flops / machine.flops,
            });
        }
    }

    fn measured(self, unit: &str) -> Measured {
        let known = !self.fractions.is_empty() && self.fractions.len() == self.raw.len();
        Measured {
            unit: unit.to_owned(),
            samples: stats::samples(self.raw),
            roofline: known.then(|| stats::samples(self.fractions)),
        }
    }
}

/// One repetition.
async fn once(
    suite: &GateSuite,
    endpoint: &Endpoint,
    progress: &Progress,
) -> Result<(Vec<Measurement>, Vec<String>), SuiteError> {
    let measurements = match &suite.measure {
        Measure::Decode(measure) => throughput::decode(endpoint, measure).await?,
        Measure::Prefill(measure) => throughput::prefill(endpoint, measure).await?,
        Measure::Ttft(measure) => throughput::ttft(endpoint, measure).await?,
        Measure::Perplexity(measure) => perplexity_metrics(endpoint, measure, progress).await?,
        Measure::Tools(measure) => return case_metrics(endpoint, Task::Tools, measure, progress).await,
        Measure::Qa(measure) => return case_metrics(endpoint, Task::Qa, measure, progress).await,
        Measure::Consistency(measure) => return consistency::run(endpoint, measure, progress).await,
    };
    Ok((measurements, Vec::new()))
}

async fn case_metrics(
    endpoint: &Endpoint,
    task: Task,
    measure: &CasesMeasure,
    progress: &Progress,
) -> Result<(Vec<Measurement>, Vec<String>), SuiteError> {
    let cases = cases::parse(task, &data::load(&measure.cases)?, &measure.cases)?;
    let results = cases::run(endpoint, task, &cases, measure.max_tokens, measure.concurrency, progress).await?;
    let (all, categories) = cases::score(&results);
    let scores = std::iter::once(("accuracy".to_owned(), all)).chain(categories);
    let measurements = scores
        .map(|(name, score)| Measurement {
            metric: format!("{}_{name}", task.name()),
            value: score.accuracy,
            work: None,
        })
        .collect();
    Ok((measurements, results.iter().filter(|result| !result.passed).map(describe).collect()))
}

fn describe(result: &CaseResult) -> String {
    format!("{} ({}): got {}, expected {}", result.id, result.category, result.got, result.expected)
}

/// Documents and sums of log-probabilities of a text.
pub async fn measure_perplexity(
    endpoint: &Endpoint,
    measure: &PerplexityMeasure,
    progress: &Progress,
) -> Result<(usize, PerplexityTally), SuiteError> {
    let markers = Markers::new(
        measure,
        &endpoint.tokenize(&measure.separator).await?,
        endpoint.tokenize(&measure.assistant_start).await?,
        &endpoint.tokenize(&measure.assistant_end).await?,
    )?;
    let tokens = endpoint.tokenize(&data::load(&measure.text)?).await?;
    let plan = PerplexityPlan::new(&tokens, &markers, measure.window as usize);
    let total = plan.windows.len();
    let mut scored = stream::iter(plan.windows.iter().map(|window| async move {
        let logprobs = endpoint.client.prompt_logprobs(endpoint.model(), &window.tokens).await?;
        Ok::<_, ClientError>((window, logprobs))
    }))
    .buffered(PERPLEXITY_CONCURRENCY);
    let (mut tally, mut done) = (PerplexityTally::default(), 0);
    while let Some((window, logprobs)) = scored.try_next().await? {
        tally.add(window, &logprobs).map_err(SuiteError::Endpoint)?;
        done += 1;
        progress.step("perplexity", done, total);
    }
    Ok((plan.documents, tally))
}

async fn perplexity_metrics(
    endpoint: &Endpoint,
    measure: &PerplexityMeasure,
    progress: &Progress,
) -> Result<Vec<Measurement>, SuiteError> {
    let (_, tally) = measure_perplexity(endpoint, measure, progress).await?;
    let scores = [("perplexity_all", tally.all()), ("perplexity_assistant", tally.assistant())];
    Ok(scores
        .into_iter()
        .filter_map(|(metric, score)| Some(Measurement { metric: metric.into(), value: score?.0, work: None }))
        .collect())
}
