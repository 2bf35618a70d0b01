//! `atlas status`: how the jobs really are.

use crate::errors::CliError;
use crate::interrupt::{Interrupt, block_on};
use crate::job::condition::{Condition, examine};
use crate::job::record::url;
use crate::job::store::{JobDir, JobStore, unknown_job};
use crate::output::{GlobalArgs, print_json, write_stdout};
use atlas_schemas::job::JobRecord;
use clap::Args;
use comfy_table::Table;
use serde::Serialize;

/// Show the jobs that run, and those that died.
///
/// Each job's process is checked by number and start time, and its server is asked over HTTP.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Job id, the beginning of one, or a recipe's name [default: all that were not stopped].
    job: Option<String>,
    /// Stopped jobs too.
    #[arg(long)]
    all: bool,
}

/// One row.
#[derive(Debug, Serialize)]
struct JobStatus {
    #[serde(flatten)]
    condition: Condition,
    log: String,
    #[serde(flatten)]
    record: JobRecord,
}

impl StatusArgs {
    /// Exits 0 whatever the jobs' condition is; with a job named, 1 unless it runs or starts.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let store = JobStore::open()?;
        let chosen: Vec<(JobDir, JobRecord)> = match (&store, &self.job) {
            (None, Some(name)) => return Err(unknown_job(name, &[])),
            (None, None) => Vec::new(),
            (Some(store), Some(name)) => vec![store.find(name)?],
            (Some(store), None) => store.records()?,
        };
        let rows = block_on(async {
            let interrupt = Interrupt::install()?;
            let examined = chosen.into_iter().map(|(job, record)| async move {
                let condition = examine(&job, &record).await;
                JobStatus { condition, log: job.log_path().display().to_string(), record }
            });
            interrupt.or(futures_util::future::join_all(examined)).await
        })?;
        let named = self.job.is_some();
        let shown = |row: &JobStatus| self.all || named || row.condition != Condition::Stopped;
        let rows: Vec<JobStatus> = rows.into_iter().filter(shown).collect();
        if global.json {
            print_json(&rows);
        } else {
            write_stdout(&table(&rows));
        }
        let well = |row: &JobStatus| matches!(row.condition, Condition::Running | Condition::Starting { .. });
        if named && !rows.iter().all(well) { Err(CliError::Reported) } else { Ok(()) }
    }
}

fn table(rows: &[JobStatus]) -> String {
    if rows.is_empty() {
        return "no jobs\n".to_owned();
    }
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["JOB", "RECIPE", "STATE", "URL", "PID", "STARTED"]);
    for row in rows {
        let record = &row.record;
        let pid = record.ranks.first().and_then(|rank| rank.pid).map(|pid| pid.to_string()).unwrap_or_default();
        let url = url(record).unwrap_or_default();
        table.add_row([&record.id, &record.recipe, row.condition.word(), &url, &pid, &record.started_at]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut text = table.to_string().lines().map(|line| line.trim_end().to_owned() + "\n").collect::<String>();
    for row in rows.iter().filter(|row| !row.condition.detail().is_empty()) {
        text.push_str(&format!("\n{} {}: {}\n", row.record.id, row.condition.word(), row.condition.detail()));
        if let Condition::Dead { last_lines, .. } = &row.condition {
            text.extend(last_lines.iter().map(|line| format!("  {line}\n")));
            text.push_str(&format!("  (log: {})\n", row.log));
        }
    }
    text
}
