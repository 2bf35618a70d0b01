//! `atlas logs`: what a job's server wrote.

use crate::errors::CliError;
use crate::interrupt::{Interrupt, block_on};
use crate::job::log::{Follower, tail};
use crate::job::process::ProcessId;
use crate::job::record::server_process;
use crate::job::store::{JobStore, unknown_job};
use crate::output::{GlobalArgs, print_json, write_stdout};
use atlas_schemas::outputs::LogTail;
use clap::Args;
use std::time::Duration;

/// Print a job's log.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Job id, the beginning of one, or a recipe's name [default: the newest job].
    job: Option<String>,
    /// Go on with new lines until the job ends or Ctrl-C.
    #[arg(short, long)]
    follow: bool,
    /// Lines from the end of the log.
    #[arg(long, value_name = "N", default_value_t = 100)]
    tail: usize,
}

impl LogsArgs {
    /// Prints the end of the log, and with `--follow` what comes after it.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let none = || CliError::Failed("there are no jobs; start one with `atlas run RECIPE`".to_owned());
        let store = match (JobStore::open()?, &self.job) {
            (Some(store), _) => store,
            (None, Some(name)) => return Err(unknown_job(name, &[])),
            (None, None) => return Err(none()),
        };
        let (job, record) = match &self.job {
            Some(name) => store.find(name)?,
            None => store.records()?.into_iter().next().ok_or_else(none)?,
        };
        let mut file = job.open_log()?.ok_or_else(|| CliError::Failed(format!("job {} has no log yet", record.id)))?;
        let text =
            tail(&mut file, self.tail).map_err(|error| CliError::Failed(format!("the log cannot be read: {error}")))?;
        if global.json && !self.follow {
            let lines = text.lines().map(str::to_owned).collect();
            print_json(&LogTail { job: record.id, log: job.log_path().display().to_string(), lines });
            return Ok(());
        }
        write_stdout(&text);
        if !self.follow {
            return Ok(());
        }
        block_on(async {
            let interrupt = Interrupt::install()?;
            let mut follower = Follower::new(file);
            let process = server_process(&record);
            let show = |bytes: &[u8]| write_stdout(&String::from_utf8_lossy(bytes));
            tokio::select! {
                () = interrupt.received(1) => return Err(CliError::Interrupted),
                result = follower.follow(show) => return result,
                () = ended(process.as_ref()) => {}
            }
            show(&follower.news()?);
            Ok(())
        })
    }
}

async fn ended(process: Option<&ProcessId>) {
    while process.is_some_and(ProcessId::is_alive) {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}
