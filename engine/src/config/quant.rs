//! Which weight format each module is meant to have: `quantization_config` and `hf_quant_config.json`.

use super::fields::Fields;
use crate::errors::EngineError;
use serde_json::Value;

/// How a linear layer's weight is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// 32-bit IEEE float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// bfloat16.
    Bf16,
    /// NVFP4 as ModelOpt writes it: E2M1 pairs, an E4M3 scale per 16 inputs, an f32 scale per tensor.
    Nvfp4,
}

impl WeightFormat {
    /// Bytes of an `n` by `k` weight, scales included, as a checkpoint stores them.
    pub fn bytes(self, n: usize, k: usize) -> u64 {
        let elements = n as u64 * k as u64;
        match self {
            Self::F32 => elements * 4,
            Self::F16 | Self::Bf16 => elements * 2,
            Self::Nvfp4 => elements / 2 + elements / 16 + 4,
        }
    }

    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Nvfp4 => "nvfp4",
        }
    }
}

/// The checkpoint's declared quantisation.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantization {
    /// Format of modules that are not quantised.
    pub dense: WeightFormat,
    /// Format of quantised linear modules; `None` when the checkpoint is not quantised.
    pub quantized: Option<WeightFormat>,
    /// Module names or `*` patterns that stay dense.
    pub excluded: Vec<String>,
}

impl Quantization {
    /// Reads the declarations. `config` is the whole `config.json`, `hf_quant` the `hf_quant_config.json` if any.
    pub fn read(file: &str, config: &Value, hf_quant: Option<&Value>) -> Result<Self, EngineError> {
        let fields = Fields::new(file, config)?;
        let text = fields.object("text_config")?;
        let dtype = |fields: &Fields<'_>| -> Result<Option<String>, EngineError> {
            Ok(match fields.opt_str("dtype")? {
                Some(dtype) => Some(dtype.to_owned()),
                None => fields.opt_str("torch_dtype")?.map(str::to_owned),
            })
        };
        let declared = match dtype(&fields)? {
            Some(dtype) => Some(dtype),
            None => text.as_ref().map(dtype).transpose()?.flatten(),
        };
        let dense = match declared.as_deref() {
            Some("float32") => WeightFormat::F32,
            Some("float16") => WeightFormat::F16,
            Some("bfloat16") | None => WeightFormat::Bf16,
            Some(other) => {
                return Err(fields.error("dtype", format!("is \"{other}\"; it must be bfloat16, float16 or float32")));
            }
        };
        let mut this = Self { dense, quantized: None, excluded: Vec::new() };
        if let Some(quant) = fields.object("quantization_config")? {
            let method = quant.opt_str("quant_method")?.unwrap_or("modelopt");
            if method != "modelopt" {
                return Err(quant.error("quant_method", format!("is \"{method}\"; this build reads modelopt NVFP4")));
            }
            this.quantized = Some(algorithm(&quant, "quant_algo")?);
            check_group(&quant)?;
            for key in ["ignore", "exclude_modules"] {
                this.excluded.extend(quant.opt_strings(key)?.unwrap_or_default().into_iter().map(str::to_owned));
            }
        } else if let Some(hf_quant) = hf_quant {
            let outer = Fields::new("hf_quant_config.json", hf_quant)?;
            let quant = outer
                .object("quantization")?
                .ok_or_else(|| outer.error("quantization", "is missing; it must be an object"))?;
            this.quantized = Some(algorithm(&quant, "quant_algo")?);
            check_group(&quant)?;
            let excluded = quant.opt_strings("exclude_modules")?.unwrap_or_default();
            this.excluded = excluded.into_iter().map(str::to_owned).collect();
        }
        Ok(this)
    }

    /// The format that module `name` should have.
    pub fn format_of(&self, name: &str) -> WeightFormat {
        match self.quantized {
            Some(format) if !self.excluded.iter().any(|pattern| matches(pattern, name)) => format,
            _ => self.dense,
        }
    }
}

fn algorithm(quant: &Fields<'_>, key: &str) -> Result<WeightFormat, EngineError> {
    match quant.opt_str(key)? {
        Some("NVFP4") => Ok(WeightFormat::Nvfp4),
        Some(other) => Err(quant.error(key, format!("is \"{other}\"; this build reads NVFP4"))),
        None => Err(quant.error(key, "is missing; it must name the weight format, as in \"NVFP4\"")),
    }
}

fn check_group(quant: &Fields<'_>) -> Result<(), EngineError> {
    match quant.opt_size("group_size")? {
        Some(group) if group != 16 => Err(quant.error("group_size", format!("is {group}; NVFP4 has 16"))),
        _ => Ok(()),
    }
}

/// Whether `name` or a parent module of it fits `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    fn glob(pattern: &[u8], name: &[u8]) -> bool {
        // Linear-time wildcard match with one backtracking point.
        let (mut p, mut n, mut star) = (0, 0, None);
        while n < name.len() {
            if p < pattern.len() && pattern[p] == b'*' {
                star = Some((p, n));
                p += 1;
            } else if p < pattern.len() && pattern[p] == name[n] {
                p += 1;
                n += 1;
            } else if let Some((at, from)) = star {
                star = Some((at, from + 1));
                p = at + 1;
                n = from + 1;
            } else {
                return false;
            }
        }
        pattern[p..].iter().all(|byte| *byte == b'*')
    }
    let pattern = pattern.as_bytes();
    let ends = name.bytes().enumerate().filter(|(_, byte)| *byte == b'.').map(|(at, _)| at);
    ends.chain([name.len()]).any(|end| glob(pattern, &name.as_bytes()[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_modules_parents_and_wildcards() {
        assert!(matches("lm_head", "lm_head"));
        assert!(!matches("lm_head", "lm_head2"));
        assert!(matches("model.layers.*.linear_attn*", "model.layers.3.linear_attn.in_proj_a"));
        assert!(matches("model.visual", "model.visual.blocks.0.attn.qkv"));
        assert!(matches("*mtp*", "mtp.layers.0.mlp.up_proj"));
        assert!(!matches("model.layers.1", "model.layers.10.mlp.up_proj"));
    }

    #[test]
    fn unknown_algorithms_are_named() {
        let config = serde_json::json!({"quantization_config": {"quant_method": "awq"}});
        let error = Quantization::read("config.json", &config, None).unwrap_err().to_string();
        assert!(error.contains("quant_method") && error.contains("awq"), "{error}");
    }
}
