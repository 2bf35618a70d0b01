//! `/metrics` in the OpenMetrics text format.
//!
//! Suffixes and buckets are vLLM's, so that its dashboards work after replacing the prefix `vllm:` by `atlas_`.

use crate::error::ApiError;
use crate::state::AppState;
use atlas_engine::engine::{EngineStats, Usage};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const TIME_TO_FIRST_TOKEN: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const INTER_TOKEN: [f64; 19] =
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
const REQUEST: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
const TOKENS: [f64; 18] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5];

/// Everything that is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    running: Gauge,
    waiting: Gauge,
    kv_usage: Gauge<f64, AtomicU64>,
    prompt_tokens: Counter,
    generation_tokens: Counter,
    engine_steps: Counter,
    engine_step_sequences: Counter,
    preemptions: Counter,
    cached_pages: Gauge,
    checkpoints: Gauge,
    requests_cancelled: Counter,
    prefix_queries: Counter,
    prefix_hits: Counter,
    finished: Family<FinishLabels, Counter>,
    http_requests: Family<HttpLabels, Counter>,
    first_token: Histogram,
    inter_token: Histogram,
    whole_request: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FinishLabels {
    finished_reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HttpLabels {
    method: String,
    /// The route's pattern, never a client's own path: labels must stay few.
    handler: String,
    status: u16,
}

impl Metrics {
    pub(crate) fn new(model_name: &str) -> Self {
        let labels = [(Cow::Borrowed("model_name"), Cow::Owned(model_name.to_owned()))];
        let mut registry = Registry::with_prefix_and_labels("atlas", labels.into_iter());
        let r = &mut registry;
        Self {
            running: add(r, "num_requests_running", "Requests being prefilled or decoded", Gauge::default()),
            waiting: add(r, "num_requests_waiting", "Requests in the queue", Gauge::default()),
            kv_usage: add(r, "kv_cache_usage_perc", "Part of the KV cache in use, 1 is all", Gauge::default()),
            prompt_tokens: add(r, "prompt_tokens", "Prompt tokens computed", Counter::default()),
            generation_tokens: add(r, "generation_tokens", "Tokens generated", Counter::default()),
            engine_steps: add(r, "engine_steps", "Forward passes", Counter::default()),
            engine_step_sequences: add(
                r,
                "engine_step_sequences",
                "Sequences in all forward passes",
                Counter::default(),
            ),
            preemptions: add(r, "num_preemptions", "Requests computed again for want of memory", Counter::default()),
            cached_pages: add(r, "prefix_cache_pages", "KV pages in the prefix cache", Gauge::default()),
            checkpoints: add(r, "prefix_cache_checkpoints", "Recurrent states in the prefix cache", Gauge::default()),
            requests_cancelled: add(r, "requests_cancelled", "Requests whose client went away", Counter::default()),
            prefix_queries: add(r, "prefix_cache_queries", "Prompt tokens looked up", Counter::default()),
            prefix_hits: add(r, "prefix_cache_hits", "Prompt tokens found in the prefix cache", Counter::default()),
            finished: add(r, "request_success", "Generations that ended, by reason", Family::default()),
            http_requests: add(r, "http_requests", "Answers, by route and status", Family::default()),
            first_token: histogram(r, "time_to_first_token_seconds", "Submission to first token", &TIME_TO_FIRST_TOKEN),
            inter_token: histogram(r, "inter_token_latency_seconds", "Time between two tokens", &INTER_TOKEN),
            whole_request: histogram(r, "e2e_request_latency_seconds", "Submission to end", &REQUEST),
            queue: histogram(r, "request_queue_time_seconds", "Time in the queue", &REQUEST),
            prefill: histogram(r, "request_prefill_time_seconds", "First chunk to first token", &REQUEST),
            decode: histogram(r, "request_decode_time_seconds", "First token to last", &REQUEST),
            request_prompt_tokens: histogram(r, "request_prompt_tokens", "Prompt tokens of a request", &TOKENS),
            request_generation_tokens: histogram(r, "request_generation_tokens", "Tokens generated for it", &TOKENS),
            registry,
        }
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, method: &str, route: &str, status: u16) {
        let labels = HttpLabels { method: method.to_owned(), handler: route.to_owned(), status };
        self.http_requests.get_or_create(&labels).inc();
    }

    /// Counts the prompt of a generation that left the queue.
    pub(crate) fn started(&self, prompt_tokens: usize, cached_tokens: usize) {
        self.prefix_queries.inc_by(prompt_tokens as u64);
        self.prefix_hits.inc_by(cached_tokens as u64);
    }

    /// Counts the end of a generation; `usage` holds the engine's times if it saw the end.
    pub(crate) fn finished(
        &self,
        reason: &'static str,
        watch: &TokenWatch,
        tokens: (usize, usize),
        usage: Option<&Usage>,
    ) {
        self.finished.get_or_create(&FinishLabels { finished_reason: reason }).inc();
        self.whole_request.observe(watch.submitted.elapsed().as_secs_f64());
        self.request_prompt_tokens.observe(tokens.0 as f64);
        self.request_generation_tokens.observe(tokens.1 as f64);
        if let Some(usage) = usage {
            self.queue.observe(usage.queue.as_secs_f64());
            self.prefill.observe(usage.prefill.as_secs_f64());
            self.decode.observe(usage.decode.as_secs_f64());
        }
    }

    fn encode(&self, stats: EngineStats) -> Result<String, std::fmt::Error> {
        let count = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        self.running.set(count(stats.running));
        self.waiting.set(count(stats.waiting));
        self.kv_usage.set(stats.kv_usage);
        self.cached_pages.set(count(stats.cached_pages));
        self.checkpoints.set(count(stats.checkpoints));
        for (counter, value) in [
            (&self.prompt_tokens, stats.prompt_tokens),
            (&self.generation_tokens, stats.generation_tokens),
            (&self.engine_steps, stats.steps),
            (&self.engine_step_sequences, stats.step_sequences),
            (&self.preemptions, stats.preemptions),
            (&self.requests_cancelled, stats.cancelled),
        ] {
            counter.inner().store(value, Ordering::Relaxed);
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// When the tokens of one generation came.
#[derive(Debug)]
pub(crate) struct TokenWatch {
    submitted: Instant,
    last: Option<Instant>,
}

impl TokenWatch {
    pub(crate) fn start() -> Self {
        Self { submitted: Instant::now(), last: None }
    }

    /// Notes a token.
    pub(crate) fn token(&mut self, metrics: &Metrics) {
        let now = Instant::now();
        match self.last.replace(now) {
            None => metrics.first_token.observe(now.duration_since(self.submitted).as_secs_f64()),
            Some(last) => metrics.inter_token.observe(now.duration_since(last).as_secs_f64()),
        }
    }
}

/// The metrics as text.
pub(crate) async fn scrape(State(state): State<AppState>) -> Result<Response, ApiError> {
    let stats = state.model().map(|model| model.engine.stats()).unwrap_or_default();
    let text = state.metrics().encode(stats).map_err(|_| ApiError::internal("the metrics could not be written"))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

fn histogram(registry: &mut Registry, name: &str, help: &str, buckets: &[f64]) -> Histogram {
    add(registry, name, help, Histogram::new(buckets.iter().copied()))
}
