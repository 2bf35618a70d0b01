//! What a request holds its content to: `response_format`, and the fields of vLLM, SGLang and llama.cpp that ask for
//! the same.

use crate::error::ApiError;
use crate::fields::{Fields, kind};
use atlas_engine::sampling::grammar::Grammar;
use serde_json::{Value, json};

/// A grammar and the field that asked for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bound {
    pub(crate) field: String,
    pub(crate) grammar: Grammar,
}

/// Takes everything out that can bind the content. At most one of the fields may.
pub(crate) fn bound(fields: &mut Fields) -> Result<Option<Bound>, ApiError> {
    let mut found = response_format(fields)?;
    let mut add = |new: Option<Bound>| -> Result<(), ApiError> {
        match (&found, new) {
            (Some(first), Some(second)) => {
                Err(ApiError::field(second.field, format!("cannot be used together with {}", first.field)))
            }
            (None, Some(new)) => {
                found = Some(new);
                Ok(())
            }
            (_, None) => Ok(()),
        }
    };
    add(structured_outputs(fields)?)?;
    for (field, read) in TOP_LEVEL {
        if let Some(value) = fields.take(field) {
            let name = fields.name(field);
            add(Some(Bound { grammar: read(value, &name)?, field: name }))?;
        }
    }
    Ok(found)
}

type Read = fn(Value, &str) -> Result<Grammar, ApiError>;

/// Fields that hold a grammar themselves: vLLM's older ones, SGLang's and llama.cpp's.
const TOP_LEVEL: [(&str, Read); 7] = [
    ("guided_json", json_schema),
    ("guided_regex", regex),
    ("guided_choice", choice),
    ("guided_grammar", lark),
    ("json_schema", json_schema),
    ("regex", regex),
    ("grammar", lark),
];

fn response_format(fields: &mut Fields) -> Result<Option<Bound>, ApiError> {
    const FIELD: &str = "response_format";
    let Some(format) = fields.take(FIELD) else { return Ok(None) };
    let mut format = Fields::nested(format, FIELD)?;
    let (field, grammar) = match format.required_string("type")?.as_str() {
        "text" => return Ok(None),
        "json_object" => {
            let schema = format.take("schema").unwrap_or_else(|| json!({ "type": "object" }));
            (FIELD.to_owned(), json_schema(schema, &format.name("schema"))?)
        }
        "json_schema" => {
            let inner = format.take("json_schema").ok_or_else(|| format.error("json_schema", "is required"))?;
            let mut inner = Fields::nested(inner, format.name("json_schema"))?;
            let strict = inner.boolean("strict")?.unwrap_or(false);
            let schema = inner.take("schema").ok_or_else(|| inner.error("schema", "is required"))?;
            let field = inner.name("schema");
            let Grammar::JsonSchema { schema, .. } = json_schema(schema, &field)? else {
                return Err(ApiError::field(field, "is no schema"));
            };
            (field, Grammar::JsonSchema { schema, strict })
        }
        "regex" => (format.name("regex"), regex(format.take("regex").unwrap_or_default(), "response_format.regex")?),
        "grammar" => {
            if format.string("syntax")?.is_some_and(|syntax| syntax != "lark") {
                return Err(format.error("syntax", "only lark is supported"));
            }
            (format.name("grammar"), lark(format.take("grammar").unwrap_or_default(), "response_format.grammar")?)
        }
        "structural_tag" => {
            return Err(ApiError::unsupported(format.name("type"), "structural tags are not supported"));
        }
        _ => return Err(format.error("type", "must be text, json_object, json_schema, regex or grammar")),
    };
    Ok(Some(Bound { field, grammar }))
}

/// vLLM's `structured_outputs`.
fn structured_outputs(fields: &mut Fields) -> Result<Option<Bound>, ApiError> {
    const FIELD: &str = "structured_outputs";
    const KINDS: [(&str, Read); 4] = [("json", json_schema), ("regex", regex), ("choice", choice), ("grammar", lark)];
    let Some(outputs) = fields.take(FIELD) else { return Ok(None) };
    let mut outputs = Fields::nested(outputs, FIELD)?;
    let mut found: Vec<Bound> = Vec::new();
    for (key, read) in KINDS {
        if let Some(value) = outputs.take(key) {
            let field = outputs.name(key);
            found.push(Bound { grammar: read(value, &field)?, field });
        }
    }
    if outputs.boolean("json_object")?.unwrap_or(false) {
        let grammar = Grammar::JsonSchema { schema: json!({ "type": "object" }), strict: true };
        found.push(Bound { field: outputs.name("json_object"), grammar });
    }
    // JSON has no free white space here, and no grammar has a fallback.
    for key in ["disable_any_whitespace", "disable_fallback"] {
        outputs.boolean(key)?;
    }
    for key in ["structural_tag", "whitespace_pattern", "disable_additional_properties"] {
        if outputs.take(key).is_some_and(|value| value != Value::Bool(false)) {
            return Err(ApiError::unsupported(outputs.name(key), "is not supported"));
        }
    }
    match found.len() {
        1 => Ok(found.pop()),
        _ => Err(fields.error(FIELD, "must hold exactly one of json, regex, choice, grammar and json_object")),
    }
}

/// A schema, or its text. What cannot be enforced is an error.
fn json_schema(value: Value, name: &str) -> Result<Grammar, ApiError> {
    let schema = match value {
        Value::String(text) => {
            serde_json::from_str(&text).map_err(|error| ApiError::field(name, format!("is not JSON: {error}")))?
        }
        other => other,
    };
    match schema {
        Value::Object(_) | Value::Bool(true) => Ok(Grammar::JsonSchema { schema, strict: true }),
        other => Err(ApiError::field(name, format!("must be a JSON schema, not {}", kind(&other)))),
    }
}

fn regex(value: Value, name: &str) -> Result<Grammar, ApiError> {
    Ok(Grammar::Regex(text(value, name)?))
}

fn lark(value: Value, name: &str) -> Result<Grammar, ApiError> {
    let text = text(value, name)?;
    if text.contains("::=") {
        return Err(ApiError::field(name, "is in EBNF or GBNF; write it in Lark, with `:` and a rule `start`"));
    }
    Ok(Grammar::Lark(text))
}

fn text(value: Value, name: &str) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(ApiError::field(name, format!("must be a string, not {}", kind(&other)))),
    }
}

fn choice(value: Value, name: &str) -> Result<Grammar, ApiError> {
    let Value::Array(items) = value else {
        return Err(ApiError::field(name, format!("must be an array of strings, not {}", kind(&value))));
    };
    let texts = items.into_iter().enumerate().map(|(index, item)| text(item, &format!("{name}[{index}]")));
    Ok(Grammar::Choice(texts.collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Option<Bound>, ApiError> {
        bound(&mut Fields::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn every_spelling() {
        let schema = r#"{"type": "object", "title": "t"}"#;
        let of = |strict| Grammar::JsonSchema { schema: serde_json::from_str(schema).unwrap(), strict };
        let quoted = Value::from(schema).to_string();
        for (body, field, grammar) in [
            (
                format!(r#"{{"response_format": {{"type": "json_schema", "json_schema": {{"schema": {schema}}}}}}}"#),
                "response_format.json_schema.schema",
                of(false),
            ),
            (
                format!(
                    r#"{{"response_format": {{"type": "json_schema", "json_schema": {{"name": "x", "strict": true, "schema": {schema}}}}}}}"#
                ),
                "response_format.json_schema.schema",
                of(true),
            ),
            (
                format!(r#"{{"response_format": {{"type": "json_object", "schema": {schema}}}}}"#),
                "response_format",
                of(true),
            ),
            (format!(r#"{{"structured_outputs": {{"json": {schema}}}}}"#), "structured_outputs.json", of(true)),
            (format!(r#"{{"guided_json": {quoted}}}"#), "guided_json", of(true)),
            (format!(r#"{{"json_schema": {schema}}}"#), "json_schema", of(true)),
            (
                r#"{"response_format": {"type": "regex", "regex": "a+"}}"#.into(),
                "response_format.regex",
                Grammar::Regex("a+".into()),
            ),
            (
                r#"{"structured_outputs": {"regex": "a+"}}"#.into(),
                "structured_outputs.regex",
                Grammar::Regex("a+".into()),
            ),
            (r#"{"guided_regex": "a+"}"#.into(), "guided_regex", Grammar::Regex("a+".into())),
            (r#"{"regex": "a+"}"#.into(), "regex", Grammar::Regex("a+".into())),
            (r#"{"guided_choice": ["a", "b"]}"#.into(), "guided_choice", Grammar::Choice(vec!["a".into(), "b".into()])),
            (
                r#"{"response_format": {"type": "grammar", "syntax": "lark", "grammar": "start: \"a\""}}"#.into(),
                "response_format.grammar",
                Grammar::Lark("start: \"a\"".into()),
            ),
            (r#"{"grammar": "start: \"a\""}"#.into(), "grammar", Grammar::Lark("start: \"a\"".into())),
        ] {
            assert_eq!(read(&body).unwrap(), Some(Bound { field: field.into(), grammar }), "{body}");
        }
        let object = Grammar::JsonSchema { schema: json!({ "type": "object" }), strict: true };
        for body in
            [r#"{"response_format": {"type": "json_object"}}"#, r#"{"structured_outputs": {"json_object": true}}"#]
        {
            assert_eq!(read(body).unwrap().unwrap().grammar, object);
        }
        assert_eq!(read(r#"{"response_format": {"type": "text"}, "guided_json": null}"#).unwrap(), None);
    }

    #[test]
    fn errors_name_the_field() {
        let problems = [
            r#"{"response_format": "json"}"#,
            r#"{"response_format": {}}"#,
            r#"{"response_format": {"type": "xml"}}"#,
            r#"{"response_format": {"type": "structural_tag"}}"#,
            r#"{"response_format": {"type": "json_schema"}}"#,
            r#"{"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}"#,
            r#"{"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}"#,
            r#"{"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}}"#,
            r#"{"response_format": {"type": "regex"}}"#,
            r#"{"response_format": {"type": "grammar", "syntax": "regex", "grammar": "a"}}"#,
            r#"{"structured_outputs": {}}"#,
            r#"{"structured_outputs": {"regex": "a", "choice": ["b"]}}"#,
            r#"{"structured_outputs": {"json": {}, "whitespace_pattern": " *"}}"#,
            r#"{"guided_json": "{"}"#,
            r#"{"guided_choice": "a"}"#,
            r#"{"guided_choice": ["a", 3]}"#,
            r#"{"grammar": "root ::= \"a\""}"#,
            r#"{"regex": 3}"#,
            r#"{"response_format": {"type": "json_object"}, "regex": "a"}"#,
            r#"{"guided_regex": "a", "grammar": "start: \"a\""}"#,
        ];
        let problems = problems.map(|body| {
            let error = read(body).unwrap_err();
            serde_json::to_value(error.body()).unwrap()["error"]["message"].as_str().unwrap().to_owned()
        });
        insta::assert_snapshot!(problems.join("\n"));
    }
}
