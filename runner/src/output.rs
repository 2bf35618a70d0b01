//! Options that every command has, and how results are printed: data on stdout, everything else on stderr.

use clap::Args;
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct GlobalArgs {
    /// Print machine-readable JSON to stdout instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// More log lines on stderr; twice for debug, three times for trace.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// No progress bars and no log lines below errors.
    #[arg(short, long, global = true)]
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

/// Prints one JSON document to stdout.
pub(crate) fn print_json(value: &impl Serialize) {
    let text = serde_json::to_string_pretty(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
    write_stdout(&(text + "\n"));
}
