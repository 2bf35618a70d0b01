//! A served model as suites see it, and prompts of any length for it.

use crate::client::{Client, ClientError, ModelCard};
use crate::data;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Tokens that make a prompt unlike every other, so that no prefix cache can know it.
const UNIQUE_PREFIX: usize = 8;

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
        let pool = client.tokenize(&card.id, &plain_text()).await?;
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
