//! Seeded faults, as many as asked for: `cargo run --release -p atlas-hub --example faults -- 2000 [FIRST_SEED]`.
//!
//! Every run fetches a random model from a hub that misbehaves, then once more from one that does not. It ends with a
//! table, or with the first seed that got a wrong byte used, leaked the token, or did not end as it must.

use atlas_hub_testing::{Behaviour, Report, run_seed};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Runs wait more than they compute.
const THREADS: usize = 16;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().ok());
    let count = arguments.next().flatten().unwrap_or(2000);
    let first = arguments.next().flatten().unwrap_or(1000);
    let (next, reports) = (AtomicU64::new(first), Mutex::new(Vec::<Report>::new()));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    let report = run_seed(seed);
                    reports.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(report);
                }
            });
        }
    });
    let reports = reports.into_inner().unwrap_or_default();
    println!("{:<16} {:>5} {:>9} {:>9} {:>7}", "behaviour", "runs", "injected", "recovered", "refused");
    for behaviour in Behaviour::ALL {
        let runs = || reports.iter().filter(|report| report.fault.behaviour == *behaviour);
        let refused = runs().filter(|report| report.error.is_some()).count();
        let injected: u64 = runs().map(|report| report.injected.min(1)).sum();
        let name = format!("{behaviour:?}");
        println!("{name:<16} {:>5} {injected:>9} {:>9} {refused:>7}", runs().count(), runs().count() - refused);
    }
    let injected = reports.iter().filter(|report| report.injected > 0).count();
    println!(
        "{} runs, {} behaviours, a fault met in {injected}: 0 wrong bytes used, 0 tokens leaked, every run ended by itself, {:.0} s",
        reports.len(),
        Behaviour::ALL.len(),
        begun.elapsed().as_secs_f64()
    );
}
