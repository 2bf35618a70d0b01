//! Choosing the next token.
//!
//! [`Sampler`] filters the logits in a fixed order and takes `argmax(logit / T + noise(seed, position, id))`, where the
//! noise is counter-based ([`noise`]). A choice depends on the request's own logits, history, seed and position and
//! on nothing else, so that it is the same alone or in a batch, decoded or verified, and made by the host or by a device
//! ([`selection`]).

mod dry;
mod filters;
pub mod grammar;
pub mod logprobs;
pub mod noise;
mod penalties;
pub mod pipeline;
pub mod selection;

pub use dry::Dry;
pub use logprobs::logprobs;
pub use pipeline::{Sampler, SamplingError};
pub use selection::{Candidate, RowOutput, Selection};

/// How the next token is chosen from its logits. The default is greedy.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy; otherwise logits are divided by it. Finite, 0..=2 over HTTP.
    pub temperature: f32,
    /// Keep tokens whose logit is at most this many standard deviations of all logits below the largest; 0 and less
    /// keep all.
    pub top_n_sigma: f32,
    /// Keep the k likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of tokens whose probability reaches this, those first whose information is closest to
    /// the entropy; 1 keeps all.
    pub typical_p: f32,
    /// Keep the smallest set of likeliest tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this fraction of the likeliest; 0 drops none.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token in the output so far.
    pub presence_penalty: f32,
    /// Subtracted from the logit once for every time the token is in the output so far.
    pub frequency_penalty: f32,
    /// Lowers the logits of tokens that would prolong a repetition.
    pub dry: Dry,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the counter-based noise.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_n_sigma: 0.0,
            top_k: 0,
            typical_p: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            dry: Dry::default(),
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// The most entries of `logit_bias`.
pub const MAX_LOGIT_BIAS: usize = 1024;

impl SamplingParams {
    /// Checks every number against its range; `vocab` is the number of logits.
    ///
    /// # Errors
    /// A message that names the field, its value and the range.
    pub fn validate(&self, vocab: usize) -> Result<(), String> {
        let within = |name: &str, value: f32, low: f32, high: f32| match (low..=high).contains(&value) {
            true => Ok(()),
            false => Err(format!("{name} must be a number from {low} to {high}, not {value}")),
        };
        within("temperature", self.temperature, 0.0, 2.0)?;
        within("top_n_sigma", self.top_n_sigma, -1.0, 100.0)?;
        within("typical_p", self.typical_p, 0.0, 1.0)?;
        within("top_p", self.top_p, 0.0, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("repetition_penalty", self.repetition_penalty, 0.01, 10.0)?;
        within("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        within("dry_multiplier", self.dry.multiplier, 0.0, 100.0)?;
        within("dry_base", self.dry.base, 1.0, 100.0)?;
        if self.dry.allowed_length == 0 {
            return Err("dry_allowed_length must be at least 1, not 0".into());
        }
        if self.logit_bias.len() > MAX_LOGIT_BIAS {
            return Err(format!(
                "logit_bias must have at most {MAX_LOGIT_BIAS} entries, not {}",
                self.logit_bias.len()
            ));
        }
        for &(id, bias) in &self.logit_bias {
            if id as usize >= vocab {
                return Err(format!("logit_bias names token {id}, but the vocabulary has {vocab} tokens"));
            }
            within("logit_bias", bias, -100.0, 100.0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_is_checked_and_its_field_named() {
        type Set = fn(&mut SamplingParams, f32);
        let fields: [(&str, Set); 11] = [
            ("temperature", |p, v| p.temperature = v),
            ("top_n_sigma", |p, v| p.top_n_sigma = v),
            ("typical_p", |p, v| p.typical_p = v),
            ("top_p", |p, v| p.top_p = v),
            ("min_p", |p, v| p.min_p = v),
            ("repetition_penalty", |p, v| p.repetition_penalty = v),
            ("presence_penalty", |p, v| p.presence_penalty = v),
            ("frequency_penalty", |p, v| p.frequency_penalty = v),
            ("dry_multiplier", |p, v| p.dry.multiplier = v),
            ("dry_base", |p, v| p.dry.base = v),
            ("logit_bias", |p, v| p.logit_bias = vec![(0, v)]),
        ];
        assert_eq!(SamplingParams::default().validate(1), Ok(()));
        for (field, set) in fields {
            for bad in [f32::NAN, f32::INFINITY, -f32::INFINITY, 1e30, -1e30] {
                let mut params = SamplingParams::default();
                set(&mut params, bad);
                let error = params.validate(10).unwrap_err();
                assert!(error.contains(field) && error.contains(&bad.to_string()), "{error}");
            }
        }
        let params = SamplingParams { dry: Dry { allowed_length: 0, ..Dry::default() }, ..Default::default() };
        assert!(params.validate(10).unwrap_err().contains("dry_allowed_length"));
        let params = SamplingParams { logit_bias: vec![(10, 1.0)], ..Default::default() };
        assert!(params.validate(10).unwrap_err().contains("token 10"));
        let params = SamplingParams { logit_bias: vec![(0, 1.0); MAX_LOGIT_BIAS + 1], ..Default::default() };
        assert!(params.validate(10).unwrap_err().contains("1025"));
    }
}
