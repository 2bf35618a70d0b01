//! Progress for people, on stderr: one line every few seconds, never on stdout.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time between two lines of the same activity.
const INTERVAL: Duration = Duration::from_secs(5);

/// Where progress lines go.
#[derive(Debug)]
pub struct Progress {
    enabled: bool,
    last: Mutex<Instant>,
}

impl Progress {
    /// Lines on stderr, or none.
    pub fn new(enabled: bool) -> Self {
        Self { enabled, last: Mutex::new(Instant::now()) }
    }

    /// A line of its own.
    pub fn line(&self, text: &str) {
        if self.enabled {
            eprintln!("{text}");
        }
    }

    /// `done` of `total` parts of `what` are done. Prints every few seconds.
    pub fn step(&self, what: &str, done: usize, total: usize) {
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if last.elapsed() >= INTERVAL {
            *last = Instant::now();
            self.line(&format!("{what}: {done} of {total}"));
        }
    }
}
