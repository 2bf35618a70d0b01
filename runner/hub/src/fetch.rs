//! From a repository's name to a folder that holds it, whole and verified.

use crate::cache::{Cache, Snapshot, has_no_links, place};
use crate::client::{Client, Fault};
use crate::config::HubConfig;
use crate::digest::hash_file;
use crate::disk::{Disk, FileSystem, nearest_existing, replace, temporary};
use crate::error::HubError;
use crate::events::{Event, Observer};
use crate::files::{INDEX, shards};
use crate::id::{RepoId, Revision};
use crate::listing::{Listing, RemoteFile};
use crate::lock::Lock;
use crate::manifest::{Manifest, ManifestFile, facts};
use crate::part::{Part, left_beside, left_over, part_path};
use crate::retry::Attempts;
use crate::transfer::{Transfer, blocking, refusal};
use futures_util::stream::{StreamExt, TryStreamExt, iter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A hub and its cache.
#[derive(Debug, Clone)]
pub struct Hub {
    client: Client,
    cache: Cache,
    files: Arc<dyn FileSystem>,
}

/// A revision that is here now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// Where it is.
    pub snapshot: Snapshot,
    /// Its files.
    pub manifest: Manifest,
    /// How many of them had to be fetched.
    pub fetched: usize,
}

/// One fetch.
struct Job<'a> {
    hub: &'a Hub,
    repo: &'a RepoId,
    commit: String,
    observer: &'a dyn Observer,
    known: Vec<ManifestFile>,
}

impl Hub {
    /// A hub on the real disk.
    pub fn new(config: HubConfig) -> Result<Self, HubError> {
        Self::with_files(config, Arc::new(Disk))
    }

    /// A hub on another file system.
    pub fn with_files(config: HubConfig, files: Arc<dyn FileSystem>) -> Result<Self, HubError> {
        let cache = Cache::new(&config);
        Ok(Self { client: Client::new(config)?, cache, files })
    }

    /// Its cache.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Asks what a revision holds.
    pub async fn list(&self, repo: &RepoId, revision: &Revision, observer: &dyn Observer) -> Result<Listing, HubError> {
        if self.client.config.offline {
            return Err(HubError::Offline { repo: repo.to_string(), revision: revision.to_string() });
        }
        let mut attempts = Attempts::default();
        loop {
            let (cause, after) = match Listing::ask(&self.client, repo, revision).await {
                Ok(listing) => return Ok(listing),
                Err(Fault::Fatal(error)) => return Err(error),
                Err(Fault::Transient { cause, after }) => (cause, after),
                Err(Fault::NoRanges) => ("a part of a reply".to_owned(), None),
                Err(Fault::Refused { code, .. }) if code.as_deref() == Some("RevisionNotFound") => {
                    return Err(HubError::NoRevision { repo: repo.to_string(), revision: revision.to_string() });
                }
                Err(Fault::Refused { status, code, .. }) => match refusal(&self.client, repo, status, code) {
                    Some(error) => return Err(error),
                    None => (format!("HTTP {status}"), None),
                },
            };
            let what = format!("the list of files of {repo}");
            attempts.failed(&self.client.config.limits, observer, &what, cause, after, 0).await?;
        }
    }

    /// Brings a revision into the cache: asks the hub what it holds, fetches what is missing, and verifies everything.
    /// Without the network only what is whole in the cache is given. Dropping the future stops the fetch; the next one
    /// goes on from there.
    pub async fn fetch(
        &self,
        repo: &RepoId,
        revision: &Revision,
        observer: &Arc<dyn Observer>,
    ) -> Result<Fetched, HubError> {
        if self.client.config.offline {
            let offline = || HubError::Offline { repo: repo.to_string(), revision: revision.to_string() };
            let snapshot = self.cache.open(repo, revision).ok_or_else(offline)?;
            let manifest = self.verify(&snapshot, observer).await?;
            return Ok(Fetched { snapshot, manifest, fetched: 0 });
        }
        let listing = self.list(repo, revision, &**observer).await?;
        let unusable = |problem: String| HubError::NotAModel { repo: repo.to_string(), problem };
        if listing.get("config.json").is_none() {
            return Err(unusable("it has no config.json".to_owned()));
        }
        let mut job = Job {
            hub: self,
            repo,
            commit: listing.commit.clone(),
            observer: &**observer,
            known: self.cache.verified(repo),
        };
        let index = listing.get(INDEX);
        // What an index names is known once it is here; space is then looked for again.
        let weights = if index.is_some() { Vec::new() } else { listing.weights(None).map_err(unusable)? };
        let mut files = job.bring_all(&[listing.small(), weights].concat()).await?;
        if let Some(index) = index {
            let path = job.blob(index);
            let text = std::fs::read_to_string(&path).map_err(HubError::io(&path))?;
            let names = shards(&text).map_err(unusable)?;
            files.extend(job.bring_all(&listing.weights(Some(&names)).map_err(unusable)?).await?);
        }
        let fetched = files.iter().filter(|(_, fetched)| *fetched).count();
        let files = files.into_iter().map(|(file, _)| file).collect();
        job.publish(revision, files).await.map(|(snapshot, manifest)| Fetched { snapshot, manifest, fetched })
    }

    /// Verifies what is here already, see [`Cache::verify`].
    pub async fn verify(&self, snapshot: &Snapshot, observer: &Arc<dyn Observer>) -> Result<Manifest, HubError> {
        let (cache, files) = (self.cache.clone(), self.files.clone());
        let (snapshot, observer) = (snapshot.clone(), observer.clone());
        blocking(move || cache.verify(&snapshot, &*files, &*observer)).await
    }
}

impl Job<'_> {
    fn blob(&self, file: &RemoteFile) -> PathBuf {
        self.hub.cache.blob(self.repo, &file.digest)
    }

    /// Brings files into the cache's blobs, a few at a time. Says of each whether it had to be fetched.
    async fn bring_all(&mut self, wanted: &[RemoteFile]) -> Result<Vec<(ManifestFile, bool)>, HubError> {
        let mut files = Vec::new();
        let mut missing = Vec::new();
        for file in wanted {
            match self.present(file).await? {
                Some(there) => {
                    self.tidy(file)?;
                    files.push((there, false));
                }
                None => missing.push(file),
            }
        }
        let bytes = missing.iter().map(|file| file.size - left_over(&self.blob(file), file.size)).sum();
        if !missing.is_empty() {
            self.preflight(&missing, wanted)?;
            self.observer.event(Event::Planned { files: missing.len(), bytes });
        }
        let job = &*self;
        let fetched: Vec<ManifestFile> =
            iter(missing).map(|file| job.bring(file)).buffer_unordered(self.limits().files).try_collect().await?;
        files.extend(fetched.into_iter().map(|file| (file, true)));
        Ok(files)
    }

    /// Removes what an ended process left beside a whole blob, unless a living one still uses it.
    fn tidy(&self, file: &RemoteFile) -> Result<(), HubError> {
        let left = left_beside(&self.blob(file));
        if left.is_empty() {
            return Ok(());
        }
        if let Some(_lock) = Lock::try_take(&self.hub.cache.lock(self.repo, &file.digest))? {
            left.iter().try_for_each(|path| self.hub.files.remove(path).map_err(HubError::io(path)))?;
        }
        Ok(())
    }

    fn limits(&self) -> &crate::limits::Limits {
        &self.hub.client.config.limits
    }

    /// Space for what is missing, on the file system that will hold it, before anything is fetched.
    fn preflight(&self, missing: &[&RemoteFile], wanted: &[RemoteFile]) -> Result<(), HubError> {
        let files = &*self.hub.files;
        let folder = self.hub.cache.repo(self.repo).join("blobs");
        let there = nearest_existing(&folder);
        let used = |path: &Path| {
            use std::os::unix::fs::MetadataExt;
            std::fs::symlink_metadata(path).map_or(0, |facts| facts.blocks() * 512)
        };
        let blobs: u64 = missing.iter().map(|file| file.size.saturating_sub(used(&part_path(&self.blob(file))))).sum();
        let copies: u64 = if links_work(files, there) { 0 } else { wanted.iter().map(|file| file.size).sum() };
        let needed = blobs.saturating_add(copies).saturating_add(self.limits().spare);
        let free = files.free(there).map_err(HubError::io(there))?;
        match free >= needed {
            true => Ok(()),
            false => Err(HubError::NoSpace { repo: self.repo.to_string(), path: folder, needed, free }),
        }
    }

    /// A blob that is here and right. One that nobody vouches for is hashed; one that is wrong is not here.
    async fn present(&self, file: &RemoteFile) -> Result<Option<ManifestFile>, HubError> {
        let blob = self.blob(file);
        let Ok((size, modified)) = facts(&blob) else { return Ok(None) };
        if size != file.size {
            return Ok(None);
        }
        let mut entry = ManifestFile {
            path: file.path.clone(),
            size,
            modified,
            digest: Some(file.digest.clone()),
            sha256: String::new(),
        };
        let same = |known: &&ManifestFile| {
            (known.size, known.modified, &known.digest) == (entry.size, entry.modified, &entry.digest)
        };
        if let Some(known) = self.known.iter().find(same) {
            entry.sha256.clone_from(&known.sha256);
            return Ok(Some(entry));
        }
        self.observer.event(Event::Hashing { file: &file.path, size });
        let digest = file.digest.clone();
        let hashes = blocking(move || hash_file(&blob, Some(&digest)).map_err(HubError::io(&blob))).await?;
        if hashes.like(&file.digest) != file.digest {
            self.observer.event(Event::Note(&format!("{} is damaged in the cache and is fetched again", file.path)));
            return Ok(None);
        }
        entry.sha256 = hashes.sha256;
        Ok(Some(entry))
    }

    /// Fetches one blob, unless another process is faster.
    async fn bring(&self, file: &RemoteFile) -> Result<ManifestFile, HubError> {
        let (blob, files) = (self.blob(file), self.hub.files.clone());
        let folder = blob.parent().unwrap_or(Path::new(".")).to_owned();
        files.create_dirs(&folder).map_err(HubError::io(&folder))?;
        let lock_path = self.hub.cache.lock(self.repo, &file.digest);
        let incomplete = folder.join(format!("{}.incomplete", file.digest.as_str()));
        let watch = [part_path(&blob), blob.clone(), incomplete];
        let lock = Lock::take(&lock_path, &watch, &file.path, self.limits(), self.observer).await?;
        let entry = match self.present(file).await? {
            Some(entry) => entry,
            None => self.transfer(file, lock, &blob).await?,
        };
        self.observer.event(Event::Finished { file: &file.path });
        Ok(entry)
    }

    async fn transfer(&self, file: &RemoteFile, lock: Lock, blob: &Path) -> Result<ManifestFile, HubError> {
        let (files, path, size) = (self.hub.files.clone(), blob.to_owned(), file.size);
        let part = Arc::new(blocking(move || Part::open(files, &path, size, Some(lock))).await?);
        self.observer.event(Event::Started { file: &file.path, size: file.size, present: part.present() });
        let transfer = Transfer {
            client: &self.hub.client,
            repo: self.repo,
            commit: &self.commit,
            file,
            part: part.clone(),
            observer: self.observer,
            source: tokio::sync::Mutex::default(),
        };
        let outcome = transfer.run().await;
        if outcome.is_err() && part.present() == 0 {
            let part = part.clone();
            blocking(move || part.remove()).await?;
        }
        let hashes = outcome?;
        let path = blob.to_owned();
        let (size, modified) = blocking(move || {
            part.finish(&path)?;
            facts(&path).map_err(HubError::io(&path))
        })
        .await?;
        let digest = Some(file.digest.clone());
        Ok(ManifestFile { path: file.path.clone(), size, modified, digest, sha256: hashes.sha256 })
    }

    /// Makes the revision visible: the files of its snapshot, then the manifest that vouches for them, then its name.
    /// Each is on the disk before the next begins.
    async fn publish(&self, revision: &Revision, entries: Vec<ManifestFile>) -> Result<(Snapshot, Manifest), HubError> {
        let (cache, files) = (self.hub.cache.clone(), self.hub.files.clone());
        let (repo, commit, revision) = (self.repo.clone(), self.commit.clone(), revision.clone());
        blocking(move || {
            let (folder, workshop) = (cache.snapshot(&repo, &commit), cache.workshop(&repo));
            files.create_dirs(&workshop).map_err(HubError::io(&workshop))?;
            let mut folders = std::collections::BTreeSet::from([folder.clone()]);
            let mut placed = Vec::new();
            for mut entry in entries {
                let path = folder.join(&entry.path);
                let parents = path.ancestors().skip(1).take_while(|parent| parent.starts_with(&folder));
                folders.extend(parents.map(Path::to_owned));
                let parent = path.parent().unwrap_or(&folder);
                files.create_dirs(parent).map_err(HubError::io(parent))?;
                if let Some(digest) = &entry.digest {
                    place(&*files, &cache.blob(&repo, digest), &path, entry.path.matches('/').count(), &workshop)?;
                }
                // A copy has a time of its own.
                (entry.size, entry.modified) = facts(&path).map_err(HubError::io(&path))?;
                placed.push(entry);
            }
            // The folders above must be there too after a crash.
            let above = [cache.repo(&repo).join("snapshots"), cache.repo(&repo), cache.root.clone()];
            for folder in folders.iter().rev().chain(&above) {
                files.sync_dir(folder).map_err(HubError::io(folder))?;
            }
            let manifest = Manifest::new(placed);
            cache.manifest(&repo, &commit).save(&*files, &manifest)?;
            if !revision.is_commit() {
                let reference = cache.reference(&repo, &revision);
                let parent = reference.parent().unwrap_or(&cache.root);
                files.create_dirs(parent).map_err(HubError::io(parent))?;
                replace(&*files, &reference, commit.as_bytes(), &workshop).map_err(HubError::io(&reference))?;
            }
            Ok((Snapshot { repo, commit, folder }, manifest))
        })
        .await
    }
}

/// Whether a folder can hold symbolic links.
fn links_work(files: &dyn FileSystem, folder: &Path) -> bool {
    let probe = temporary(folder);
    match files.symlink(Path::new("nowhere"), &probe) {
        Ok(()) => {
            let _ = files.remove(&probe);
            true
        }
        Err(error) => !has_no_links(&error),
    }
}
