//! What a file must hash to. Large files are known by their sha256, small ones by the id that git gives them.

use crate::id::is_hex;
use serde::{Deserialize, Serialize};
use sha1::Digest as _;
use std::fmt::{self, Write};
use std::io::Read;
use std::path::Path;

/// Read at a time.
pub(crate) const CHUNK: usize = 1 << 20;

/// The digest by which a hub and its cache know a file; it is the blob's name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Digest {
    /// Of a file in large-file storage: sha256 of its bytes.
    Sha256(String),
    /// Of a file in git itself: sha1 of `blob SIZE\0` and its bytes.
    GitSha1(String),
}

impl Digest {
    /// Told apart by their length.
    pub fn parse(text: &str) -> Option<Self> {
        match text.len() {
            64 if is_hex(text, 64) => Some(Self::Sha256(text.to_owned())),
            40 if is_hex(text, 40) => Some(Self::GitSha1(text.to_owned())),
            _ => None,
        }
    }

    /// Hexadecimal.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::GitSha1(hex) => hex,
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sha256(hex) => write!(f, "sha256 {hex}"),
            Self::GitSha1(hex) => write!(f, "git id {hex}"),
        }
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("`{text}` is not a digest"))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.as_str().to_owned()
    }
}

/// A file's hashes: sha256 always, git's id where the file is known by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hashes {
    /// sha256 in hexadecimal.
    pub sha256: String,
    git: Option<String>,
}

impl Hashes {
    /// The hash of the kind of `expected`; equal to it if the file is right.
    pub fn like(&self, expected: &Digest) -> Digest {
        match (expected, &self.git) {
            (Digest::GitSha1(_), Some(git)) => Digest::GitSha1(git.clone()),
            _ => Digest::Sha256(self.sha256.clone()),
        }
    }
}

/// Hashes bytes as they come.
pub(crate) struct Hasher {
    sha256: sha2::Sha256,
    git: Option<sha1::Sha1>,
}

impl Hasher {
    /// For a file of `size` bytes whose digest is of the kind of `expected`.
    pub(crate) fn new(expected: Option<&Digest>, size: u64) -> Self {
        let git = matches!(expected, Some(Digest::GitSha1(_))).then(|| {
            let mut git = sha1::Sha1::new();
            git.update(format!("blob {size}\0"));
            git
        });
        Self { sha256: sha2::Sha256::new(), git }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        if let Some(git) = &mut self.git {
            git.update(bytes);
        }
    }

    pub(crate) fn finish(self) -> Hashes {
        Hashes { sha256: hex(&self.sha256.finalize()), git: self.git.map(|git| hex(&git.finalize())) }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Hashes a file on this machine.
pub(crate) fn hash_file(path: &Path, expected: Option<&Digest>) -> std::io::Result<Hashes> {
    let mut file = std::fs::File::open(path)?;
    let mut hasher = Hasher::new(expected, file.metadata()?.len());
    let mut buffer = vec![0; CHUNK];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(read) => hasher.update(&buffer[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_git_and_of_sha256sum() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, "hello\n").unwrap();
        let git = Digest::parse("ce013625030ba8dba906f756967f9e9ca394464a").unwrap();
        let hashes = hash_file(&path, Some(&git)).unwrap();
        assert_eq!(hashes.like(&git), git);
        assert_eq!(hashes.sha256, "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
        let sha256 = Digest::parse(&hashes.sha256).unwrap();
        assert_eq!(hash_file(&path, Some(&sha256)).unwrap().like(&sha256), sha256);
        for wrong in ["", "abc", &"A".repeat(40), &"g".repeat(64), &"a".repeat(41)] {
            assert_eq!(Digest::parse(wrong), None, "{wrong}");
        }
    }
}
