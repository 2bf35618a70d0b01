//! `atlas stop`: ends jobs and says so only after it has looked.

use crate::errors::CliError;
use crate::interrupt::{Interrupt, block_on};
use crate::job::stop::stop;
use crate::job::store::{JobDir, JobStore, unknown_job};
use crate::output::{GlobalArgs, print_json, write_stdout};
use atlas_schemas::job::JobRecord;
use atlas_schemas::outputs::StopOutcome;
use clap::Args;
use std::time::Duration;

/// Stop a job: ask its server to finish, then insist, then verify that it is gone and its port is free.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Job id, the beginning of one, or a recipe's name [default: the only job there is].
    job: Option<String>,
    /// Every job that has not ended.
    #[arg(long, conflicts_with = "job")]
    all: bool,
    /// Seconds that running requests may take to finish before the server is killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    timeout: u64,
}

impl StopArgs {
    /// Exits 1 unless every job that was meant is gone.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let chosen = self.choose()?;
        let limit = Duration::from_secs(self.timeout);
        block_on(async {
            let interrupt = Interrupt::install()?;
            let mut outcomes = Vec::new();
            for (job, mut record) in chosen {
                let outcome = interrupt.or(stop(&job, &mut record, limit)).await?;
                let (ok, words) = match outcome {
                    Ok(how) => (true, how.as_str().to_owned()),
                    Err(error) => (false, error.to_string()),
                };
                if !global.json {
                    match ok {
                        true => write_stdout(&format!("{} ({}) {words}\n", record.id, record.recipe)),
                        false => eprintln!("error: {} ({}): {words}", record.id, record.recipe),
                    }
                }
                outcomes.push(StopOutcome { job: record.id, recipe: record.recipe, stopped: ok, detail: words });
            }
            if global.json {
                print_json(&outcomes);
            }
            if outcomes.iter().all(|outcome| outcome.stopped) { Ok(()) } else { Err(CliError::Reported) }
        })
    }

    fn choose(&self) -> Result<Vec<(JobDir, JobRecord)>, CliError> {
        let store = match (JobStore::open()?, &self.job) {
            (Some(store), _) => store,
            (None, Some(name)) => return Err(unknown_job(name, &[])),
            (None, None) if self.all => return Ok(Vec::new()),
            (None, None) => return Err(CliError::Usage("there is no job to stop".to_owned())),
        };
        if let Some(name) = &self.job {
            return Ok(vec![store.find(name)?]);
        }
        let mut open = store.records()?;
        open.retain(|(_, record)| record.state.is_live());
        match (self.all, open.len()) {
            (true, _) | (false, 1) => Ok(open),
            (false, 0) => Err(CliError::Usage("there is no job to stop".to_owned())),
            (false, _) => {
                let ids: Vec<String> =
                    open.iter().map(|(_, record)| format!("{} ({})", record.id, record.recipe)).collect();
                Err(CliError::Usage(format!("which job? {}; name one, or use --all", ids.join(", "))))
            }
        }
    }
}
