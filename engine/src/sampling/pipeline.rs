//! From one row of logits to one token.
//!
//! The order is fixed: bias, repetition penalty, presence and frequency penalties, temperature, top-k, top-p, min-p,
//! then the largest `score + noise`, ties to the lower id. At temperature 0 the largest penalised logit is chosen.

use super::SamplingParams;
use super::filters::{Filters, Scored, top_k};
use super::noise::{MAX_GUMBEL, Noise};
use super::penalties::Penalties;
use super::selection::{Candidate, MAX_TOP, RowOutput, Selection};
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
    /// The backend kept a row back that was asked for.
    #[error("the device did not return the logits that were asked for")]
    NoLogits,
}

/// Chooses the tokens of one request.
#[derive(Debug, Clone)]
pub struct Sampler {
    vocab: usize,
    temperature: f32,
    /// 0 keeps all.
    top_k: usize,
    filters: Filters,
    seed: u64,
    penalties: Penalties,
    /// The changed logits of the current row; kept for its allocation.
    scratch: Vec<f32>,
    candidates: Vec<Candidate>,
    scored: Vec<Scored>,
}

impl Sampler {
    /// A sampler for a request with this prompt and rows of `vocab` logits.
    pub fn new(params: &SamplingParams, prompt: &[u32], vocab: usize) -> Self {
        Self {
            vocab,
            temperature: params.temperature,
            top_k: params.top_k as usize,
            filters: Filters { top_p: params.top_p, min_p: params.min_p },
            seed: params.seed,
            penalties: Penalties::new(params, prompt),
            scratch: Vec::new(),
            candidates: Vec::new(),
            scored: Vec::new(),
        }
    }

    /// What it needs of the row that the token at `position` is chosen from.
    pub fn selection(&self, position: u64) -> Selection {
        if self.penalties.is_active() {
            Selection::Logits
        } else if self.temperature <= 0.0 {
            Selection::Greedy
        } else if (1..=MAX_TOP).contains(&self.top_k) {
            Selection::Top { k: self.top_k as u32 }
        } else if self.top_k == 0 && self.filters.keep_all() {
            Selection::Sample { temperature: self.temperature, seed: self.seed, position }
        } else {
            Selection::Logits
        }
    }

    /// Chooses the token at `position` from a backend's answer to [`Self::selection`], or from the whole row, with the
    /// same result.
    ///
    /// # Errors
    /// See [`SamplingError`].
    pub fn choose_from(&mut self, output: &RowOutput<'_>, position: u64) -> Result<u32, SamplingError> {
        match *output {
            RowOutput::Logits(logits) => self.choose(logits, position),
            RowOutput::Token(token) => Ok(token),
            RowOutput::Candidates(candidates) => self.choose_among(candidates, position),
            RowOutput::Unusable(error) => Err(error),
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
        let score = scores(largest, self.temperature);
        if self.top_k > 0 && self.top_k < logits.len() {
            let mut candidates = std::mem::take(&mut self.candidates);
            top_k(logits, self.top_k, &mut candidates);
            self.score(&candidates, largest);
            self.candidates = candidates;
        } else if self.filters.keep_all() {
            let mut noise = Noise::new(self.seed, position);
            let mut winner = Winner::first(best, &mut noise);
            for (id, &logit) in (0..).zip(logits) {
                winner.challenge(Scored { score: score(logit), id }, &mut noise);
            }
            return Ok(winner.id);
        } else {
            self.scored.clear();
            self.scored.extend((0..).zip(logits).map(|(id, &logit)| Scored { score: score(logit), id }));
        }
        Ok(self.choose_scored(best, position))
    }

    /// Chooses among the `top_k` best tokens, best first.
    fn choose_among(&mut self, candidates: &[Candidate], position: u64) -> Result<u32, SamplingError> {
        let best = candidates.first().ok_or(SamplingError::NothingAllowed)?;
        if candidates.len() != self.top_k.min(self.vocab) {
            return Err(SamplingError::WrongLength { got: candidates.len(), vocab: self.vocab });
        }
        self.score(candidates, best.logit);
        Ok(self.choose_scored(best.id, position))
    }

    fn score(&mut self, candidates: &[Candidate], largest: f32) {
        let score = scores(largest, self.temperature);
        self.scored.clear();
        self.scored.extend(candidates.iter().map(|c| Scored { score: score(c.logit), id: c.id }));
    }

    /// Filters the scored tokens, of which `best` is the likeliest, and takes the one that wins with its noise.
    fn choose_scored(&mut self, best: u32, position: u64) -> u32 {
        self.filters.apply(&mut self.scored);
        let mut noise = Noise::new(self.seed, position);
        let mut winner = Winner::first(best, &mut noise);
        for &candidate in &self.scored {
            winner.challenge(candidate, &mut noise);
        }
        winner.id
    }
}

/// Subtracting the largest logit first keeps every score finite or minus infinity at any temperature.
fn scores(largest: f32, temperature: f32) -> impl Fn(f32) -> f32 {
    move |logit| (logit - largest) / temperature
}

/// The best `score + noise` so far. It begins with the likeliest token, which no filter drops.
struct Winner {
    id: u32,
    value: f32,
}

impl Winner {
    fn first(best: u32, noise: &mut Noise) -> Self {
        Self { id: best, value: noise.gumbel(best) }
    }

    fn challenge(&mut self, candidate: Scored, noise: &mut Noise) {
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
