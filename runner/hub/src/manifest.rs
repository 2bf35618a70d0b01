//! What was verified, so that it is not hashed again: path, size, time of change, digest, sha256.

use crate::digest::{Digest, hash_file};
use crate::disk::{FileSystem, replace};
use crate::error::HubError;
use crate::events::{Event, Observer};
use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const VERSION: u32 = 1;
/// A longer manifest is not ours.
const MAX_BYTES: u64 = 16 << 20;

/// The verified files of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    version: u32,
    /// The files, in order.
    pub files: Vec<ManifestFile>,
}

/// One verified file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Path in the folder.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Time of its last change in nanoseconds: a file that was touched since is hashed again.
    pub modified: i64,
    /// What the hub calls it, where that is known.
    pub digest: Option<Digest>,
    /// sha256 in hexadecimal.
    pub sha256: String,
}

impl Manifest {
    pub(crate) fn new(mut files: Vec<ManifestFile>) -> Self {
        files.sort_by(|one, other| one.path.cmp(&other.path));
        Self { version: VERSION, files }
    }

    /// A file by its path.
    pub fn get(&self, path: &str) -> Option<&ManifestFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Reads a manifest. Whatever is not one counts as none: then files are hashed again.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let facts = std::fs::metadata(path).ok()?;
        let text = (facts.is_file() && facts.len() <= MAX_BYTES).then(|| std::fs::read(path).ok())??;
        serde_json::from_slice(&text).ok().filter(|manifest: &Self| manifest.version == VERSION)
    }
}

/// Size and time of change of a file, through links.
pub(crate) fn facts(path: &Path) -> io::Result<(u64, i64)> {
    let facts = std::fs::metadata(path)?;
    if !facts.is_file() {
        return Err(io::Error::other("is not a file"));
    }
    Ok((facts.len(), facts.mtime().saturating_mul(1_000_000_000).saturating_add(facts.mtime_nsec())))
}

/// Where a folder's manifest is: with the files, or in our own cache where we may not write beside them.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    beside: PathBuf,
    own: Option<PathBuf>,
}

impl Place {
    pub(crate) fn new(beside: PathBuf, own_cache: Option<&Path>) -> Self {
        let beside = std::path::absolute(&beside).unwrap_or(beside);
        let name = sha2::Sha256::digest(beside.as_os_str().as_encoded_bytes());
        let name: String = name.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Self { own: own_cache.map(|cache| cache.join("manifests").join(name + ".json")), beside }
    }

    pub(crate) fn load(&self) -> Option<Manifest> {
        Manifest::read(&self.beside).or_else(|| Manifest::read(self.own.as_ref()?))
    }

    pub(crate) fn save(&self, files: &dyn FileSystem, manifest: &Manifest) -> Result<(), HubError> {
        let text = serde_json::to_vec_pretty(manifest).map_err(|error| HubError::Internal(error.to_string()))?;
        let write = |path: &Path| {
            let folder = path.parent().unwrap_or(Path::new("."));
            files.create_dirs(folder)?;
            replace(files, path, &text, folder)
        };
        match (write(&self.beside), &self.own) {
            (Err(error), Some(own)) if is_read_only(&error) => write(own).map_err(HubError::io(own)),
            (result, _) => result.map_err(HubError::io(&self.beside)),
        }
    }
}

fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Whether a difference from the expected digest makes a file useless.
pub(crate) enum Expected {
    /// It must be this.
    Exactly(Digest),
    /// It was this once; its owner may have changed it.
    Once(Digest),
    /// Nobody said.
    Unknown,
}

/// Verifies the files of a folder that `manifest` does not vouch for, by hashing them. Returns the complete manifest,
/// and whether it says more than the old one.
pub(crate) fn verify(
    folder: &Path,
    paths: Vec<String>,
    manifest: Option<&Manifest>,
    expected: impl Fn(&str) -> Expected,
    observer: &dyn Observer,
) -> Result<(Manifest, bool), HubError> {
    let mut files = Vec::new();
    let mut news = false;
    for path in paths {
        let full = folder.join(&path);
        let (size, modified) = facts(&full).map_err(HubError::io(&full))?;
        let known = manifest.and_then(|manifest| manifest.get(&path));
        if let Some(known) = known.filter(|known| (known.size, known.modified) == (size, modified)) {
            files.push(known.clone());
            continue;
        }
        observer.event(Event::Hashing { file: &path, size });
        let expected = expected(&path);
        let digest = match &expected {
            Expected::Exactly(digest) | Expected::Once(digest) => Some(digest),
            Expected::Unknown => None,
        };
        let hashes = hash_file(&full, digest).map_err(HubError::io(&full))?;
        let wrong = digest.map(|digest| (digest, hashes.like(digest))).filter(|(digest, got)| *digest != got);
        if let (Expected::Exactly(expected), Some((_, got))) = (&expected, &wrong) {
            return Err(HubError::Damaged { path: full, expected: expected.to_string(), got: got.to_string() });
        }
        let digest = if wrong.is_none() { digest.cloned() } else { None };
        if wrong.is_some() {
            observer.event(Event::Note(&format!("{path} was changed after it was downloaded")));
        }
        files.push(ManifestFile { path, size, modified, digest, sha256: hashes.sha256 });
        news = true;
    }
    Ok((Manifest::new(files), news))
}
