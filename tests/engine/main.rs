//! The engine against its oracles.

#![expect(clippy::unwrap_used, reason = "what is unexpected fails the test")]

mod atlas_tiny;
mod devices;
mod goldens;
mod numerics;
mod operations;
mod prefix;
mod pressure;
mod random;
mod selections;
mod serving;
mod support;
mod weights;
