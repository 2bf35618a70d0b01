//! Kernels of the Atlas engine: whole operations on CPUs, the oracle and fast; on CUDA devices in [`cuda`].
//!
//! Every operation is defined down to the bit: the result of a row is the same on every instruction set (AVX-512,
//! AVX2 with FMA, portable), for every number of rows beside it and of threads, and for every cut of the work. The
//! modules state the order of their sums. Upstream: the engine's CPU backend, one call per plan operation.
//!
//! All matrices are row-major f32 slices with a row stride (`ld…`); `round_bf16` rounds results to BF16 values (in
//! f32 storage) for the BF16 activation mode. Operations panic only on a caller's mistake: lengths, shapes and
//! indices are asserted before anything is written.

#![expect(
    unsafe_code,
    reason = "vector instructions, slices that tasks share, and the CUDA driver; every block states its invariant"
)]
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

mod activation;
mod aligned;
mod attention;
mod conv;
pub mod cuda;
mod delta;
mod kv;
mod linear;
mod math;
mod matrix;
mod norm;
mod pool;
mod probe;
mod rope;
mod scratch;
mod shared;
mod simd;
mod tile;

#[cfg(test)]
mod tests;

pub use activation::{GateLayout, add, sigmoid_mul, silu_mul};
pub use attention::{AttentionArgs, attention};
pub use conv::{ConvCache, ConvSegment, causal_conv};
pub use delta::{BLOCK, DeltaArgs, DeltaSegment, DeltaState, gated_delta};
pub use kv::{KvDtype, KvLayer, KvScales, KvSegment, PAGE};
pub use linear::{LinearPart, linear};
pub use matrix::{Dense, PackedMatrix, e2m1_to_f32, e4m3_to_f32};
pub use norm::{gated_rms_norm, rms_norm};
pub use pool::Pool;
pub use probe::{probe_fma, probe_read};
pub use rope::{QkNorm, QkvLayout, RopeArgs, rope_and_store};
