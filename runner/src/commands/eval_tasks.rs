//! `atlas eval tools|qa|perplexity`: accuracy by real generation, through the same HTTP API that people use.

use crate::errors::CliError;
use crate::interrupt::{Interrupt, block_on};
use crate::output::{GlobalArgs, print_json, write_file, write_stdout};
use crate::target::{Target, measured};
use atlas_gates::eval;
use atlas_gates::progress::Progress;
use atlas_gates::suites::cases::Task;
use atlas_schemas::eval::{EvalRecord, PerplexityRecord};
use clap::Args;
use comfy_table::Table;
use std::path::PathBuf;

/// Arguments of `eval tools` and `eval qa`.
#[derive(Debug, Args)]
pub(crate) struct CasesArgs {
    /// A model folder, `embedded`, a recipe, or the URL of a running endpoint.
    #[arg(value_name = "TARGET")]
    target: Target,
    /// Cases, one JSON object a line; the built-in ones unless told.
    #[arg(long, value_name = "FILE.jsonl")]
    cases: Option<String>,
    /// Cases that run at once.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    concurrency: u32,
    /// Write every case's outcome to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl CasesArgs {
    /// Runs the cases of `task`.
    pub(crate) fn run(self, task: Task, global: &GlobalArgs) -> Result<(), CliError> {
        let file = self.cases.clone().unwrap_or_else(|| built_in(task).to_owned());
        let progress = Progress::new(!global.quiet);
        let record = block_on(async {
            let interrupt = Interrupt::install()?;
            let name = self.target.to_string();
            measured(&self.target, &interrupt, async |ready| {
                let record = eval::cases(ready.client, task, &file, &name, self.concurrency, &progress).await;
                record.map_err(|error| CliError::Failed(error.to_string()))
            })
            .await
        })?;
        if let Some(out) = &self.out {
            write_file(out, &record)?;
        }
        match global.json {
            true => print_json(&record),
            false => write_stdout(&scores(&record)),
        }
        Ok(())
    }
}

fn built_in(task: Task) -> &'static str {
    match task {
        Task::Tools => "tool_calls",
        Task::Qa => "qa",
    }
}

fn scores(record: &EvalRecord) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_BORDERS_ONLY);
    table.set_header(["category", "cases", "passed", "accuracy"]);
    for (name, score) in &record.categories {
        table.add_row([name, &score.cases.to_string(), &score.passed.to_string(), &format!("{:.3}", score.accuracy)]);
    }
    let all = format!("{:.3}", record.accuracy);
    table.add_row(["all", &record.cases.to_string(), &record.passed.to_string(), &all]);
    format!("{table}\n")
}

/// Arguments of `eval perplexity`.
#[derive(Debug, Args)]
pub(crate) struct PerplexityArgs {
    /// A model folder, `embedded`, a recipe, or the URL of a running endpoint.
    #[arg(value_name = "MODEL")]
    target: Target,
    /// Text, its documents separated by `<|endoftext|>`; the built-in one unless told.
    #[arg(long, value_name = "FILE")]
    text: Option<String>,
}

impl PerplexityArgs {
    /// Scores the text.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let file = self.text.clone().unwrap_or_else(|| "perplexity".to_owned());
        let progress = Progress::new(!global.quiet);
        let record = block_on(async {
            let interrupt = Interrupt::install()?;
            let name = self.target.to_string();
            measured(&self.target, &interrupt, async |ready| {
                let record = eval::perplexity(ready.client, &file, &name, &progress).await;
                record.map_err(|error| CliError::Failed(error.to_string()))
            })
            .await
        })?;
        match global.json {
            true => print_json(&record),
            false => write_stdout(&perplexities(&record)),
        }
        Ok(())
    }
}

fn perplexities(record: &PerplexityRecord) -> String {
    let mut text = format!("perplexity            {:.4} ({} tokens)\n", record.perplexity, record.tokens);
    if let Some(assistant) = record.assistant_perplexity {
        text += &format!("  assistant tokens    {assistant:.4} ({} tokens)\n", record.assistant_tokens);
    }
    text
}
