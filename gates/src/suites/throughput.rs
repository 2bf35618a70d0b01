//! Speed: `decode`, `prefill` and `ttft`, all from streamed plain completions with prompts of exact length.

use super::{Measurement, SuiteError, Work};
use crate::client::{CompletionRequest, Reply, Sampling};
use crate::endpoint::Endpoint;
use atlas_schemas::gate::{DecodeMeasure, PrefillMeasure, TtftMeasure};
use futures_util::future::try_join_all;
use std::time::Duration;

/// A measurement is repeated with other prompts when a stream carries no text at all.
const ATTEMPTS: usize = 5;

/// What one group of simultaneous requests showed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Burst {
    /// Prompt tokens a second, all requests together, until the last of them has its first token.
    pub prefill_tok_s: f64,
    /// Generated tokens a second, all requests together, see [`decode_rate`].
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
    for _ in 0..ATTEMPTS {
        let prompts = (0..concurrency).map(|_| endpoint.fresh_prompt(prompt_tokens as usize));
        let replies = try_join_all(prompts.map(|prompt| generate(endpoint, prompt, decode_tokens))).await?;
        // Tokens without text do not show when they come, but for the last.
        if decode_tokens == 1 || replies.iter().all(|reply| reply.timing.first().is_some()) {
            return Ok(summarise(&replies, prompt_tokens, decode_tokens));
        }
    }
    Err(SuiteError::Endpoint(format!("{ATTEMPTS} times a stream of {decode_tokens} tokens carried no output")))
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

fn summarise(replies: &[Reply], prompt_tokens: u32, decode_tokens: u32) -> Burst {
    let first = |reply: &Reply| reply.timing.first().unwrap_or(reply.timing.finished).as_secs_f64();
    let firsts: Vec<f64> = replies.iter().map(first).collect();
    let latest = firsts.iter().copied().fold(0.0, f64::max);
    let streams: Vec<Stream<'_>> = replies
        .iter()
        .map(|reply| Stream { arrivals: &reply.timing.pieces, end: reply.timing.finished, tokens: decode_tokens })
        .collect();
    Burst {
        prefill_tok_s: replies.len() as f64 * f64::from(prompt_tokens) / latest,
        decode_tok_s: decode_rate(&streams),
        ttft_ms: 1e3 * crate::stats::median(&firsts),
    }
}

/// When one request's output came.
#[derive(Debug, Clone, Copy)]
pub struct Stream<'a> {
    /// Arrival of each piece of output since the start, in order; usually a token each.
    pub arrivals: &'a [Duration],
    /// Arrival of the end.
    pub end: Duration,
    /// Tokens in all.
    pub tokens: u32,
}

impl Stream<'_> {
    /// Tokens after the first that came after `from` and until `to`, if every piece holds as many.
    fn tokens_between(&self, from: Duration, to: Duration) -> f64 {
        let later = self.arrivals.get(1..).unwrap_or_default();
        let inside = later.iter().filter(|at| from < **at && **at <= to).count();
        f64::from(self.tokens.saturating_sub(1)) * inside as f64 / later.len().max(1) as f64
    }
}

/// Generated tokens a second while all requests decode together: from the moment when the last of them has its first
/// token to the end of the first that ends, so that other requests' prefill does not count. Where they never decode all
/// together, from the earliest first token to the latest end. 0 when each generates a single token.
pub fn decode_rate(streams: &[Stream<'_>]) -> f64 {
    let first = |stream: &Stream<'_>| stream.arrivals.first().copied().unwrap_or(stream.end);
    let together = (streams.iter().map(first).max(), streams.iter().map(|stream| stream.end).min());
    let ever = (streams.iter().map(first).min(), streams.iter().map(|stream| stream.end).max());
    for (from, to) in [together, ever].into_iter().filter_map(|(from, to)| from.zip(to)) {
        let tokens: f64 = streams.iter().map(|stream| stream.tokens_between(from, to)).sum();
        // One token of each is no rate: its time is that of the step before it.
        if to > from && tokens >= 2.0 * streams.len() as f64 {
            return tokens / (to - from).as_secs_f64();
        }
    }
    let tokens: f64 = streams.iter().map(|stream| f64::from(stream.tokens.saturating_sub(1))).sum();
    match ever {
        (Some(from), Some(to)) if to > from => tokens / (to - from).as_secs_f64(),
        _ => 0.0,
    }
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
        let first = summarise(&[reply], measure.prompt_tokens, 1).ttft_ms;
        measured.push(Measurement { metric: metric.into(), value: first, work: None });
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(times: &[u64]) -> Vec<Duration> {
        times.iter().copied().map(Duration::from_millis).collect()
    }

    fn rate(streams: &[(&[u64], u32)]) -> f64 {
        let arrivals: Vec<Vec<Duration>> = streams.iter().map(|(times, _)| millis(times)).collect();
        let streams: Vec<Stream<'_>> = arrivals
            .iter()
            .zip(streams)
            .map(|(arrivals, (_, tokens))| Stream { arrivals, end: arrivals[arrivals.len() - 1], tokens: *tokens })
            .collect();
        decode_rate(&streams)
    }

    #[test]
    fn one_stream_counts_from_its_first_token() {
        assert_eq!(rate(&[(&[500, 510, 520, 530], 4)]), 100.0);
        assert_eq!(rate(&[(&[500, 520, 530], 7)]), 200.0, "pieces of two tokens");
        assert_eq!(rate(&[(&[500], 1)]), 0.0);
        assert_eq!(rate(&[(&[500, 510], 2)]), 100.0);
    }

    #[test]
    fn prefill_of_others_does_not_count() {
        // The second starts at 1000; before that the first crawls. Both decode until 1030.
        let first = [100, 500, 900, 1010, 1020, 1030];
        let second = [1000, 1010, 1020, 1030, 1040];
        assert_eq!(rate(&[(&first, 6), (&second, 5)]), 200.0);
    }

    #[test]
    fn streams_that_never_meet_are_taken_over_all() {
        assert_eq!(rate(&[(&[100, 110, 120], 3), (&[190, 195, 200], 3)]), 40.0);
    }
}
