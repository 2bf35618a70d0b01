//! `atlas recipe new`.

use crate::errors::CliError;
use crate::output::{GlobalArgs, print_json, write_stdout};
use crate::recipe::{Override, plain, validate_bytes};
use atlas_schemas::recipe::{EMBEDDED_MODEL, RECIPE_VERSION, SCHEMA_URL, Strictness};
use atlas_schemas::serve_options::OptionSet;
use atlas_schemas::yaml::render;
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{BufRead, IsTerminal, Write as _};
use std::path::PathBuf;

/// Write a recipe. Asks for what is missing on a terminal; elsewhere the flags must say it.
#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    /// Name of the recipe; also the file's name.
    name: Option<String>,
    /// The model: a hub id (`owner/name`), a folder, or `embedded`.
    #[arg(long)]
    model: Option<String>,
    /// Hub revision: a commit, tag or branch.
    #[arg(long)]
    revision: Option<String>,
    /// What the recipe is for, in a sentence.
    #[arg(long)]
    description: Option<String>,
    /// Hosts that are needed at least.
    #[arg(long, value_name = "N")]
    min_nodes: Option<u32>,
    /// Set an option.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Where to write; `-` is standard output. By default NAME.yaml in this folder.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it is there.
    #[arg(long)]
    force: bool,
}

impl NewArgs {
    /// Writes the file, after it was read back as a valid recipe.
    pub(crate) fn run(mut self, global: &GlobalArgs) -> Result<(), CliError> {
        self.interview()?;
        let Some(name) = self.name.take() else { return Err(missing("the recipe's NAME")) };
        let Some(model) = self.model.take() else { return Err(missing("--model")) };
        check_name(&name)?;
        let text = self.text(&model)?;
        let file = self.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.yaml")));
        let shown = file.display().to_string();
        let parsed = validate_bytes(&shown, text.as_bytes(), Strictness::Own);
        let Some(recipe) = parsed.recipe else {
            let problems: Vec<String> = parsed.diagnostics.iter().map(render).collect();
            let problems = plain(problems.join("\n").trim_end());
            return Err(CliError::Usage(format!("this would not be a valid recipe\n{problems}")));
        };
        if shown == "-" {
            write_stdout(&text);
            return Ok(());
        }
        self.write(&file, &text)?;
        if global.json {
            print_json(&json!({ "file": shown, "name": name, "hash": recipe.hash() }));
        } else {
            write_stdout(&format!("wrote {}; run it with `atlas run {0}`\n", plain(&shown)));
        }
        Ok(())
    }

    /// Asks on a terminal for what the flags left out.
    fn interview(&mut self) -> Result<(), CliError> {
        if self.name.is_some() && self.model.is_some() || !std::io::stdin().is_terminal() {
            return Ok(());
        }
        if self.model.is_none() {
            self.model = Some(ask("Model (hub id `owner/name`, a folder, or `embedded`)", Some(EMBEDDED_MODEL))?);
        }
        if self.name.is_none() {
            let stem = self.model.as_deref().and_then(|model| model.rsplit('/').next()).unwrap_or("recipe");
            self.name = Some(ask("Name of the recipe", Some(&stem.to_lowercase()))?);
        }
        if self.description.is_none() {
            self.description = Some(ask("What is it for, in a sentence", None)?).filter(|text| !text.is_empty());
        }
        if self.sets.is_empty() {
            let context = ask("Context length in tokens (empty: the model's own)", None)?;
            self.sets.extend((!context.is_empty()).then(|| format!("max_seq_len={context}")));
            let streams = ask("Requests at once (empty: the default)", None)?;
            self.sets.extend((!streams.is_empty()).then(|| format!("max_num_seqs={streams}")));
        }
        Ok(())
    }

    fn text(&self, model: &str) -> Result<String, CliError> {
        let overrides = self.sets.iter().map(|text| Override::parse(text)).collect::<Result<Vec<_>, _>>()?;
        let mut options = OptionSet::default();
        for over in &overrides {
            over.apply(&mut options)?;
        }
        let mut text = format!("# yaml-language-server: $schema={SCHEMA_URL}\n");
        // A string in JSON's notation is the same string in YAML's.
        let mut line = |key: &str, value: Value| {
            let _ = writeln!(text, "{key}: {value}");
        };
        line("recipe_version", RECIPE_VERSION.into());
        line("model", model.into());
        if let Some(revision) = &self.revision {
            line("model_revision", revision.as_str().into());
        }
        line("runtime", "atlas".into());
        if let Some(nodes) = self.min_nodes {
            line("min_nodes", nodes.into());
        }
        if let Some(description) = &self.description {
            let _ = writeln!(text, "\nmetadata:\n  description: {}", Value::from(description.as_str()));
        }
        if !options.is_empty() {
            text.push_str("\ndefaults:\n");
        }
        for (spec, value) in options.iter().filter(|(spec, _)| !spec.is_secret()) {
            let _ = writeln!(text, "  {}: {value}", spec.key);
        }
        if options.iter().any(|(spec, _)| spec.is_secret()) {
            return Err(CliError::Usage("a recipe holds no secrets; use `api_key_file`".to_owned()));
        }
        Ok(text)
    }

    /// Writes a whole file or none.
    fn write(&self, file: &std::path::Path, text: &str) -> Result<(), CliError> {
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => CliError::Failed(format!(
                "{} is there already; `--force` replaces it",
                plain(&file.display().to_string())
            )),
            _ => CliError::Failed(format!("{}: {error}", plain(&file.display().to_string()))),
        };
        if !self.force {
            let mut created = OpenOptions::new().write(true).create_new(true).open(file).map_err(failed)?;
            return created.write_all(text.as_bytes()).map_err(failed);
        }
        let mut beside = file.as_os_str().to_owned();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, file)).map_err(|error| {
            let _ = std::fs::remove_file(&beside);
            failed(error)
        })
    }
}

fn missing(what: &str) -> CliError {
    CliError::Usage(format!("{what} is missing, and there is no terminal to ask on"))
}

fn check_name(name: &str) -> Result<(), CliError> {
    let valid = !name.is_empty()
        && name.len() <= 96
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if valid {
        return Ok(());
    }
    let name = plain(name);
    Err(CliError::Usage(format!("`{name}` is not a recipe's name: letters, digits, `.`, `_` and `-`")))
}

fn ask(question: &str, default: Option<&str>) -> Result<String, CliError> {
    let failed = |error: std::io::Error| CliError::Failed(error.to_string());
    let mut stderr = std::io::stderr().lock();
    match default {
        Some(default) => write!(stderr, "{question} [{}]: ", plain(default)),
        None => write!(stderr, "{question}: "),
    }
    .and_then(|()| stderr.flush())
    .map_err(failed)?;
    let mut answer = String::new();
    if std::io::stdin().lock().read_line(&mut answer).map_err(failed)? == 0 {
        return Err(CliError::Interrupted);
    }
    let answer = answer.trim();
    Ok(if answer.is_empty() { default.unwrap_or_default().to_owned() } else { answer.to_owned() })
}
