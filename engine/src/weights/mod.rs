//! Weights: files, the tensors in them, and loading what a model needs, no more and no less.

pub mod files;
pub mod loader;
pub mod raw;
pub mod safetensors;
pub mod synthetic;

pub use files::ModelFiles;
pub use loader::load;
pub use raw::{RawData, RawMatrix, RawParam};
