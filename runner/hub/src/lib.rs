//! Models from a Hugging Face hub, in the cache that other tools share, and proof that they are whole.
//!
//! [`Hub::fetch`] brings a revision's weights, configuration and tokenizer into `models--OWNER--NAME/{blobs,snapshots,
//! refs}`. A blob gets its name only after its digest was compared with the hub's; until then its bytes live in a part
//! file beside it. [`Cache::open`] finds what is there already; it hashes a file once in its life and remembers that in
//! a [`manifest`](Manifest). Whatever is interrupted, and wherever, leaves the old state or the new one.
//!
//! Read `fetch.rs` first, then `transfer.rs`.

mod cache;
mod client;
mod config;
mod digest;
mod disk;
mod error;
mod events;
mod fetch;
mod files;
mod folder;
mod id;
mod inventory;
mod limits;
mod listing;
mod lock;
mod manifest;
mod part;
mod ranges;
mod retry;
mod rolling;
mod transfer;

pub use cache::{Cache, Snapshot};
pub use client::install_tls;
pub use config::{HubConfig, Token};
pub use digest::{Digest, Hashes};
pub use disk::{Disk, FileSystem, OpenFile};
pub use error::HubError;
pub use events::{Event, Observer, Silent};
pub use fetch::{Fetched, Hub};
pub use files::{is_wanted, missing_files, shards};
pub use folder::{Adopted, adopt};
pub use id::{RepoId, Revision};
pub use inventory::{Prunable, PruneReason, Pruned, RepoEntry, RevisionEntry, VerifiedRepo};
pub use limits::Limits;
pub use listing::{Listing, RemoteFile};
pub use manifest::{Manifest, ManifestFile};
