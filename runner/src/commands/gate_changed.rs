//! `atlas gate check --changed REF`: what a pull request that touches recipes must prove.

use super::gate::{failed, judge, load_suites, measure, outcome};
use crate::errors::CliError;
use crate::interrupt::{Interrupt, block_on};
use crate::output::{GlobalArgs, print_json, write_stdout};
use crate::target::Target;
use atlas_gates::progress::Progress;
use atlas_gates::{baseline, changed, report};
use atlas_schemas::gate::{ChangedRecipe, GATE_VERSION, GateChangeReport, GateRecord, GateReport, Verdict};
use atlas_schemas::hardware::HardwareClass;
use atlas_schemas::recipe::{Recipe, RecipeGates, Strictness, parse};
use atlas_schemas::yaml::render;
use std::collections::BTreeSet;
use std::path::Path;

/// Judges every recipe that changed since `reference` in the repository around the working directory's `recipes`.
pub(super) fn check(reference: &str, global: &GlobalArgs) -> Result<(), CliError> {
    let files = changed::recipes(Path::new("."), reference).map_err(|error| CliError::Usage(error.to_string()))?;
    let progress = Progress::new(!global.quiet);
    let recipes = block_on(async {
        let interrupt = Interrupt::install()?;
        let mut recipes = Vec::new();
        for file in files {
            progress.line(&format!("checking {}", file.display()));
            recipes.push(check_recipe(&file, &interrupt, &progress).await?);
        }
        Ok(recipes)
    })?;
    let verdict = recipes.iter().map(|recipe| recipe.verdict).fold(Verdict::Pass, Verdict::max);
    let report = GateChangeReport { schema_version: GATE_VERSION, verdict, reference: reference.to_owned(), recipes };
    match global.json {
        true => print_json(&report),
        false => write_stdout(&markdown(&report)),
    }
    outcome(verdict)
}

async fn check_recipe(file: &Path, interrupt: &Interrupt, progress: &Progress) -> Result<ChangedRecipe, CliError> {
    let (mut problems, mut reports) = (Vec::new(), Vec::new());
    let shown = file.display().to_string();
    let bytes = std::fs::read(file).map_err(|error| CliError::Failed(format!("{shown}: {error}")))?;
    match parse(&shown, &bytes, Strictness::Own).into_result() {
        Err(diagnostics) => problems.extend(diagnostics.iter().map(render)),
        Ok((recipe, _)) => {
            let RecipeGates { suites, classes } =
                (recipe.gates.clone()).unwrap_or(RecipeGates { suites: Vec::new(), classes: Vec::new() });
            for class in classes {
                match prove(file, &recipe, class, &suites, interrupt, progress).await {
                    Ok(report) => reports.push(report),
                    Err(CliError::Interrupted) => return Err(CliError::Interrupted),
                    Err(error) => problems.push(format!("class {class}: {error}")),
                }
            }
        }
    }
    let of_problems = if problems.is_empty() { Verdict::Pass } else { Verdict::Fail };
    let verdict = reports.iter().map(|report| report.verdict).fold(of_problems, Verdict::max);
    Ok(ChangedRecipe { file: shown, verdict, problems, reports })
}

/// The judgement on one class: of a gate run here for `cpu`, else of the committed record.
async fn prove(
    file: &Path,
    recipe: &Recipe,
    class: HardwareClass,
    suites: &[String],
    interrupt: &Interrupt,
    progress: &Progress,
) -> Result<GateReport, CliError> {
    let target = Target::Recipe(file.display().to_string());
    let record = match class {
        HardwareClass::Cpu => {
            let suites = load_suites(suites)?;
            measure(&target, target.short_name(), class, &suites, interrupt, progress).await?
        }
        _ => committed_record(&target.short_name(), class, &recipe.hash())?,
    };
    let only: BTreeSet<String> = suites.iter().cloned().collect();
    judge(&record, None, Some(&only))
}

fn committed_record(name: &str, class: HardwareClass, recipe_hash: &str) -> Result<GateRecord, CliError> {
    let folder = Path::new(baseline::RECORDS);
    let record = changed::covering_record(folder, class, name, recipe_hash).map_err(failed)?.ok_or_else(|| {
        CliError::Failed(format!("no record below {}/{class} covers recipe hash {recipe_hash}", folder.display()))
    })?;
    if record.engine.git.as_ref().is_some_and(|git| git.dirty) {
        return Err(CliError::Failed("its record was measured on a work tree with uncommitted changes".to_owned()));
    }
    Ok(record)
}

fn markdown(report: &GateChangeReport) -> String {
    let mut text = format!("# Recipes changed since {}: {}\n\n", report.reference, report.verdict);
    if report.recipes.is_empty() {
        text += "No recipe was added or changed.\n";
    }
    for recipe in &report.recipes {
        text += &format!("## {}: {}\n\n", recipe.file, recipe.verdict);
        for problem in &recipe.problems {
            text += &format!("```\n{}\n```\n\n", problem.trim_end());
        }
        if recipe.problems.is_empty() && recipe.reports.is_empty() {
            text += "The recipe is valid; it names no gates.\n\n";
        }
        for judged in &recipe.reports {
            text += &report::markdown(judged, None).replacen("## ", "### ", 1);
            text.push('\n');
        }
    }
    text
}
