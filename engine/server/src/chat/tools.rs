//! The tools that a chat may call.

use crate::error::ApiError;
use crate::fields::{Fields, kind};
use serde_json::Value;

/// The most tools of one request, and the longest name.
const MAX_TOOLS: usize = 512;
const MAX_NAME: usize = 64;

/// What a request says about tools.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// As the client sent them; empty when none may be called.
    pub(crate) list: Vec<Value>,
    /// Whether one answer may hold several calls.
    pub(crate) parallel: bool,
}

/// Takes `tools`, `tool_choice` and `parallel_tool_calls` out.
pub(crate) fn tools(fields: &mut Fields) -> Result<Tools, ApiError> {
    let list = fields.array("tools")?.unwrap_or_default();
    if list.len() > MAX_TOOLS {
        return Err(fields.error("tools", format!("may hold {MAX_TOOLS} tools, not {}", list.len())));
    }
    for (index, tool) in list.iter().enumerate() {
        check(tool, index)?;
    }
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    let allowed = choice(fields)?;
    Ok(Tools { list: if allowed { list } else { Vec::new() }, parallel })
}

/// Whether tools may be called. That one must be called cannot be promised without a grammar.
fn choice(fields: &mut Fields) -> Result<bool, ApiError> {
    let problem = "a required or named tool call is not supported yet; use auto or none";
    match fields.take("tool_choice") {
        None => Ok(true),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => Ok(true),
            "none" => Ok(false),
            "required" | "any" => Err(ApiError::unsupported("tool_choice", problem)),
            _ => Err(fields.error("tool_choice", "must be auto or none")),
        },
        Some(Value::Object(_)) => Err(ApiError::unsupported("tool_choice", problem)),
        Some(other) => Err(fields.error("tool_choice", format!("must be auto or none, not {}", kind(&other)))),
    }
}

fn check(tool: &Value, index: usize) -> Result<(), ApiError> {
    let mut tool = Fields::nested(tool.clone(), format!("tools[{index}]"))?;
    match tool.required_string("type")?.as_str() {
        "function" => {}
        "custom" => return Err(ApiError::unsupported(tool.name("type"), "only function tools are supported")),
        _ => return Err(tool.error("type", "must be function")),
    }
    let function = tool.take("function").ok_or_else(|| tool.error("function", "is required"))?;
    let mut function = Fields::nested(function, tool.name("function"))?;
    let name = function.required_string("name")?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(plain) {
        return Err(function.error("name", format!("must have 1 to {MAX_NAME} letters, digits, `_`, `-` or `.`")));
    }
    function.string("description")?;
    function.object("parameters")?;
    if function.boolean("strict")?.unwrap_or(false) {
        let problem = "arguments cannot be bound to the schema yet; leave `strict` out";
        return Err(ApiError::unsupported(function.name("strict"), problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Tools, ApiError> {
        tools(&mut Fields::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn tools_are_kept_as_sent() {
        let tool = r#"{"type": "function", "function": {"parameters": {"z": 1, "a": 2}, "name": "get_weather"}}"#;
        let body = format!("{{\"tools\": [{tool}], \"parallel_tool_calls\": false}}");
        let tools = read(&body).unwrap();
        assert!(!tools.parallel);
        assert_eq!(tools.list[0].to_string(), tool.replace(": ", ":").replace(", ", ","));
        let none = read(&format!("{{\"tools\": [{tool}], \"tool_choice\": \"none\"}}")).unwrap();
        assert!(none.list.is_empty() && none.parallel);
    }

    #[test]
    fn errors_name_the_place() {
        let problems = [
            r#"{"tools": {}}"#,
            r#"{"tools": [1]}"#,
            r#"{"tools": [{"type": "retrieval"}]}"#,
            r#"{"tools": [{"type": "custom", "custom": {"name": "x"}}]}"#,
            r#"{"tools": [{"type": "function"}]}"#,
            r#"{"tools": [{"type": "function", "function": {"name": "a b"}}]}"#,
            r#"{"tools": [{"type": "function", "function": {"name": ""}}]}"#,
            r#"{"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]}"#,
            r#"{"tools": [{"type": "function", "function": {"name": "f", "strict": true}}]}"#,
            r#"{"tool_choice": "required"}"#,
            r#"{"tool_choice": {"type": "function", "function": {"name": "f"}}}"#,
            r#"{"tool_choice": "sometimes"}"#,
            r#"{"tool_choice": 3}"#,
            r#"{"parallel_tool_calls": "no"}"#,
        ];
        let problems = problems.map(|body| {
            let error = read(body).unwrap_err();
            serde_json::to_value(error.body()).unwrap()["error"]["message"].as_str().unwrap().to_owned()
        });
        insta::assert_snapshot!(problems.join("\n"));
    }
}
