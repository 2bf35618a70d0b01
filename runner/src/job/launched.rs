//! The server process's side of a launch.
//!
//! `atlas run` starts `atlas serve` with [`VARIABLE`] set and keeps the other end of its stdin. The first line there
//! is a [`LaunchMessage`] with what must not be seen in a command line. As long as the launcher holds the pipe the
//! server belongs to it: when the pipe closes, however the launcher died, the server ends. The line [`DETACH`] sets
//! the server free. What the server has to tell goes to stdout, one JSON object ([`LaunchEvent`]) a line.

use super::record::ExitNote;
use super::store::JobStore;
use crate::errors::CliError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, Read, Write};
use std::time::Duration;
use tokio::sync::oneshot;

/// Set in the environment of a launched server.
pub(crate) const VARIABLE: &str = "ATLAS_LAUNCHED";
/// The line that sets a server free.
pub(crate) const DETACH: &str = "detach";
/// After its launcher has gone, the server may take so long to end by itself.
const ORPHAN_LIMIT: Duration = Duration::from_secs(5);
/// Largest launch message.
const MAX_MESSAGE: u64 = 1 << 20;

/// First line on stdin.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct LaunchMessage {
    /// Which job directory is ours.
    pub(crate) job: String,
    /// Values of secret options, by key.
    pub(crate) secrets: BTreeMap<String, String>,
}

/// A line on stdout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum LaunchEvent {
    /// The port is ours; the model is loaded next.
    Bound {
        /// Address, as bound.
        host: String,
        /// Port, the real one.
        port: u16,
    },
    /// The port is not to be had.
    PortRefused {
        /// Why.
        message: String,
    },
}

/// A server that was launched by `atlas run`.
#[derive(Debug)]
pub(crate) struct Launched {
    job: String,
    /// Values of secret options, by key.
    pub(crate) secrets: BTreeMap<String, String>,
    orphaned: Option<oneshot::Receiver<()>>,
}

impl Launched {
    /// `None` when a person started this server. Else leaves the launcher's session, reads the message, and begins
    /// to watch the launcher.
    pub(crate) fn receive() -> Result<Option<Self>, CliError> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        // Fails only when we lead a session already.
        let _ = rustix::process::setsid();
        let mut line = String::new();
        let read = std::io::stdin().lock().take(MAX_MESSAGE).read_line(&mut line);
        if read.is_err() || !line.ends_with('\n') {
            return Err(CliError::Failed("the launcher went away".to_owned()));
        }
        let message: LaunchMessage =
            serde_json::from_str(&line).map_err(|error| CliError::Failed(format!("launch message: {error}")))?;
        let (sender, orphaned) = oneshot::channel();
        std::thread::Builder::new()
            .name("launcher-watch".to_owned())
            .spawn(move || watch(sender))
            .map_err(|error| CliError::Failed(format!("cannot watch the launcher: {error}")))?;
        Ok(Some(Self { job: message.job, secrets: message.secrets, orphaned: Some(orphaned) }))
    }

    /// Resolves when the launcher has gone without setting us free.
    pub(crate) fn orphaned(&mut self) -> impl Future<Output = ()> + Send + use<> {
        let orphaned = self.orphaned.take();
        async move {
            let freed = match orphaned {
                Some(orphaned) => orphaned.await.is_err(),
                None => true,
            };
            if freed {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Tells the launcher something. It may have detached and gone: then nobody needs to know.
    pub(crate) fn tell(&self, event: &LaunchEvent) {
        if let Ok(line) = serde_json::to_string(event) {
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
    }

    /// What is needed to leave word of the end, apart from the server itself.
    pub(crate) fn note(&self) -> ExitNoter {
        ExitNoter { job: self.job.clone() }
    }
}

/// Leaves word of how a launched server ended.
#[derive(Debug)]
pub(crate) struct ExitNoter {
    job: String,
}

impl ExitNoter {
    /// Writes `exit.json` into the job's directory, if that is still there.
    pub(crate) fn leave(&self, result: &Result<(), CliError>) {
        let note = match result {
            Ok(()) => ExitNote { code: 0, message: None },
            Err(error) => ExitNote { code: error.exit_code(), message: Some(error.to_string()) },
        };
        let job = JobStore::open().ok().flatten().and_then(|store| store.job(&self.job).ok().flatten());
        if let Some(job) = job
            && let Err(error) = job.write_exit_note(&note)
        {
            tracing::warn!("the exit note cannot be written: {error}");
        }
    }
}

/// Reads until the launcher says [`DETACH`] or is gone.
fn watch(orphaned: oneshot::Sender<()>) {
    let mut line = String::new();
    loop {
        line.clear();
        match std::io::stdin().lock().take(MAX_MESSAGE).read_line(&mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) if line.trim_end() == DETACH => return,
            Ok(_) => {}
        }
    }
    let _ = orphaned.send(());
    std::thread::sleep(ORPHAN_LIMIT);
    std::process::exit(1);
}
