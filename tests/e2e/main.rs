//! The `atlas` binary as its users meet it: the embedded model, evaluations, clients.

#![expect(clippy::unwrap_used, reason = "what is unexpected fails the test")]

mod clients;
mod evaluations;
mod gates;
mod server;
mod structured;
mod truth;
