//! Speed: `decode`, `prefill` and `ttft`, all from streamed plain completions with prompts of exact length.

use super::{Measurement, SuiteError, Work};
use crate::client::{CompletionRequest, Reply, Sampling};
use crate::endpoint::Endpoint;
use atlas_schemas::gate::{DecodeMeasure, PrefillMeasure, TtftMeasure};
use futures_util::future::try_join_all;
use std::time::Duration;

/// What one group of simultaneous requests showed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Burst {
    /// Prompt tokens a second, all requests together, until the last of them has its first token.
    pub prefill_tok_s: f64,
    /// Generated tokens a second after each request's first, all together, from the earliest first token to the end;
    /// 0 when only one token is generated.
    pub decode_tok_s: f64,
    /// Milliseconds to the first token, median over the requests.
    pub ttft_ms: f64,
}

/// Sends `concurrency` requests at once, each with an unseen prompt of `prompt_tokens`, for exactly `decode_tokens`.
pub async fn burst(
    endpoint: &Endpoint,
    prompt_tokens: u32,
    decode_tokens: u32,
    concurrency: u32,
) -> Result<Burst, SuiteError> {
    let prompts = (0..concurrency).map(|_| endpoint.fresh_prompt(prompt_tokens as usize));
    let replies = try_join_all(prompts.map(|prompt| generate(endpoint, prompt, decode_tokens))).await?;
    summarise(&replies, prompt_tokens, decode_tokens)
}

/// One streamed completion of exactly `decode_tokens`.
async fn generate(endpoint: &Endpoint, prompt: Vec<u32>, decode_tokens: u32) -> Result<Reply, SuiteError> {
    let request = CompletionRequest {
        model: endpoint.model().into(),
        prompt,
        sampling: Sampling { max_tokens: decode_tokens, ignore_eos: true, ..Sampling::default() },
        ..CompletionRequest::default()
    };
    let reply = endpoint.client.complete(&request, true).await?;
    let usage = reply.usage.ok_or_else(|| SuiteError::Endpoint("the stream reports no usage".into()))?;
    let asked = (request.prompt.len(), decode_tokens);
    if (usage.prompt_tokens as usize, usage.completion_tokens) != asked {
        return Err(SuiteError::Endpoint(format!(
            "{} prompt and {} generated tokens where {} and {} were asked for",
            usage.prompt_tokens, usage.completion_tokens, asked.0, asked.1
        )));
    }
    Ok(reply)
}

fn summarise(replies: &[Reply], prompt_tokens: u32, decode_tokens: u32) -> Result<Burst, SuiteError> {
    let no_output = || SuiteError::Endpoint("a stream carried no output".into());
    let firsts: Vec<f64> = replies
        .iter()
        .map(|reply| reply.timing.first().map(|at| at.as_secs_f64()))
        .collect::<Option<_>>()
        .ok_or_else(no_output)?;
    let count = replies.len() as f64;
    let (earliest, latest) = firsts.iter().fold((f64::MAX, 0f64), |(low, high), at| (low.min(*at), high.max(*at)));
    let end = replies.iter().map(|reply| reply.timing.finished).max().unwrap_or(Duration::ZERO).as_secs_f64();
    let decode_time = end - earliest;
    let decoded = count * f64::from(decode_tokens.saturating_sub(1));
    Ok(Burst {
        prefill_tok_s: count * f64::from(prompt_tokens) / latest,
        decode_tok_s: if decoded > 0.0 { decoded / decode_time } else { 0.0 },
        ttft_ms: 1e3 * crate::stats::median(&firsts),
    })
}

/// `decode_tok_s_cN`.
pub(super) async fn decode(endpoint: &Endpoint, measure: &DecodeMeasure) -> Result<Vec<Measurement>, SuiteError> {
    let mut measured = Vec::new();
    for concurrency in &measure.concurrency {
        let burst = burst(endpoint, measure.prompt_tokens, measure.decode_tokens, *concurrency).await?;
        // Requests that decode together read the weights once for all of them.
        let bytes = endpoint.card.weight_bytes_per_token.map(|bytes| bytes as f64 / f64::from(*concurrency));
        measured.push(Measurement {
            metric: format!("decode_tok_s_c{concurrency}"),
            value: burst.decode_tok_s,
            work: bytes.map(Work::Bytes),
        });
    }
    Ok(measured)
}

/// `prefill_tok_s_pN`.
pub(super) async fn prefill(endpoint: &Endpoint, measure: &PrefillMeasure) -> Result<Vec<Measurement>, SuiteError> {
    let mut measured = Vec::new();
    for length in &measure.prompt_tokens {
        let burst = burst(endpoint, *length, 1, 1).await?;
        measured.push(Measurement {
            metric: format!("prefill_tok_s_p{length}"),
            value: burst.prefill_tok_s,
            work: endpoint.card.flops_per_token.map(|flops| Work::Flops(flops as f64)),
        });
    }
    Ok(measured)
}

/// `ttft_cold_ms` and `ttft_warm_ms`.
pub(super) async fn ttft(endpoint: &Endpoint, measure: &TtftMeasure) -> Result<Vec<Measurement>, SuiteError> {
    let prompt = endpoint.fresh_prompt(measure.prompt_tokens as usize);
    let mut measured = Vec::new();
    for metric in ["ttft_cold_ms", "ttft_warm_ms"] {
        let reply = generate(endpoint, prompt.clone(), 1).await?;
        let first = summarise(&[reply], measure.prompt_tokens, 1)?.ttft_ms;
        measured.push(Measurement { metric: metric.into(), value: first, work: None });
    }
    Ok(measured)
}
