//! `atlas recipe validate`.

use crate::errors::CliError;
use crate::output::{GlobalArgs, print_json, write_stdout};
use crate::recipe::builtin;
use crate::recipe::{plain, validate_bytes, validate_file};
use atlas_schemas::outputs::{FileReport, ValidationReport};
use atlas_schemas::recipe::{Parsed, Strictness};
use atlas_schemas::yaml::{Diagnostic, Span, render, render_github};
use clap::{Args, ValueEnum};
use std::path::Path;

/// Check recipe files: every error and warning with its place. Exits 1 if any file has an error.
#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// Files, or names of built-in recipes (`@atlas/NAME`).
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// Judge every file as one of ours: what is a warning in a recipe from elsewhere is an error.
    #[arg(long)]
    strict: bool,
    /// How problems are printed.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// How problems are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people, with the lines of the file.
    Text,
    /// As annotations of GitHub Actions.
    Github,
    /// As one JSON document.
    Json,
}

impl ValidateArgs {
    /// Prints problems and a verdict for each file.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let strictness = if self.strict { Strictness::Own } else { Strictness::Detect };
        let files: Vec<FileReport> = self.files.iter().map(|file| judge(file, strictness)).collect();
        let valid = files.iter().all(|file| file.valid);
        match (global.json, self.format) {
            (true, _) | (_, Format::Json) => print_json(&ValidationReport { valid, files }),
            (_, Format::Github) => write_stdout(&files.iter().map(annotations).collect::<String>()),
            (_, Format::Text) => write_stdout(&files.iter().map(text).collect::<String>()),
        }
        if valid { Ok(()) } else { Err(CliError::Reported) }
    }
}

fn judge(file: &str, strictness: Strictness) -> FileReport {
    let Parsed { recipe, diagnostics, strict } = match file.strip_prefix("@atlas/") {
        Some(name) => match builtin::find(name) {
            Some(found) => validate_bytes(found.path, found.text.as_bytes(), Strictness::Own),
            None => {
                let diagnostic = Diagnostic::error(file, Span::default(), "there is no built-in recipe of this name");
                Parsed { recipe: None, diagnostics: vec![diagnostic], strict: true }
            }
        },
        None => validate_file(Path::new(file), strictness),
    };
    FileReport {
        file: file.to_owned(),
        valid: recipe.is_some(),
        strict,
        hash: recipe.map(|recipe| recipe.hash()),
        diagnostics,
    }
}

fn annotations(report: &FileReport) -> String {
    report.diagnostics.iter().map(render_github).collect()
}

fn text(report: &FileReport) -> String {
    let count = |errors: bool, word: &str| {
        let count = report.diagnostics.iter().filter(|diagnostic| diagnostic.is_error() == errors).count();
        (count > 0).then(|| format!("{count} {word}{}", if count == 1 { "" } else { "s" }))
    };
    let counts: Vec<String> = [count(true, "error"), count(false, "warning")].into_iter().flatten().collect();
    let verdict = if report.valid { "valid" } else { "not valid" };
    let counts = if counts.is_empty() { String::new() } else { format!(" ({})", counts.join(", ")) };
    let problems: String = report.diagnostics.iter().map(|diagnostic| plain(&render(diagnostic)) + "\n").collect();
    format!("{problems}{}: {verdict}{counts}\n", plain(&report.file))
}
