//! Which rows of which sequences the next step computes.

pub mod batch;
pub(crate) mod pace;
mod policy;
pub(crate) mod scheduler;
pub(crate) mod sequence;

pub use batch::{Segment, StepBatch};
pub use policy::{PATIENCE, Policy};
