//! From one row of logits to one token.
//!
//! The order is fixed: bias, repetition penalty, presence and frequency penalties, temperature, top-k, top-p, min-p,
//! then the largest `score + noise`, ties to the lower id. At temperature 0 the largest penalised logit is chosen.

use super::SamplingParams;
use super::filters::{Candidate, Filters};
use super::noise::{MAX_GUMBEL, Noise};
use super::penalties::Penalties;
use thiserror::Error;

/// Why no token could be chosen. The model's output is unusable; the request fails, the engine goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SamplingError {
    /// The row has the wrong length.
    #[error("{got} logits for a vocabulary of {vocab} tokens")]
    WrongLength {
        /// Logits in the row.
        got: usize,
        /// Logits expected.
        vocab: usize,
    },
    /// A logit is NaN or plus infinity.
    #[error("the logit of token {id} is not a number")]
    NotANumber {
        /// The first such token.
        id: u32,
    },
    /// Every logit is minus infinity.
    #[error("no token has a finite logit")]
    NothingAllowed,
}

/// Chooses the tokens of one request.
#[derive(Debug, Clone)]
pub struct Sampler {
    vocab: usize,
    temperature: f32,
    filters: Filters,
    seed: u64,
    penalties: Penalties,
    /// The changed logits of the current row; kept for its allocation.
    scratch: Vec<f32>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler for a request with this prompt and rows of `vocab` logits.
    pub fn new(params: &SamplingParams, prompt: &[u32], vocab: usize) -> Self {
        Self {
            vocab,
            temperature: params.temperature,
            filters: Filters { top_k: params.top_k as usize, top_p: params.top_p, min_p: params.min_p },
            seed: params.seed,
            penalties: Penalties::new(params, prompt),
            scratch: Vec::new(),
            candidates: Vec::new(),
        }
    }

    /// Chooses the token at `position`, counted from the beginning of the sequence. The history does not change.
    ///
    /// # Errors
    /// See [`SamplingError`].
    pub fn choose(&mut self, logits: &[f32], position: u64) -> Result<u32, SamplingError> {
        self.choose_with(logits, position, &[])
    }

    /// As [`Self::choose`], as if the tokens `extra` had been accepted: for verify rows, whose drafts are not yet.
    ///
    /// # Errors
    /// See [`SamplingError`].
    pub fn choose_with(&mut self, logits: &[f32], position: u64, extra: &[u32]) -> Result<u32, SamplingError> {
        if logits.len() != self.vocab {
            return Err(SamplingError::WrongLength { got: logits.len(), vocab: self.vocab });
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let logits = match self.penalties.is_active() {
            false => logits,
            true => {
                scratch.clear();
                scratch.extend_from_slice(logits);
                self.penalties.apply(&mut scratch, extra);
                &scratch
            }
        };
        let chosen = self.choose_penalized(logits, position);
        self.scratch = scratch;
        chosen
    }

    /// Adds a chosen token to the history that penalties look at.
    pub fn accept(&mut self, token: u32) {
        self.penalties.accept(token);
    }

    fn choose_penalized(&mut self, logits: &[f32], position: u64) -> Result<u32, SamplingError> {
        let (best, largest) = argmax(logits)?;
        if self.temperature <= 0.0 {
            return Ok(best);
        }
        // Subtracting the largest logit first keeps every score finite or minus infinity at any temperature.
        let score = |logit: f32| (logit - largest) / self.temperature;
        let mut noise = Noise::new(self.seed, position);
        let mut winner = Winner { id: best, value: noise.gumbel(best) };
        if self.filters.top_k == 0 && self.filters.top_p >= 1.0 && self.filters.min_p <= 0.0 {
            for (id, &logit) in (0..).zip(logits) {
                winner.challenge(Candidate { score: score(logit), id }, &mut noise);
            }
            return Ok(winner.id);
        }
        self.candidates.clear();
        self.candidates.extend((0..).zip(logits).map(|(id, &logit)| Candidate { score: score(logit), id }));
        self.filters.apply(&mut self.candidates);
        for &candidate in &self.candidates {
            winner.challenge(candidate, &mut noise);
        }
        Ok(winner.id)
    }
}

/// The best `score + noise` so far. It begins with the likeliest token, which no filter drops.
struct Winner {
    id: u32,
    value: f32,
}

impl Winner {
    fn challenge(&mut self, candidate: Candidate, noise: &mut Noise) {
        // Rounding is monotonic: a score that cannot win with the largest noise cannot win at all.
        if candidate.score + MAX_GUMBEL < self.value {
            return;
        }
        let value = candidate.score + noise.gumbel(candidate.id);
        if value > self.value || (value == self.value && candidate.id < self.id) {
            *self = Self { id: candidate.id, value };
        }
    }
}

/// The largest logit and the lowest id that has it.
fn argmax(logits: &[f32]) -> Result<(u32, f32), SamplingError> {
    /// As many as a wide register holds: the lanes make the loop a vector loop.
    const LANES: usize = 16;
    let mut largest = [f32::NEG_INFINITY; LANES];
    let mut usable = [true; LANES];
    for row in logits.chunks(LANES) {
        for ((&logit, largest), usable) in row.iter().zip(&mut largest).zip(&mut usable) {
            *largest = if logit > *largest { logit } else { *largest };
            *usable &= logit < f32::INFINITY;
        }
    }
    if usable.contains(&false) {
        let id = (0..).zip(logits).find(|(_, l)| l.is_nan() || **l == f32::INFINITY).map_or(0, |(id, _)| id);
        return Err(SamplingError::NotANumber { id });
    }
    let largest = largest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    match (0..).zip(logits).find(|(_, logit)| **logit == largest) {
        Some((id, _)) if largest > f32::NEG_INFINITY => Ok((id, largest)),
        _ => Err(SamplingError::NothingAllowed),
    }
}

#[cfg(test)]
mod tests;
