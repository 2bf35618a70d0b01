//! Parameters as checkpoints hold them: what every backend packs for itself.

use atlas_kernels::Dense;

/// A parameter as read.
#[derive(Debug, Clone, PartialEq)]
pub enum RawParam {
    /// A projection or a table.
    Matrix(RawMatrix),
    /// A vector or convolution, widened to f32.
    Vector(Vec<f32>),
}

/// A matrix of `n` rows (outputs) and `k` columns (inputs), row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct RawMatrix {
    /// Rows.
    pub n: usize,
    /// Columns.
    pub k: usize,
    /// Elements.
    pub data: RawData,
}

/// Elements of a matrix.
#[derive(Debug, Clone, PartialEq)]
pub enum RawData {
    /// Little-endian elements.
    Dense(Dense, Vec<u8>),
    /// NVFP4 as ModelOpt stores it: `w = e2m1 * scale * global`.
    Nvfp4 {
        /// `[n, k / 2]`, the even column in the low half of a byte.
        packed: Vec<u8>,
        /// E4M3, `[n, k / 16]`.
        scales: Vec<u8>,
        /// Scale of the whole matrix.
        global: f32,
    },
}
