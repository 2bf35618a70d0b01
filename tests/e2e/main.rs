//! The `atlas` binary as its users meet it: the embedded model, evaluations, clients.

mod clients;
mod evaluations;
mod gates;
mod server;
