//! Activation buffers on the device, in the layouts that the schedule needs.

use super::schedule::{Layout, Schedule};
use crate::errors::EngineError;
use crate::plan::{BufferId, Plan, Rows};
use atlas_kernels::cuda::{Device, Memory, packed_bytes};

/// Room for the activations of a step.
pub(super) struct Buffers {
    device: Device,
    specs: Vec<Spec>,
    memory: Vec<[Option<Memory>; 2]>,
    rows: usize,
    logit_rows: usize,
}

struct Spec {
    width: usize,
    rows: Rows,
    /// Bytes of an element in the row-major layout.
    element: usize,
    needed: [bool; 2],
}

impl Buffers {
    pub(super) fn new(device: &Device, plan: &Plan, schedule: &Schedule) -> Self {
        let needed = schedule.layouts(plan);
        let specs = (plan.buffers.iter().zip(needed).enumerate())
            .map(|(index, (buffer, needed))| Spec {
                width: buffer.width,
                rows: buffer.rows,
                element: if plan.logits.buffer.0 == index { 4 } else { 2 },
                needed,
            })
            .collect();
        Self { device: device.clone(), specs, memory: Vec::new(), rows: 0, logit_rows: 0 }
    }

    /// Makes room. True if memory moved: whatever remembers its addresses is stale.
    pub(super) fn reserve(&mut self, rows: usize, logit_rows: usize) -> Result<bool, EngineError> {
        if rows <= self.rows && logit_rows <= self.logit_rows {
            return Ok(false);
        }
        let (rows, logit_rows) = (rows.max(self.rows), logit_rows.max(self.logit_rows));
        // The old memory goes first: both together may not fit.
        self.device.synchronize()?;
        self.memory.clear();
        (self.rows, self.logit_rows) = (0, 0);
        for spec in &self.specs {
            let rows = if spec.rows == Rows::Step { rows } else { logit_rows };
            let of = |layout: Layout, bytes: usize| match spec.needed[layout as usize] {
                true => self.device.zeros(bytes).map(Some),
                false => Ok(None),
            };
            self.memory.push([
                of(Layout::Rows, rows.next_multiple_of(8) * spec.width * spec.element)?,
                of(Layout::Packed, packed_bytes(rows, spec.width))?,
            ]);
        }
        (self.rows, self.logit_rows) = (rows, logit_rows);
        Ok(true)
    }

    /// A buffer in one of its layouts. Panics if the schedule does not have it: both come from one plan.
    pub(super) fn get(&self, buffer: BufferId, layout: Layout) -> &Memory {
        match &self.memory[buffer.0][layout as usize] {
            Some(memory) => memory,
            None => panic!("buffer {} has no {layout:?}", buffer.0),
        }
    }
}
