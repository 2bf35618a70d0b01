//! The request's JSON with the control tokens in it marked.

use super::super::control::{CUT, ControlTokens};
use crate::errors::EngineError;
use serde_json::{Map, Value};

/// The deepest nesting of a request.
const MAX_DEPTH: usize = 128;

/// Marks values and counts what it saw.
pub(super) struct Marker<'a> {
    controls: &'a ControlTokens,
    /// Values so far.
    pub(super) values: usize,
    /// Bytes of text so far.
    pub(super) bytes: usize,
    depth: usize,
}

impl<'a> Marker<'a> {
    pub(super) fn new(controls: &'a ControlTokens) -> Self {
        Self { controls, values: 0, bytes: 0, depth: 0 }
    }

    /// The messages; with `cut`, the end of the last one's text carries a mark.
    pub(super) fn messages(&mut self, messages: &Value, cut: bool) -> Result<Value, EngineError> {
        if !messages.is_array() {
            return Err(invalid("messages must be an array"));
        }
        let mut marked = self.value(messages)?;
        if cut {
            let last = marked.as_array_mut().and_then(|list| list.last_mut());
            let last = last.ok_or_else(|| invalid("there is no final message to continue"))?;
            let text = final_text(last)
                .ok_or_else(|| invalid("continue_final_message needs a final message that ends in text"))?;
            text.push(CUT);
        }
        Ok(marked)
    }

    pub(super) fn value(&mut self, value: &Value) -> Result<Value, EngineError> {
        if self.depth > MAX_DEPTH {
            return Err(invalid(&format!("messages and tools must not nest deeper than {MAX_DEPTH}")));
        }
        self.depth += 1;
        self.values += 1;
        let marked = match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(list) => list.iter().map(|v| self.value(v)).collect::<Result<_, _>>()?,
            Value::Object(fields) => {
                let field = |(key, value): (&String, &Value)| Ok((self.text(key), self.value(value)?));
                Value::Object(fields.iter().map(field).collect::<Result<Map<_, _>, EngineError>>()?)
            }
            other => other.clone(),
        };
        self.depth -= 1;
        Ok(marked)
    }

    fn text(&mut self, text: &str) -> String {
        self.bytes += text.len();
        self.controls.mark(text).into_owned()
    }
}

/// The text that a message ends in: its content, or that of the content's last part.
fn final_text(message: &mut Value) -> Option<&mut String> {
    let text = match message.get_mut("content")? {
        Value::Array(parts) => parts.last_mut()?.get_mut("text")?,
        content => content,
    };
    match text {
        Value::String(text) => Some(text),
        _ => None,
    }
}

/// A value as the template engine has it.
pub(super) fn template_value(value: Value) -> minijinja::Value {
    match value {
        Value::Null => ().into(),
        Value::Bool(flag) => flag.into(),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => integer.into(),
            (_, Some(integer)) => integer.into(),
            _ => number.as_f64().into(),
        },
        Value::String(text) => text.into(),
        Value::Array(list) => list.into_iter().map(template_value).collect(),
        Value::Object(fields) => {
            minijinja::Value::from_pairs(fields.into_iter().map(|(key, field)| (key, template_value(field))))
        }
    }
}

fn invalid(message: &str) -> EngineError {
    EngineError::Template(message.to_owned())
}
