//! The fields that chat and text completions share: length, sampling, stops, number of choices, streaming.

use crate::config::{RequestDefaults, ServerConfig};
use crate::error::ApiError;
use crate::fields::{self, Fields, MAX_COUNT};
use crate::identity::Identity;
use atlas_engine::engine::ModelInfo;
use atlas_engine::sampling::{Dry, SamplingParams};
use serde_json::Value;

/// The most stop strings and the longest of them, in bytes.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
/// The most sequence breakers of DRY and the longest of them, in bytes.
const MAX_BREAKERS: usize = 16;
const MAX_BREAKER_BYTES: usize = 64;
/// The most entries of `logit_bias` and `stop_token_ids`.
const MAX_TOKEN_LIST: usize = 1024;
/// The most rivals that log-probabilities report on.
pub(crate) const MAX_TOP_LOGPROBS: usize = 20;

/// What a request says about its generation.
#[derive(Debug)]
pub(crate) struct Options {
    /// `n`.
    pub(crate) choices: usize,
    /// As asked for; not yet limited by the context.
    pub(crate) max_tokens: Option<usize>,
    /// With the request's own seed; choice `i` uses `seed + i`.
    pub(crate) sampling: SamplingParams,
    /// Texts that a repetition does not reach across, if the request names any; see `breakers`.
    pub(crate) dry_breakers: Option<Vec<String>>,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
}

impl Options {
    /// Takes the shared fields out. `min_tokens` is the least `max_tokens`.
    pub(crate) fn take(
        fields: &mut Fields,
        min_tokens: usize,
        config: &ServerConfig,
        info: &ModelInfo,
        identity: &dyn Identity,
    ) -> Result<Self, ApiError> {
        let most = MAX_COUNT as usize;
        let max_tokens = fields.count("max_tokens", min_tokens..=most)?;
        let max_completion_tokens = fields.count("max_completion_tokens", min_tokens..=most)?;
        let (stream, include_usage) = streaming(fields)?;
        Ok(Self {
            choices: fields.count("n", 1..=config.limits.max_choices)?.unwrap_or(1),
            max_tokens: max_completion_tokens.or(max_tokens).or(config.defaults.max_tokens),
            sampling: sampling(fields, &config.defaults, info, identity)?,
            dry_breakers: dry_breakers(fields)?,
            stop: stop_strings(fields)?,
            stop_tokens: stop_tokens(fields, info)?,
            stream,
            include_usage,
        })
    }

    /// The seed of choice `index`.
    pub(crate) fn sampling_of(&self, index: usize) -> SamplingParams {
        SamplingParams { seed: self.sampling.seed.wrapping_add(index as u64), ..self.sampling.clone() }
    }
}

/// Refuses a request whose output could grow beyond the server's budget.
pub(crate) fn check_budget(choices: usize, tokens: usize, top: usize, limit: u64) -> Result<(), ApiError> {
    let units = (choices as u64).saturating_mul(tokens as u64).saturating_mul(1 + top as u64);
    if units <= limit {
        return Ok(());
    }
    let problem = format!(
        "{choices} choices of up to {tokens} tokens with {top} logprobs each come to {units} values, \
         and one request may ask for {limit}; lower `n`, `max_tokens` or the number of logprobs"
    );
    Err(ApiError::field("n", problem))
}

fn streaming(fields: &mut Fields) -> Result<(bool, bool), ApiError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let include_usage = match fields.take("stream_options") {
        None => false,
        Some(options) => Fields::nested(options, "stream_options")?.boolean("include_usage")?.unwrap_or(false),
    };
    Ok((stream, include_usage))
}

fn sampling(
    fields: &mut Fields,
    defaults: &RequestDefaults,
    info: &ModelInfo,
    identity: &dyn Identity,
) -> Result<SamplingParams, ApiError> {
    let seed = fields.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64);
    let seed = seed.or(defaults.seed).unwrap_or_else(|| identity.seed());
    let defaults = &defaults.sampling;
    let dry = dry(fields, &defaults.dry)?;
    let mut number = |name, range, default: f32| -> Result<f32, ApiError> {
        Ok(fields.number(name, range)?.map_or(default, |value| value as f32))
    };
    let temperature = number("temperature", 0.0..=2.0, defaults.temperature)?;
    let top_n_sigma = number("top_n_sigma", -1.0..=100.0, defaults.top_n_sigma)?;
    let typical_p = number("typical_p", 0.0..=1.0, defaults.typical_p)?;
    let top_p = number("top_p", 0.0..=1.0, defaults.top_p)?;
    let min_p = number("min_p", 0.0..=1.0, defaults.min_p)?;
    let repetition_penalty = number("repetition_penalty", 0.01..=10.0, defaults.repetition_penalty)?;
    let presence_penalty = number("presence_penalty", -2.0..=2.0, defaults.presence_penalty)?;
    let frequency_penalty = number("frequency_penalty", -2.0..=2.0, defaults.frequency_penalty)?;
    // −1 and 0 both keep all.
    let top_k = fields.integer("top_k", -1..=MAX_COUNT)?.map_or(defaults.top_k, |k| u32::try_from(k).unwrap_or(0));
    let logit_bias = logit_bias(fields, info)?;
    Ok(SamplingParams {
        temperature,
        top_n_sigma,
        top_k,
        typical_p,
        top_p,
        min_p,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        dry,
        logit_bias,
        seed,
    })
}

fn dry(fields: &mut Fields, defaults: &Dry) -> Result<Dry, ApiError> {
    let multiplier = fields.number("dry_multiplier", 0.0..=100.0)?.map_or(defaults.multiplier, |value| value as f32);
    let base = fields.number("dry_base", 1.0..=100.0)?.map_or(defaults.base, |value| value as f32);
    let allowed_length = fields.integer("dry_allowed_length", 1..=MAX_COUNT)?;
    // −1 is everything.
    let last_n = fields.integer("dry_penalty_last_n", -1..=MAX_COUNT)?;
    Ok(Dry {
        multiplier,
        base,
        allowed_length: allowed_length.map_or(defaults.allowed_length, |length| u32::try_from(length).unwrap_or(1)),
        last_n: last_n.map_or(defaults.last_n, |count| usize::try_from(count).ok()),
        breakers: defaults.breakers.clone(),
    })
}

fn dry_breakers(fields: &mut Fields) -> Result<Option<Vec<String>>, ApiError> {
    const FIELD: &str = "dry_sequence_breakers";
    let Some(given) = fields.array(FIELD)? else { return Ok(None) };
    texts(fields, FIELD, given, MAX_BREAKERS, MAX_BREAKER_BYTES).map(Some)
}

fn logit_bias(fields: &mut Fields, info: &ModelInfo) -> Result<Vec<(u32, f32)>, ApiError> {
    let entries = fields.object("logit_bias")?.unwrap_or_default();
    if entries.len() > MAX_TOKEN_LIST {
        return Err(fields.error("logit_bias", format!("may have {MAX_TOKEN_LIST} entries, not {}", entries.len())));
    }
    let entry = |(token, bias): (String, Value)| {
        let name = format!("logit_bias.{}", crate::error::shorten(&token));
        let id = token.parse().ok().filter(|id| (*id as usize) < info.vocab_size);
        let id = id.ok_or_else(|| ApiError::field(&name, format!("is no token id; ids end at {}", info.vocab_size)))?;
        Ok((id, fields::number(&bias, &name, -100.0..=100.0)? as f32))
    };
    entries.into_iter().map(entry).collect()
}

fn stop_strings(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let given = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(one) => vec![one],
    };
    texts(fields, "stop", given, MAX_STOPS, MAX_STOP_BYTES)
}

/// Texts of a list that is bounded in number and length.
fn texts(fields: &Fields, field: &str, given: Vec<Value>, most: usize, bytes: usize) -> Result<Vec<String>, ApiError> {
    if given.len() > most {
        return Err(fields.error(field, format!("may hold {most} strings, not {}", given.len())));
    }
    let check = |item| match item {
        Value::String(text) if (1..=bytes).contains(&text.len()) => Ok(text),
        Value::String(_) => Err(fields.error(field, format!("each string has 1 to {bytes} bytes"))),
        other => Err(fields.error(field, format!("must be a string or strings, not {}", fields::kind(&other)))),
    };
    given.into_iter().map(check).collect()
}

/// The end-of-sequence ids unless they are to be ignored, and the request's own.
fn stop_tokens(fields: &mut Fields, info: &ModelInfo) -> Result<Vec<u32>, ApiError> {
    let ignore_eos = fields.boolean("ignore_eos")?.unwrap_or(false);
    let mut tokens = if ignore_eos { Vec::new() } else { info.eos_tokens.clone() };
    let own = fields.array("stop_token_ids")?.unwrap_or_default();
    if own.len() > MAX_TOKEN_LIST {
        return Err(fields.error("stop_token_ids", format!("may hold {MAX_TOKEN_LIST} ids, not {}", own.len())));
    }
    for (index, id) in own.iter().enumerate() {
        tokens.push(token_id(id, &format!("stop_token_ids[{index}]"), info.vocab_size)?);
    }
    Ok(tokens)
}

/// `value` as a token id.
pub(crate) fn token_id(value: &Value, name: &str, vocab_size: usize) -> Result<u32, ApiError> {
    let last = i64::try_from(vocab_size).unwrap_or(MAX_COUNT).min(MAX_COUNT) - 1;
    let id = fields::integer(value, name, 0..=last)?;
    u32::try_from(id).map_err(|_| ApiError::field(name, "is no token id"))
}
