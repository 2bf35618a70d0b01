//! The `atlas` binary from outside: its commands, exit codes, files and processes.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod hub;
mod jobs;
mod lifecycle;
mod run_refusals;
mod support;
