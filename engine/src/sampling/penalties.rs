//! Bias and penalties: what a request changes about its logits before they become probabilities.

use super::SamplingParams;
use super::dry::Dry;
use std::collections::HashMap;

/// How often a token occurs in a request.
#[derive(Debug, Clone, Copy, Default)]
struct Occurrences {
    in_prompt: bool,
    in_output: u32,
}

/// The history a request's penalties need. Empty when none is on.
#[derive(Debug, Clone)]
pub(super) struct Penalties {
    bias: Vec<(u32, f32)>,
    repetition: f32,
    presence: f32,
    frequency: f32,
    seen: HashMap<u32, Occurrences>,
    dry: Dry,
    /// Prompt and output in order, if DRY looks at them.
    history: Vec<u32>,
}

impl Penalties {
    pub(super) fn new(params: &SamplingParams, prompt: &[u32]) -> Self {
        let mut penalties = Self {
            bias: params.logit_bias.clone(),
            repetition: params.repetition_penalty,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
            seen: HashMap::new(),
            dry: params.dry.clone(),
            history: if params.dry.is_active() { prompt.to_vec() } else { Vec::new() },
        };
        if penalties.repetition != 1.0 {
            for &id in prompt {
                penalties.seen.entry(id).or_default().in_prompt = true;
            }
        }
        penalties
    }

    fn penalizes(&self) -> bool {
        self.repetition != 1.0 || self.presence != 0.0 || self.frequency != 0.0
    }

    /// Whether [`Self::apply`] can change anything.
    pub(super) fn is_active(&self) -> bool {
        self.penalizes() || self.dry.is_active() || !self.bias.is_empty()
    }

    /// Adds an output token to the history.
    pub(super) fn accept(&mut self, id: u32) {
        if self.penalizes() {
            self.seen.entry(id).or_default().in_output += 1;
        }
        if self.dry.is_active() {
            self.history.push(id);
        }
    }

    /// Changes the logits as if `extra` had been accepted. First the bias; then, for each token seen, the repetition
    /// penalty (prompt and output; Keskar et al. 2019), then presence and frequency penalties (output); then DRY
    /// (prompt and output).
    pub(super) fn apply(&self, logits: &mut [f32], extra: &[u32]) {
        for &(id, bias) in &self.bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
        if self.penalizes() {
            self.penalize(logits, extra);
        }
        if self.dry.is_active() {
            self.dry.apply(logits, &self.history, extra);
        }
    }

    fn penalize(&self, logits: &mut [f32], extra: &[u32]) {
        let mut drafted: HashMap<u32, Occurrences> = HashMap::new();
        for &id in extra {
            let base = self.seen.get(&id).copied().unwrap_or_default();
            drafted.entry(id).or_insert(base).in_output += 1;
        }
        let accepted = self.seen.iter().filter(|(id, _)| !drafted.contains_key(id));
        for (&id, &occurrences) in accepted.chain(&drafted) {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = self.penalized(*logit, occurrences);
            }
        }
    }

    fn penalized(&self, logit: f32, seen: Occurrences) -> f32 {
        let mut logit = logit;
        if seen.in_prompt || seen.in_output > 0 {
            logit = if logit > 0.0 { logit / self.repetition } else { logit * self.repetition };
        }
        if seen.in_output > 0 {
            logit -= self.presence + self.frequency * seen.in_output as f32;
        }
        logit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formulas() {
        let params = SamplingParams {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            logit_bias: vec![(0, 1.0), (9, 1.0)],
            ..Default::default()
        };
        let mut penalties = Penalties::new(&params, &[1, 2, 99]);
        penalties.accept(2);
        penalties.accept(3);
        penalties.accept(3);
        let mut logits = [1.0, 4.0, -1.0, 8.0, 5.0];
        penalties.apply(&mut logits, &[]);
        assert_eq!(logits, [2.0, 2.0, -2.75, 3.0, 5.0]);
        let mut with_extra = [1.0, 4.0, -1.0, 8.0, 5.0];
        penalties.apply(&mut with_extra, &[4, 3, 99]);
        assert_eq!(with_extra, [2.0, 2.0, -2.75, 2.75, 1.75]);
    }
}
