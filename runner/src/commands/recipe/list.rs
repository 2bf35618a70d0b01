//! `atlas recipe list`.

use crate::errors::CliError;
use crate::output::{GlobalArgs, print_json, write_stdout};
use crate::recipe::builtin::BUILTIN;
use crate::recipe::{plain, validate_bytes, validate_file};
use atlas_schemas::outputs::{RecipeList, RecipeListEntry};
use atlas_schemas::recipe::{Parsed, Strictness};
use clap::Args;
use comfy_table::Table;
use std::path::{Path, PathBuf};

/// List the recipes in this binary, and those in folders that are named.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Folders of recipes, searched with their subfolders.
    folders: Vec<PathBuf>,
}

/// Deepest folder that is searched.
const MAX_DEPTH: usize = 8;
/// Most files that are looked at.
const MAX_FILES: usize = 10_000;

impl ListArgs {
    /// Prints every recipe; a broken one is listed as broken and changes nothing else.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let mut recipes: Vec<RecipeListEntry> = BUILTIN
            .iter()
            .map(|recipe| {
                let parsed = validate_bytes(recipe.path, recipe.text.as_bytes(), Strictness::Own);
                entry(format!("@atlas/{}", recipe.name), "@atlas".to_owned(), parsed)
            })
            .collect();
        for folder in &self.folders {
            let mut files = Vec::new();
            collect(folder, 0, &mut files)
                .map_err(|error| CliError::Failed(format!("{}: {error}", plain(&folder.display().to_string()))))?;
            files.sort();
            recipes.extend(files.iter().map(|path| {
                let name = path.display().to_string();
                entry(name.clone(), name, validate_file(path, Strictness::Detect))
            }));
        }
        if global.json {
            print_json(&RecipeList { recipes });
        } else {
            write_stdout(&text(&recipes));
        }
        Ok(())
    }
}

/// Recipe files in a folder; hidden folders and links to folders are left out, so no loop is possible.
fn collect(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for item in std::fs::read_dir(folder)? {
        let item = item?;
        let (path, kind) = (item.path(), item.file_type()?);
        let name = item.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') || files.len() >= MAX_FILES {
            continue;
        }
        if kind.is_dir() && depth < MAX_DEPTH {
            collect(&path, depth + 1, files)?;
        } else if kind.is_file() && (name.ends_with(".yaml") || name.ends_with(".yml")) && !name.ends_with(".lock.yaml")
        {
            files.push(path);
        }
    }
    Ok(())
}

fn entry(name: String, origin: String, parsed: Parsed) -> RecipeListEntry {
    let errors = parsed.diagnostics.iter().filter(|diagnostic| diagnostic.is_error());
    let errors = errors.map(|error| match error.line {
        0 => error.message.clone(),
        line => format!("line {line}: {}", error.message),
    });
    let errors = errors.collect();
    let recipe = parsed.recipe.as_ref();
    RecipeListEntry {
        name,
        origin,
        model: recipe.map(|recipe| recipe.model.clone()),
        description: recipe.and_then(|recipe| recipe.metadata.description.clone()),
        params: recipe.and_then(|recipe| recipe.metadata.model_params.clone()),
        nodes: recipe.map(|recipe| recipe.min_nodes),
        hash: recipe.map(|recipe| recipe.hash()),
        errors,
    }
}

fn text(recipes: &[RecipeListEntry]) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["RECIPE", "MODEL", "PARAMS", "NODES"]);
    for recipe in recipes {
        let nodes = recipe.nodes.map(|nodes| nodes.to_string()).unwrap_or_default();
        let model = recipe.model.as_deref().map_or_else(|| "(broken)".to_owned(), plain);
        table.add_row([plain(&recipe.name), model, recipe.params.clone().unwrap_or_default(), nodes]);
    }
    let mut text: String = table.to_string().lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    for recipe in recipes.iter().filter(|recipe| !recipe.errors.is_empty()) {
        text += &format!("\n{} is broken:\n", plain(&recipe.name));
        text.extend(recipe.errors.iter().map(|error| format!("  {}\n", plain(error))));
    }
    text
}
