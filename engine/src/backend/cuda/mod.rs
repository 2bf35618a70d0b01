//! The CUDA backend.

mod schedule;
mod selections;

use crate::errors::EngineError;
use atlas_kernels::cuda::{Device, device_count};

/// Whether a CUDA device can be used on this machine; the error says why not.
pub fn available() -> Result<(), EngineError> {
    Ok(device_count().map(drop)?)
}

/// Free and total bytes of a device's memory.
pub fn memory(ordinal: usize) -> Result<(usize, usize), EngineError> {
    Ok(Device::open(ordinal)?.memory()?)
}
