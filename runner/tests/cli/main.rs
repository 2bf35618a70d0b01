//! The `atlas` binary from outside: its commands, exit codes, files and processes.

mod jobs;
mod lifecycle;
mod run_refusals;
mod support;
