//! The engine against its oracles.

mod goldens;
mod numerics;
mod support;
mod weights;
