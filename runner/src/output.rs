//! Options that every command has, and how results are printed: data on stdout, everything else on stderr.

use crate::errors::CliError;
use clap::Args;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::path::Path;

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct GlobalArgs {
    /// Print machine-readable JSON to stdout instead of text.
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// More log lines on stderr; twice for debug, three times for trace.
    #[arg(short, long, global = true, help_heading = "Global options", action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// No progress bars and no log lines below errors.
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub(crate) quiet: bool,
}

impl GlobalArgs {
    /// Sets up logging to stderr.
    pub(crate) fn init(&self) {
        let level = match (self.quiet, self.verbose) {
            (true, _) => "error",
            (_, 0) => "warn",
            (_, 1) => "info",
            (_, 2) => "debug",
            _ => "trace",
        };
        let filter = tracing_subscriber::EnvFilter::try_from_env("ATLAS_LOG")
            .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
        let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colour).init();
    }
}

/// Writes to stdout; a closed pipe ends the program quietly instead of a panic.
pub(crate) fn write_stdout(text: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Prints one JSON document on one line to stdout, for outputs of several.
pub(crate) fn print_json_line(value: &impl Serialize) {
    let text = serde_json::to_string(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
    write_stdout(&(text + "\n"));
}

/// Prints one JSON document to stdout.
pub(crate) fn print_json(value: &impl Serialize) {
    let text = serde_json::to_string_pretty(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
    write_stdout(&(text + "\n"));
}

/// Writes one JSON document to a file, which appears whole or not at all. Missing folders are made.
pub(crate) fn write_file(path: &Path, value: &impl Serialize) -> Result<(), CliError> {
    let fail = |error: std::io::Error| CliError::Failed(format!("{}: {error}", path.display()));
    let text = serde_json::to_string_pretty(value).map_err(|error| fail(error.into()))? + "\n";
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(fail)?;
    }
    write_bytes(path, text.as_bytes())
}

/// Writes a file, which appears whole or not at all. What exists and is not a regular file (a device, a link) is
/// written to and never replaced.
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    let fail = |error: std::io::Error| CliError::Failed(format!("{}: {error}", path.display()));
    if std::fs::symlink_metadata(path).is_ok_and(|existing| !existing.is_file()) {
        return std::fs::write(path, bytes).map_err(fail);
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{}.partial", std::process::id()));
    let written = std::fs::OpenOptions::new().write(true).create_new(true).open(&partial).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&partial, path)
    });
    written.map_err(|error| {
        let _ = std::fs::remove_file(&partial);
        fail(error)
    })
}
