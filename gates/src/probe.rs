//! What the machine can do, measured in the same run as the model: reading at the size of the model's weights, and
//! f32 multiply-adds. Speeds divided by these say what the engine makes of the machine, so that a slower sister
//! machine does not fail a gate and a slower engine does.

use crate::stats;
use atlas_schemas::gate::MachineProbe;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Passes of [`measure`]; the median counts.
const PASSES: usize = 5;
/// Reading and computing each last at least this long on every thread.
const PASS_TIME: Duration = Duration::from_millis(80);
/// The buffer is bounded, so that a probe never drives a machine out of memory.
const BUFFER_BYTES: std::ops::RangeInclusive<u64> = (1 << 20)..=(2 << 30);
/// Rounds of [`Yardstick::compute`] between two looks at the clock.
const ROUNDS: usize = 20_000;

/// The code that reads and computes, on the thread that calls it: the engine's own vector code, so that the yardstick
/// is what this build could reach.
#[derive(Debug, Clone, Copy)]
pub struct Yardstick {
    /// Name of the implementation; a change that moves the numbers changes it.
    pub method: &'static str,
    /// Reads every value once and returns something that depends on all of them.
    pub read: fn(&[f32]) -> f32,
    /// Does so many rounds of multiply-adds; returns the number of f32 operations, a multiply-add counting as two.
    pub compute: fn(usize) -> u64,
}

/// Measures the machine with a buffer of `working_set_bytes`, held to 1 MiB to 2 GiB: the summary of several passes.
pub fn measure(working_set_bytes: u64, yardstick: &Yardstick) -> MachineProbe {
    let prober = Prober::new(working_set_bytes, yardstick);
    prober.summary(&(0..PASSES).map(|_| prober.pass()).collect::<Vec<_>>())
}

/// One look at the machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pass {
    /// Bytes read a second.
    pub read_bytes_per_s: f64,
    /// f32 operations a second.
    pub flops: f64,
}

/// Looks at the machine again and again: on a shared one it is another from minute to minute.
#[derive(Debug)]
pub struct Prober {
    buffer: Vec<f32>,
    threads: usize,
    yardstick: Yardstick,
    pass_time: Duration,
}

impl Prober {
    /// Makes a buffer of `working_set_bytes`, held to 1 MiB to 2 GiB.
    pub fn new(working_set_bytes: u64, yardstick: &Yardstick) -> Self {
        let bytes = working_set_bytes.clamp(*BUFFER_BYTES.start(), *BUFFER_BYTES.end());
        Self {
            buffer: vec![1.0; (bytes / 4) as usize],
            threads: thread::available_parallelism().map_or(1, |count| count.get()),
            yardstick: *yardstick,
            pass_time: PASS_TIME,
        }
    }

    /// Reads, then computes. Keeps all logical processors busy for about 0.2 s.
    pub fn pass(&self) -> Pass {
        let Yardstick { read, compute, .. } = self.yardstick;
        let parts: Vec<&[f32]> = self.buffer.chunks(self.buffer.len().div_ceil(self.threads)).collect();
        let read = |thread: usize| {
            let part = parts[thread];
            black_box(read(black_box(part)));
            (part.len() * 4) as f64
        };
        Pass {
            read_bytes_per_s: rate(parts.len(), self.pass_time, read),
            flops: rate(self.threads, self.pass_time, |_| compute(black_box(ROUNDS)) as f64),
        }
    }

    /// All passes of a run.
    pub fn summary(&self, passes: &[Pass]) -> MachineProbe {
        MachineProbe {
            method: self.yardstick.method.into(),
            working_set_bytes: (self.buffer.len() * 4) as u64,
            read_bytes_per_s: stats::samples(passes.iter().map(|pass| pass.read_bytes_per_s).collect()),
            flops: stats::samples(passes.iter().map(|pass| pass.flops).collect()),
        }
    }
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

    fn plain() -> Yardstick {
        let compute = |rounds: usize| {
            let sum = (0..rounds).fold(1f32, |value, _| value * 0.5 + 0.5);
            if sum > 0.0 { 2 * rounds as u64 } else { 0 }
        };
        Yardstick { method: "plain", read: |values| values.iter().sum(), compute }
    }

    #[test]
    fn measures_something_plausible() {
        let prober = Prober { pass_time: Duration::from_millis(5), ..Prober::new(16 << 20, &plain()) };
        let probe = prober.summary(&[prober.pass(), prober.pass()]);
        assert_eq!((probe.working_set_bytes, probe.method.as_str()), (16 << 20, "plain"));
        for samples in [&probe.read_bytes_per_s, &probe.flops] {
            assert_eq!(samples.values.len(), 2);
            assert!(samples.values.iter().all(|value| value.is_finite() && *value > 1e5), "{samples:?}");
        }
    }

    #[test]
    fn the_buffer_is_bounded() {
        assert_eq!(Prober::new(0, &plain()).summary(&[]).working_set_bytes, 1 << 20);
    }
}
