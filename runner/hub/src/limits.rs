//! Every bound in one place: how long to wait, how often to try, how much to take.

use std::time::Duration;

/// Bounds of everything that a hub could otherwise draw out or blow up. All times are measured on a monotonic clock.
#[derive(Debug, Clone)]
pub struct Limits {
    /// To connect, TLS included.
    pub connect: Duration,
    /// From a request to the reply's headers.
    pub headers: Duration,
    /// Between two pieces of a body.
    pub idle: Duration,
    /// The minimum rate is judged over windows of this length.
    pub rate_window: Duration,
    /// Bytes a second below which a connection is given up.
    pub min_rate: u64,
    /// Failures in a row, without `progress` in between, after which a file is given up.
    pub failures: u32,
    /// Bytes that count as progress.
    pub progress: u64,
    /// Pause after the first failure; doubles with each further one.
    pub backoff: Duration,
    /// Longest pause, and the longest that a hub's `Retry-After` is obeyed.
    pub max_pause: Duration,
    /// Redirects that are followed for one request.
    pub redirects: u32,
    /// Connections a file.
    pub connections: usize,
    /// Files at a time.
    pub files: usize,
    /// Bytes a ranged request asks for.
    pub segment: u64,
    /// Bytes that one connection holds before it writes them.
    pub buffer: usize,
    /// Largest reply of the hub's API.
    pub listing: usize,
    /// Most files in a repository.
    pub listed_files: usize,
    /// How long to wait for another process that holds a file's lock but fetches nothing.
    pub lock_patience: Duration,
    /// How often to look for it.
    pub lock_poll: Duration,
    /// Space to leave on the disk.
    pub spare: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(15),
            headers: Duration::from_secs(30),
            idle: Duration::from_secs(30),
            rate_window: Duration::from_secs(30),
            min_rate: 4 << 10,
            failures: 6,
            progress: 4 << 20,
            backoff: Duration::from_millis(500),
            max_pause: Duration::from_secs(120),
            redirects: 5,
            connections: 4,
            files: 2,
            segment: 32 << 20,
            buffer: 1 << 20,
            listing: 32 << 20,
            listed_files: 20_000,
            lock_patience: Duration::from_secs(600),
            lock_poll: Duration::from_millis(250),
            spare: 256 << 20,
        }
    }
}
