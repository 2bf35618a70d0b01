//! Names that come from outside and become paths: repositories, revisions, files. Nothing here can lead out of a folder.

use crate::error::HubError;
use std::fmt;

/// Longest name of a file's or folder's part that Linux file systems keep.
const MAX_COMPONENT: usize = 255;
/// Longest path that we take from a hub.
const MAX_PATH: usize = 1024;

/// A model repository: `owner/name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RepoId(String);

impl RepoId {
    /// Two plain path components; nothing that leads elsewhere, and nothing that the cache's folder names could not
    /// give back.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let plain = |part: &str| {
            !part.is_empty()
                && part.len() <= 96
                && !part.starts_with(['.', '-'])
                && !part.contains("--")
                && !part.contains("..")
                && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
        };
        match text.split('/').collect::<Vec<_>>().as_slice() {
            [owner, name] if plain(owner) && plain(name) => Ok(Self(text.to_owned())),
            _ => Err(HubError::InvalidId { id: text.to_owned() }),
        }
    }

    /// `owner/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The repository's folder in the cache.
    pub fn folder(&self) -> String {
        format!("models--{}", self.0.replace('/', "--"))
    }

    /// The repository of a folder in the cache.
    pub fn from_folder(folder: &str) -> Option<Self> {
        let (owner, name) = folder.strip_prefix("models--")?.split_once("--")?;
        Self::parse(&format!("{owner}/{name}")).ok()
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A branch, a tag, `refs/pr/N` or a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision(String);

impl Revision {
    /// Every part between slashes is a plain file name.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/' | '+');
        if is_safe_path(text) && text.chars().all(plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(HubError::InvalidRevision { revision: text.to_owned() })
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it names one state of the repository for ever.
    pub fn is_commit(&self) -> bool {
        is_commit(&self.0)
    }

    /// As one segment of a URL's path.
    pub(crate) fn encoded(&self) -> String {
        encode(&self.0).replace('/', "%2F")
    }
}

impl Default for Revision {
    fn default() -> Self {
        Self("main".to_owned())
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A full git commit id.
pub(crate) fn is_commit(text: &str) -> bool {
    is_hex(text, 40)
}

/// Lower-case hexadecimal of one length.
pub(crate) fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// A relative path whose parts are all names: no `..`, no root, no control characters, no hidden parts.
pub(crate) fn is_safe_path(path: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty()
            && part.len() <= MAX_COMPONENT
            && !part.starts_with('.')
            && !part.chars().any(|c| c.is_control() || c == '\\' || c == ':')
    };
    path.len() <= MAX_PATH && path.split('/').all(plain)
}

/// Percent-encodes what a URL's path does not take as it is; slashes stay.
pub(crate) fn encode(path: &str) -> String {
    path.bytes().fold(String::new(), |mut url, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => url.push(byte.into()),
            other => url.push_str(&format!("%{other:02X}")),
        }
        url
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s23_names_that_lead_elsewhere_are_refused() {
        for id in
            ["../x", "a/b/c", "a/..", "a", "", "/a/b", "a--b/c", "-a/b", "a/.b", "a/b\0", "a/b c", "a\\b/c", "é/b"]
        {
            assert!(RepoId::parse(id).is_err(), "{id}");
        }
        for revision in ["..", "a/../b", "/etc", "", "a//b", ".git", "a\nb", "a b", "a?b", "a%2e", "a:b"] {
            assert!(Revision::parse(revision).is_err(), "{revision}");
        }
        for path in
            ["../x", "a/../x", "/x", "x/", "", "a\0b", "a\\b", ".gitattributes", "a/.b", "c:x", &"x".repeat(256)]
        {
            assert!(!is_safe_path(path), "{path}");
        }
        assert!(is_safe_path("original/model-00001-of-00002.safetensors"));
    }

    #[test]
    fn folders_and_repositories_are_the_same_thing() {
        let id = RepoId::parse("Qwen/Qwen3-0.6B").unwrap();
        assert_eq!(id.folder(), "models--Qwen--Qwen3-0.6B");
        assert_eq!(RepoId::from_folder(&id.folder()), Some(id));
        assert_eq!(RepoId::from_folder("datasets--a--b"), None);
        assert_eq!(RepoId::from_folder("models--a"), None);
    }

    #[test]
    fn revisions_are_one_segment_of_a_url() {
        assert_eq!(Revision::parse("refs/pr/1").unwrap().encoded(), "refs%2Fpr%2F1");
        assert!(Revision::parse(&"a1".repeat(20)).unwrap().is_commit());
        assert!(!Revision::default().is_commit());
        assert_eq!(encode("a b/ü#.json"), "a%20b/%C3%BC%23.json");
    }
}
