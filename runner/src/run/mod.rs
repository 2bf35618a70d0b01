//! `atlas run` behind its command line: `plan` decides what would happen, `bring_up` makes it happen.

pub(crate) mod bring_up;
pub(crate) mod plan;
