//! Rotary position embedding: frequencies from the configuration's scaling rules.
//!
//! Formulas: RoPE (arXiv 2104.09864), linear position interpolation (2306.15595), YaRN (2309.00071), Llama 3.1's
//! wavelength-dependent scaling. Frequencies are computed in f32 like the reference implementation, because the
//! angle `position * frequency` amplifies any difference.

use super::fields::Fields;
use crate::errors::EngineError;

/// Rotary embedding of one attention sublayer.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// One frequency for each rotated pair, radians per position; the rotated width is twice its length.
    pub inv_freq: Vec<f32>,
    /// Multiplies cosine and sine (YaRN's attention factor); 1 otherwise.
    pub attention_scaling: f32,
}

/// Reads `rope_parameters`, or the older `rope_theta` and `rope_scaling`, for heads of `head_dim`.
///
/// `default_partial` is the fraction of the head that is rotated when the configuration does not say.
pub fn read(
    fields: &Fields<'_>,
    head_dim: usize,
    max_positions: usize,
    default_partial: f64,
) -> Result<RopeSpec, EngineError> {
    let scaling = scaling(fields)?;
    let theta = theta(fields, scaling.as_ref())?;
    let rotated = rotated(fields, scaling.as_ref(), head_dim, default_partial)?;
    // The context that the unscaled frequencies were trained for; the outer field speaks before the inner one.
    let outer = fields.opt_size("original_max_position_embeddings")?;
    let inner = scaling.as_ref().map_or(Ok(None), |s| s.opt_size("original_max_position_embeddings"))?;
    let original = outer.or(inner).unwrap_or(max_positions) as f64;
    let plain = plain(theta, rotated);
    let Some(scaling) = scaling else { return checked(fields, RopeSpec { inv_freq: plain, attention_scaling: 1.0 }) };
    let kind = match scaling.opt_str("rope_type")? {
        Some(kind) => kind,
        None => scaling.opt_str("type")?.unwrap_or("default"),
    };
    // Read so that they are accounted for: sections of multi-axis positions, which hold one position for text, and
    // remarks that no rule uses.
    for inert in ["type", "mrope_section", "mrope_interleaved", "finetuned", "extrapolation_factor"] {
        scaling.get(inert);
    }
    let spec = match kind {
        "default" | "mrope" => {
            scaling.get("factor");
            RopeSpec { inv_freq: plain, attention_scaling: 1.0 }
        }
        "linear" => {
            let factor = positive(&scaling, "factor")? as f32;
            RopeSpec { inv_freq: plain.iter().map(|freq| freq / factor).collect(), attention_scaling: 1.0 }
        }
        "llama3" => llama3(&scaling, plain, original as f32)?,
        "yarn" => yarn(&scaling, theta, rotated, original, max_positions as f64)?,
        other => {
            return Err(
                scaling.error("rope_type", format!("is \"{other}\"; supported are default, linear, llama3 and yarn"))
            );
        }
    };
    if let Some(warning) = scaling.finish()?.first() {
        return Err(EngineError::Unsupported(format!("{warning}; rotary scaling rules must be known exactly")));
    }
    checked(fields, spec)
}

/// The object that holds the scaling rule. Both names may be there only if they say the same.
fn scaling<'a>(fields: &Fields<'a>) -> Result<Option<Fields<'a>>, EngineError> {
    let (new, old) = (fields.get("rope_parameters"), fields.get("rope_scaling"));
    if new.is_some() && old.is_some() && new != old {
        return Err(fields.error("rope_scaling", "and `rope_parameters` are both there and differ; keep one"));
    }
    fields.object(if new.is_some() { "rope_parameters" } else { "rope_scaling" })
}

fn theta(fields: &Fields<'_>, scaling: Option<&Fields<'_>>) -> Result<f64, EngineError> {
    let outer = fields.opt_number("rope_theta")?;
    let inner = scaling.map_or(Ok(None), |scaling| scaling.opt_number("rope_theta"))?;
    if let (Some(outer), Some(inner)) = (outer, inner)
        && outer != inner
    {
        return Err(fields.error("rope_theta", format!("is {outer:e}, but the scaling rule says {inner:e}")));
    }
    match inner.or(outer).unwrap_or(10_000.0) {
        theta if theta > 0.0 => Ok(theta),
        theta => Err(fields.error("rope_theta", format!("is {theta:e}; it must be positive"))),
    }
}

/// Head dimensions that are rotated; an odd count is rounded up to whole pairs when they are used.
fn rotated(
    fields: &Fields<'_>,
    scaling: Option<&Fields<'_>>,
    head_dim: usize,
    default_partial: f64,
) -> Result<usize, EngineError> {
    let outer = if default_partial < 1.0 { fields.opt_number("partial_rotary_factor")? } else { None };
    let inner = scaling.map_or(Ok(None), |scaling| scaling.opt_number("partial_rotary_factor"))?;
    let partial = inner.or(outer).unwrap_or(default_partial);
    if default_partial == 1.0 && partial != 1.0 {
        return Err(fields.error("partial_rotary_factor", format!("is {partial:e}; this family rotates whole heads")));
    }
    let rotated = (head_dim as f64 * partial) as usize;
    if rotated == 0 || rotated.next_multiple_of(2) > head_dim {
        let message = format!("of {partial:e} rotates {rotated} of {head_dim} head dimensions");
        return Err(fields.error("partial_rotary_factor", message));
    }
    Ok(rotated)
}

/// `theta^(-2i / rotated)` for each pair.
fn plain(theta: f64, rotated: usize) -> Vec<f32> {
    (0..rotated.div_ceil(2)).map(|pair| 1.0 / power(theta, pair, rotated)).collect()
}

fn power(theta: f64, pair: usize, rotated: usize) -> f32 {
    (theta as f32).powf((2 * pair) as f32 / rotated as f32)
}

fn checked(fields: &Fields<'_>, spec: RopeSpec) -> Result<RopeSpec, EngineError> {
    let sound = |value: f32| value.is_finite() && value >= 0.0;
    if spec.inv_freq.iter().copied().all(sound) && spec.attention_scaling.is_finite() {
        return Ok(spec);
    }
    Err(fields.error("rope_theta", "and its scaling rule give rotary frequencies that are not finite"))
}

fn positive(fields: &Fields<'_>, key: &str) -> Result<f64, EngineError> {
    match fields.number(key)? {
        value if value > 0.0 => Ok(value),
        value => Err(fields.error(key, format!("is {value:e}; it must be positive"))),
    }
}

fn llama3(scaling: &Fields<'_>, plain: Vec<f32>, original: f32) -> Result<RopeSpec, EngineError> {
    let factor = positive(scaling, "factor")? as f32;
    let low = positive(scaling, "low_freq_factor")? as f32;
    let high = positive(scaling, "high_freq_factor")? as f32;
    if high <= low {
        return Err(scaling.error("high_freq_factor", format!("is {high}; it must be above low_freq_factor {low}")));
    }
    let rescale = |freq: f32| {
        let wavelength = 2.0 * std::f32::consts::PI / freq;
        if wavelength < original / high {
            freq
        } else if wavelength > original / low {
            freq / factor
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            (1.0 - smooth) * freq / factor + smooth * freq
        }
    };
    Ok(RopeSpec { inv_freq: plain.into_iter().map(rescale).collect(), attention_scaling: 1.0 })
}

fn yarn(
    scaling: &Fields<'_>,
    theta: f64,
    rotated: usize,
    original: f64,
    max_positions: f64,
) -> Result<RopeSpec, EngineError> {
    let factor = match scaling.opt_number("factor")? {
        Some(factor) if factor > 0.0 => factor,
        Some(factor) => return Err(scaling.error("factor", format!("is {factor:e}; it must be positive"))),
        None => max_positions / original,
    };
    let magnitude = |scale: f64, by: f64| if scale <= 1.0 { 1.0 } else { 0.1 * by * scale.ln() + 1.0 };
    let (mscale, mscale_all) = (scaling.opt_number("mscale")?, scaling.opt_number("mscale_all_dim")?);
    let attention_scaling = match (scaling.opt_number("attention_factor")?, mscale, mscale_all) {
        (Some(given), _, _) => given,
        (None, Some(one), Some(all)) if one != 0.0 && all != 0.0 => magnitude(factor, one) / magnitude(factor, all),
        _ => magnitude(factor, 1.0),
    };
    let beta_fast = scaling.opt_number("beta_fast")?.filter(|beta| *beta != 0.0).unwrap_or(32.0);
    let beta_slow = scaling.opt_number("beta_slow")?.filter(|beta| *beta != 0.0).unwrap_or(1.0);
    // An explicit null means no, absence means yes.
    let truncate = scaling.bool_or("truncate", !scaling.is_null("truncate"))?;
    let dim_of = |rotations: f64| {
        rotated as f64 * (original / (rotations * 2.0 * std::f64::consts::PI)).ln() / (2.0 * theta.ln())
    };
    let (mut low, mut high) = (dim_of(beta_fast), dim_of(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, mut high) = (low.max(0.0), high.min(rotated as f64 - 1.0));
    if low == high {
        high += 0.001;
    }
    let inv_freq = (0..rotated.div_ceil(2))
        .map(|pair| {
            let base = power(theta, pair, rotated);
            let (kept, stretched) = (1.0 / base, 1.0 / (factor as f32 * base));
            let ramp = ((pair as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
            let keep = 1.0 - ramp;
            stretched * (1.0 - keep) + kept * keep
        })
        .collect();
    Ok(RopeSpec { inv_freq, attention_scaling: attention_scaling as f32 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn rope(config: Value) -> Result<RopeSpec, String> {
        let fields = Fields::new("config.json", &config).unwrap();
        read(&fields, 20, 256, 1.0).map_err(|error| error.to_string())
    }

    #[test]
    fn the_outer_original_context_speaks_first() {
        let rule = |inner: u32| {
            json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": inner})
        };
        let inner = rope(json!({"rope_scaling": rule(64)})).unwrap();
        let outer = rope(json!({"rope_scaling": rule(512), "original_max_position_embeddings": 64})).unwrap();
        assert_eq!(inner, outer);
        assert_ne!(inner, rope(json!({"rope_scaling": rule(512)})).unwrap());
    }

    #[test]
    fn two_rules_must_agree() {
        let linear = json!({"rope_type": "linear", "factor": 2.0});
        assert!(rope(json!({"rope_scaling": linear, "rope_parameters": linear})).is_ok());
        let error = rope(json!({"rope_scaling": linear, "rope_parameters": {"rope_type": "default"}})).unwrap_err();
        assert!(error.contains("rope_scaling") && error.contains("differ"), "{error}");
    }

    #[test]
    fn a_null_truncate_means_no() {
        let rule = |truncate: Value| {
            let mut rule = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
            rule["truncate"] = truncate;
            rope(json!({ "rope_scaling": rule })).unwrap()
        };
        assert_eq!(rule(Value::Null), rule(json!(false)));
        assert_ne!(rule(Value::Null), rule(json!(true)));
    }

    #[test]
    fn numbers_are_read_to_the_last_bit() {
        let config: Value = serde_json::from_str(r#"{"partial_rotary_factor": 0.15384615384615385}"#).unwrap();
        let spec = read(&Fields::new("config.json", &config).unwrap(), 52, 256, 0.25).unwrap();
        assert_eq!(spec.inv_freq.len(), 4, "52 times this fraction is 8, and just below it 7");
    }

    #[test]
    fn rules_that_overflow_are_refused() {
        for rule in
            [json!({"rope_type": "linear", "factor": 1e-50}), json!({"rope_type": "default", "rope_theta": 1e-300})]
        {
            assert!(rope(json!({ "rope_parameters": rule })).unwrap_err().contains("not finite"));
        }
    }
}
