//! The API as clients meet it: a real server on loopback, real connections, and a scripted engine.

#![expect(clippy::unwrap_used, reason = "what is unexpected fails the test")]

mod cancel;
mod chat;
mod completions;
mod connections;
mod grammars;
mod guards;
mod life;
mod logs;
mod metrics;
mod numbers;
mod support;
mod tokens;
