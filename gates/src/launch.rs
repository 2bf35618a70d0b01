//! Starting a target for the time of a measurement, and always stopping it.

use serde_json::Value;
use std::collections::VecDeque;
use std::future::Future;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// How many of the process's last lines an error quotes.
const TAIL_LINES: usize = 20;
/// A process that was asked to stop may take so long: it may have a server of its own to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(45);
/// A process that closed its output may take so long to end.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// What it says when it is ready is not longer than this.
const MAX_READY_BYTES: usize = 64 << 10;

/// Why a target did not start.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// The program cannot be run.
    #[error("{command}: {source}")]
    Spawn {
        /// The command line.
        command: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// It ended, or said nothing usable, before it was ready.
    #[error("{command}: {message}{}", tail.iter().map(|line| format!("\n  {line}")).collect::<String>())]
    NotReady {
        /// The command line.
        command: String,
        /// What happened.
        message: String,
        /// The last lines it wrote.
        tail: Vec<String>,
    },
}

/// Something that can serve a target.
pub trait Launcher {
    /// Starts it and returns when it is ready.
    fn launch(&self) -> impl Future<Output = Result<Launched, LaunchError>>;
}

/// A running target. Dropping it kills its process; [`Self::stop`] asks first.
#[derive(Debug)]
pub struct Launched {
    /// Where it listens.
    pub url: String,
    /// All that it said when it was ready.
    pub ready: Value,
    child: Option<Child>,
}

impl Launched {
    /// Asks the process to stop, waits, and kills it if it does not.
    pub async fn stop(mut self) {
        let Some(mut child) = self.child.take() else { return };
        if let Some(pid) = child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed())) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
            let _ = child.kill().await;
        }
    }
}

/// Starts a program that prints a JSON object with a `url` on stdout when it is ready, as `atlas serve MODEL --port 0
/// --json` and `atlas run RECIPE --port 0 --json` do.
#[derive(Debug, Clone)]
pub struct ProcessLauncher {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// How long it may take to become ready.
    pub limit: Duration,
}

impl Launcher for ProcessLauncher {
    async fn launch(&self) -> Result<Launched, LaunchError> {
        let command = format!("{} {}", self.program.display(), self.arguments.join(" "));
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| LaunchError::Spawn { command: command.clone(), source })?;
        let tail = Tail::default();
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(tail.clone().follow(stderr));
        }
        let stdout = child.stdout.take();
        let message = match timeout(self.limit, ready(stdout, &tail)).await {
            Ok(Some((url, ready))) => return Ok(Launched { url, ready, child: Some(child) }),
            Ok(None) => match timeout(EXIT_TIMEOUT, child.wait()).await {
                Ok(Ok(status)) => format!("ended before it was ready ({status})"),
                _ => "closed its output before it was ready".into(),
            },
            Err(_) => format!("not ready after {} s", self.limit.as_secs()),
        };
        let _ = child.kill().await;
        Err(LaunchError::NotReady { command, message, tail: tail.lines() })
    }
}

/// The first JSON object with a `url`, on one line or on several; the rest of the output goes to `tail`.
async fn ready(stdout: Option<ChildStdout>, tail: &Tail) -> Option<(String, Value)> {
    let (mut lines, mut object) = (BufReader::new(stdout?).lines(), String::new());
    while let Ok(Some(line)) = lines.next_line().await {
        if object.is_empty() && !line.starts_with('{') {
            tail.push(line);
            continue;
        }
        object += &line;
        match serde_json::from_str::<Value>(&object) {
            Ok(ready) => {
                object.clear();
                if let Some(url) = ready.get("url").and_then(Value::as_str) {
                    // Go on reading, or the process blocks when the pipe is full.
                    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                    return Some((url.to_owned(), ready));
                }
            }
            Err(error) if !error.is_eof() || object.len() > MAX_READY_BYTES => {
                tail.push(std::mem::take(&mut object));
            }
            Err(_) => {}
        }
    }
    None
}

/// The last lines of a process.
#[derive(Debug, Clone, Default)]
struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    async fn follow(self, output: impl AsyncRead + Unpin) {
        let mut lines = BufReader::new(output).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            self.push(line);
        }
    }

    fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> ProcessLauncher {
        ProcessLauncher {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            limit: Duration::from_secs(20),
        }
    }

    fn alive(pid: u32) -> bool {
        // A zombie has been killed; it only waits to be reaped.
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[tokio::test]
    async fn reads_the_ready_line_and_stops() {
        let script =
            "echo loading; echo '{\"event\":\"bound\"}'; echo '{'; echo ' \"url\":\"http://127.0.0.1:1\", \"n\":7';
                      echo '}'; echo more; exec sleep 60";
        let launched = shell(script).launch().await.unwrap();
        assert_eq!((launched.url.as_str(), &launched.ready["n"]), ("http://127.0.0.1:1", &Value::from(7)));
        let pid = launched.child.as_ref().unwrap().id().unwrap();
        assert!(alive(pid));
        launched.stop().await;
        assert!(!alive(pid));
    }

    #[tokio::test]
    async fn a_process_that_fails_is_quoted() {
        let error = shell("echo no such model >&2; exit 7").launch().await.unwrap_err().to_string();
        assert!(
            error.contains("ended before it was ready (exit status: 7)") && error.contains("no such model"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_process_that_never_gets_ready_is_killed() {
        let slow = ProcessLauncher { limit: Duration::from_millis(50), ..shell("echo $$ >&2; exec sleep 60") };
        let error = slow.launch().await.unwrap_err();
        assert!(error.to_string().contains("not ready after 0 s"), "{error}");
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named() {
        let launcher = ProcessLauncher { program: "/nonexistent/atlas".into(), ..shell("") };
        assert!(launcher.launch().await.unwrap_err().to_string().starts_with("/nonexistent/atlas"));
    }
}
