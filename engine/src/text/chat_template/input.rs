//! From the request's JSON to the template's values, with the control tokens in it marked.

use super::super::control::{CUT, ControlTokens};
use crate::errors::EngineError;
use minijinja::Value;
use serde_json::Value as Json;

/// The deepest nesting of a request.
const MAX_DEPTH: usize = 128;

pub(super) struct Converter<'a> {
    controls: &'a ControlTokens,
    /// Values converted so far.
    pub(super) values: usize,
    /// Bytes of text converted so far.
    pub(super) bytes: usize,
    depth: usize,
}

impl<'a> Converter<'a> {
    pub(super) fn new(controls: &'a ControlTokens) -> Self {
        Self { controls, values: 0, bytes: 0, depth: 0 }
    }

    /// The messages; with `cut`, the end of the last one's text carries a mark.
    pub(super) fn messages(&mut self, messages: &Json, cut: bool) -> Result<Value, EngineError> {
        let Json::Array(list) = messages else { return Err(invalid("messages must be an array")) };
        if !cut {
            return self.value(messages);
        }
        let Some((last, before)) = list.split_last() else {
            return Err(invalid("there is no final message to continue"));
        };
        let mut values = before.iter().map(|m| self.value(m)).collect::<Result<Vec<_>, _>>()?;
        values.push(self.cut_message(last)?);
        Ok(Value::from(values))
    }

    fn cut_message(&mut self, message: &Json) -> Result<Value, EngineError> {
        let Json::Object(fields) = message else { return Err(invalid("a message must be an object")) };
        let content = match &message["content"] {
            Json::String(text) => self.cut_text(text),
            Json::Array(parts) => {
                let Some((Json::Object(last), before)) = parts.split_last() else { return Err(no_text()) };
                let Some(Json::String(text)) = last.get("text") else { return Err(no_text()) };
                let mut values = before.iter().map(|p| self.value(p)).collect::<Result<Vec<_>, _>>()?;
                values.push(self.with_field(last, "text", self.controls.mark(text).into_owned() + CUT_TEXT)?);
                Value::from(values)
            }
            _ => return Err(no_text()),
        };
        self.with_field(fields, "content", content)
    }

    fn cut_text(&mut self, text: &str) -> Value {
        self.bytes += text.len();
        Value::from(self.controls.mark(text).into_owned() + CUT_TEXT)
    }

    fn with_field(
        &mut self,
        fields: &serde_json::Map<String, Json>,
        name: &str,
        value: impl Into<Value>,
    ) -> Result<Value, EngineError> {
        let value = value.into();
        let mut map: Vec<(Value, Value)> = Vec::with_capacity(fields.len());
        for (key, field) in fields {
            let field = if key == name { value.clone() } else { self.value(field)? };
            map.push((self.text(key), field));
        }
        Ok(map.into_iter().collect())
    }

    pub(super) fn value(&mut self, json: &Json) -> Result<Value, EngineError> {
        if self.depth > MAX_DEPTH {
            return Err(invalid(&format!("messages and tools must not nest deeper than {MAX_DEPTH}")));
        }
        self.depth += 1;
        self.values += 1;
        let value = match json {
            Json::Null => Value::from(()),
            Json::Bool(b) => Value::from(*b),
            Json::Number(n) => match (n.as_i64(), n.as_u64()) {
                (Some(n), _) => Value::from(n),
                (_, Some(n)) => Value::from(n),
                _ => Value::from(n.as_f64()),
            },
            Json::String(text) => self.text(text),
            Json::Array(list) => Value::from(list.iter().map(|v| self.value(v)).collect::<Result<Vec<_>, _>>()?),
            Json::Object(fields) => {
                let mut map: Vec<(Value, Value)> = Vec::with_capacity(fields.len());
                for (key, field) in fields {
                    map.push((self.text(key), self.value(field)?));
                }
                map.into_iter().collect()
            }
        };
        self.depth -= 1;
        Ok(value)
    }

    fn text(&mut self, text: &str) -> Value {
        self.bytes += text.len();
        Value::from(self.controls.mark(text).into_owned())
    }
}

const CUT_TEXT: &str = "\u{FDD3}";
const _: () = assert!(CUT as u32 == 0xFDD3);

fn invalid(message: &str) -> EngineError {
    EngineError::Template(message.to_owned())
}

fn no_text() -> EngineError {
    invalid("continue_final_message needs a final message that ends in text")
}
