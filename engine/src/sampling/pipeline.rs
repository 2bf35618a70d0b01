//! From one row of logits to one token.
//!
//! The order is fixed: grammar mask, bias, repetition penalty, presence and frequency penalties, DRY, top-n-sigma,
//! top-k, temperature, typical, top-p, min-p, then the largest `score + noise`, ties to the lower id. At temperature 0
//! the largest penalised logit is chosen. (Top-n-sigma and top-k are the same at every temperature.)

use super::SamplingParams;
use super::filters::{Filters, Scored, top_k, top_n_sigma};
use super::grammar::{CompiledGrammar, Constraint};
use super::noise::{MAX_GUMBEL, Noise};
use super::penalties::Penalties;
use super::selection::{Candidate, MAX_TOP, RowOutput, Selection};
use std::sync::Arc;
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
    /// The request's grammar allows nothing or cannot be followed; see [`Sampler::explain`].
    #[error("the grammar cannot be followed")]
    Grammar,
}

/// Chooses the tokens of one request.
#[derive(Debug, Clone)]
pub struct Sampler {
    vocab: usize,
    temperature: f32,
    /// 0 and less keep all.
    top_n_sigma: f32,
    /// 0 keeps all.
    top_k: usize,
    filters: Filters,
    seed: u64,
    penalties: Penalties,
    grammar: Option<Constraint>,
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
            top_n_sigma: params.top_n_sigma,
            top_k: params.top_k as usize,
            filters: Filters::of(params),
            seed: params.seed,
            penalties: Penalties::new(params, prompt),
            grammar: None,
            scratch: Vec::new(),
            candidates: Vec::new(),
            scored: Vec::new(),
        }
    }

    /// The same, for an output that is held to a grammar.
    pub fn with_grammar(self, grammar: Option<&Arc<CompiledGrammar>>) -> Self {
        Self { grammar: grammar.map(Constraint::new), ..self }
    }

    /// What it needs of the row that the token at `position` is chosen from.
    pub fn selection(&self, position: u64) -> Selection {
        if self.changes_logits() {
            Selection::Logits
        } else if self.temperature <= 0.0 {
            Selection::Greedy
        } else if self.top_n_sigma > 0.0 {
            Selection::Logits
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
        if !self.changes_logits() {
            return self.choose_changed(logits, position);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.extend_from_slice(logits);
        let chosen = self.change(&mut scratch, extra).and_then(|()| self.choose_changed(&scratch, position));
        self.scratch = scratch;
        chosen
    }

    fn changes_logits(&self) -> bool {
        self.grammar.is_some() || self.penalties.is_active()
    }

    /// Mask, bias and penalties, as if `extra` had been accepted.
    fn change(&mut self, logits: &mut [f32], extra: &[u32]) -> Result<(), SamplingError> {
        if let Some(grammar) = &mut self.grammar {
            grammar.apply_after(extra, logits).map_err(|_| SamplingError::Grammar)?;
        }
        self.penalties.apply(logits, extra);
        Ok(())
    }

    /// Adds a chosen token to the history that penalties and the grammar look at.
    pub fn accept(&mut self, token: u32) {
        self.penalties.accept(token);
        if let Some(grammar) = &mut self.grammar {
            grammar.accept(token);
        }
    }

    /// Whether the grammar's text is complete, so that nothing may follow.
    pub fn is_complete(&self) -> bool {
        self.grammar.as_ref().is_some_and(Constraint::is_complete)
    }

    /// An error for the person who made the request.
    pub fn explain(&self, error: SamplingError) -> String {
        let reason = self.grammar.as_ref().and_then(Constraint::error).filter(|_| error == SamplingError::Grammar);
        reason.map_or_else(|| error.to_string(), ToString::to_string)
    }

    fn choose_changed(&mut self, logits: &[f32], position: u64) -> Result<u32, SamplingError> {
        let (best, largest) = argmax(logits)?;
        if self.temperature <= 0.0 {
            return Ok(best);
        }
        let score = scores(largest, self.temperature);
        let lowest = match self.top_n_sigma > 0.0 {
            true => top_n_sigma(logits, largest, self.top_n_sigma),
            false => f32::NEG_INFINITY,
        };
        if self.top_k > 0 && self.top_k < logits.len() {
            let mut candidates = std::mem::take(&mut self.candidates);
            top_k(logits, self.top_k, &mut candidates);
            candidates.retain(|candidate| candidate.logit >= lowest);
            self.score(&candidates, largest);
            self.candidates = candidates;
        } else if self.filters.keep_all() && lowest == f32::NEG_INFINITY {
            let mut noise = Noise::new(self.seed, position);
            let mut winner = Winner::first(best, &mut noise);
            for (id, &logit) in (0..).zip(logits) {
                winner.challenge(Scored { score: score(logit), id }, &mut noise);
            }
            return Ok(winner.id);
        } else {
            self.scored.clear();
            let passing = (0..).zip(logits).filter(|(_, logit)| **logit >= lowest);
            let scored = passing.map(|(id, &logit)| Scored { score: score(logit), id });
            self.scored.extend(scored.filter(|scored| scored.score > f32::NEG_INFINITY));
        }
        Ok(self.choose_scored(position))
    }

    /// Chooses among the `top_k` best tokens, best first.
    fn choose_among(&mut self, candidates: &[Candidate], position: u64) -> Result<u32, SamplingError> {
        let best = candidates.first().ok_or(SamplingError::NothingAllowed)?;
        if candidates.len() != self.top_k.min(self.vocab) {
            return Err(SamplingError::WrongLength { got: candidates.len(), vocab: self.vocab });
        }
        self.score(candidates, best.logit);
        Ok(self.choose_scored(position))
    }

    fn score(&mut self, candidates: &[Candidate], largest: f32) {
        let score = scores(largest, self.temperature);
        self.scored.clear();
        let scored = candidates.iter().map(|c| Scored { score: score(c.logit), id: c.id });
        self.scored.extend(scored.filter(|scored| scored.score > f32::NEG_INFINITY));
    }

    /// Filters the scored tokens and takes the one that wins with its noise.
    fn choose_scored(&mut self, position: u64) -> u32 {
        self.filters.apply(&mut self.scored);
        let mut noise = Noise::new(self.seed, position);
        let mut winner = Winner { id: u32::MAX, value: f32::NEG_INFINITY };
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

/// The best `score + noise` so far.
struct Winner {
    id: u32,
    value: f32,
}

impl Winner {
    /// Beginning with the likeliest token, where no filter has dropped it.
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
