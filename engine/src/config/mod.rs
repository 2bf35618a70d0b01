//! From a checkpoint's JSON files to the model as data.

pub mod fields;
pub mod generation;
pub mod hf;
pub mod quant;
pub mod rope;
pub mod spec;

pub use hf::load_spec;
pub use quant::{Quantization, WeightFormat};
pub use spec::ModelSpec;
