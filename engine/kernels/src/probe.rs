//! Yardsticks: how fast this CPU reads and multiplies, with the vectors that the kernels use. Each works on the calling
//! thread alone; the caller measures the time and runs as many threads as it likes.

use crate::simd::{F32x16, Isa, Kernel, LANES, dispatch};
use std::hint::black_box;

/// Vectors that are read and summed side by side.
const STREAMS: usize = 8;

/// Reads all values once, in order, and returns their sum (in no particular order).
pub fn probe_read(values: &[f32]) -> f32 {
    let mut sum = 0.0;
    dispatch(Isa::best(), Read { values, sum: &mut sum });
    sum
}

struct Read<'a> {
    values: &'a [f32],
    sum: &'a mut f32,
}

impl Kernel for Read<'_> {
    #[inline(always)]
    fn run<V: F32x16>(self) {
        let mut sums = [V::splat(0.0); STREAMS];
        let chunks = self.values.chunks_exact(STREAMS * LANES);
        let rest: f32 = chunks.remainder().iter().sum();
        for chunk in chunks {
            for (stream, sum) in sums.iter_mut().enumerate() {
                // SAFETY: a chunk holds `STREAMS` vectors.
                *sum = sum.add(unsafe { V::load(chunk.as_ptr().add(stream * LANES)) });
            }
        }
        *self.sum = sums.into_iter().fold(rest, |total, sum| total + sum.sum());
    }
}

/// Does `rounds` rounds of independent multiply-adds in registers. Returns the number of f32 operations, a multiply-add
/// counting as two.
pub fn probe_fma(rounds: usize) -> u64 {
    let mut operations = 0;
    dispatch(Isa::best(), Fma { rounds, operations: &mut operations });
    operations
}

struct Fma<'a> {
    rounds: usize,
    operations: &'a mut u64,
}

impl Kernel for Fma<'_> {
    #[inline(always)]
    fn run<V: F32x16>(self) {
        // Enough chains to hide the latency, few enough to stay in registers.
        *self.operations = if V::WIDE { chains::<V, 12>(self.rounds) } else { chains::<V, 5>(self.rounds) };
    }
}

#[inline(always)]
fn chains<V: F32x16, const CHAINS: usize>(rounds: usize) -> u64 {
    // Stays near one for any number of rounds: neither infinite nor subnormal.
    let (factor, term) = (V::splat(black_box(0.5)), V::splat(black_box(0.5)));
    let mut values = [V::splat(black_box(1.0)); CHAINS];
    for _ in 0..rounds {
        for value in &mut values {
            *value = value.fma(factor, term);
        }
    }
    black_box(values.into_iter().fold(0.0, |total, value| total + value.sum()));
    (rounds * CHAINS * LANES * 2) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::with_isa;

    #[test]
    fn every_value_is_read_once() {
        for isa in Isa::available() {
            for length in [0u16, 1, 15, 16, 127, 128, 129, 1000] {
                let values: Vec<f32> = (1..=length).map(f32::from).collect();
                let expected = f32::from(length) * (f32::from(length) + 1.0) / 2.0;
                assert_eq!(with_isa(isa, || probe_read(&values)), expected, "{isa:?} {length}");
            }
        }
    }

    #[test]
    fn operations_grow_with_the_rounds() {
        for isa in Isa::available() {
            let [none, one, ten] = [0, 1, 10].map(|rounds| with_isa(isa, || probe_fma(rounds)));
            assert!(none == 0 && one >= 5 * 16 * 2 && ten == 10 * one, "{isa:?}");
        }
    }
}
