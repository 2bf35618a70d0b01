//! Every operation, on every instruction set of this CPU, bit for bit against a scalar reference.

mod activation;
mod attention;
mod conv;
mod delta;
mod linear;
mod math;
mod nan;
mod norm;
mod reference;
mod rope;

use crate::pool::Pool;
use crate::simd::{Isa, with_isa};

/// Counter-based random numbers (splitmix64): the same on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// Uniform in −1..1.
    pub(crate) fn value(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn values(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.value()).collect()
    }

    pub(crate) fn byte_vec(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.bits() as u8).collect()
    }
}

/// Runs `work` once per instruction set of this CPU.
pub(crate) fn each_isa(mut work: impl FnMut(&str)) {
    for isa in Isa::available() {
        with_isa(isa, || work(&format!("{isa:?}")));
    }
}

/// Pools of 1, 2, 3 and 7 threads.
pub(crate) fn pools() -> Vec<Pool> {
    [1, 2, 3, 7].map(Pool::new).into()
}

/// Equality of bits; any NaN equals any NaN.
#[track_caller]
pub(crate) fn assert_bits(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}: length");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
        assert!(same, "{what}: value {i} is {got:e}, expected {expected:e}");
    }
}

/// BF16 rounding of all values if asked.
pub(crate) fn rounded(values: &[f32], round: bool) -> Vec<f32> {
    values.iter().map(|&value| if round { half::bf16::from_f32(value).to_f32() } else { value }).collect()
}

/// Cuts `0..total` into chunks of the given kind.
pub(crate) fn chunks(total: usize, kind: usize, random: &mut Random) -> Vec<std::ops::Range<usize>> {
    let mut cuts = Vec::new();
    let mut at = 0;
    while at < total {
        let len = if kind == 0 { 1 + random.below(70) } else { kind };
        cuts.push(at..total.min(at + len));
        at += len;
    }
    cuts
}
