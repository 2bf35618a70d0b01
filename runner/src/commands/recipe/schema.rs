//! `atlas recipe schema`.

use crate::errors::CliError;
use crate::output::{GlobalArgs, print_json, write_stdout};
use atlas_schemas::json_schemas;
use atlas_schemas::serve_options::{self, OPTIONS, Status};
use atlas_schemas::suggest;
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Print the JSON Schema of recipes, or of another file or output of Atlas.
#[derive(Debug, Args)]
pub(crate) struct SchemaArgs {
    /// Which schema.
    #[arg(default_value = "recipe")]
    name: String,
    /// List the serve options with their values, defaults and meaning instead (Markdown, or JSON with `--json`).
    #[arg(long, conflicts_with_all = ["names", "all"])]
    options: bool,
    /// List the names of all schemas instead.
    #[arg(long, conflicts_with = "all")]
    names: bool,
    /// Write all schemas into a folder.
    #[arg(long, value_name = "DIR")]
    all: Option<PathBuf>,
}

impl SchemaArgs {
    /// Prints or writes.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        if let Some(folder) = &self.all {
            return write_all(folder);
        }
        if self.options {
            if global.json {
                print_json(&options_json());
            } else {
                write_stdout(&serve_options::markdown());
            }
            return Ok(());
        }
        let names: Vec<&str> = json_schemas::all().into_iter().map(|(name, _)| name).collect();
        if self.names {
            if global.json {
                print_json(&names);
            } else {
                write_stdout(&(names.join("\n") + "\n"));
            }
            return Ok(());
        }
        let Some(text) = json_schemas::text(&self.name) else {
            let hint = suggest::hint(&self.name, names.iter().copied());
            return Err(CliError::Usage(format!("no schema `{}`{hint}; there are {}", self.name, names.join(", "))));
        };
        write_stdout(&text);
        Ok(())
    }
}

fn write_all(folder: &Path) -> Result<(), CliError> {
    let failed = |path: &Path, error: std::io::Error| CliError::Failed(format!("{}: {error}", path.display()));
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    for (name, schema) in json_schemas::all() {
        let path = folder.join(format!("{name}.schema.json"));
        std::fs::write(&path, json_schemas::pretty(&schema)).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

fn options_json() -> Value {
    let options = OPTIONS.iter().map(|spec| {
        let no_effect = match spec.status {
            Status::Effective => Value::Null,
            Status::Accepted { why } => why.into(),
        };
        json!({
            "key": spec.key,
            "flag": spec.flag(),
            "aliases": spec.aliases,
            "group": spec.group,
            "values": spec.values(),
            "default": spec.default_value(),
            "description": spec.doc(),
            "no_effect": no_effect,
            "schema": serve_options::property_schema(spec),
        })
    });
    Value::Array(options.collect())
}
