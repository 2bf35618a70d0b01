//! What can go wrong on a CUDA device.

use cudarc::driver::result::DriverError;
use thiserror::Error;

/// An error of a CUDA device.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CudaError {
    /// There is no usable device; the message says why and what to do.
    #[error("{0}")]
    Unavailable(String),
    /// The device's memory does not hold what was asked for.
    #[error("{bytes} bytes of device memory were asked for, but {free} of {total} are free")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes free now.
        free: usize,
        /// Bytes of the device.
        total: usize,
    },
    /// A driver call failed.
    #[error("CUDA: {call} failed: {message}")]
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's words.
        message: String,
    },
    /// A kernel cannot be had.
    #[error("CUDA kernel `{kernel}`: {message}")]
    Kernel {
        /// Name of the file or function.
        kernel: String,
        /// Why.
        message: String,
    },
    /// The device cannot do what is asked.
    #[error("not supported on CUDA: {0}")]
    Unsupported(String),
}

/// Names the call in a driver's error.
pub(super) trait Named<T> {
    fn named(self, call: &'static str) -> Result<T, CudaError>;
}

impl<T> Named<T> for Result<T, DriverError> {
    fn named(self, call: &'static str) -> Result<T, CudaError> {
        self.map_err(|error| {
            let name = error.error_name().ok().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let text = error.error_string().ok().map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
            CudaError::Driver { call, message: format!("{name} ({text})") }
        })
    }
}
