//! `atlas recipe show`.

use crate::errors::CliError;
use crate::output::{GlobalArgs, print_json, write_stdout};
use crate::recipe::{EffectiveOptions, Override, ResolvedRecipe, plain, resolve};
use atlas_schemas::outputs::RecipeReport;
use atlas_schemas::provenance::EffectiveOption;
use atlas_schemas::serve_options;
use clap::Args;
use std::fmt::Write;

/// Show a recipe with its effective options and where each comes from.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The recipe: `@atlas/NAME`, or a file.
    recipe: String,
    /// Set an option, over the recipe's value.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Options that have their default too.
    #[arg(long)]
    all: bool,
}

impl ShowArgs {
    /// Prints the recipe.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let overrides = self.sets.iter().map(|text| Override::parse(text)).collect::<Result<Vec<_>, _>>()?;
        let resolved = resolve(&self.recipe)?;
        let effective = resolved.effective(&overrides)?;
        if global.json {
            print_json(&report(&resolved, effective)?);
        } else {
            write_stdout(&text(&resolved, &effective, self.all));
        }
        Ok(())
    }
}

fn report(resolved: &ResolvedRecipe, effective: EffectiveOptions) -> Result<RecipeReport, CliError> {
    let recipe = serde_json::to_value(&resolved.recipe).map_err(|error| CliError::Failed(error.to_string()))?;
    Ok(RecipeReport {
        name: resolved.reference.clone(),
        origin: resolved.origin.to_string(),
        hash: effective.hash,
        recipe,
        options: effective.provenance,
        diagnostics: resolved.warnings.clone(),
        notes: effective.notes,
        refusals: effective.refusals,
    })
}

fn text(resolved: &ResolvedRecipe, effective: &EffectiveOptions, all: bool) -> String {
    let recipe = &resolved.recipe;
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<12}{}", plain(value.trim()).replace('\n', "\n            "));
    };
    line("recipe", &resolved.reference);
    line("from", &resolved.origin.to_string());
    line("hash", &effective.hash);
    line("model", &recipe.model);
    if let Some(revision) = &recipe.model_revision {
        line("revision", revision);
    }
    let nodes = match recipe.max_nodes {
        Some(max) if max != recipe.min_nodes => format!("{} to {max}", recipe.min_nodes),
        _ => recipe.min_nodes.to_string(),
    };
    line("nodes", &nodes);
    if let Some(description) = &recipe.metadata.description {
        line("about", description);
    }
    for (name, value) in &recipe.env {
        line("env", &format!("{name}={value}"));
    }
    if let Some(gates) = &recipe.gates {
        let classes: Vec<&str> = gates.classes.iter().map(|class| class.as_str()).collect();
        line("gates", &format!("{} on {}", gates.suites.join(", "), classes.join(", ")));
    }
    let warnings = resolved.warnings.iter().map(|warning| format!("line {}: {}", warning.line, warning.message));
    for warning in warnings.chain(effective.notes.iter().cloned()) {
        line("warning", &warning);
    }
    for refusal in &effective.refusals {
        line("cannot run", refusal);
    }
    text.push_str("options\n");
    let shown = |option: &&EffectiveOption| all || effective.set.contains(&option.key);
    for option in effective.provenance.iter().filter(shown) {
        text.push_str(&option_line(option));
    }
    text
}

fn option_line(option: &EffectiveOption) -> String {
    let value = match serve_options::find(&option.key) {
        _ if option.value.is_null() => "auto".to_owned(),
        Some(spec) => spec.show(&option.value),
        None => option.value.to_string(),
    };
    let note = option.no_effect.as_ref().map(|why| format!("  (no effect: {why})")).unwrap_or_default();
    format!("  {:<28} {:<24} {}{note}\n", option.key, plain(&value), option.source)
}
