//! What can go wrong in the engine.

use atlas_kernels::cuda::CudaError;
use thiserror::Error;

/// A failure of the engine, with the file, tensor, field or limit that caused it in its message.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A file could not be read.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The model's configuration is absent, malformed or asks for mathematics that is not supported.
    #[error("{path}: {message}")]
    Config {
        /// The configuration file.
        path: String,
        /// Which field, why, and what to do.
        message: String,
    },
    /// A weight file or one of its tensors is missing, unused, truncated or of the wrong shape or dtype.
    #[error("{path}: {message}")]
    Weights {
        /// The weight file.
        path: String,
        /// Which tensor and why.
        message: String,
    },
    /// The tokenizer or its files are unusable.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The chat template does not compile, does not render, or rendered more than its limits allow.
    #[error("chat template: {0}")]
    Template(String),
    /// The request or option is not supported by this build or device.
    #[error("{0}")]
    Unsupported(String),
    /// There is not enough memory for what was asked.
    #[error("{0}")]
    Memory(String),
    /// A device failed.
    #[error("{0}")]
    Device(String),
}

impl From<CudaError> for EngineError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::OutOfMemory { .. } => Self::Memory(error.to_string()),
            CudaError::Unsupported(_) | CudaError::Unavailable(_) => Self::Unsupported(error.to_string()),
            CudaError::Driver { .. } | CudaError::Kernel { .. } => Self::Device(error.to_string()),
        }
    }
}
