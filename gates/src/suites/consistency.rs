//! `consistency`: one request, one result, whatever else the server does.
//!
//! Every prompt is answered alone first, greedily and with a seed. Then all of them again: alone once more, and in
//! batches of each size in shuffled order, half of them streamed, with other requests running beside and before. Text,
//! reasoning, calls, finish reason and the log-probability of every token must be equal to the last digit.

use super::cases::{self, Task};
use super::{Measurement, SuiteError};
use crate::client::{ChatRequest, CompletionRequest, Reply, Sampling};
use crate::data;
use crate::endpoint::{Endpoint, Random};
use crate::progress::Progress;
use atlas_schemas::gate::ConsistencyMeasure;
use futures_util::future::try_join_all;

/// How many mismatches are described.
const MAX_DETAILS: usize = 10;
/// Length and output of the requests that only keep the server busy.
const TRAFFIC: (usize, u32) = (96, 8);

/// `consistency_mismatches` and `consistency_comparisons`, and descriptions of the first mismatches.
pub(super) async fn run(
    endpoint: &Endpoint,
    measure: &ConsistencyMeasure,
    progress: &Progress,
) -> Result<(Vec<Measurement>, Vec<String>), SuiteError> {
    let requests = requests(endpoint, measure)?;
    let mut alone = Vec::with_capacity(requests.len());
    for request in &requests {
        alone.push(endpoint.client.chat(request, false).await?);
        progress.step("consistency (alone)", alone.len(), requests.len());
    }
    if alone.iter().any(|reply| reply.tokens.is_empty()) {
        return Err(SuiteError::Endpoint("a reply carries no log-probabilities, so it cannot be compared".into()));
    }
    let mut random = Random(measure.seed);
    let (mut comparisons, mut mismatches, mut details) = (0usize, 0usize, Vec::new());
    for batch in std::iter::once(&1).chain(&measure.batches) {
        let mut order: Vec<usize> = (0..requests.len()).collect();
        random.shuffle(&mut order);
        traffic(endpoint).await?;
        for group in order.chunks((*batch).max(1) as usize) {
            let replies = try_join_all(group.iter().enumerate().map(|(place, index)| {
                let stream = (place + index) % 2 == 0;
                let request = &requests[*index];
                async move { endpoint.client.chat(request, stream).await.map(|reply| (*index, stream, reply)) }
            }));
            // Beside a batch, a request that none of them knows.
            let replies = if *batch > 1 { tokio::try_join!(replies, beside(endpoint))?.0 } else { replies.await? };
            for (index, stream, reply) in replies {
                comparisons += 1;
                if let Some(difference) = difference(&alone[index], &reply) {
                    mismatches += 1;
                    let how = if stream { "streamed" } else { "whole" };
                    details.push(format!("prompt {index}, batch {batch}, {how}: {difference}"));
                }
            }
            progress.step("consistency (in company)", comparisons, requests.len() * (1 + measure.batches.len()));
        }
    }
    details.truncate(MAX_DETAILS);
    let measurement =
        |metric: &str, value: usize| Measurement { metric: metric.into(), value: value as f64, work: None };
    Ok((
        vec![measurement("consistency_mismatches", mismatches), measurement("consistency_comparisons", comparisons)],
        details,
    ))
}

/// Conversations from the built-in cases, every other with tools; each once greedy and once sampled.
fn requests(endpoint: &Endpoint, measure: &ConsistencyMeasure) -> Result<Vec<ChatRequest>, SuiteError> {
    let tools = cases::parse(Task::Tools, &data::load("tool_calls")?, "tool_calls")?;
    let qa = cases::parse(Task::Qa, &data::load("qa")?, "qa")?;
    let mut random = Random(measure.seed);
    let mut requests = Vec::new();
    for number in 0..measure.prompts {
        let pool = if number % 2 == 0 { &qa } else { &tools };
        let case = &pool[random.below(pool.len())];
        for temperature in [0.0, 0.8] {
            let seed = (temperature > 0.0).then(|| measure.seed.wrapping_add(u64::from(number)));
            requests.push(ChatRequest {
                model: endpoint.model().into(),
                messages: case.messages.clone(),
                tools: case.tools.clone(),
                sampling: Sampling { temperature, seed, max_tokens: measure.max_tokens, ignore_eos: false },
                logprobs: true,
            });
        }
    }
    Ok(requests)
}

/// Other requests, one after another.
async fn traffic(endpoint: &Endpoint) -> Result<(), SuiteError> {
    for _ in 0..2 {
        beside(endpoint).await?;
    }
    Ok(())
}

async fn beside(endpoint: &Endpoint) -> Result<(), crate::client::ClientError> {
    let request = CompletionRequest {
        model: endpoint.model().into(),
        prompt: endpoint.fresh_prompt(TRAFFIC.0),
        sampling: Sampling { max_tokens: TRAFFIC.1, ..Sampling::default() },
        ..CompletionRequest::default()
    };
    endpoint.client.complete(&request, true).await.map(drop)
}

/// The first difference between two replies to the same request, in words.
fn difference(alone: &Reply, other: &Reply) -> Option<String> {
    let token = alone.tokens.iter().zip(&other.tokens).position(|(a, b)| a != b);
    if let Some(position) = token {
        let (a, b) = (&alone.tokens[position], &other.tokens[position]);
        return Some(format!("token {position} is {:?} {:?}, alone {:?} {:?}", b.0, b.1, a.0, a.1));
    }
    if alone.tokens.len() != other.tokens.len() {
        return Some(format!("{} tokens, alone {}", other.tokens.len(), alone.tokens.len()));
    }
    let parts = [
        ("text", alone.text == other.text),
        ("reasoning", alone.reasoning == other.reasoning),
        ("tool calls", alone.tool_calls == other.tool_calls),
        ("finish reason", alone.finish_reason == other.finish_reason),
    ];
    parts.into_iter().find(|(_, equal)| !equal).map(|(what, _)| format!("same tokens, but another {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(tokens: &[(&str, f64)]) -> Reply {
        Reply {
            text: tokens.iter().map(|(token, _)| *token).collect(),
            tokens: tokens.iter().map(|(token, logprob)| ((*token).into(), Some(*logprob))).collect(),
            ..Reply::default()
        }
    }

    #[test]
    fn the_last_digit_counts() {
        let alone = reply(&[("a", -0.5), ("b", -1.25)]);
        assert_eq!(difference(&alone, &alone.clone()), None);
        let close = reply(&[("a", -0.5), ("b", -1.250_000_1)]);
        assert!(difference(&alone, &close).unwrap().starts_with("token 1 is \"b\""));
        assert_eq!(difference(&alone, &reply(&[("a", -0.5)])).unwrap(), "1 tokens, alone 2");
        let cut = Reply { finish_reason: Some("length".into()), ..alone.clone() };
        assert_eq!(difference(&alone, &cut).unwrap(), "same tokens, but another finish reason");
    }
}
