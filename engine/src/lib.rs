//! The embedded inference engine of Atlas.
//!
//! A checkpoint's `config.json` becomes a [`config::ModelSpec`] (the model as data), which is lowered to a
//! [`plan::Plan`] (a flat list of fused operations), which a [`backend::Backend`] executes step by step under the
//! scheduler owned by [`engine`]. Text goes in and out through [`text`].

pub mod backend;
pub mod blocks;
pub mod cache;
pub mod config;
pub mod engine;
pub mod errors;
pub mod explain;
pub mod families;
pub mod model;
pub mod plan;
pub mod sampling;
pub mod schedule;
pub mod session;
mod step;
pub mod text;
pub mod weights;
pub mod worker;
