//! A chat's messages as the template wants them: text contents, parsed tool arguments, known roles.

use crate::error::ApiError;
use crate::fields::{Fields, kind};
use serde_json::{Map, Value, json};

/// Checks and normalises `messages`.
pub(crate) fn messages(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let given = fields.array("messages")?.unwrap_or_default();
    if given.is_empty() {
        return Err(fields.error("messages", "at least one message is required"));
    }
    given.into_iter().enumerate().map(|(index, value)| message(value, index)).collect()
}

fn message(value: Value, index: usize) -> Result<Value, ApiError> {
    let mut fields = Fields::nested(value, format!("messages[{index}]"))?;
    let role = fields.required_string("role")?;
    let role = match role.as_str() {
        "developer" => "system",
        "system" | "user" | "assistant" | "tool" => role.as_str(),
        "function" => return Err(ApiError::unsupported(fields.name("role"), "is not supported; use the role `tool`")),
        _ => return Err(fields.error("role", "must be system, developer, user, assistant or tool")),
    };
    let calls = fields.array("tool_calls")?.filter(|calls| !calls.is_empty());
    let content = match fields.take("content") {
        Some(content) => text_of(content, &fields.name("content"))?,
        // Clients write null beside tool calls, and some for an empty answer or result.
        None if matches!(role, "assistant" | "tool") => fields.string("refusal")?.unwrap_or_default(),
        None => return Err(fields.error("content", "is required")),
    };
    let mut message = Map::new();
    message.insert("role".into(), role.into());
    message.insert("content".into(), content.into());
    for name in ["name", "tool_call_id"] {
        if let Some(text) = fields.string(name)? {
            message.insert(name.into(), text.into());
        }
    }
    if role == "assistant" {
        // Two spellings are in use; clients send back the one that they read.
        let (long, short) = (fields.string("reasoning_content")?, fields.string("reasoning")?);
        if let Some(reasoning) = long.or(short) {
            message.insert("reasoning_content".into(), reasoning.into());
        }
        if let Some(calls) = calls {
            let calls = calls.into_iter().enumerate().map(|(call, value)| tool_call(value, index, call));
            message.insert("tool_calls".into(), calls.collect::<Result<_, _>>()?);
        }
    } else if calls.is_some() {
        return Err(fields.error("tool_calls", "only an assistant message calls tools"));
    }
    Ok(Value::Object(message))
}

/// The text of a content, which is a string or an array of text parts.
fn text_of(content: Value, name: &str) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(ApiError::field(name, format!("must be a string or text parts, not {}", kind(&other)))),
    };
    let texts = parts.into_iter().enumerate().map(|(index, part)| {
        let mut part = Fields::nested(part, format!("{name}[{index}]"))?;
        match part.required_string("type")?.as_str() {
            "text" => part.required_string("text"),
            "refusal" => part.required_string("refusal"),
            "image_url" | "input_image" | "image" | "input_audio" | "audio_url" | "video_url" | "file" => {
                Err(ApiError::unsupported(part.name("type"), "this model reads text only"))
            }
            _ => Err(part.error("type", "must be text")),
        }
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// A tool call of an earlier turn. Its arguments come as JSON text and go to the template as an object.
fn tool_call(value: Value, message: usize, index: usize) -> Result<Value, ApiError> {
    let path = format!("messages[{message}].tool_calls[{index}]");
    let mut call = Fields::nested(value, path.as_str())?;
    let id = call.string("id")?.unwrap_or_default();
    if call.string("type")?.is_some_and(|kind| kind != "function") {
        return Err(call.error("type", "must be function"));
    }
    let function = call.take("function").ok_or_else(|| call.error("function", "is required"))?;
    let mut function = Fields::nested(function, format!("{path}.function"))?;
    let name = function.required_string("name")?;
    let arguments = match function.take("arguments") {
        None => json!({}),
        Some(Value::String(text)) if text.trim().is_empty() => json!({}),
        // A model may have written something that is no object. The template decides whether text will do.
        Some(Value::String(text)) => match serde_json::from_str(&text) {
            Ok(object @ Value::Object(_)) => object,
            _ => Value::String(text),
        },
        Some(object @ Value::Object(_)) => object,
        Some(other) => {
            return Err(function.error("arguments", format!("must be a string of JSON, not {}", kind(&other))));
        }
    };
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalise(messages_json: &str) -> Result<Vec<Value>, ApiError> {
        messages(&mut Fields::parse(format!("{{\"messages\": {messages_json}}}").as_bytes()).unwrap())
    }

    fn problem(messages_json: &str) -> String {
        let error = normalise(messages_json).unwrap_err();
        serde_json::to_value(error.body()).unwrap()["error"]["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn what_clients_send_becomes_what_templates_read() {
        let messages = normalise(
            r#"[
                {"role": "developer", "content": "be brief", "cache_control": {"type": "ephemeral"}},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": null, "reasoning": "hm", "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": [2]}"}},
                    {"id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}},
                    {"id": "c3", "type": "function", "function": {"name": "h", "arguments": "not json"}}]},
                {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "4"},
                {"role": "assistant", "content": "", "tool_calls": []}
            ]"#,
        );
        insta::assert_json_snapshot!(messages.unwrap());
    }

    #[test]
    fn errors_name_the_place() {
        let problems = [
            "[]",
            "{}",
            "[3]",
            "[{\"content\": \"a\"}]",
            "[{\"role\": \"wizard\", \"content\": \"a\"}]",
            "[{\"role\": \"function\", \"content\": \"a\"}]",
            "[{\"role\": \"user\"}]",
            "[{\"role\": \"user\", \"content\": 4}]",
            "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": {\"url\": \"http://10.0.0.1\"}}]}]",
            "[{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]",
            "[{\"role\": \"user\", \"content\": \"a\", \"tool_calls\": [{}]}]",
            "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"arguments\": \"{}\"}}]}]",
            "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": 3}}]}]",
            "[{\"role\": \"assistant\", \"tool_calls\": [{\"type\": \"custom\", \"function\": {\"name\": \"f\"}}]}]",
        ];
        insta::assert_snapshot!(problems.map(problem).join("\n"));
    }
}
