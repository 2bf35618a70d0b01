//! Facts about the machine that `atlas` runs on.

pub(crate) mod identity;
pub(crate) mod memory;
pub(crate) mod ports;
