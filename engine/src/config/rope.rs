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
    let scaling = match fields.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => fields.object("rope_scaling")?,
    };
    let nested = |key: &str| scaling.as_ref().map_or(Ok(None), |scaling| scaling.opt_number(key));
    // Both spellings may stand in one file; they must then agree, and reading both accounts for both.
    let (outer_theta, inner_theta) = (fields.opt_number("rope_theta")?, nested("rope_theta")?);
    if let (Some(outer), Some(inner)) = (outer_theta, inner_theta)
        && outer != inner
    {
        return Err(fields.error("rope_theta", format!("is {outer}, but rope_parameters says {inner}")));
    }
    let theta = inner_theta.or(outer_theta).unwrap_or(10_000.0);
    if theta <= 0.0 {
        return Err(fields.error("rope_theta", format!("is {theta}; it must be positive")));
    }
    let partial = match (nested("partial_rotary_factor")?, default_partial < 1.0) {
        (Some(partial), true) => {
            fields.opt_number("partial_rotary_factor")?;
            partial
        }
        (Some(partial), false) if partial != 1.0 => {
            return Err(
                fields.error("rope_parameters.partial_rotary_factor", format!("is {partial}; this family has 1"))
            );
        }
        (Some(_), false) => default_partial,
        (None, true) => fields.number_or("partial_rotary_factor", default_partial)?,
        (None, false) => default_partial,
    };
    let rotated = (head_dim as f64 * partial) as usize;
    if rotated == 0 || rotated > head_dim || !rotated.is_multiple_of(2) {
        return Err(fields.error(
            "partial_rotary_factor",
            format!("of {partial} rotates {rotated} of {head_dim} head dimensions; it must be even and not above them"),
        ));
    }
    let plain: Vec<f32> =
        (0..rotated / 2).map(|pair| 1.0 / (theta as f32).powf((2 * pair) as f32 / rotated as f32)).collect();
    let Some(scaling) = scaling else { return Ok(RopeSpec { inv_freq: plain, attention_scaling: 1.0 }) };
    let kind = match scaling.opt_str("rope_type")? {
        Some(kind) => kind,
        None => scaling.opt_str("type")?.unwrap_or("default"),
    };
    scaling.get("type");
    // Multi-axis sections do not matter for text: all axes hold the same position.
    scaling.get("mrope_section");
    scaling.get("mrope_interleaved");
    let spec = match kind {
        "default" | "mrope" => RopeSpec { inv_freq: plain, attention_scaling: 1.0 },
        "linear" => {
            let factor = positive(&scaling, "factor")? as f32;
            RopeSpec { inv_freq: plain.iter().map(|freq| freq / factor).collect(), attention_scaling: 1.0 }
        }
        "llama3" => llama3(&scaling, plain, max_positions)?,
        "yarn" => yarn(&scaling, theta, rotated, max_positions)?,
        other => {
            return Err(
                scaling.error("rope_type", format!("is \"{other}\"; supported are default, linear, llama3 and yarn"))
            );
        }
    };
    if let Some(warning) = scaling.finish()?.first() {
        return Err(EngineError::Unsupported(format!("{warning}; rotary scaling rules must be known exactly")));
    }
    Ok(spec)
}

fn positive(fields: &Fields<'_>, key: &str) -> Result<f64, EngineError> {
    match fields.number(key)? {
        value if value > 0.0 => Ok(value),
        value => Err(fields.error(key, format!("is {value}; it must be positive"))),
    }
}

fn llama3(scaling: &Fields<'_>, plain: Vec<f32>, max_positions: usize) -> Result<RopeSpec, EngineError> {
    let factor = positive(scaling, "factor")? as f32;
    let low = positive(scaling, "low_freq_factor")? as f32;
    let high = positive(scaling, "high_freq_factor")? as f32;
    let original = scaling.size_or("original_max_position_embeddings", max_positions)? as f32;
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

fn yarn(scaling: &Fields<'_>, theta: f64, rotated: usize, max_positions: usize) -> Result<RopeSpec, EngineError> {
    let original = scaling.size_or("original_max_position_embeddings", max_positions)? as f64;
    let factor = match scaling.opt_number("factor")? {
        Some(factor) if factor > 0.0 => factor,
        Some(factor) => return Err(scaling.error("factor", format!("is {factor}; it must be positive"))),
        None => max_positions as f64 / original,
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
    let truncate = scaling.bool_or("truncate", true)?;
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
    let inv_freq = (0..rotated / 2)
        .map(|pair| {
            let base = (theta as f32).powf((2 * pair) as f32 / rotated as f32);
            let (kept, stretched) = (1.0 / base, 1.0 / (factor as f32 * base));
            let ramp = ((pair as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
            let keep = 1.0 - ramp;
            stretched * (1.0 - keep) + kept * keep
        })
        .collect();
    Ok(RopeSpec { inv_freq, attention_scaling: attention_scaling as f32 })
}
