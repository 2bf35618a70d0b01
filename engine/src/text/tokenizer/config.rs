//! What matters in `tokenizer_config.json`: the names of some tokens and the chat template.

use crate::errors::EngineError;
use serde_json::Value;

#[derive(Debug, Default)]
pub(super) struct TokenizerConfig {
    pub(super) bos_token: Option<String>,
    pub(super) eos_token: Option<String>,
    pub(super) pad_token: Option<String>,
    pub(super) chat_template: Option<String>,
}

impl TokenizerConfig {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, EngineError> {
        let json: Value = serde_json::from_slice(bytes)
            .map_err(|e| EngineError::Tokenizer(format!("tokenizer_config.json is not valid JSON: {e}")))?;
        Ok(Self {
            bos_token: token(&json, "bos_token")?,
            eos_token: token(&json, "eos_token")?,
            pad_token: token(&json, "pad_token")?,
            chat_template: template(&json["chat_template"])?,
        })
    }
}

/// A token is `null`, its spelling, or an object with its spelling under `content`.
fn token(json: &Value, field: &str) -> Result<Option<String>, EngineError> {
    match &json[field] {
        Value::Null => Ok(None),
        Value::String(token) => Ok(Some(token.clone())),
        Value::Object(token) if token.get("content").is_some_and(Value::is_string) => {
            Ok(token["content"].as_str().map(str::to_owned))
        }
        other => Err(malformed(field, other)),
    }
}

/// A template is one source, or a list of named ones of which `default` is used.
fn template(json: &Value) -> Result<Option<String>, EngineError> {
    match json {
        Value::Null => Ok(None),
        Value::String(source) => Ok(Some(source.clone())),
        Value::Array(named) => {
            let default = named.iter().find(|entry| entry["name"] == "default").or(named.first());
            Ok(default.and_then(|entry| entry["template"].as_str()).map(str::to_owned))
        }
        other => Err(malformed("chat_template", other)),
    }
}

fn malformed(field: &str, value: &Value) -> EngineError {
    EngineError::Tokenizer(format!("tokenizer_config.json: {field} is neither text nor null: {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_templates_have_several_spellings() {
        let config = TokenizerConfig::parse(
            br#"{"bos_token": {"content": "<s>", "special": true}, "eos_token": "</s>", "pad_token": null,
                 "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}"#,
        )
        .unwrap();
        assert_eq!(config.bos_token.as_deref(), Some("<s>"));
        assert_eq!(config.eos_token.as_deref(), Some("</s>"));
        assert_eq!(config.pad_token, None);
        assert_eq!(config.chat_template.as_deref(), Some("D"));
    }

    #[test]
    fn malformed_fields_are_named() {
        for (json, field) in [(r#"{"eos_token": 3}"#, "eos_token"), (r#"{"chat_template": 1}"#, "chat_template")] {
            let error = TokenizerConfig::parse(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
        assert!(TokenizerConfig::parse(b"{").unwrap_err().to_string().contains("tokenizer_config.json"));
    }
}
