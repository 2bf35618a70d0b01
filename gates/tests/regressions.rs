//! Every suite against a scripted endpoint: a good one passes, and each seeded regression is caught.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

#[path = "support/mod.rs"]
mod support;

use atlas_gates::client::Client;
use atlas_gates::progress::Progress;
use atlas_gates::record::{GateRun, ProbeSource, TokenWork, measure};
use atlas_gates::suites::{self, SuiteError};
use atlas_gates::{baseline, bench, compare, eval, stats};
use atlas_schemas::gate::{
    GateBaseline, GateRecord, GateReport, GateSuite, MachineProbe, Measure, MetricKind, Verdict,
};
use atlas_schemas::hardware::HardwareClass;
use std::time::Duration;
use support::{Script, Scripted};

/// The built-in suite, with few runs and short measurements where only the machinery is at stake.
fn suite(name: &str) -> GateSuite {
    let mut suite = suites::load(name).unwrap();
    (suite.runs, suite.warmup) = (if suite.runs > 1 { 3 } else { 1 }, 0);
    match &mut suite.measure {
        Measure::Decode(measure) => (measure.prompt_tokens, measure.decode_tokens) = (8, 6),
        Measure::Prefill(_) | Measure::Ttft(_) => {}
        Measure::Consistency(measure) => (measure.prompts, measure.batches) = (6, vec![2, 4]),
        _ => {}
    }
    suite
}

async fn record(script: Script, suite: &GateSuite) -> Result<GateRecord, SuiteError> {
    let server = Scripted::start(script).await;
    let client = Client::new(&server.url, None).unwrap();
    client.wait_ready(Duration::from_secs(10)).await.unwrap();
    let (name, class, version) = ("scripted".into(), HardwareClass::Cpu, "0".into());
    let probe = MachineProbe {
        method: "given".into(),
        working_set_bytes: 1 << 20,
        read_bytes_per_s: stats::samples(vec![1e10]),
        flops: stats::samples(vec![1e10]),
    };
    let run = GateRun {
        name,
        class,
        version,
        probe: ProbeSource::Given(probe),
        model: None,
        recipe_hash: None,
        weights_hash: None,
        binary_sha256: None,
        work: TokenWork::default(),
    };
    measure(client, &run, std::slice::from_ref(suite), &Progress::new(false)).await
}

/// A baseline from a good run. For speeds the promised value is `value`, so that nothing hangs on this machine.
async fn promise(suite: &GateSuite, value: Option<f64>) -> GateBaseline {
    let mut good = record(Script::default(), suite).await.unwrap();
    for metric in good.suites.get_mut(&suite.name).unwrap().metrics.values_mut() {
        if let Some(value) = value {
            metric.samples = stats::samples(vec![value; 3]);
            metric.roofline = Some(metric.samples.clone());
        }
    }
    baseline::bless(&good, std::slice::from_ref(suite)).unwrap()
}

async fn judge(script: Script, suite: &GateSuite, promise: &GateBaseline) -> GateReport {
    let mut record = record(script, suite).await.unwrap();
    // Fractions of the roofline stand in for raw speeds: the scripted endpoint has no weights to read.
    for metric in record.suites.get_mut(&suite.name).unwrap().metrics.values_mut() {
        metric.roofline = metric.roofline.as_ref().map(|_| metric.samples.clone());
    }
    compare::compare(&record, promise, None)
}

fn failed(report: &GateReport) -> Vec<&str> {
    report.rows.iter().filter(|row| row.verdict == Verdict::Fail).map(|row| row.metric.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_endpoint_passes_what_is_not_a_speed() {
    for name in ["consistency", "qa", "tools", "perplexity"] {
        let suite = suite(name);
        let promise = promise(&suite, None).await;
        let report = judge(Script::default(), &suite, &promise).await;
        assert_eq!(report.verdict, Verdict::Pass, "{name}: {report:?}");
        assert!(!report.rows.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_answers_fail_qa_and_tools() {
    for name in ["qa", "tools"] {
        let suite = suite(name);
        let promise = promise(&suite, None).await;
        let report = judge(Script { wrong_every: Some(10), ..Script::default() }, &suite, &promise).await;
        assert_eq!(report.verdict, Verdict::Fail);
        assert!(failed(&report).contains(&format!("{name}_accuracy").as_str()), "{report:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_weights_fail_perplexity_in_both_directions() {
    let suite = suite("perplexity");
    let promise = promise(&suite, None).await;
    for shift in [-0.01, 0.01] {
        let report = judge(Script { logprob_shift: shift, ..Script::default() }, &suite, &promise).await;
        assert_eq!(failed(&report), ["perplexity_all", "perplexity_assistant"]);
    }
    let close = judge(Script { logprob_shift: 0.001, ..Script::default() }, &suite, &promise).await;
    assert_eq!(close.verdict, Verdict::Pass);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_that_depend_on_company_fail_consistency() {
    let suite = suite("consistency");
    let promise = promise(&suite, None).await;
    let report = judge(Script { inconsistent: true, ..Script::default() }, &suite, &promise).await;
    assert_eq!(failed(&report), ["consistency_mismatches"]);
    let report = judge(Script { stream_loses_text: true, ..Script::default() }, &suite, &promise).await;
    assert_eq!(failed(&report), ["consistency_mismatches"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inconsistent_endpoint_cannot_be_blessed() {
    let suite = suite("consistency");
    let record = record(Script { inconsistent: true, ..Script::default() }, &suite).await.unwrap();
    assert!(!record.suites["consistency"].details.is_empty());
    let problems = baseline::bless(&record, &[suite]).unwrap_err();
    assert!(problems.iter().any(|problem| problem.starts_with("consistency_mismatches must be 0")), "{problems:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_endpoint_fails_every_speed() {
    // A pause of 20 ms a token bounds the speeds from above, however fast the machine.
    let slow = Script { token_delay: Duration::from_millis(20), ..Script::default() };
    for (name, promised) in [("decode", 1e4), ("prefill", 1e6), ("ttft", 0.01)] {
        let suite = suite(name);
        let report = judge(slow.clone(), &suite, &promise(&suite, Some(promised)).await).await;
        assert_eq!(failed(&report).len(), 2, "{name}: {report:?}");
        // The same endpoint keeps a promise that is modest enough.
        let modest = if name == "ttft" { 1e9 } else { 1e-3 };
        let report = judge(slow.clone(), &suite, &promise(&suite, Some(modest)).await).await;
        assert_eq!(report.verdict, Verdict::Pass, "{name}: {report:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn speeds_without_known_work_fail() {
    let suite = suite("decode");
    assert!(suite.metrics.values().all(|rule| rule.kind == MetricKind::Roofline));
    let promise = promise(&suite, Some(1e-3)).await;
    let report = judge(Script { bare_card: true, ..Script::default() }, &suite, &promise).await;
    assert_eq!(failed(&report).len(), 2);
    assert!(report.rows[0].reason.contains("no roofline fraction"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_off_is_an_error() {
    for name in ["decode", "ttft", "consistency"] {
        let error = record(Script { drop_after: Some(1), ..Script::default() }, &suite(name)).await.unwrap_err();
        assert!(error.to_string().contains("the stream ended before [DONE]"), "{name}: {error}");
    }
    // Cut after the last token, but before the finish reason and [DONE].
    let error = record(Script { drop_after: Some(6), ..Script::default() }, &suite("decode")).await.unwrap_err();
    assert!(error.to_string().contains("the stream ended before [DONE]"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_refuses_is_quoted() {
    for name in suites::built_in() {
        let error = record(Script { refuse: Some(500), ..Script::default() }, &suite(name)).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("status 500") && text.contains("refused") && text.contains("/v1/"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_tokens_are_an_error() {
    let error = record(Script { short: true, ..Script::default() }, &suite("decode")).await.unwrap_err();
    assert_eq!(error.to_string(), "8 prompt and 5 generated tokens where 8 and 6 were asked for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_endpoint_is_an_error_within_the_limit() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let client = Client::new(&url, None).unwrap();
    let error = client.wait_ready(Duration::from_millis(300)).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("{url}/health/ready: not ready after")), "{error}");
    assert!(client.models().await.unwrap_err().to_string().contains(&url));
    assert!(Client::new("https://example.invalid", None).unwrap_err().to_string().contains("http://"));
    assert!(Client::new("not a url", None).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bench_measures_every_combination() {
    let server = Scripted::start(Script::default()).await;
    let plan = bench::BenchPlan { prompt: vec![4, 9], decode: vec![1, 5], concurrency: vec![1, 3], runs: 2 };
    let client = Client::new(&format!("{}/v1/", server.url), None).unwrap();
    let work = TokenWork::default();
    let bandwidth = Some(f64::from(1 << 20) * 1e6);
    let record =
        bench::run(client, &plan, bench::about("t", "0"), work, bandwidth, &Progress::new(false)).await.unwrap();
    assert_eq!(record.rows.len(), 8);
    for row in &record.rows {
        assert_eq!(row.raw.ttft_ms.len(), 2);
        assert!(row.prefill_tok_s > 0.0 && row.ttft_ms > 0.0);
        assert_eq!(row.decode_tok_s > 0.0, row.decode_tokens > 1);
        assert_eq!(row.weight_bytes_per_token, Some(1 << 20));
        // The bound is a million tokens a second for each stream.
        let fraction = row.decode_tok_s / (1e6 * f64::from(row.concurrency));
        assert!((row.decode_roofline_fraction.unwrap() - fraction).abs() < 1e-12);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evaluations_report_every_case_in_order() {
    let server = Scripted::start(Script { wrong_every: Some(10), ..Script::default() }).await;
    let client = Client::new(&server.url, None).unwrap();
    let quiet = Progress::new(false);
    let qa = eval::cases(client.clone(), cases_task(), "qa", "t", 4, &quiet).await.unwrap();
    assert_eq!((qa.cases, qa.results.len(), qa.passed), (200, 200, 180));
    assert!((qa.accuracy - 0.9).abs() < 1e-12);
    assert_eq!(qa.categories["math"].cases, 60);
    assert_eq!(qa.results[0].id, "eval-qa-1");
    let perplexity = eval::perplexity(client, "perplexity", "t", &quiet).await.unwrap();
    assert_eq!(perplexity.documents, 360);
    assert!(perplexity.perplexity > 1.0 && perplexity.assistant_tokens < perplexity.tokens);
}

fn cases_task() -> atlas_gates::suites::cases::Task {
    atlas_gates::suites::cases::Task::Qa
}
