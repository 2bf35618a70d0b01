//! What a hub says a revision holds.

use crate::client::{Client, Fault};
use crate::digest::Digest;
use crate::files::{is_wanted, unindexed_weights};
use crate::id::{RepoId, Revision, is_commit, is_safe_path};
use reqwest::Method;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A file at the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// Path in the repository.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// What its bytes hash to.
    pub digest: Digest,
}

/// The files of one commit that could be wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The commit that the revision means today.
    pub commit: String,
    files: BTreeMap<String, RemoteFile>,
}

#[derive(Deserialize)]
struct Reply {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    #[serde(alias = "oid")]
    sha256: String,
    size: u64,
}

impl Listing {
    /// Asks the hub once.
    pub(crate) async fn ask(client: &Client, repo: &RepoId, revision: &Revision) -> Result<Self, Fault> {
        let path = format!("api/models/{repo}/revision/{}?blobs=true", revision.encoded());
        let url = client.hub_url(&path).map_err(Fault::Fatal)?;
        let reply = client.send(Method::GET, &url, None, false).await?;
        let body = client.body(reply.response, client.config.limits.listing).await?;
        if body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'<') {
            return Err(Fault::transient(
                "a page of HTML instead of a reply of the hub's API (a proxy, or a login page)",
            ));
        }
        let listing = Self::parse(&body, client.config.limits.listed_files).map_err(Fault::transient)?;
        if revision.is_commit() && listing.commit != revision.as_str() {
            return Err(Fault::transient(format!("the hub answers with commit {}", listing.commit)));
        }
        Ok(listing)
    }

    /// Keeps the files that a model may need; each must have a size, a digest and a path of its own.
    fn parse(body: &[u8], limit: usize) -> Result<Self, String> {
        let reply: Reply =
            serde_json::from_slice(body).map_err(|error| format!("not a reply of the hub's API: {error}"))?;
        if !is_commit(&reply.sha) {
            return Err(format!("`{}` is not a commit", reply.sha.escape_debug()));
        }
        if reply.siblings.len() > limit {
            return Err(format!("{} files are more than {limit}", reply.siblings.len()));
        }
        let mut files = BTreeMap::new();
        for sibling in reply.siblings {
            let path = sibling.rfilename;
            if !(is_wanted(&path) || path.ends_with(".safetensors")) || !is_safe_path(&path) {
                continue;
            }
            let (digest, size) = match (sibling.lfs, sibling.blob_id) {
                (Some(lfs), _) => {
                    (Digest::parse(&lfs.sha256).filter(|d| matches!(d, Digest::Sha256(_))), Some(lfs.size))
                }
                (None, id) => (id.and_then(|id| Digest::parse(&id)), sibling.size),
            };
            let (Some(digest), Some(size)) = (digest, size) else {
                return Err(format!("`{path}` has no size or no digest"));
            };
            let file = RemoteFile { path: path.clone(), size, digest };
            if files.insert(path.clone(), file).is_some() {
                return Err(format!("`{path}` is listed twice"));
            }
        }
        let total = files.values().try_fold(0u64, |sum, file| sum.checked_add(file.size));
        total.ok_or_else(|| "the sizes are beyond all bounds".to_owned())?;
        Ok(Self { commit: reply.sha, files })
    }

    /// The files that a model may need, by path.
    pub fn files(&self) -> impl Iterator<Item = &RemoteFile> {
        self.files.values()
    }

    /// A file by its path.
    pub fn get(&self, path: &str) -> Option<&RemoteFile> {
        self.files.get(path)
    }

    /// Configuration, tokenizer, template, index.
    pub(crate) fn small(&self) -> Vec<RemoteFile> {
        self.files.values().filter(|file| is_wanted(&file.path)).cloned().collect()
    }

    /// The weights: those that the index names, else those of the root.
    pub(crate) fn weights(&self, shards: Option<&[String]>) -> Result<Vec<RemoteFile>, String> {
        let names: Vec<&str> = match shards {
            Some(shards) => shards.iter().map(String::as_str).collect(),
            None => unindexed_weights(self.files.keys().map(String::as_str)),
        };
        if names.is_empty() {
            return Err("it has no safetensors weights".to_owned());
        }
        let find =
            |name: &str| self.get(name).cloned().ok_or_else(|| format!("its index names `{name}`, which it lacks"));
        names.into_iter().map(find).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA: &str = "0123456789abcdef0123456789abcdef01234567";

    fn parse(siblings: &str) -> Result<Listing, String> {
        Listing::parse(format!(r#"{{"sha":"{SHA}","siblings":[{siblings}],"more":1}}"#).as_bytes(), 4)
    }

    #[test]
    fn listings_name_what_may_be_wanted() {
        let oid = "a".repeat(64);
        let listing = parse(&format!(
            r#"{{"rfilename":"config.json","size":3,"blobId":"{SHA}"}},
               {{"rfilename":"model.safetensors","size":9,"blobId":"{SHA}","lfs":{{"sha256":"{oid}","size":9,"pointerSize":1}}}},
               {{"rfilename":"evil.py","size":3,"blobId":"{SHA}"}},
               {{"rfilename":"../../model.safetensors","size":3,"blobId":"{SHA}"}}"#
        ))
        .unwrap();
        assert_eq!(
            listing.files().map(|file| file.path.as_str()).collect::<Vec<_>>(),
            ["config.json", "model.safetensors"]
        );
        assert_eq!(listing.get("config.json").unwrap().digest, Digest::GitSha1(SHA.to_owned()));
        assert_eq!(listing.weights(None).unwrap()[0].digest, Digest::Sha256(oid));
        assert!(listing.weights(Some(&["x.safetensors".to_owned()])).unwrap_err().contains("x.safetensors"));
    }

    #[test]
    fn listings_that_cannot_be_trusted_are_refused() {
        let file = |path: &str| format!(r#"{{"rfilename":"{path}","size":3,"blobId":"{SHA}"}}"#);
        for (siblings, problem) in [
            (r#"{"rfilename":"config.json"}"#.to_owned(), "no size"),
            (r#"{"rfilename":"config.json","size":3,"blobId":"../../x"}"#.to_owned(), "no digest"),
            (format!(r#"{{"rfilename":"config.json","lfs":{{"sha256":"{SHA}","size":3}}}}"#), "no size or no digest"),
            (format!("{},{}", file("config.json"), file("config.json")), "twice"),
            (vec![file("a"); 5].join(","), "more than"),
            (r#"{"rfilename":"config.json","size":-1,"blobId":"x"}"#.to_owned(), "not a reply"),
        ] {
            assert!(parse(&siblings).unwrap_err().contains(problem), "{siblings}");
        }
        assert!(Listing::parse(br#"{"sha":"../..","siblings":[]}"#, 4).unwrap_err().contains("not a commit"));
        let huge = u64::MAX;
        let two = format!(
            r#"{{"rfilename":"config.json","size":{huge},"blobId":"{SHA}"}},{{"rfilename":"vocab.json","size":{huge},"blobId":"{SHA}"}}"#
        );
        assert!(parse(&two).unwrap_err().contains("beyond"));
    }
}
