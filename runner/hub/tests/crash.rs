//! Ends the process at every write, sync, rename and removal of a fetch, and loses what was not synced: whatever is
//! there afterwards is old or new, never half, and the next fetch succeeds.
//!
//! This program is its own child: with `ATLAS_CRASH_AT=N` it fetches and dies at the N-th operation.

#![expect(clippy::unwrap_used, reason = "what is unexpected fails the test")]

use atlas_hub::{Disk, FileSystem, Hub, HubConfig, Observer, OpenFile, RepoId, Revision, Silent};
use atlas_hub_testing::{File, HubServer, Random, Repo, Unsynced, check_cache};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

/// The child's exit code at its crash point.
const CRASHED: i32 = 77;
/// A fetch has fewer operations than this.
const MOST: u64 = 1000;
/// A disk that keeps everything, one that loses what was not synced, and one that keeps names but loses bytes.
const LOSSES: [&str; 3] = ["nothing", "all", "bytes"];

fn main() {
    if let Ok(at) = std::env::var("ATLAS_CRASH_AT") {
        return child(at.parse().unwrap());
    }
    let cold = every_point("a first fetch", None);
    let update = every_point("an update", Some(()));
    println!(
        "test crash points: ok, {cold} in a first fetch, {update} in an update, each with {} losses",
        LOSSES.len()
    );
    assert!(cold > 50 && update > 15);
}

fn model(random: &mut Random) -> Repo {
    let files = [
        ("config.json", 300),
        ("tokenizer.json", 5000),
        ("model-1.safetensors", 20_000),
        ("model-2.safetensors", 9000),
    ];
    let mut files: Vec<(String, Vec<u8>)> =
        files.into_iter().map(|(name, size)| (name.to_owned(), random.bytes(size))).collect();
    let index = br#"{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}"#;
    files.push(("model.safetensors.index.json".to_owned(), index.to_vec()));
    Repo::of("org/model", files)
}

/// Crashes at the first operation, the second, and so on, until a child gets through. Returns how many there were.
fn every_point(what: &str, update: Option<()>) -> u64 {
    let old = model(&mut Random::new(1));
    let mut new = old.clone();
    if update.is_some() {
        new.commit = "fade".repeat(10);
        new.files.insert("config.json".to_owned(), File::new(b"{\"new\":true}".to_vec(), false));
        new.files.insert("model-2.safetensors".to_owned(), File::new(vec![5; 12_000], true));
    }
    let server = HubServer::start(new.clone());
    for at in 0..MOST {
        let mut finished = true;
        for loses in LOSSES {
            let cache = tempfile::tempdir().unwrap();
            let place = format!("{what}, operation {at}, loses {loses}");
            if update.is_some() {
                server.set_repo(old.clone());
                fetch(&server.endpoint(), cache.path(), Arc::new(Unsynced));
                server.set_repo(new.clone());
            }
            let child = Command::new(std::env::current_exe().unwrap())
                .env("ATLAS_CRASH_AT", at.to_string())
                .env("ATLAS_CRASH_LOSES", loses)
                .env("HF_ENDPOINT", server.endpoint())
                .env("HF_HUB_CACHE", cache.path().join("hub"))
                .output()
                .unwrap();
            let code = child.status.code();
            assert!(matches!(code, Some(0 | CRASHED)), "{place}: {code:?} {}", String::from_utf8_lossy(&child.stderr));
            finished &= code == Some(0);
            check(cache.path(), update.map(|()| &old), &new, &place);
            fetch(&server.endpoint(), cache.path(), Arc::new(Unsynced));
            let opened = open(&server.endpoint(), cache.path(), &place);
            assert_eq!(opened.as_deref(), Some(new.commit.as_str()), "{place}: healed");
            if update.is_none() {
                check_cache(cache.path(), &new, true, &place);
            }
        }
        if finished {
            return at;
        }
    }
    panic!("{what}: more than {MOST} operations");
}

/// What is there is the old revision or the new one, byte for byte, by the manifest alone.
fn check(cache: &Path, old: Option<&Repo>, new: &Repo, place: &str) {
    let commit = open("http://127.0.0.1:1", cache, place);
    match (commit.as_deref(), old) {
        (None, None) => {}
        (Some(commit), old) => {
            let repo = [Some(new), old].into_iter().flatten().find(|repo| repo.commit == commit);
            let repo = repo.unwrap_or_else(|| panic!("{place}: commit {commit}"));
            let folder = cache.join("hub/models--org--model/snapshots").join(commit);
            for (name, file) in &repo.files {
                assert!(std::fs::read(folder.join(name)).unwrap() == *file.content, "{place}: WRONG BYTES in {name}");
            }
        }
        (None, Some(_)) => panic!("{place}: the old revision is gone"),
    }
}

fn hub(endpoint: &str, cache: &Path, files: Arc<dyn FileSystem>) -> Hub {
    let cache = cache.join("hub").display().to_string();
    let mut config = HubConfig::from_environment(|name| match name {
        "HF_ENDPOINT" => Some(endpoint.to_owned()),
        "HF_HUB_CACHE" => Some(cache.clone()),
        _ => None,
    })
    .unwrap();
    // One thing after the other, so that every run has the same operations.
    config.limits.spare = 0;
    config.limits.segment = 8 << 10;
    config.limits.buffer = 4 << 10;
    (config.limits.files, config.limits.connections) = (1, 1);
    Hub::with_files(config, files).unwrap()
}

/// The commit of `main`, if it is whole and its files pass verification without being hashed again where the manifest
/// vouches for them.
fn open(endpoint: &str, cache: &Path, place: &str) -> Option<String> {
    let hub = hub(endpoint, cache, Arc::new(Unsynced));
    let snapshot = hub.cache().open(&RepoId::parse("org/model").unwrap(), &Revision::default())?;
    hub.cache().verify(&snapshot, &Unsynced, &Silent).unwrap_or_else(|error| panic!("{place}: {error}"));
    Some(snapshot.commit)
}

fn fetch(endpoint: &str, cache: &Path, files: Arc<dyn FileSystem>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let observer: Arc<dyn Observer> = Arc::new(Silent);
    let hub = hub(endpoint, cache, files);
    runtime.block_on(hub.fetch(&RepoId::parse("org/model").unwrap(), &Revision::default(), &observer)).unwrap();
}

fn child(at: u64) {
    let loses = std::env::var("ATLAS_CRASH_LOSES").unwrap();
    let cache = PathBuf::from(std::env::var("HF_HUB_CACHE").unwrap());
    let dying = Dying { at, loses, state: Mutex::default() };
    fetch(&std::env::var("HF_ENDPOINT").unwrap(), cache.parent().unwrap(), Arc::new(dying));
}

/// A disk that ends the process at one operation.
#[derive(Debug)]
struct Dying {
    at: u64,
    loses: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    count: u64,
    /// Files with bytes that were not synced. Renamed files keep their entry.
    dirty: BTreeMap<PathBuf, ()>,
    /// Names that were made since their folder was synced: where the file was before, if it was somewhere.
    names: Vec<(PathBuf, Option<PathBuf>, Option<Vec<u8>>)>,
}

impl Dying {
    /// Counts an operation. At the fatal one, does `half` of it, loses what was not synced, and dies.
    fn point(&self, half: impl FnOnce()) -> std::sync::MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap();
        if state.count == self.at {
            half();
            if self.loses == "all" {
                // The youngest name first.
                for (path, before, replaced) in state.names.iter().rev() {
                    match before {
                        Some(before) => std::fs::rename(path, before).unwrap_or_default(),
                        None => std::fs::remove_file(path).unwrap_or_default(),
                    }
                    if let Some(bytes) = replaced {
                        std::fs::write(path, bytes).unwrap_or_default();
                    }
                }
            }
            if self.loses != "nothing" {
                for path in state.dirty.keys().filter(|path| path.is_file()) {
                    let zeros = vec![0; std::fs::metadata(path).unwrap().len() as usize];
                    std::fs::write(path, zeros).unwrap_or_default();
                }
            }
            std::process::exit(CRASHED);
        }
        state.count += 1;
        state
    }
}

impl FileSystem for Dying {
    fn open(&self, path: &Path) -> io::Result<OpenFile> {
        let new = !path.exists();
        let mut state = self.point(|| {});
        if new {
            state.names.push((path.to_owned(), None, None));
        }
        Disk.open(path)
    }

    fn write_at(&self, file: &OpenFile, data: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.point(|| Disk.write_at(file, &data[..data.len() / 2], offset).unwrap());
        state.dirty.insert(file.path.clone(), ());
        Disk.write_at(file, data, offset)
    }

    fn set_len(&self, file: &OpenFile, length: u64) -> io::Result<()> {
        let mut state = self.point(|| {});
        state.dirty.insert(file.path.clone(), ());
        Disk.set_len(file, length)
    }

    fn sync(&self, file: &OpenFile) -> io::Result<()> {
        let mut state = self.point(|| {});
        state.dirty.remove(&file.path);
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.point(|| {});
        state.names.retain(|(name, ..)| name.parent() != Some(path));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.point(|| {});
        if state.dirty.remove(from).is_some() {
            state.dirty.insert(to.to_owned(), ());
        }
        state.names.retain(|(name, ..)| name != from);
        state.names.push((to.to_owned(), Some(from.to_owned()), std::fs::read(to).ok()));
        Disk.rename(from, to)
    }

    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        let mut state = self.point(|| {});
        state.names.push((link.to_owned(), None, None));
        Disk.symlink(target, link)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        drop(self.point(|| {}));
        Disk.remove(path)
    }

    fn create_dirs(&self, path: &Path) -> io::Result<()> {
        drop(self.point(|| {}));
        Disk.create_dirs(path)
    }
}
