//! `/metrics`: names and values that dashboards rely on.

use crate::support::TestServer;
use crate::support::engine::{ScriptedEngine, Step};

fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(series)).unwrap_or_else(|| panic!("{series} in\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn everything_is_counted() {
    let server = TestServer::start(ScriptedEngine::says("Hello")).await;
    server.chat("").await;
    server.chat(", \"stream\": true").await;
    server.chat(", \"max_tokens\": 2").await;
    server.chat(", \"max_tokens\": -1").await;
    server.get("/no/such/path").await;
    let answer = server.get("/metrics").await;
    assert_eq!(answer.headers["content-type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let text = answer.text;
    let model = r#"model_name="atlas-test""#;
    for (series, expected) in [
        (format!("atlas_num_requests_running{{{model}}}"), 0.0),
        (format!("atlas_num_requests_waiting{{{model}}}"), 3.0),
        (format!("atlas_kv_cache_usage_perc{{{model}}}"), 0.25),
        (format!("atlas_prompt_tokens_total{{{model}}}"), 100.0),
        (format!("atlas_generation_tokens_total{{{model}}}"), 50.0),
        (format!("atlas_prefix_cache_hits_total{{{model}}}"), 6.0),
        (format!("atlas_request_success_total{{{model},finished_reason=\"stop\"}}"), 2.0),
        (format!("atlas_request_success_total{{{model},finished_reason=\"length\"}}"), 1.0),
        (format!("atlas_time_to_first_token_seconds_count{{{model}}}"), 3.0),
        (format!("atlas_time_to_first_token_seconds_bucket{{{model},le=\"2560.0\"}}"), 3.0),
        (format!("atlas_inter_token_latency_seconds_count{{{model}}}"), 11.0),
        (format!("atlas_e2e_request_latency_seconds_count{{{model}}}"), 3.0),
        (format!("atlas_request_queue_time_seconds_count{{{model}}}"), 3.0),
        (format!("atlas_request_prefill_time_seconds_sum{{{model}}}"), 0.06),
        (format!("atlas_request_decode_time_seconds_count{{{model}}}"), 3.0),
    ] {
        assert!((value(&text, &series) - expected).abs() < 1e-9, "{series} in\n{text}");
    }
    let http = |handler: &str, status: &str| {
        text.lines()
            .filter(|line| line.starts_with("atlas_http_requests_total"))
            .filter(|line| line.contains(handler) && line.contains(status))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum::<u64>()
    };
    assert_eq!(http("/v1/chat/completions", r#"status="200""#), 3);
    assert_eq!(http("/v1/chat/completions", r#"status="400""#), 1);
    assert_eq!(http("other", r#"status="404""#), 1);
    assert!(!text.contains("/no/such/path"));
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn failures_are_counted_apart() {
    let server = TestServer::start(ScriptedEngine::plays([Step::Fail("no")])).await;
    server.chat("").await;
    let text = server.get("/metrics").await.text;
    assert_eq!(value(&text, "atlas_request_success_total{model_name=\"atlas-test\",finished_reason=\"error\"}"), 1.0);
}
