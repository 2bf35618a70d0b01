//! What the cache holds, whether it is whole, and what of it can go.

use crate::cache::Cache;
use crate::digest::{Digest, hash_file};
use crate::disk::TEMPORARY;
use crate::error::HubError;
use crate::events::{Event, Observer};
use crate::id::{RepoId, Revision, is_commit};
use crate::lock::Lock;
use crate::part::{JOURNAL, PART};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Deepest folder in a repository that is looked into.
const DEPTH: usize = 8;
/// A younger blob may belong to a fetch that is still under way.
const SETTLED: Duration = Duration::from_secs(3600);

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoEntry {
    /// `owner/name`.
    pub repo: RepoId,
    /// Its folder.
    pub folder: PathBuf,
    /// Bytes on disk; what several revisions share counts once.
    pub bytes: u64,
    /// How many of them belong to files that are not whole yet.
    pub unfinished: u64,
    /// Its revisions by commit.
    pub revisions: Vec<RevisionEntry>,
}

/// A revision in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionEntry {
    /// The commit.
    pub commit: String,
    /// Branches and tags that mean it.
    pub names: Vec<String>,
    /// How many files.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Whether all of them were verified once and have not changed since.
    pub verified: bool,
    /// Why it cannot be used, if it cannot.
    pub problem: Option<String>,
}

/// What a complete reading of a model found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedRepo {
    /// `owner/name`.
    pub repo: RepoId,
    /// Files that were read.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Each damaged or missing file, with what is wrong.
    pub problems: Vec<(PathBuf, String)>,
}

/// Why something can go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PruneReason {
    /// It was asked for by name.
    Named,
    /// A download that did not finish; the next one would go on from it.
    Unfinished,
    /// No revision leads to it.
    Unreferenced,
    /// No branch or tag means it any more. A recipe may still pin it.
    Detached,
}

/// Something that can go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prunable {
    /// The model it belongs to.
    pub repo: RepoId,
    /// Files and folders, in the order in which they go.
    pub paths: Vec<PathBuf>,
    /// Bytes that become free.
    pub bytes: u64,
    /// Why.
    pub reason: PruneReason,
    locks: Vec<PathBuf>,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pruned {
    /// It is gone.
    Removed,
    /// Another process is using it.
    Busy,
}

/// One file below a repository's folder. Links are not followed.
struct Entry {
    path: PathBuf,
    facts: std::fs::Metadata,
}

impl Entry {
    fn name(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    fn key(&self) -> (u64, u64) {
        (self.facts.dev(), self.facts.ino())
    }
}

impl Cache {
    /// The models in the cache, by name.
    pub fn repos(&self) -> Result<Vec<RepoId>, HubError> {
        let entries = match std::fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(HubError::io(&self.root)(error)),
        };
        let folders = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let mut repos: Vec<RepoId> =
            folders.filter_map(|entry| RepoId::from_folder(entry.file_name().to_str()?)).collect();
        repos.sort();
        Ok(repos)
    }

    /// What one model takes, and whether it is whole. Reads no weights.
    pub fn entry(&self, repo: &RepoId) -> Result<RepoEntry, HubError> {
        let folder = self.repo(repo);
        let files = walk(&folder)?;
        let unfinished = files.iter().filter(|file| is_leftover(file.name())).map(|file| file.facts.len()).sum();
        let names = self.names(repo)?;
        let mut revisions = Vec::new();
        for commit in self.commits(repo)? {
            let snapshot = folder.join("snapshots").join(&commit);
            let paths: Vec<PathBuf> = walk(&snapshot)?.into_iter().map(|file| file.path).collect();
            let sizes: HashMap<(u64, u64), u64> = paths
                .iter()
                .filter_map(|path| std::fs::metadata(path).ok())
                .map(|facts| ((facts.dev(), facts.ino()), facts.len()))
                .collect();
            let problem = Revision::parse(&commit).and_then(|revision| {
                Ok(self.look(repo, &revision).err().map(|problem| problem.replace("is not whole in the cache: ", "")))
            })?;
            let verified = problem.is_none() && self.is_verified(repo, &commit, &snapshot);
            revisions.push(RevisionEntry {
                names: names.iter().filter(|(_, means)| **means == commit).map(|(name, _)| name.clone()).collect(),
                files: paths.len(),
                bytes: sizes.values().sum(),
                commit,
                verified,
                problem,
            });
        }
        Ok(RepoEntry { repo: repo.clone(), bytes: once(&files), folder, unfinished, revisions })
    }

    fn is_verified(&self, repo: &RepoId, commit: &str, snapshot: &Path) -> bool {
        self.manifest(repo, commit).load().is_some_and(|manifest| {
            let same = |file: &crate::manifest::ManifestFile| {
                crate::manifest::facts(&snapshot.join(&file.path))
                    .is_ok_and(|facts| facts == (file.size, file.modified))
            };
            manifest.files.iter().all(same)
        })
    }

    /// Reads every file of a model and compares it with its digest.
    pub fn verify_repo(&self, repo: &RepoId, observer: &dyn Observer) -> Result<VerifiedRepo, HubError> {
        let folder = self.repo(repo);
        let mut verified = VerifiedRepo { repo: repo.clone(), files: 0, bytes: 0, problems: Vec::new() };
        for blob in walk(&folder.join("blobs"))? {
            let Some(digest) = Digest::parse(blob.name()) else { continue };
            verified.check(&blob.path, &digest, observer);
        }
        for commit in self.commits(repo)? {
            let snapshot = folder.join("snapshots").join(&commit);
            let manifest = self.manifest(repo, &commit).load();
            for file in walk(&snapshot)? {
                if file.facts.is_symlink() {
                    if std::fs::metadata(&file.path).is_err() {
                        verified.problems.push((file.path, "leads to nothing".to_owned()));
                    }
                    continue;
                }
                // A copy, where there are no links: only our manifest knows what it should be.
                let relative = file.path.strip_prefix(&snapshot).ok().and_then(Path::to_str).unwrap_or_default();
                let known = manifest.as_ref().and_then(|manifest| manifest.get(relative));
                if let Some(digest) = known.and_then(|known| Digest::parse(&known.sha256)) {
                    verified.check(&file.path, &digest, observer);
                }
            }
            let revision = Revision::parse(&commit)?;
            if let Err(problem) = self.look(repo, &revision) {
                verified.problems.push((snapshot, problem));
            }
        }
        Ok(verified)
    }

    /// What can go: leftovers always; revisions without a name if `detached`; the whole model if `named`.
    pub fn prunable(&self, repo: &RepoId, named: bool, detached: bool) -> Result<Vec<Prunable>, HubError> {
        let folder = self.repo(repo);
        if named {
            let files = walk(&folder)?;
            let locks = files.iter().filter_map(|file| self.lock_of(repo, file.name())).collect();
            let (bytes, paths) = (once(&files), vec![folder]);
            return Ok(vec![Prunable { repo: repo.clone(), paths, bytes, reason: PruneReason::Named, locks }]);
        }
        let mut found = Vec::new();
        let names = self.names(repo)?;
        let mut going = BTreeSet::new();
        if detached && !names.is_empty() {
            going.extend(self.commits(repo)?.into_iter().filter(|commit| !names.values().any(|means| means == commit)));
        }
        let blobs = walk(&folder.join("blobs"))?;
        let staying = self.targets(repo, |commit| !going.contains(commit))?;
        let leaving = self.targets(repo, |commit| going.contains(commit))?;
        for commit in &going {
            let snapshot = folder.join("snapshots").join(commit);
            let copies =
                walk(&snapshot)?.into_iter().filter(|file| file.facts.is_file()).map(|file| file.facts.len()).sum();
            let manifest = self.workshop(repo).join(format!("{commit}.json"));
            found.push(self.item(repo, PruneReason::Detached, vec![manifest, snapshot], copies, None));
        }
        let dropped = walk(&self.workshop(repo))?.into_iter().filter(|file| file.name().starts_with(TEMPORARY));
        for file in dropped.filter(|file| is_settled(&file.facts)) {
            found.push(self.item(repo, PruneReason::Unfinished, vec![file.path], file.facts.len(), None));
        }
        for blob in &blobs {
            let name = blob.name();
            let size = blob.facts.len();
            let reason = match (is_leftover(name), staying.contains(name), leaving.contains(name)) {
                (true, _, _) => PruneReason::Unfinished,
                (false, true, _) => continue,
                (false, false, true) => PruneReason::Detached,
                (false, false, false) if is_settled(&blob.facts) && Digest::parse(name).is_some() => {
                    PruneReason::Unreferenced
                }
                (false, false, false) => continue,
            };
            // Of a sparse file only what is on the disk becomes free.
            let bytes = size.min(blob.facts.blocks() * 512);
            found.push(self.item(repo, reason, vec![blob.path.clone()], bytes, self.lock_of(repo, name)));
        }
        Ok(found)
    }

    fn item(
        &self,
        repo: &RepoId,
        reason: PruneReason,
        paths: Vec<PathBuf>,
        bytes: u64,
        lock: Option<PathBuf>,
    ) -> Prunable {
        Prunable { repo: repo.clone(), paths, bytes, reason, locks: lock.into_iter().collect() }
    }

    /// The lock of a blob or of what is left of one.
    fn lock_of(&self, repo: &RepoId, name: &str) -> Option<PathBuf> {
        Digest::parse(name.split('.').next()?).map(|digest| self.lock(repo, &digest))
    }

    /// Removes something, unless a fetch holds its lock. Links are removed, not followed.
    pub fn remove(&self, what: &Prunable) -> Result<Pruned, HubError> {
        let mut held = Vec::new();
        for lock in &what.locks {
            match Lock::try_take(lock)? {
                Some(lock) => held.push(lock),
                None => return Ok(Pruned::Busy),
            }
        }
        for path in &what.paths {
            let removed = match std::fs::symlink_metadata(path) {
                Ok(facts) if facts.is_dir() => std::fs::remove_dir_all(path),
                Ok(_) => std::fs::remove_file(path),
                Err(error) => Err(error),
            };
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(HubError::io(path)(error)),
                _ => {}
            }
        }
        Ok(Pruned::Removed)
    }

    /// Branches and tags, each with its commit.
    fn names(&self, repo: &RepoId) -> Result<BTreeMap<String, String>, HubError> {
        let folder = self.repo(repo).join("refs");
        let names = walk(&folder)?.into_iter().filter_map(|file| {
            let name = file.path.strip_prefix(&folder).ok()?.to_str()?;
            let commit = self.commit(repo, &Revision::parse(name).ok()?)?;
            Some((name.to_owned(), commit))
        });
        Ok(names.collect())
    }

    fn commits(&self, repo: &RepoId) -> Result<Vec<String>, HubError> {
        let folder = self.repo(repo).join("snapshots");
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(HubError::io(&folder)(error)),
        };
        let mut commits: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        commits.retain(|commit| is_commit(commit));
        commits.sort();
        Ok(commits)
    }

    /// Names of the blobs to which some revisions lead.
    fn targets(&self, repo: &RepoId, which: impl Fn(&str) -> bool) -> Result<BTreeSet<String>, HubError> {
        let mut names = BTreeSet::new();
        for commit in self.commits(repo)?.into_iter().filter(|commit| which(commit)) {
            for file in walk(&self.snapshot(repo, &commit))? {
                let target = std::fs::read_link(&file.path).ok();
                names.extend(target.and_then(|target| target.file_name()?.to_str().map(str::to_owned)));
            }
        }
        Ok(names)
    }
}

impl VerifiedRepo {
    fn check(&mut self, path: &Path, digest: &Digest, observer: &dyn Observer) {
        let size = std::fs::metadata(path).map_or(0, |facts| facts.len());
        observer.event(Event::Hashing { file: digest.as_str(), size });
        self.files += 1;
        self.bytes += size;
        match hash_file(path, Some(digest)).map(|hashes| hashes.like(digest)) {
            Ok(got) if got == *digest => {}
            Ok(got) => self.problems.push((path.to_owned(), format!("is damaged: it should be {digest}, it is {got}"))),
            Err(error) => self.problems.push((path.to_owned(), error.to_string())),
        }
    }
}

/// Whether a file is what an interrupted fetch left: ours or another tool's.
fn is_leftover(name: &str) -> bool {
    [PART, JOURNAL, ".incomplete"].iter().any(|suffix| name.ends_with(suffix)) || name.starts_with(TEMPORARY)
}

fn is_settled(facts: &std::fs::Metadata) -> bool {
    let age = facts.modified().ok().and_then(|modified| SystemTime::now().duration_since(modified).ok());
    age.is_some_and(|age| age >= SETTLED)
}

/// Bytes of files; what has several names counts once.
fn once(files: &[Entry]) -> u64 {
    let sizes: HashMap<(u64, u64), u64> = files
        .iter()
        .filter(|file| file.facts.is_file())
        .map(|file| (file.key(), file.facts.len().min(file.facts.blocks() * 512)))
        .collect();
    sizes.values().sum()
}

/// Everything below a folder that is not a folder. A folder that is not there is empty.
fn walk(folder: &Path) -> Result<Vec<Entry>, HubError> {
    let mut found = Vec::new();
    let mut folders = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(HubError::io(&folder)(error)),
        };
        for entry in entries {
            let path = entry.map_err(HubError::io(&folder))?.path();
            let facts = std::fs::symlink_metadata(&path).map_err(HubError::io(&path))?;
            match facts.is_dir() {
                true if depth < DEPTH => folders.push((path, depth + 1)),
                true => {}
                false => found.push(Entry { path, facts }),
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}
