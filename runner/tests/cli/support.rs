//! What the end-to-end tests share: the binary with a state directory of its own, and job records made by hand.

use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// A home of its own for one test; everything the binary writes lands in it.
pub(crate) struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path().join("state")
    }

    pub(crate) fn jobs(&self) -> PathBuf {
        self.state().join("jobs")
    }

    /// `atlas ARGS` in this home.
    pub(crate) fn atlas(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_atlas"));
        command
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.path())
            .env("ATLAS_STATE_DIR", self.state())
            // No test asks the real hub.
            .env("HF_HUB_OFFLINE", "1")
            .stdin(Stdio::null());
        command
    }

    /// Runs it to the end.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.atlas(args).output().unwrap()
    }

    /// Runs it to the end, and returns exit code, stdout and stderr.
    pub(crate) fn outcome(&self, args: &[&str]) -> (i32, String, String) {
        outcome(self.run(args))
    }

    /// Runs it with `input` on stdin.
    pub(crate) fn outcome_with_input(&self, args: &[&str], input: &str) -> (i32, String, String) {
        self.with_input(self.atlas(args), input)
    }

    pub(crate) fn with_input(&self, mut command: Command, input: &str) -> (i32, String, String) {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // A command that ends early closes the pipe.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        outcome(child.wait_with_output().unwrap())
    }

    /// Starts it in a process group of its own, with its output kept.
    pub(crate) fn spawn(&self, args: &[&str]) -> Running {
        let mut command = self.atlas(args);
        Running(command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Starts a run and waits until it says that it is ready.
    pub(crate) fn spawn_ready(&self, args: &[&str]) -> Running {
        let running = self.spawn(args);
        eventually("the job is ready", Duration::from_secs(60), || {
            let rows: Value = serde_json::from_str(&self.outcome(&["status", "--json"]).1).unwrap();
            rows.as_array().unwrap().iter().any(|job| job["condition"] == "running" && job["state"] == "ready")
        });
        running
    }

    /// `sh -c SCRIPT` with the binary as `$0`.
    pub(crate) fn through_shell(&self, script: &str) -> Command {
        let atlas = self.atlas(&[]);
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(atlas.get_program()).env_clear().stdin(Stdio::null());
        shell.envs(atlas.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell
    }

    /// Processes that were started in this home and run.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let mark = format!("ATLAS_STATE_DIR={}", self.state().display());
        let pids =
            std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        pids.filter(|pid: &u32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()) && is_alive(*pid)
        })
        .collect()
    }

    /// Every file and directory below the home.
    pub(crate) fn listing(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut open = vec![self.path().to_owned()];
        while let Some(folder) = open.pop() {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let entry = entry.unwrap();
                found.push(entry.path());
                if entry.file_type().unwrap().is_dir() {
                    open.push(entry.path());
                }
            }
        }
        found.sort();
        found
    }

    /// Writes a job directory as `atlas run` does.
    pub(crate) fn write_job(&self, record: &Value) {
        for folder in [self.state(), self.jobs()] {
            let _ = std::fs::DirBuilder::new().mode(0o700).create(folder);
        }
        let folder = self.jobs().join(record["id"].as_str().unwrap());
        let _ = std::fs::DirBuilder::new().mode(0o700).create(&folder);
        write_private(&folder.join("job.json"), &record.to_string());
    }

    pub(crate) fn write_job_file(&self, id: &str, name: &str, text: &str) {
        write_private(&self.jobs().join(id).join(name), text);
    }

    pub(crate) fn record(&self, id: &str) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.jobs().join(id).join("job.json")).unwrap()).unwrap()
    }
}

fn write_private(path: &Path, text: &str) {
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

pub(crate) fn outcome(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

/// A record of a job whose server is the process `pid`.
pub(crate) fn record(id: &str, recipe: &str, state: &str, pid: Option<u32>, port: u16) -> Value {
    json!({
        "schema_version": 1,
        "id": id,
        "recipe": recipe,
        "model": "embedded",
        "resolved_recipe": null,
        "options": [],
        "argv": ["atlas", "serve", "embedded"],
        "host": "127.0.0.1",
        "port": port,
        "model_name": "tiny",
        "started_at": "2026-12-01T10:00:00Z",
        "state": state,
        "ranks": [{
            "rank": 0,
            "host": "localhost",
            "pid": pid,
            "pid_start_ticks": pid.and_then(start_ticks),
            "boot_id": pid.map(|_| boot_id()),
            "log": "log",
        }],
    })
}

pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

/// Whether a process with this number exists and is not only waiting to be reaped.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with(['Z', 'X']))
}

/// A harmless process in a group of its own, killed when dropped.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    /// A shell script; the process ends with the test at the latest.
    pub(crate) fn shell(script: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Self(command.spawn().unwrap())
    }

    pub(crate) fn sleep() -> Self {
        Self::shell("exec sleep 300")
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that a test started, killed when dropped.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Waits for its end; panics after `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "process {} did not end in {limit:?}", self.0.id());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end and returns what it printed (less than a pipe holds).
    pub(crate) fn finish(mut self, limit: Duration) -> Output {
        let status = self.wait(limit);
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.0.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        self.0.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
        Output { status, stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits for a condition; panics with `what` after `limit`.
pub(crate) fn eventually(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
