//! Suites, baselines and records: measures a served model over HTTP and judges it.
//!
//! A suite measures ([`suites`]), a record proves ([`record`]), a baseline promises ([`baseline`]), [`compare`] judges
//! and [`report`] tells. [`eval`] and [`bench`] use the same measurements without a judgement.

pub mod baseline;
pub mod bench;
pub mod changed;
pub mod client;
pub mod compare;
pub mod data;
pub mod endpoint;
pub mod eval;
pub mod launch;
pub mod pieces;
pub mod probe;
pub mod progress;
pub mod provenance;
pub mod record;
pub mod report;
pub mod stats;
pub mod suites;
