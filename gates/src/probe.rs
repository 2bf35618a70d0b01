//! What the machine can do, measured in the same run as the model: reading at the size of the model's weights, and
//! f32 multiply-adds. Speeds divided by these say what the engine makes of the machine, so that a slower sister
//! machine does not fail a gate and a slower engine does.
//!
//! The code is portable: the compiler's plain vector code on all logical processors. It is a yardstick that stays the
//! same, not the machine's absolute peak, which hand-written kernels may exceed.

use crate::stats;
use atlas_schemas::gate::MachineProbe;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Name of this implementation; a change that moves the numbers changes it.
const METHOD: &str = "portable-1";
/// Passes of each kind; the median counts.
const PASSES: usize = 5;
/// Each pass lasts at least this long on every thread.
const PASS_TIME: Duration = Duration::from_millis(80);
/// The buffer is bounded, so that a probe never drives a machine out of memory.
const BUFFER_BYTES: std::ops::RangeInclusive<u64> = (1 << 20)..=(2 << 30);
const LANES: usize = 64;

/// Measures the machine with a buffer of `working_set_bytes`, held to 1 MiB to 2 GiB.
pub fn measure(working_set_bytes: u64) -> MachineProbe {
    measure_for(working_set_bytes, PASSES, PASS_TIME)
}

fn measure_for(working_set_bytes: u64, passes: usize, time: Duration) -> MachineProbe {
    let bytes = working_set_bytes.clamp(*BUFFER_BYTES.start(), *BUFFER_BYTES.end());
    let threads = thread::available_parallelism().map_or(1, |count| count.get());
    let buffer = vec![1u64; (bytes / 8) as usize];
    let parts: Vec<&[u64]> = buffer.chunks(buffer.len().div_ceil(threads)).collect();
    MachineProbe {
        method: METHOD.into(),
        working_set_bytes: bytes,
        read_bytes_per_s: stats::samples((0..passes).map(|_| read_rate(&parts, time)).collect()),
        flops: stats::samples((0..passes).map(|_| flop_rate(threads, time)).collect()),
    }
}

/// Bytes read a second, every thread summing its own part over and over.
fn read_rate(parts: &[&[u64]], time: Duration) -> f64 {
    rate(parts.len(), time, |thread| {
        let part = parts[thread];
        black_box(sum(black_box(part)));
        (part.len() * 8) as f64
    })
}

fn sum(part: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    let chunks = part.chunks_exact(32);
    let rest: u64 = chunks.remainder().iter().sum();
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*value);
        }
    }
    sums.iter().fold(rest, |total, sum| total.wrapping_add(*sum))
}

/// f32 operations a second, every thread on registers of its own.
fn flop_rate(threads: usize, time: Duration) -> f64 {
    const ROUNDS: usize = 20_000;
    rate(threads, time, |_| {
        let (scale, shift) = (black_box(0.999_9f32), black_box(0.000_1f32));
        let mut lanes = [1f32; LANES];
        for _ in 0..ROUNDS {
            for lane in &mut lanes {
                *lane = *lane * scale + shift;
            }
        }
        black_box(lanes);
        (ROUNDS * LANES * 2) as f64
    })
}

/// Sum over the threads of the work each does a second, all running at the same time.
fn rate(threads: usize, time: Duration, work: impl Fn(usize) -> f64 + Sync) -> f64 {
    let (start, work) = (Barrier::new(threads), &work);
    let start = &start;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    start.wait();
                    let (begin, mut done) = (Instant::now(), 0.0);
                    while begin.elapsed() < time {
                        done += work(thread);
                    }
                    done / begin.elapsed().as_secs_f64()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or(f64::NAN)).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_something_plausible() {
        let probe = measure_for(16 << 20, 3, Duration::from_millis(5));
        assert_eq!(probe.working_set_bytes, 16 << 20);
        for samples in [&probe.read_bytes_per_s, &probe.flops] {
            assert_eq!(samples.values.len(), 3);
            assert!(samples.values.iter().all(|value| value.is_finite() && *value > 1e6), "{samples:?}");
        }
    }

    #[test]
    fn the_sum_reads_every_element() {
        for length in [0, 1, 31, 32, 33, 1000] {
            let part: Vec<u64> = (1..=length).collect();
            assert_eq!(sum(&part), length * (length + 1) / 2);
        }
    }

    #[test]
    fn the_buffer_is_bounded() {
        assert_eq!(measure_for(0, 1, Duration::ZERO).working_set_bytes, 1 << 20);
    }
}
