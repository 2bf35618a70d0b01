//! A served model as suites see it, and prompts of any length for it.

use crate::client::{Client, ClientError, ModelCard};
use crate::data;
use crate::pieces::pieces;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Tokens that make a prompt unlike every other, so that no prefix cache can know it.
const UNIQUE_PREFIX: usize = 8;
/// Context length of an endpoint that does not say.
const DEFAULT_CONTEXT: u64 = 2048;
/// Bytes that are tokenised with one request.
const MAX_PIECE: u64 = 64 << 10;
/// Pieces of a text that are tokenised at once.
const TOKENIZE_CONCURRENCY: usize = 4;

/// A ready endpoint.
#[derive(Debug)]
pub struct Endpoint {
    /// How it is asked.
    pub client: Client,
    /// The model that is asked for, and what its card says.
    pub card: ModelCard,
    pool: Vec<u32>,
    draws: AtomicU64,
}

impl Endpoint {
    /// Asks which model is served and tokenises the text that prompts are made of. `model` picks one of several.
    pub async fn new(client: Client, model: Option<&str>) -> Result<Self, ClientError> {
        let card = match model {
            None => client.first_model().await?,
            Some(name) => {
                client.models().await?.into_iter().find(|card| card.id == name).ok_or_else(|| ClientError::Reply {
                    url: format!("{}/v1/models", client.base()),
                    message: format!("no model {name} is served"),
                    body: String::new(),
                })?
            }
        };
        let pool = tokenize(&client, &card, &plain_text()).await?;
        if pool.len() < 2 {
            return Err(ClientError::Reply {
                url: format!("{}/tokenize", client.base()),
                message: "a long text has fewer than two tokens".into(),
                body: String::new(),
            });
        }
        let start = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        Ok(Self { client, card, pool, draws: AtomicU64::new(start) })
    }

    /// Name under which the model is served.
    pub fn model(&self) -> &str {
        &self.card.id
    }

    /// Token ids of a text of any length, its special tokens parsed, none added.
    pub async fn tokenize(&self, text: &str) -> Result<Vec<u32>, ClientError> {
        tokenize(&self.client, &self.card, text).await
    }

    /// A prompt of exactly `length` tokens that this endpoint has not seen: random tokens, then running text.
    pub fn fresh_prompt(&self, length: usize) -> Vec<u32> {
        let mut random = Random(self.draws.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed));
        let prefix = (0..UNIQUE_PREFIX).map(|_| random.below(self.pool.len())).map(|at| self.pool[at]);
        let prefix: Vec<u32> = prefix.collect();
        let start = random.below(self.pool.len());
        let text = self.pool.iter().cycle().skip(start).copied();
        prefix.into_iter().chain(text).take(length).collect()
    }
}

async fn tokenize(client: &Client, card: &ModelCard, text: &str) -> Result<Vec<u32>, ClientError> {
    // A token is at least one byte, so that a piece always fits the context.
    let context = card.max_model_len.unwrap_or(DEFAULT_CONTEXT).saturating_sub(1);
    let max_bytes = usize::try_from(context.min(MAX_PIECE)).unwrap_or_default();
    let pieces = pieces(text, max_bytes);
    let tokens = stream::iter(pieces.into_iter().map(|piece| client.tokenize(&card.id, piece)));
    let tokens: Vec<Vec<u32>> = tokens.buffered(TOKENIZE_CONCURRENCY).try_collect().await?;
    Ok(tokens.concat())
}

/// The perplexity text without its markup: turns become lines.
fn plain_text() -> String {
    let mut text = data::PERPLEXITY.to_owned();
    for (marker, plain) in [
        ("<|im_start|>", ""),
        ("<|im_end|>", ""),
        ("<|endoftext|>", "\n"),
        ("<think>", ""),
        ("</think>", ""),
        ("<tool_call>", ""),
        ("</tool_call>", ""),
        ("<tool_response>", ""),
        ("</tool_response>", ""),
    ] {
        text = text.replace(marker, plain);
    }
    text
}

/// SplitMix64 (Steele, Lea and Flood 2014): small, seedable, the same everywhere.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Fisher-Yates.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
