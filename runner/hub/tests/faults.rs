//! Two hundred seeded faults: whatever a hub does, no wrong byte is used and every fetch ends by itself.

use atlas_hub_testing::{Behaviour, run_seed};
use std::sync::atomic::{AtomicU64, Ordering};

const SEEDS: u64 = 200;
/// Runs wait more than they compute.
const THREADS: usize = 8;

#[test]
fn r13_r14_s22_s23_s24_no_fault_of_the_hub_gets_wrong_bytes_used() {
    let next = AtomicU64::new(0);
    let reports: Vec<_> = std::thread::scope(|scope| {
        let work = || {
            let mut reports = Vec::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= SEEDS {
                    return reports;
                }
                reports.push(run_seed(seed));
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let injected = |behaviour| reports.iter().any(|report| report.fault.behaviour == behaviour && report.injected > 0);
    let idle: Vec<_> = Behaviour::ALL.iter().filter(|behaviour| !injected(**behaviour)).collect();
    assert!(Behaviour::ALL.len() >= 30 && idle.is_empty(), "behaviours that never happened: {idle:?}");
    assert!(reports.iter().any(|report| report.error.is_some()) && reports.iter().any(|report| report.error.is_none()));
}
