//! Where ids and timestamps come from, so that tests can say which.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// A source of ids, seeds and wall-clock time.
pub trait Identity: Send + Sync + fmt::Debug {
    /// A new id that begins with `prefix-`.
    fn id(&self, prefix: &str) -> String;
    /// Seconds since 1970.
    fn unix_seconds(&self) -> u64;
    /// A sampling seed for a request that brings none.
    fn seed(&self) -> u64;
}

/// Random ids and seeds, and the system's clock.
#[derive(Debug, Default, Clone, Copy)]
pub struct RandomIdentity;

impl Identity for RandomIdentity {
    fn id(&self, prefix: &str) -> String {
        format!("{prefix}-{:016x}{:016x}", random(), random())
    }

    fn unix_seconds(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
    }

    fn seed(&self) -> u64 {
        random()
    }
}

/// Random bits of the operating system; where it has none, those of the standard library's hash seed.
fn random() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(SystemTime::now())
    })
}
