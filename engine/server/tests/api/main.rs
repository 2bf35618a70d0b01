//! The API as clients meet it: a real server on loopback, real connections, and a scripted engine.

mod cancel;
mod chat;
mod completions;
mod connections;
mod guards;
mod life;
mod logs;
mod metrics;
mod numbers;
mod support;
mod tokens;
