//! The JSON Schema of the options, from the table.

use super::{OPTIONS, OptionKind, OptionSpec, ServeOptions, Status};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

impl JsonSchema for ServeOptions {
    fn schema_name() -> Cow<'static, str> {
        "ServeOptions".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut properties = Map::new();
        for spec in OPTIONS {
            properties.insert(spec.key.to_owned(), property_schema(spec));
            for alias in spec.aliases {
                properties.insert((*alias).to_owned(), alias_schema(spec));
            }
        }
        let schema = json!({
            "type": "object",
            "description": "Serve options. Every key is also a flag of `atlas serve`, in kebab-case.",
            "properties": properties,
            "additionalProperties": false,
        });
        schema.try_into().unwrap_or_default()
    }
}

/// The schema of one option's value, with its description and default.
pub fn property_schema(spec: &OptionSpec) -> Value {
    let mut schema = value_schema(spec);
    let mut description = spec.doc();
    if let Status::Accepted { why } = spec.status {
        description = format!("{description} No effect in this build: {why}.");
    }
    schema.insert("description".to_owned(), description.into());
    let default = spec.default_value();
    if !default.is_null() {
        schema.insert("default".to_owned(), default);
    }
    Value::Object(schema)
}

fn alias_schema(spec: &OptionSpec) -> Value {
    let mut schema = value_schema(spec);
    schema.insert("description".to_owned(), format!("Another name of `{}`.", spec.key).into());
    Value::Object(schema)
}

fn value_schema(spec: &OptionSpec) -> Map<String, Value> {
    let schema = match spec.kind {
        OptionKind::Switch { tri_state: false } => json!({ "type": "boolean" }),
        OptionKind::Switch { tri_state: true } => json!({ "enum": [true, false, "auto", null] }),
        OptionKind::Integer { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        OptionKind::Number { min, max } => json!({ "type": "number", "minimum": min, "maximum": max }),
        OptionKind::Text | OptionKind::Path => json!({ "type": "string", "minLength": 1 }),
        OptionKind::Secret => json!({ "type": "string", "minLength": 1, "writeOnly": true }),
        OptionKind::Choice { names, bare: None, .. } => json!({ "type": "string", "enum": names }),
        OptionKind::Choice { names, bare: Some(_), .. } => {
            let values: Vec<Value> =
                names.iter().map(|name| Value::from(*name)).chain([true.into(), false.into()]).collect();
            json!({ "enum": values })
        }
        OptionKind::Pattern { regex, .. } => json!({ "type": ["string", "integer"], "pattern": regex }),
        // Published recipes write the mapping as a JSON text.
        OptionKind::Object => json!({ "type": ["object", "string"] }),
    };
    match schema {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
