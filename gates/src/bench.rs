//! `atlas bench` over HTTP: every combination of prompt length, decode length and concurrency.

use crate::client::Client;
use crate::endpoint::Endpoint;
use crate::progress::Progress;
use crate::provenance;
use crate::record::TokenWork;
use crate::stats::median;
use crate::suites::{SuiteError, throughput};
use atlas_schemas::bench::{BENCH_VERSION, BenchRaw, BenchRecord, BenchRow};

/// What to measure.
#[derive(Debug, Clone)]
pub struct BenchPlan {
    /// Prompt lengths in tokens.
    pub prompt: Vec<u32>,
    /// Numbers of tokens to generate.
    pub decode: Vec<u32>,
    /// Numbers of simultaneous requests.
    pub concurrency: Vec<u32>,
    /// Repetitions of each combination; one more is thrown away as warm-up.
    pub runs: u32,
}

/// Measures `plan`. `about` says what was measured; its rows are filled in. `bandwidth`, in bytes a second, is that of
/// the machine that serves, if it is known.
pub async fn run(
    client: Client,
    plan: &BenchPlan,
    about: BenchRecord,
    work: TokenWork,
    bandwidth: Option<f64>,
    progress: &Progress,
) -> Result<BenchRecord, SuiteError> {
    let endpoint = Endpoint::new(client, None).await?;
    let weight_bytes_per_token = work.weight_bytes_per_token.or(endpoint.card.weight_bytes_per_token);
    let mut rows = Vec::new();
    for prompt_tokens in &plan.prompt {
        for decode_tokens in &plan.decode {
            for concurrency in &plan.concurrency {
                progress.line(&format!("prompt {prompt_tokens}, decode {decode_tokens}, concurrency {concurrency}"));
                let raw = repeat(&endpoint, *prompt_tokens, *decode_tokens, *concurrency, plan.runs).await?;
                let decode_tok_s = median(&raw.decode_tok_s);
                // Requests that decode together read the weights once for all of them.
                let bound = weight_bytes_per_token.zip(bandwidth).map(|(bytes, bandwidth)| bandwidth / bytes as f64);
                rows.push(BenchRow {
                    prompt_tokens: *prompt_tokens,
                    decode_tokens: *decode_tokens,
                    concurrency: *concurrency,
                    runs: plan.runs,
                    prefill_tok_s: median(&raw.prefill_tok_s),
                    decode_tok_s,
                    ttft_ms: median(&raw.ttft_ms),
                    weight_bytes_per_token,
                    bytes_per_step: None,
                    prefill_flops: None,
                    decode_roofline_fraction: bound.map(|bound| decode_tok_s / (bound * f64::from(*concurrency))),
                    raw,
                });
            }
        }
    }
    Ok(BenchRecord { rows, ..about })
}

/// A record without rows.
pub fn about(target: &str, atlas_version: &str) -> BenchRecord {
    BenchRecord {
        schema_version: BENCH_VERSION,
        target: target.into(),
        recipe_hash: None,
        weights_hash: None,
        engine_hash: None,
        atlas_version: atlas_version.into(),
        recorded_at: provenance::now(),
        hardware: None,
        memory: None,
        rows: Vec::new(),
    }
}

async fn repeat(
    endpoint: &Endpoint,
    prompt_tokens: u32,
    decode_tokens: u32,
    concurrency: u32,
    runs: u32,
) -> Result<BenchRaw, SuiteError> {
    let mut raw = BenchRaw { prefill_tok_s: Vec::new(), decode_tok_s: Vec::new(), ttft_ms: Vec::new() };
    throughput::burst(endpoint, prompt_tokens, decode_tokens, concurrency).await?;
    for _ in 0..runs {
        let burst = throughput::burst(endpoint, prompt_tokens, decode_tokens, concurrency).await?;
        raw.prefill_tok_s.push(burst.prefill_tok_s);
        raw.decode_tok_s.push(burst.decode_tok_s);
        raw.ttft_ms.push(burst.ttft_ms);
    }
    Ok(raw)
}
