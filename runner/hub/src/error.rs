//! Why a fetch ended, in words that name the cause and what to do.

use std::path::{Path, PathBuf};
use thiserror::Error;

/// What can stand between a name and a whole model.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HubError {
    /// Not `owner/name`.
    #[error("`{id}` is not a hub id (`owner/name`)")]
    InvalidId {
        /// As given.
        id: String,
    },
    /// Not the name of a branch, tag or commit.
    #[error("`{revision}` is not a revision: a branch, a tag or a commit")]
    InvalidRevision {
        /// As given.
        revision: String,
    },
    /// An environment variable cannot be used.
    #[error("{variable}: {problem}")]
    Environment {
        /// Which one.
        variable: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// Something is missing and the network may not be used.
    #[error("{repo} at {revision} is not whole in the cache, and HF_HUB_OFFLINE is set")]
    Offline {
        /// The repository.
        repo: String,
        /// Its revision.
        revision: String,
    },
    /// Its licence has to be accepted first.
    #[error(
        "{repo} is gated: open {url} in a browser, accept its conditions, and try again{}",
        if *.with_token { " (the token must belong to that account, with read access to gated repositories)" }
        else { " with HF_TOKEN set to a token of that account" }
    )]
    Gated {
        /// The repository.
        repo: String,
        /// Where to accept.
        url: String,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// The hub does not let us in.
    #[error(
        "the hub refused access to {repo} (HTTP {status}): {}",
        if *.with_token { "the token in HF_TOKEN is not valid for it, or it does not exist" }
        else { "it does not exist, or it is private and needs HF_TOKEN" }
    )]
    Denied {
        /// The repository.
        repo: String,
        /// 401 or 403.
        status: u16,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// There is no such repository.
    #[error("the hub at {endpoint} has no model {repo} (or it is private and needs HF_TOKEN)")]
    NoRepo {
        /// The repository.
        repo: String,
        /// The hub.
        endpoint: String,
    },
    /// There is no such revision.
    #[error("{repo} has no revision `{revision}`")]
    NoRevision {
        /// The repository.
        repo: String,
        /// The revision.
        revision: String,
    },
    /// The hub's list of files cannot be used.
    #[error("the hub's reply about {repo} cannot be used: {problem}")]
    BadListing {
        /// The repository.
        repo: String,
        /// What is wrong.
        problem: String,
    },
    /// The repository holds nothing that can run.
    #[error("{repo} is not a model that can run: {problem}")]
    NotAModel {
        /// The repository.
        repo: String,
        /// What is missing.
        problem: String,
    },
    /// The hub asks for a pause that is too long.
    #[error(
        "the hub allows no more requests for {seconds} s (HTTP 429); try again later, or set HF_TOKEN for a higher limit"
    )]
    RateLimited {
        /// Its `Retry-After`.
        seconds: u64,
    },
    /// A redirect that is not followed.
    #[error("{from} redirects to `{to}`: {problem}")]
    Redirect {
        /// Who sent it.
        from: String,
        /// Where to.
        to: String,
        /// Why not.
        problem: &'static str,
    },
    /// Too many failures; what was fetched is kept and the next run goes on from there.
    #[error("{what}: gave up after {failures} failures in a row, the last: {last}")]
    GaveUp {
        /// A file, or the list of files.
        what: String,
        /// How many.
        failures: u32,
        /// The last cause.
        last: String,
    },
    /// The bytes are not those that the hub's digest promises, twice.
    #[error("{file}: the hub sent wrong bytes, twice: expected {expected}, got {got}; nothing of it is used")]
    WrongBytes {
        /// The file.
        file: String,
        /// The digest that was promised.
        expected: String,
        /// The digest of what came.
        got: String,
    },
    /// A file on this machine differs from its digest.
    #[error("{} is damaged: expected {expected}, it is {got}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What it should be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// The disk cannot hold what is missing.
    #[error(
        "not enough space for {repo} on the file system of {}: {} needed, {} free",
        .path.display(), gigabytes(*.needed), gigabytes(*.free)
    )]
    NoSpace {
        /// The repository.
        repo: String,
        /// Where it would go.
        path: PathBuf,
        /// Bytes.
        needed: u64,
        /// Bytes.
        free: u64,
    },
    /// Another process holds a lock and does nothing.
    #[error("another process holds the lock {} and has fetched nothing for {seconds} s", .lock.display())]
    Locked {
        /// The lock file.
        lock: PathBuf,
        /// How long we watched.
        seconds: u64,
    },
    /// The file system refused.
    #[error("{}: {}", .path.display(), explain(.source))]
    Io {
        /// Where.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// A background task of ours ended badly.
    #[error("internal error: {0}")]
    Internal(String),
}

impl HubError {
    /// Attaches the path to an error of the file system.
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }

    /// Whether it was clear before any file was written that this cannot work.
    pub fn before_anything_was_touched(&self) -> bool {
        matches!(
            self,
            Self::InvalidId { .. }
                | Self::InvalidRevision { .. }
                | Self::Environment { .. }
                | Self::Offline { .. }
                | Self::Gated { .. }
                | Self::Denied { .. }
                | Self::NoRepo { .. }
                | Self::NoRevision { .. }
                | Self::NoSpace { .. }
        )
    }
}

fn explain(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "the disk is full; free some space and try again, what was fetched is kept".to_owned()
        }
        _ => error.to_string(),
    }
}

/// For people: decimal units, as disks and hubs are labelled.
pub(crate) fn gigabytes(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
