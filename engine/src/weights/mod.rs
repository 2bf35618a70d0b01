//! Weights: files, the tensors in them, and loading what a model needs, no more and no less.

pub mod files;
pub mod loader;
pub mod safetensors;
pub mod synthetic;

pub use files::ModelFiles;
pub use loader::{Param, Weights, load};
