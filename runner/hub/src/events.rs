//! What happens during a fetch, for whoever shows it.

use std::time::Duration;

/// One thing that happened. Files are named by their path in the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// What has to be fetched is known; may come twice, the second time with the weights.
    Planned {
        /// Files to fetch.
        files: usize,
        /// Their bytes, without what earlier runs left.
        bytes: u64,
    },
    /// A file begins.
    Started {
        /// The file.
        file: &'a str,
        /// Its size.
        size: u64,
        /// What is here already.
        present: u64,
    },
    /// Bytes of a file were written.
    Received {
        /// The file.
        file: &'a str,
        /// How many.
        bytes: u64,
    },
    /// What was fetched of a file was wrong and is dropped; it begins again.
    Dropped {
        /// The file.
        file: &'a str,
        /// Bytes that no longer count.
        bytes: u64,
    },
    /// A file is whole, verified, and in its place.
    Finished {
        /// The file.
        file: &'a str,
    },
    /// Something went wrong and is tried again.
    Retry {
        /// A file, or the list of files.
        what: &'a str,
        /// What went wrong.
        cause: &'a str,
        /// The pause before.
        pause: Duration,
    },
    /// Another process fetches the same file.
    Waiting {
        /// The file.
        file: &'a str,
    },
    /// A file on this machine is hashed for the first time.
    Hashing {
        /// The file.
        file: &'a str,
        /// Its size.
        size: u64,
    },
    /// Worth telling.
    Note(&'a str),
}

/// Takes events as they happen; called from several threads, must not block.
pub trait Observer: Send + Sync {
    /// One event.
    fn event(&self, event: Event<'_>);
}

/// Shows nothing.
#[derive(Debug)]
pub struct Silent;

impl Observer for Silent {
    fn event(&self, _: Event<'_>) {}
}
