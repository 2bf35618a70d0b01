//! The committed JSON Schemas are the generated ones.

use atlas_schemas::json_schemas;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("json")
}

#[test]
fn committed_schemas_are_current() {
    let schemas = json_schemas::all();
    let committed: BTreeSet<String> =
        fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let expected: BTreeSet<String> = schemas.iter().map(|(name, _)| format!("{name}.schema.json")).collect();
    assert_eq!(committed, expected, "run `atlas recipe schema --all schemas/json`");
    for (name, schema) in schemas {
        let text = fs::read_to_string(folder().join(format!("{name}.schema.json"))).unwrap();
        assert!(
            text == json_schemas::pretty(&schema),
            "{name}.schema.json is not current; run `atlas recipe schema --all schemas/json`"
        );
    }
}

#[test]
fn the_recipe_schema_is_closed_and_documented() {
    let schemas = json_schemas::all();
    let recipe = &schemas.iter().find(|(name, _)| *name == "recipe").unwrap().1;
    assert_eq!(recipe["additionalProperties"], false);
    assert_eq!(recipe["required"], serde_json::json!(["recipe_version", "model", "runtime"]));
    let text = recipe.to_string();
    for key in ["max_model_len", "kv_cache_dtype", "gates", "Context length in tokens"] {
        assert!(text.contains(key), "{key}");
    }
}

#[test]
fn the_committed_list_of_options_is_current() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("OPTIONS.md");
    let text = fs::read_to_string(path).unwrap();
    let command = "atlas recipe schema --options > schemas/OPTIONS.md";
    assert!(text == atlas_schemas::serve_options::markdown(), "OPTIONS.md is not current; run `{command}`");
}
