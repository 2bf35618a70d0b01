//! The cache that other tools share: where things are in it, and what of it can be used as it is.

use crate::config::HubConfig;
use crate::digest::Digest;
use crate::disk::FileSystem;
use crate::error::HubError;
use crate::events::Observer;
use crate::files::{has_tokenizer, missing_files, model_files};
use crate::id::{RepoId, Revision, is_commit};
use crate::manifest::{Expected, Manifest, ManifestFile, Place, facts, verify};
use std::path::{Path, PathBuf};

/// Longest ref file that is read.
const MAX_REF: u64 = 256;
/// Its name.
const OURS: &str = ".atlas";

/// The folder with `models--OWNER--NAME` in it.
#[derive(Debug, Clone)]
pub struct Cache {
    /// Where it is.
    pub root: PathBuf,
    own_cache: Option<PathBuf>,
}

/// One commit of a repository, whole as far as its index says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The repository.
    pub repo: RepoId,
    /// Which commit.
    pub commit: String,
    /// The folder with its files.
    pub folder: PathBuf,
}

impl Cache {
    /// The cache that a configuration names.
    pub fn new(config: &HubConfig) -> Self {
        Self { root: config.cache.clone(), own_cache: config.own_cache.clone() }
    }

    /// The cache and the snapshot that a folder belongs to, if it is one of a cache.
    pub fn of_folder(folder: &Path, own_cache: Option<PathBuf>) -> Option<(Self, Snapshot)> {
        let folder = std::path::absolute(folder).ok()?;
        let commit = folder.file_name()?.to_str().filter(|commit| is_commit(commit))?.to_owned();
        let snapshots = folder.parent().filter(|parent| parent.file_name().is_some_and(|name| name == "snapshots"))?;
        let repo_folder = snapshots.parent()?;
        let repo = RepoId::from_folder(repo_folder.file_name()?.to_str()?)?;
        let root = repo_folder.parent()?.to_owned();
        Some((Self { root, own_cache }, Snapshot { repo, commit, folder }))
    }

    /// The folder of a repository.
    pub fn repo(&self, repo: &RepoId) -> PathBuf {
        self.root.join(repo.folder())
    }

    pub(crate) fn blob(&self, repo: &RepoId, digest: &Digest) -> PathBuf {
        self.repo(repo).join("blobs").join(digest.as_str())
    }

    pub(crate) fn lock(&self, repo: &RepoId, digest: &Digest) -> PathBuf {
        self.root.join(".locks").join(repo.folder()).join(format!("{}.lock", digest.as_str()))
    }

    pub(crate) fn snapshot(&self, repo: &RepoId, commit: &str) -> PathBuf {
        self.repo(repo).join("snapshots").join(commit)
    }

    pub(crate) fn reference(&self, repo: &RepoId, revision: &Revision) -> PathBuf {
        self.repo(repo).join("refs").join(revision.as_str())
    }

    /// Our own folder in a repository's: manifests, and what is being made. Other tools do not look there.
    pub(crate) fn workshop(&self, repo: &RepoId) -> PathBuf {
        self.repo(repo).join(OURS)
    }

    pub(crate) fn manifest(&self, repo: &RepoId, commit: &str) -> Place {
        let beside = self.workshop(repo).join(format!("{commit}.json"));
        Place::new(beside, self.own_cache.as_deref())
    }

    /// The commit that a revision meant when it was last fetched.
    pub fn commit(&self, repo: &RepoId, revision: &Revision) -> Option<String> {
        if revision.is_commit() {
            return Some(revision.as_str().to_owned());
        }
        let path = self.reference(repo, revision);
        let small = std::fs::metadata(&path).is_ok_and(|facts| facts.is_file() && facts.len() <= MAX_REF);
        let text = small.then(|| std::fs::read_to_string(&path).ok())??;
        Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// A revision whose files are all there. They may still have to be verified, see [`Cache::verify`].
    pub fn open(&self, repo: &RepoId, revision: &Revision) -> Option<Snapshot> {
        self.look(repo, revision).ok()
    }

    /// The same, or why not.
    pub fn look(&self, repo: &RepoId, revision: &Revision) -> Result<Snapshot, String> {
        let absent = || "is not on this machine".to_owned();
        let commit = self.commit(repo, revision).ok_or_else(absent)?;
        let folder = self.snapshot(repo, &commit);
        if !folder.is_dir() {
            return Err(absent());
        }
        let mut missing = missing_files(&folder);
        match self.manifest(repo, &commit).load() {
            Some(manifest) => {
                let here =
                    |file: &ManifestFile| facts(&folder.join(&file.path)).is_ok_and(|(size, _)| size == file.size);
                missing.extend(manifest.files.iter().filter(|file| !here(file)).map(|file| file.path.clone()));
            }
            None if !has_tokenizer(&folder) => missing.push("a tokenizer".to_owned()),
            None => {}
        }
        missing.sort();
        missing.dedup();
        match missing.is_empty() {
            true => Ok(Snapshot { repo: repo.clone(), commit, folder }),
            false => Err(format!("is not whole in the cache: {} missing", missing.join(", "))),
        }
    }

    /// Verifies what was never verified before: files that another tool fetched, and files that were touched since.
    /// Costs one read of those files, and nothing the next time.
    pub fn verify(
        &self,
        snapshot: &Snapshot,
        files: &dyn FileSystem,
        observer: &dyn Observer,
    ) -> Result<Manifest, HubError> {
        let place = self.manifest(&snapshot.repo, &snapshot.commit);
        let old = place.load();
        let digest = |path: &str| old.as_ref().and_then(|manifest| manifest.get(path)?.digest.clone());
        let named = |path: &str| {
            let target = std::fs::read_link(snapshot.folder.join(path)).ok()?;
            Digest::parse(target.file_name()?.to_str()?)
        };
        let expected = |path: &str| named(path).or_else(|| digest(path)).map_or(Expected::Unknown, Expected::Exactly);
        let mut paths = model_files(&snapshot.folder);
        paths.extend(old.iter().flat_map(|manifest| &manifest.files).map(|file| file.path.clone()));
        paths.sort();
        paths.dedup();
        let (manifest, news) = verify(&snapshot.folder, paths, old.as_ref(), expected, observer)?;
        if news {
            place.save(files, &manifest)?;
        }
        Ok(manifest)
    }

    /// Every verified file of a repository, whatever its commit.
    pub(crate) fn verified(&self, repo: &RepoId) -> Vec<ManifestFile> {
        let folders = [self.workshop(repo)];
        let entries = folders.iter().flat_map(std::fs::read_dir).flatten().flatten().map(|entry| entry.path());
        let manifests = entries.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        manifests.filter_map(|path| Manifest::read(&path)).flat_map(|manifest| manifest.files).collect()
    }
}

/// Makes `path` in a snapshot lead to `blob`: a relative link, or a copy where the file system has no links.
pub(crate) fn place(
    files: &dyn FileSystem,
    blob: &Path,
    path: &Path,
    depth: usize,
    workshop: &Path,
) -> Result<(), HubError> {
    let name = blob.file_name().unwrap_or_default();
    let target: PathBuf = std::iter::repeat_n("..", depth + 2).collect::<PathBuf>().join("blobs").join(name);
    if std::fs::read_link(path).is_ok_and(|there| there == target) {
        return Ok(());
    }
    let temporary = crate::disk::temporary(workshop);
    let placed = match files.symlink(&target, &temporary) {
        Ok(()) => Ok(()),
        Err(error) if has_no_links(&error) => copy(files, blob, &temporary),
        Err(error) => Err(HubError::io(path)(error)),
    };
    let placed = placed.and_then(|()| files.rename(&temporary, path).map_err(HubError::io(path)));
    if placed.is_err() {
        let _ = files.remove(&temporary);
    }
    placed
}

/// Whether a file system has no symbolic links: exFAT, some network mounts, some containers.
pub(crate) fn has_no_links(error: &std::io::Error) -> bool {
    let no_links = [rustix::io::Errno::PERM, rustix::io::Errno::OPNOTSUPP, rustix::io::Errno::NOSYS];
    error.raw_os_error().is_some_and(|code| no_links.iter().any(|errno| errno.raw_os_error() == code))
}

fn copy(files: &dyn FileSystem, from: &Path, to: &Path) -> Result<(), HubError> {
    use std::io::Read;
    let mut source = std::fs::File::open(from).map_err(HubError::io(from))?;
    let target = files.open(to).map_err(HubError::io(to))?;
    let mut buffer = vec![0; crate::digest::CHUNK];
    let mut offset = 0;
    loop {
        let read = source.read(&mut buffer).map_err(HubError::io(from))?;
        if read == 0 {
            return files.sync(&target).map_err(HubError::io(to));
        }
        files.write_at(&target, &buffer[..read], offset).map_err(HubError::io(to))?;
        offset += read as u64;
    }
}
