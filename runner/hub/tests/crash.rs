//! Crash points.

fn main() {}
