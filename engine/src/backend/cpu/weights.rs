//! Parameters as the CPU holds them.

use crate::weights::{RawData, RawMatrix, RawParam};
use atlas_kernels::PackedMatrix;

/// A parameter, packed for the CPU's kernels.
enum Param {
    Matrix(PackedMatrix),
    Vector(Vec<f32>),
}

/// The parameters of a plan, in its order.
#[derive(Default)]
pub(super) struct Weights {
    params: Vec<Param>,
}

impl Weights {
    pub(super) fn push(&mut self, param: RawParam) {
        self.params.push(match param {
            RawParam::Matrix(matrix) => Param::Matrix(pack(&matrix)),
            RawParam::Vector(vector) => Param::Vector(vector),
        });
    }

    /// The matrix at `index`. Panics if it is a vector: the plan and the weights come from one list.
    pub(super) fn matrix(&self, index: usize) -> &PackedMatrix {
        match &self.params[index] {
            Param::Matrix(matrix) => matrix,
            Param::Vector(_) => panic!("parameter {index} is a vector"),
        }
    }

    /// The vector at `index`. Panics if it is a matrix.
    pub(super) fn vector(&self, index: usize) -> &[f32] {
        match &self.params[index] {
            Param::Vector(vector) => vector,
            Param::Matrix(_) => panic!("parameter {index} is a matrix"),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.params.len()
    }

    /// Bytes held in memory.
    pub(super) fn bytes(&self) -> u64 {
        let one = |param: &Param| match param {
            Param::Matrix(matrix) => matrix.bytes() as u64,
            Param::Vector(vector) => vector.len() as u64 * 4,
        };
        self.params.iter().map(one).sum()
    }
}

/// Packs a matrix for the CPU's kernels.
pub fn pack(matrix: &RawMatrix) -> PackedMatrix {
    let (n, k) = (matrix.n, matrix.k);
    match &matrix.data {
        RawData::Dense(dtype, bytes) => PackedMatrix::from_dense(*dtype, n, k, bytes),
        RawData::Nvfp4 { packed, scales, global } => PackedMatrix::from_nvfp4(n, k, packed, scales, *global),
    }
}
