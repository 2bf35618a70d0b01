//! `generation_config.json`: end-of-sequence ids and default sampling.

use super::fields::Fields;
use crate::errors::EngineError;
use serde_json::Value;

/// What a checkpoint suggests for generation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenerationConfig {
    /// End-of-sequence ids.
    pub eos_tokens: Vec<u32>,
    /// Whether sampling is suggested; `false` suggests greedy decoding.
    pub do_sample: Option<bool>,
    /// Suggested temperature.
    pub temperature: Option<f64>,
    /// Suggested nucleus.
    pub top_p: Option<f64>,
    /// Suggested number of candidates.
    pub top_k: Option<u32>,
    /// Suggested minimum relative probability.
    pub min_p: Option<f64>,
    /// Suggested repetition penalty.
    pub repetition_penalty: Option<f64>,
    /// Suggested presence penalty.
    pub presence_penalty: Option<f64>,
    /// Suggested frequency penalty.
    pub frequency_penalty: Option<f64>,
}

impl GenerationConfig {
    /// Reads the file's JSON.
    pub fn read(value: &Value) -> Result<Self, EngineError> {
        let fields = Fields::new("generation_config.json", value)?;
        Ok(Self {
            eos_tokens: fields.token_ids("eos_token_id")?,
            do_sample: fields.opt_bool("do_sample")?,
            temperature: fields.opt_number("temperature")?,
            top_p: fields.opt_number("top_p")?,
            top_k: fields.opt_count("top_k")?.map(|k| k as u32),
            min_p: fields.opt_number("min_p")?,
            repetition_penalty: fields.opt_number("repetition_penalty")?,
            presence_penalty: fields.opt_number("presence_penalty")?,
            frequency_penalty: fields.opt_number("frequency_penalty")?,
        })
    }
}
