//! A hub on loopback for tests: it speaks the API of the Hugging Face hub, redirects large files to a second origin
//! with signed addresses, and misbehaves in one of [`Behaviour::ALL`] ways when told to.

#![expect(clippy::unwrap_used, reason = "what is unexpected fails the test")]

mod behaviour;
mod repo;
mod run;
mod server;

pub use behaviour::{Behaviour, End, Fault, Kind};
pub use repo::{File, Random, Repo};
pub use run::{Report, Unsynced, check_cache, limits, run_seed};
pub use server::{HubServer, Seen};
