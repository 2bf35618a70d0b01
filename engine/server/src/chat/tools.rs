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
    /// Their names and schemas, in the same order; those only that may be called.
    pub(crate) callable: Vec<Callable>,
    /// Whether some of the listed tools may not be called.
    pub(crate) restricted: bool,
    /// Whether there must be a call.
    pub(crate) required: bool,
    /// Whether one answer may hold several calls.
    pub(crate) parallel: bool,
}

/// A tool that may be called.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Callable {
    pub(crate) name: String,
    /// The schema of its arguments, if it has one.
    pub(crate) parameters: Option<Value>,
    pub(crate) strict: bool,
}

/// Takes `tools`, `tool_choice` and `parallel_tool_calls` out.
pub(crate) fn tools(fields: &mut Fields) -> Result<Tools, ApiError> {
    let list = fields.array("tools")?.unwrap_or_default();
    if list.len() > MAX_TOOLS {
        return Err(fields.error("tools", format!("may hold {MAX_TOOLS} tools, not {}", list.len())));
    }
    let mut callable =
        list.iter().enumerate().map(|(index, tool)| check(tool, index)).collect::<Result<Vec<_>, _>>()?;
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    let Choice { mode, only, named } = choice(fields)?;
    if mode == Mode::None {
        return Ok(Tools { parallel, ..Tools::default() });
    }
    if let Some(only) = &only {
        if let Some(unknown) = only.iter().find(|name| !callable.iter().any(|tool| tool.name == **name)) {
            let problem = format!("`{}` is not among `tools`", crate::error::shorten(unknown));
            return Err(fields.error("tool_choice", problem));
        }
        callable.retain(|tool| only.contains(&tool.name));
    }
    let required = mode == Mode::Required;
    if required && callable.is_empty() {
        return Err(fields.error("tool_choice", "a call is required, but `tools` holds none"));
    }
    let restricted = callable.len() < list.len();
    Ok(Tools { list, callable, restricted, required, parallel: parallel && !named })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    None,
    Auto,
    Required,
}

struct Choice {
    mode: Mode,
    /// The tools that may be called, if not all.
    only: Option<Vec<String>>,
    /// One function was named: it is called once.
    named: bool,
}

/// `tool_choice`, which is `auto` when it is left out.
fn choice(fields: &mut Fields) -> Result<Choice, ApiError> {
    let mode = |text: &str| match text {
        "none" => Some(Mode::None),
        "auto" => Some(Mode::Auto),
        "required" | "any" => Some(Mode::Required),
        _ => None,
    };
    let wanted = "must be auto, none, required or a function to call";
    match fields.take("tool_choice") {
        None => Ok(Choice { mode: Mode::Auto, only: None, named: false }),
        Some(Value::String(text)) => match mode(&text) {
            Some(mode) => Ok(Choice { mode, only: None, named: false }),
            None => Err(fields.error("tool_choice", wanted)),
        },
        Some(object @ Value::Object(_)) => {
            let mut choice = Fields::nested(object, "tool_choice")?;
            match choice.required_string("type")?.as_str() {
                "function" => {
                    let name = function_name(&mut choice)?;
                    Ok(Choice { mode: Mode::Required, only: Some(vec![name]), named: true })
                }
                "allowed_tools" => allowed_tools(choice),
                _ => Err(choice.error("type", "must be function or allowed_tools")),
            }
        }
        Some(other) => Err(fields.error("tool_choice", format!("{wanted}, not {}", kind(&other)))),
    }
}

/// `{"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}`.
fn allowed_tools(mut choice: Fields) -> Result<Choice, ApiError> {
    let name = choice.name("allowed_tools");
    let allowed = choice.take("allowed_tools").ok_or_else(|| choice.error("allowed_tools", "is required"))?;
    let mut allowed = Fields::nested(allowed, name)?;
    let mode = match allowed.required_string("mode")?.as_str() {
        "auto" => Mode::Auto,
        "required" => Mode::Required,
        _ => return Err(allowed.error("mode", "must be auto or required")),
    };
    let tools = allowed.array("tools")?.filter(|tools| !tools.is_empty());
    let tools = tools.ok_or_else(|| allowed.error("tools", "at least one tool is required"))?;
    let path = allowed.name("tools");
    let named = tools
        .into_iter()
        .enumerate()
        .map(|(index, tool)| function_name(&mut Fields::nested(tool, format!("{path}[{index}]"))?));
    Ok(Choice { mode, only: Some(named.collect::<Result<_, _>>()?), named: false })
}

/// `function.name`.
fn function_name(fields: &mut Fields) -> Result<String, ApiError> {
    let function = fields.take("function").ok_or_else(|| fields.error("function", "is required"))?;
    Fields::nested(function, fields.name("function"))?.required_string("name")
}

fn check(tool: &Value, index: usize) -> Result<Callable, ApiError> {
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
    let parameters = function.object("parameters")?.map(Value::Object);
    let strict = function.boolean("strict")?.unwrap_or(false);
    Ok(Callable { name, parameters, strict })
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
        assert!(none.list.is_empty() && none.callable.is_empty() && none.parallel && !none.required);
    }

    #[test]
    fn choices_say_what_may_and_what_must_be_called() {
        let tools = r#""tools": [{"type": "function", "function": {"name": "a", "strict": true, "parameters": {"x": 1}}},
            {"type": "function", "function": {"name": "b"}}]"#;
        let read = |choice: &str| {
            let tools = read(&format!("{{{tools}, \"tool_choice\": {choice}}}")).unwrap();
            assert_eq!(tools.list.len(), 2, "the prompt is the same whatever may be called");
            let names: Vec<String> = tools.callable.iter().map(|tool| tool.name.clone()).collect();
            (names.concat(), tools.restricted, tools.required, tools.parallel)
        };
        assert_eq!(read(r#""auto""#), ("ab".into(), false, false, true));
        assert_eq!(read(r#""required""#), ("ab".into(), false, true, true));
        assert_eq!(read(r#""any""#), ("ab".into(), false, true, true));
        assert_eq!(read(r#"{"type": "function", "function": {"name": "b"}}"#), ("b".into(), true, true, false));
        let allowed = |mode: &str| {
            format!(
                r#"{{"type": "allowed_tools", "allowed_tools": {{"mode": "{mode}", "tools": [
                {{"type": "function", "function": {{"name": "a"}}}}]}}}}"#
            )
        };
        assert_eq!(read(&allowed("auto")), ("a".into(), true, false, true));
        assert_eq!(read(&allowed("required")), ("a".into(), true, true, true));
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
            r#"{"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}"#,
            r#"{"tool_choice": "required"}"#,
            r#"{"tool_choice": {"type": "function"}}"#,
            r#"{"tool_choice": {"type": "custom"}}"#,
            r#"{"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": []}}}"#,
            r#"{"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}"#,
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
