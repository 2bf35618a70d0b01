//! Reading a JSON object so that every field is accounted for.
//!
//! A field that Atlas reads is checked for type and range. A field that is known to change the mathematics and is
//! not supported is an error unless it holds its neutral value. What is left is reported as a warning, so nothing
//! is dropped silently.

use crate::errors::EngineError;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// One JSON object of a configuration file, remembering which of its fields were read.
pub struct Fields<'a> {
    file: String,
    prefix: String,
    map: &'a Map<String, Value>,
    read: RefCell<BTreeSet<&'a str>>,
}

/// Fields that never change what a forward pass computes.
const INERT: &[&str] = &[
    "_name_or_path",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "add_cross_attention",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "decoder_start_token_id",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "finetuning_task",
    "hidden_dropout",
    "id2label",
    "image_token_id",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "max_position_embeddings",
    "model_max_length",
    "model_type",
    "name_or_path",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "quantization_config",
    "resid_pdrop",
    "return_dict",
    "router_aux_loss_coef",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "transformers.js_config",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_start_token_id",
];

/// Fields that change the mathematics in some family of the field, with the value at which they do nothing.
const CHANGES_MATHEMATICS: &[(&str, &str)] = &[
    ("alibi", "false"),
    ("attention_chunk_size", "null"),
    ("attention_multiplier", "null"),
    ("attention_sink_bias", "null"),
    ("attn_logit_softcapping", "null"),
    ("attn_output_gate", "null"),
    ("clip_qkv", "null"),
    ("embedding_multiplier", "null"),
    ("final_logit_softcapping", "null"),
    ("layer_scale", "null"),
    ("layernorm_epsilon", "null"),
    ("logit_scale", "null"),
    ("logits_scaling", "null"),
    ("moe_intermediate_size", "null"),
    ("no_rope_layers", "null"),
    ("num_experts", "null"),
    ("num_local_experts", "null"),
    ("original_max_position_embeddings", "null"),
    ("parallel_attn", "false"),
    ("partial_rotary_factor", "1.0"),
    ("qk_layernorm", "false"),
    ("query_pre_attn_scalar", "null"),
    ("residual_multiplier", "null"),
    ("rope_interleaved", "false"),
    ("rotary_dim", "null"),
    ("rotary_pct", "1.0"),
    ("scale_attn_by_inverse_layer_idx", "false"),
    ("scale_depth", "null"),
    ("scale_emb", "null"),
    ("sliding_window", "null"),
    ("tie_encoder_decoder", "false"),
    ("use_mrope", "false"),
    ("use_qk_norm", "null"),
    ("use_sliding_window", "false"),
];

impl<'a> Fields<'a> {
    /// Wraps `value`, which must be an object. `file` is shown in errors.
    pub fn new(file: &str, value: &'a Value) -> Result<Self, EngineError> {
        Self::nested(file, "", value)
    }

    fn nested(file: &str, prefix: &str, value: &'a Value) -> Result<Self, EngineError> {
        let map = value.as_object().ok_or_else(|| EngineError::Config {
            path: file.to_owned(),
            message: match prefix.strip_suffix('.') {
                Some(name) => format!("`{name}` must be an object"),
                None => "must hold a JSON object".to_owned(),
            },
        })?;
        Ok(Self { file: file.to_owned(), prefix: prefix.to_owned(), map, read: RefCell::new(BTreeSet::new()) })
    }

    /// An error about field `key`.
    pub fn error(&self, key: &str, message: impl std::fmt::Display) -> EngineError {
        EngineError::Config { path: self.file.clone(), message: format!("`{}{key}` {message}", self.prefix) }
    }

    /// The raw value; `null` counts as absent.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        let (name, value) = self.map.get_key_value(key)?;
        self.read.borrow_mut().insert(name);
        (!value.is_null()).then_some(value)
    }

    /// Whether the field is present and not null; does not count as reading it.
    pub fn has(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(|value| !value.is_null())
    }

    /// Whether the field is there and null.
    pub fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// A nested object.
    pub fn object(&self, key: &str) -> Result<Option<Fields<'a>>, EngineError> {
        self.get(key).map(|value| Fields::nested(&self.file, &format!("{}{key}.", self.prefix), value)).transpose()
    }

    /// A size: a positive integer that fits 31 bits.
    pub fn size(&self, key: &str) -> Result<usize, EngineError> {
        self.opt_size(key)?.ok_or_else(|| self.error(key, "is missing; it must be a positive integer"))
    }

    /// Like [`Self::size`], for a count of things that are laid out one by one: not above `most`.
    pub fn size_up_to(&self, key: &str, default: Option<usize>, most: usize) -> Result<usize, EngineError> {
        let value = match default {
            Some(default) => self.size_or(key, default)?,
            None => self.size(key)?,
        };
        if value > most {
            return Err(self.error(key, format!("is {value}; it must not be above {most}")));
        }
        Ok(value)
    }

    /// Like [`Self::size`], with a default.
    pub fn size_or(&self, key: &str, default: usize) -> Result<usize, EngineError> {
        Ok(self.opt_size(key)?.unwrap_or(default))
    }

    /// Like [`Self::size`], `None` when absent.
    pub fn opt_size(&self, key: &str) -> Result<Option<usize>, EngineError> {
        self.opt_count(key)?.map_or(Ok(None), |value| match value {
            0 => Err(self.error(key, "is 0; it must be a positive integer")),
            value => Ok(Some(value)),
        })
    }

    /// A non-negative integer that fits 31 bits.
    pub fn opt_count(&self, key: &str) -> Result<Option<usize>, EngineError> {
        self.get(key).map_or(Ok(None), |value| match value.as_u64() {
            Some(number) if number <= i32::MAX as u64 => Ok(Some(number as usize)),
            _ => Err(self.error(key, format!("is {value}; it must be an integer from 0 to {}", i32::MAX))),
        })
    }

    /// A finite number.
    pub fn opt_number(&self, key: &str) -> Result<Option<f64>, EngineError> {
        self.get(key).map_or(Ok(None), |value| match value.as_f64() {
            Some(number) if number.is_finite() => Ok(Some(number)),
            _ => Err(self.error(key, format!("is {value}; it must be a finite number"))),
        })
    }

    /// A finite number, with a default.
    pub fn number_or(&self, key: &str, default: f64) -> Result<f64, EngineError> {
        Ok(self.opt_number(key)?.unwrap_or(default))
    }

    /// A finite number that must be there.
    pub fn number(&self, key: &str) -> Result<f64, EngineError> {
        self.opt_number(key)?.ok_or_else(|| self.error(key, "is missing; it must be a number"))
    }

    /// A boolean, with a default.
    pub fn bool_or(&self, key: &str, default: bool) -> Result<bool, EngineError> {
        Ok(self.opt_bool(key)?.unwrap_or(default))
    }

    /// A boolean.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, EngineError> {
        self.get(key).map_or(Ok(None), |value| {
            value.as_bool().map(Some).ok_or_else(|| self.error(key, format!("is {value}; it must be true or false")))
        })
    }

    /// A string.
    pub fn opt_str(&self, key: &str) -> Result<Option<&'a str>, EngineError> {
        self.get(key).map_or(Ok(None), |value| {
            value.as_str().map(Some).ok_or_else(|| self.error(key, format!("is {value}; it must be a string")))
        })
    }

    /// A list of strings.
    pub fn opt_strings(&self, key: &str) -> Result<Option<Vec<&'a str>>, EngineError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let strings = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        strings.map(Some).ok_or_else(|| self.error(key, "must be a list of strings"))
    }

    /// A token id or a list of them; empty when absent.
    pub fn token_ids(&self, key: &str) -> Result<Vec<u32>, EngineError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let one = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = match value {
            Value::Array(list) => list.iter().map(one).collect(),
            other => one(other).map(|id| vec![id]),
        };
        ids.ok_or_else(|| self.error(key, format!("is {value}; it must be a token id or a list of token ids")))
    }

    /// Fails unless the field is absent or equals `value`: the only value that is supported.
    pub fn only(&self, key: &str, value: &str) -> Result<(), EngineError> {
        match self.opt_str(key)? {
            Some(found) if found != value => {
                Err(self.error(key, format!("is \"{found}\", which is not supported (only \"{value}\" is)")))
            }
            _ => Ok(()),
        }
    }

    /// Accounts for what was not read: an error for unsupported mathematics, else warnings.
    pub fn finish(&self) -> Result<Vec<String>, EngineError> {
        let read = self.read.borrow();
        let mut warnings = Vec::new();
        for (key, value) in self.map {
            if value.is_null() || read.contains(key.as_str()) || INERT.contains(&key.as_str()) {
                continue;
            }
            match CHANGES_MATHEMATICS.iter().find(|(name, _)| name == key) {
                Some((_, neutral)) if is_neutral(value, neutral) => {}
                Some(_) => return Err(self.error(key, format!("is {value}, which this family does not support"))),
                None => warnings.push(format!("{}: `{}{key}` is not known and was not used", self.file, self.prefix)),
            }
        }
        Ok(warnings)
    }
}

fn is_neutral(value: &Value, neutral: &str) -> bool {
    let neutral: Value = serde_json::from_str(neutral).unwrap_or_default();
    *value == neutral || value.as_f64().is_some_and(|number| neutral.as_f64() == Some(number))
}
