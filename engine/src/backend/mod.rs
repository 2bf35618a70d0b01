//! Devices that execute plans.

pub mod cpu;

use crate::errors::EngineError;
use crate::plan::{Plan, PlannedOp};
use crate::schedule::StepBatch;

/// Sees the output of every operation: how goldens and profiles look inside a step.
pub trait Observer {
    /// Called after `op` with its output, `rows` rows of `width` values.
    fn after(&mut self, index: usize, op: &PlannedOp, output: &[f32], rows: usize, width: usize);
}

/// Executes the steps of one model on one device.
pub trait Backend: Send {
    /// The plan it executes.
    fn plan(&self) -> &Plan;

    /// Computes one step and returns the logits, `[logit rows, vocab]`. Keys, values and states of the step's rows are
    /// in the caches afterwards. The batch's indices come from [`crate::cache::Caches`] of the sizes that the backend
    /// was made with.
    fn execute(&mut self, batch: &StepBatch, observer: Option<&mut dyn Observer>) -> Result<&[f32], EngineError>;

    /// Bytes of weights in memory.
    fn weight_bytes(&self) -> u64;

    /// Bytes of caches in memory.
    fn cache_bytes(&self) -> u64;
}
