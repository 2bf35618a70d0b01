//! Stopping a job: ask, wait, insist, and verify before saying so.

use super::process::ProcessId;
use super::record::{now, server_process, url};
use super::store::JobDir;
use crate::errors::CliError;
use crate::host::ports;
use atlas_schemas::job::{JobRecord, JobState};
use rustix::process::Signal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// After SIGKILL the system needs a moment to take memory and sockets back.
const KILL_LIMIT: Duration = Duration::from_secs(10);
const PORT_LIMIT: Duration = Duration::from_secs(5);

/// How a job came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// It ended when asked.
    Asked,
    /// It had to be killed.
    Killed,
    /// It was not running.
    WasNotRunning,
}

impl Stopped {
    /// In words.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "stopped",
            Self::Killed => "killed",
            Self::WasNotRunning => "was not running",
        }
    }
}

/// Ends the job's process and writes down that it is stopped, once the process is gone and its port is free.
pub(crate) async fn stop(job: &JobDir, record: &mut JobRecord, limit: Duration) -> Result<Stopped, CliError> {
    let live = record.state.is_live();
    if live && let Err(error) = job.request_stop() {
        // The launcher, interrupted at this moment, may have cleared everything away.
        return if gone(job) { Ok(Stopped::WasNotRunning) } else { Err(error) };
    }
    // Cut off before the server's number was written: the server, if there is one, ends with its launcher.
    let how = match server_process(record).or_else(|| job.launcher().filter(|_| live)) {
        Some(process) => end(&process, limit).await?,
        None => Stopped::WasNotRunning,
    };
    if how != Stopped::WasNotRunning {
        verify_port(record).await?;
    }
    record.state = JobState::Stopped;
    record.ended_at.get_or_insert_with(now);
    match job.write_record(record) {
        Err(_) if gone(job) => Ok(how),
        other => other.map(|()| how),
    }
}

fn gone(job: &JobDir) -> bool {
    job.record().ok().flatten().is_none()
}

/// TERM, wait, KILL, wait.
pub(crate) async fn end(process: &ProcessId, limit: Duration) -> Result<Stopped, CliError> {
    let failed =
        |error: rustix::io::Errno| CliError::Failed(format!("process {}: cannot be signalled: {error}", process.pid));
    if !process.signal(Signal::TERM).map_err(failed)? {
        return Ok(Stopped::WasNotRunning);
    }
    // A stopped (Ctrl-Z) process takes the signal only when it runs again.
    process.signal(Signal::CONT).map_err(failed)?;
    if process.wait_gone(limit).await {
        return Ok(Stopped::Asked);
    }
    process.signal(Signal::KILL).map_err(failed)?;
    if process.wait_gone(KILL_LIMIT).await {
        return Ok(Stopped::Killed);
    }
    Err(CliError::Failed(format!("process {} is still there after SIGKILL", process.pid)))
}

/// The port may be somebody else's by now, but it must not be held by the process that was stopped.
pub(crate) async fn verify_port(record: &JobRecord) -> Result<(), CliError> {
    let Some(address) = url(record).as_deref().and_then(address_of) else { return Ok(()) };
    let ours = server_process(record).and_then(|process| u32::try_from(process.pid).ok());
    let deadline = Instant::now() + PORT_LIMIT;
    loop {
        let Some(listener) = ports::listener(address) else { return Ok(()) };
        if listener.pid.is_some() && listener.pid != ours {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(CliError::Failed(format!(
                "the process is gone, but port {} is still held by {listener}",
                address.port()
            )));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The socket address in `http://ADDRESS:PORT`.
fn address_of(url: &str) -> Option<SocketAddr> {
    url.strip_prefix("http://")?.trim_end_matches('/').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_from_urls() {
        assert_eq!(address_of("http://127.0.0.1:80/"), Some("127.0.0.1:80".parse().unwrap()));
        assert_eq!(address_of("http://[::1]:80"), Some("[::1]:80".parse().unwrap()));
        assert_eq!(address_of("http://somewhere:80"), None);
    }
}
