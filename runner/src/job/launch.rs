//! Starts the server process of a job, waits until it answers, and takes it down again when anything goes wrong.

use super::condition::last_lines;
use super::launched::{DETACH, LaunchEvent, LaunchMessage, VARIABLE};
use super::process::ProcessId;
use super::record::{now, set_server_process, url_of};
use super::stop::Stopped;
use super::store::{JobDir, JobStore};
use crate::errors::CliError;
use crate::http::{Endpoint, Health};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use atlas_schemas::job::{JobRecord, JobState};
use atlas_schemas::serve_options::Secret;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A launch that is given up gets so long to end before it is killed.
const ABORT_LIMIT: Duration = Duration::from_secs(2);
/// A job that a person stops gets so long to finish its answers.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(10);
/// Readiness is asked for often at first, and less and less.
const FIRST_POLL: Duration = Duration::from_millis(30);
const LAST_POLL: Duration = Duration::from_secs(1);
const HEALTH_LIMIT: Duration = Duration::from_secs(2);

/// What to start.
#[derive(Debug)]
pub(crate) struct LaunchPlan {
    /// The record to keep; its process and port are filled in here.
    pub(crate) record: JobRecord,
    /// Environment variables of the recipe.
    pub(crate) env: BTreeMap<String, String>,
    /// Values of secret options, by key. They go through a pipe.
    pub(crate) secrets: BTreeMap<String, String>,
}

/// A server process that belongs to us until it is detached.
#[derive(Debug)]
pub(crate) struct LaunchedJob {
    child: Child,
    process: ProcessId,
    stdin: Option<ChildStdin>,
    events: Lines<BufReader<ChildStdout>>,
    job: JobDir,
    /// The record, as last written.
    pub(crate) record: JobRecord,
    api_key: Option<Secret>,
}

/// Creates the job's directory and starts its server. When this fails, nothing is left behind.
pub(crate) async fn start(plan: LaunchPlan, store: &JobStore) -> Result<LaunchedJob, CliError> {
    let job = store.create_job()?;
    match spawn(plan, &job).await {
        Ok((child, process, stdin, events, record, api_key)) => {
            Ok(LaunchedJob { child, process, stdin: Some(stdin), events, job, record, api_key })
        }
        Err(error) => {
            store.remove(&job)?;
            Err(error)
        }
    }
}

type Spawned = (Child, ProcessId, ChildStdin, Lines<BufReader<ChildStdout>>, JobRecord, Option<Secret>);

async fn spawn(plan: LaunchPlan, job: &JobDir) -> Result<Spawned, CliError> {
    let failed = |what: &str, error: &dyn std::fmt::Display| CliError::Failed(format!("{what}: {error}"));
    let launcher = ProcessId::of(std::process::id()).ok_or_else(|| failed("/proc", &"cannot be read"))?;
    job.write_launcher(&launcher)?;
    let mut record = plan.record;
    record.id = job.id().to_owned();
    if let Some(rank) = record.ranks.first_mut() {
        rank.log = job.log_path().display().to_string();
    }
    job.write_record(&record)?;
    let log = job.create_log()?;
    let arguments = record.argv.get(1..).unwrap_or_default();
    let mut child = Command::new("/proc/self/exe")
        .arg0(record.argv.first().map_or("atlas", String::as_str))
        .args(arguments)
        .envs(&plan.env)
        .env(VARIABLE, "1")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|error| failed("the server process cannot be started", &error))?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.id().and_then(ProcessId::of));
    let (Some(mut stdin), Some(stdout), Some(process)) = pipes else {
        let _ = child.kill().await;
        return Err(failed("the server process", &"ended at once"));
    };
    if let Some(rank) = record.ranks.first_mut() {
        set_server_process(rank, &process);
    }
    let api_key = plan.secrets.get("api_key").map(Secret::new);
    let message = LaunchMessage { job: record.id.clone(), secrets: plan.secrets };
    let told = async {
        let mut line = serde_json::to_string(&message).map_err(|error| failed("launch message", &error))?;
        line.push('\n');
        // A server that ended already is found out by whoever waits for its events.
        let _ = stdin.write_all(line.as_bytes()).await;
        job.write_record(&record)
    };
    if let Err(error) = told.await {
        let _ = child.kill().await;
        return Err(error);
    }
    Ok((child, process, stdin, BufReader::new(stdout).lines(), record, api_key))
}

impl LaunchedJob {
    /// The job's directory.
    pub(crate) fn dir(&self) -> &JobDir {
        &self.job
    }

    /// Where it serves.
    pub(crate) fn url(&self) -> String {
        url_of(&self.record.host, self.record.port)
    }

    /// The server, with the key to use it.
    pub(crate) fn endpoint(&self) -> Result<Endpoint, CliError> {
        Endpoint::new(&self.url(), self.api_key.clone())
    }

    /// The server, as the gates ask it.
    pub(crate) fn gate_client(&self) -> Result<atlas_gates::client::Client, CliError> {
        let key = self.api_key.as_ref().map(|key| key.expose().to_owned());
        atlas_gates::client::Client::new(&self.url(), key).map_err(|error| CliError::Failed(error.to_string()))
    }

    /// Waits until the port is bound and the server answers that it is ready, or has died.
    pub(crate) async fn wait_ready(&mut self, progress: &Progress) -> Result<(), CliError> {
        match self.events.next_line().await.ok().flatten().map(|line| serde_json::from_str(&line)) {
            Some(Ok(LaunchEvent::Bound { host, port })) => {
                self.record.host = host;
                self.record.port = port;
                self.job.write_record(&self.record)?;
            }
            Some(Ok(LaunchEvent::PortRefused { message })) => return Err(CliError::Refused(message)),
            Some(Err(error)) => return Err(CliError::Failed(format!("the server speaks another language: {error}"))),
            None => return Err(self.death().await),
        }
        let endpoint = self.endpoint()?;
        let mut poll = FIRST_POLL;
        loop {
            let health = tokio::select! {
                biased;
                status = self.child.wait() => return Err(self.explain(status.ok())),
                health = endpoint.health(HEALTH_LIMIT) => health,
            };
            match health {
                Health::Ready => return Ok(()),
                Health::NotReady(detail) | Health::Unreachable(detail) => progress.detail(&detail),
            }
            tokio::time::sleep(poll).await;
            poll = (poll * 3 / 2).min(LAST_POLL);
        }
    }

    /// Drives `work`, but fails as soon as the server has died.
    pub(crate) async fn alive_during<T>(
        &mut self,
        work: impl Future<Output = Result<T, CliError>>,
    ) -> Result<T, CliError> {
        tokio::select! {
            biased;
            status = self.child.wait() => Err(self.explain(status.ok())),
            result = work => result,
        }
    }

    /// Waits for the server's end and explains it.
    pub(crate) async fn death(&mut self) -> CliError {
        let status = self.child.wait().await;
        self.explain(status.ok())
    }

    fn explain(&mut self, status: Option<ExitStatus>) -> CliError {
        if let Some(rank) = self.record.ranks.first_mut() {
            rank.exit_code = status.and_then(|status| status.code());
        }
        let how = match (self.job.exit_note().and_then(|note| note.message), status) {
            (Some(message), Some(status)) => format!("{message} ({status})"),
            (None, Some(status)) => status.to_string(),
            (message, None) => message.unwrap_or_else(|| "unknown".to_owned()),
        };
        let mut text = format!("the server of job {} died: {how}", self.record.id);
        let lines = last_lines(&self.job);
        if !lines.is_empty() {
            text.push_str("\n  its last log lines:");
            lines.iter().for_each(|line| text.push_str(&format!("\n    {line}")));
        }
        CliError::Failed(text)
    }

    /// Writes down that the job is ready.
    pub(crate) fn mark_ready(&mut self) -> Result<(), CliError> {
        self.record.state = JobState::Ready;
        self.job.write_record(&self.record)
    }

    /// Lets the server outlive us.
    pub(crate) async fn detach(mut self) -> Result<(), CliError> {
        let Some(mut stdin) = self.stdin.take() else { return Ok(()) };
        let line = format!("{DETACH}\n");
        let sent = async {
            stdin.write_all(line.as_bytes()).await?;
            stdin.flush().await
        };
        sent.await.map_err(|error| CliError::Failed(format!("the server died while it was detached: {error}")))
    }

    /// Gives the launch up. An interrupted or refused one leaves nothing behind; a failed one leaves its directory,
    /// so that its log can be read.
    pub(crate) async fn abort(
        mut self,
        why: &CliError,
        store: &JobStore,
        interrupt: &Interrupt,
    ) -> Result<(), CliError> {
        self.end(ABORT_LIMIT, interrupt, 2).await?;
        match why {
            CliError::Interrupted | CliError::Refused(_) => store.remove(&self.job),
            other => self.mark_ended(other),
        }
    }

    /// Writes down that the server is gone, and why.
    pub(crate) fn mark_ended(&mut self, why: &CliError) -> Result<(), CliError> {
        if self.job.stop_requested() {
            self.record.state = JobState::Stopped;
        } else {
            self.record.state = JobState::Failed;
            self.record.reason = why.to_string().lines().next().map(str::to_owned);
        }
        self.record.ended_at = Some(now());
        self.job.write_record(&self.record)
    }

    /// Stops a job that ran, at its owner's wish. Another signal means "now".
    pub(crate) async fn stop(mut self, interrupt: &Interrupt, signals: u32) -> Result<Stopped, CliError> {
        let how = self.end(STOP_LIMIT, interrupt, signals + 1).await?;
        self.record.state = JobState::Stopped;
        self.record.ended_at = Some(now());
        self.job.write_record(&self.record)?;
        super::stop::verify_port(&self.record).await?;
        Ok(how)
    }

    /// Ends the server process: asks, waits for `limit` or for the signal that makes it `signals`, kills, reaps.
    async fn end(&mut self, limit: Duration, interrupt: &Interrupt, signals: u32) -> Result<Stopped, CliError> {
        let _ = self.process.signal(Signal::TERM);
        let _ = self.process.signal(Signal::CONT);
        tokio::select! {
            biased;
            _ = self.child.wait() => return Ok(Stopped::Asked),
            () = tokio::time::sleep(limit) => {}
            () = interrupt.received(signals) => {}
        }
        self.child.kill().await.map_err(|error| CliError::Failed(format!("the server cannot be killed: {error}")))?;
        Ok(Stopped::Killed)
    }
}
