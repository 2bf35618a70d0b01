//! `generation_config.json`: end-of-sequence ids and default sampling.

use super::fields::Fields;
use crate::errors::EngineError;
use serde_json::Value;

/// What a checkpoint suggests for generation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenerationConfig {
    /// End-of-sequence ids.
    pub eos_tokens: Vec<u32>,
    /// Whether sampling is suggested; greedy when false.
    pub do_sample: bool,
    /// Suggested temperature.
    pub temperature: Option<f32>,
    /// Suggested nucleus.
    pub top_p: Option<f32>,
    /// Suggested number of candidates.
    pub top_k: Option<u32>,
    /// Suggested minimum relative probability.
    pub min_p: Option<f32>,
    /// Suggested repetition penalty.
    pub repetition_penalty: Option<f32>,
}

impl GenerationConfig {
    /// Reads the file's JSON.
    pub fn read(value: &Value) -> Result<Self, EngineError> {
        let fields = Fields::new("generation_config.json", value)?;
        let number = |key: &str| Ok::<_, EngineError>(fields.opt_number(key)?.map(|number| number as f32));
        Ok(Self {
            eos_tokens: fields.token_ids("eos_token_id")?,
            do_sample: fields.bool_or("do_sample", false)?,
            temperature: number("temperature")?,
            top_p: number("top_p")?,
            top_k: fields.opt_count("top_k")?.map(|k| k as u32),
            min_p: number("min_p")?,
            repetition_penalty: number("repetition_penalty")?,
        })
    }
}
