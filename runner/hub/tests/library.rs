//! Fetching as other programs meet it: caches of other tools, full disks, file systems without links, company.

#![expect(clippy::unwrap_used, reason = "what is unexpected fails the test")]

use atlas_hub::{Disk, Event, FileSystem, Hub, HubConfig, HubError, Observer, OpenFile, RepoId, Revision, Silent};
use atlas_hub_testing::{Behaviour, Fault, HubServer, Random, Repo, check_cache, limits};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

fn config(endpoint: &str, cache: &Path) -> HubConfig {
    let cache = cache.join("hub").display().to_string();
    let mut config = HubConfig::from_environment(|name| match name {
        "HF_ENDPOINT" => Some(endpoint.to_owned()),
        "HF_HUB_CACHE" => Some(cache.clone()),
        _ => None,
    })
    .unwrap();
    config.limits = limits();
    config
}

fn model() -> RepoId {
    RepoId::parse("org/model").unwrap()
}

async fn fetch(hub: &Hub) -> Result<atlas_hub::Fetched, HubError> {
    let observer: Arc<dyn Observer> = Arc::new(Silent);
    hub.fetch(&model(), &Revision::default(), &observer).await
}

fn repo(seed: u64) -> Repo {
    Repo::random(&mut Random::new(seed), 100 << 10)
}

/// How many bodies of large files were asked for.
fn bodies(server: &HubServer) -> usize {
    server.seen().iter().filter(|seen| seen.target.starts_with("/blob/")).count()
}

/// Counts files that are hashed.
#[derive(Default)]
struct Hashed(AtomicU64);

impl Observer for Hashed {
    fn event(&self, event: Event<'_>) {
        if matches!(event, Event::Hashing { .. }) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[tokio::test]
async fn what_was_fetched_is_used_offline_and_never_hashed_again() {
    let (repo, cache) = (repo(1), tempfile::tempdir().unwrap());
    let server = HubServer::start(repo.clone());
    let hub = Hub::new(config(&server.endpoint(), cache.path())).unwrap();
    let fetched = fetch(&hub).await.unwrap();
    assert_eq!(fetched.fetched, repo.wanted.len());
    check_cache(cache.path(), &repo, true, "first");
    let seen = bodies(&server);
    assert_eq!((fetch(&hub).await.unwrap().fetched, bodies(&server)), (0, seen));

    let mut offline = config(&server.endpoint(), cache.path());
    offline.offline = true;
    let hub = Hub::new(offline).unwrap();
    let requests = server.seen().len();
    let hashed = Arc::new(Hashed::default());
    let observer: Arc<dyn Observer> = hashed.clone();
    let again = hub.fetch(&model(), &Revision::default(), &observer).await.unwrap();
    assert_eq!((again.manifest, again.snapshot), (fetched.manifest, fetched.snapshot));
    let pinned = Revision::parse(&repo.commit).unwrap();
    hub.fetch(&model(), &pinned, &observer).await.unwrap();
    assert_eq!((hashed.0.load(Ordering::Relaxed), server.seen().len()), (0, requests));
    let other = hub.fetch(&model(), &Revision::parse("v2").unwrap(), &observer).await;
    assert!(matches!(other, Err(HubError::Offline { .. })), "{other:?}");
}

#[tokio::test]
async fn r14_what_another_tool_fetched_is_verified_once_and_damage_is_replaced() {
    let (repo, cache) = (repo(2), tempfile::tempdir().unwrap());
    let server = HubServer::start(repo.clone());
    let hub = Hub::new(config(&server.endpoint(), cache.path())).unwrap();
    fetch(&hub).await.unwrap();
    let folder = cache.path().join("hub/models--org--model");
    // Without our manifest it is what `huggingface_hub` leaves.
    std::fs::remove_dir_all(folder.join(".atlas")).unwrap();
    let snapshot = hub.cache().open(&model(), &Revision::default()).unwrap();
    let hashed = Hashed::default();
    hub.cache().verify(&snapshot, &Disk, &hashed).unwrap();
    assert_eq!(hashed.0.load(Ordering::Relaxed), repo.wanted.len() as u64);
    hub.cache().verify(&snapshot, &Disk, &hashed).unwrap();
    assert_eq!(hashed.0.load(Ordering::Relaxed), repo.wanted.len() as u64);

    let name = repo.wanted.iter().find(|name| repo.files[*name].content.len() > 10).unwrap();
    let blob = folder.join("blobs").join(&repo.files[name].digest);
    let mut bytes = std::fs::read(&blob).unwrap();
    bytes[5] ^= 1;
    std::fs::write(&blob, bytes).unwrap();
    let damaged = hub.cache().verify(&snapshot, &Disk, &Silent);
    assert!(matches!(damaged, Err(HubError::Damaged { .. })), "{damaged:?}");
    assert_eq!(fetch(&hub).await.unwrap().fetched, 1);
    check_cache(cache.path(), &repo, true, "repaired");
    // A file that was cut off is not there at all.
    std::fs::write(&blob, b"short").unwrap();
    assert!(hub.cache().open(&model(), &Revision::default()).is_none());
}

#[tokio::test]
async fn a_new_commit_fetches_only_what_changed_and_the_old_one_stays() {
    let (first, cache) = (repo(3), tempfile::tempdir().unwrap());
    let server = HubServer::start(first.clone());
    let hub = Hub::new(config(&server.endpoint(), cache.path())).unwrap();
    fetch(&hub).await.unwrap();
    let mut second = first.clone();
    second.commit = "ab".repeat(20);
    second.files.insert("config.json".to_owned(), atlas_hub_testing::File::new(b"{\"new\": 1}".to_vec(), false));
    server.set_repo(second.clone());
    let old = hub.cache().open(&model(), &Revision::default()).unwrap();
    assert_eq!(old.commit, first.commit, "a cache that is whole does not ask");
    let fetched = fetch(&hub).await.unwrap();
    assert_eq!((fetched.fetched, fetched.snapshot.commit.as_str()), (1, second.commit.as_str()));
    let pinned = hub.cache().open(&model(), &Revision::parse(&first.commit).unwrap()).unwrap();
    assert_eq!(std::fs::read(pinned.folder.join("config.json")).unwrap(), *first.files["config.json"].content);
    let answered = hub.list(&model(), &Revision::parse(&first.commit).unwrap(), &Silent).await;
    assert!(answered.unwrap_err().to_string().contains("answers with commit"), "a pin is a pin");
}

#[tokio::test]
async fn r13_a_broken_download_goes_on_where_it_stopped() {
    let cache = tempfile::tempdir().unwrap();
    let content = Random::new(4).bytes(300 << 10);
    let files = [("config.json", b"{}".to_vec()), ("tokenizer.json", b"{}".to_vec()), ("model.safetensors", content)];
    let repo = Repo::of("org/model", files.map(|(name, bytes)| (name.to_owned(), bytes)));
    let server = HubServer::start(repo.clone());
    let mut config = config(&server.endpoint(), cache.path());
    config.limits.connections = 1;
    config.limits.progress = 1 << 30;
    let hub = Hub::new(config).unwrap();
    let fault = Fault {
        behaviour: Behaviour::Forbidden,
        path: "model.safetensors".to_owned(),
        times: u32::MAX,
        after: 6,
        at: 0,
    };
    server.set_fault(Some(fault));
    let error = fetch(&hub).await.unwrap_err().to_string();
    assert!(error.contains("model.safetensors: gave up after 5 failures") && error.contains("403"), "{error}");
    server.set_fault(None);
    let before = server.seen().len();
    fetch(&hub).await.unwrap();
    check_cache(cache.path(), &repo, true, "resumed");
    let asked = |seen: &atlas_hub_testing::Seen| {
        let (start, last) = seen.range.as_ref()?.strip_prefix("bytes=")?.split_once('-')?;
        Some(last.parse::<u64>().ok()? + 1 - start.parse::<u64>().ok()?)
    };
    let bytes: u64 = server.seen()[before..].iter().filter_map(asked).sum();
    assert_eq!(bytes, (300 << 10) - 6 * (32 << 10), "only what was missing is asked for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r14_two_fetches_at_once_share_one_download() {
    let (repo, cache) = (repo(5), tempfile::tempdir().unwrap());
    let server = HubServer::start(repo.clone());
    let hubs: Vec<Hub> = (0..3).map(|_| Hub::new(config(&server.endpoint(), cache.path())).unwrap()).collect();
    let outcomes = futures_util::future::join_all(hubs.iter().map(fetch)).await;
    let fetched: usize = outcomes.into_iter().map(|outcome| outcome.unwrap().fetched).sum();
    check_cache(cache.path(), &repo, true, "shared");
    let bodies: Vec<String> = server
        .seen()
        .into_iter()
        .filter(|seen| seen.method == "GET")
        .map(|seen| format!("{}{:?}", seen.target, seen.range))
        .collect();
    let files = bodies.iter().filter(|target| !target.contains("/api/")).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(
        files.len(),
        bodies.iter().filter(|target| !target.contains("/api/")).count(),
        "no range was asked for twice"
    );
    assert!(fetched >= repo.wanted.len());
}

/// A disk with little room, and one without links.
#[derive(Debug, Default)]
struct Odd {
    room: Mutex<Option<u64>>,
    no_links: bool,
}

impl FileSystem for Odd {
    fn write_at(&self, file: &OpenFile, data: &[u8], offset: u64) -> io::Result<()> {
        if let Some(room) = &mut *self.room.lock().unwrap() {
            *room = room.checked_sub(data.len() as u64).ok_or(io::ErrorKind::StorageFull)?;
        }
        Disk.write_at(file, data, offset)
    }

    fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        match self.no_links {
            true => Err(io::Error::from_raw_os_error(rustix::io::Errno::PERM.raw_os_error())),
            false => Disk.symlink(target, link),
        }
    }

    fn free(&self, path: &Path) -> io::Result<u64> {
        match *self.room.lock().unwrap() {
            Some(0) => Ok(1000),
            _ => Disk.free(path),
        }
    }
}

#[tokio::test]
async fn r15_a_full_disk_is_told_and_the_same_process_goes_on_when_there_is_room() {
    let (repo, cache) = (repo(6), tempfile::tempdir().unwrap());
    let server = HubServer::start(repo.clone());
    let odd = Arc::new(Odd::default());
    let hub = Hub::with_files(config(&server.endpoint(), cache.path()), odd.clone()).unwrap();
    *odd.room.lock().unwrap() = Some(0);
    let error = fetch(&hub).await.unwrap_err();
    assert!(matches!(error, HubError::NoSpace { free: 1000, .. }) && error.before_anything_was_touched(), "{error}");
    let total: u64 = repo.wanted.iter().map(|name| repo.files[name].content.len() as u64).sum();
    let mut full = 0;
    // The disk is full at ever later writes, until it is not.
    for room in (1..).map(|step| step * (total / 25 + 64)) {
        *odd.room.lock().unwrap() = Some(room);
        match fetch(&hub).await {
            Ok(_) => break,
            Err(error) => assert!(error.to_string().contains("disk is full"), "{error}"),
        }
        check_cache(cache.path(), &repo, false, "full");
        full += 1;
    }
    assert!(full > 3, "{full}");
    check_cache(cache.path(), &repo, true, "room");
}

#[tokio::test]
async fn where_there_are_no_links_there_are_copies() {
    let (repo, cache) = (repo(7), tempfile::tempdir().unwrap());
    let server = HubServer::start(repo.clone());
    let odd = Arc::new(Odd { no_links: true, ..Odd::default() });
    let hub = Hub::with_files(config(&server.endpoint(), cache.path()), odd.clone()).unwrap();
    let fetched = fetch(&hub).await.unwrap();
    check_cache(cache.path(), &repo, true, "copies");
    assert!(!fetched.snapshot.folder.join("config.json").symlink_metadata().unwrap().is_symlink());
    let hashed = Hashed::default();
    hub.cache().verify(&fetched.snapshot, &*odd, &hashed).unwrap();
    assert_eq!(hashed.0.load(Ordering::Relaxed), 0);
    assert!(hub.cache().verify_repo(&model(), &Silent).unwrap().problems.is_empty());
    std::fs::write(fetched.snapshot.folder.join("config.json"), "{}").unwrap();
    assert_eq!(hub.cache().verify_repo(&model(), &Silent).unwrap().problems.len(), 2, "damaged, and of another size");
}

#[tokio::test]
async fn s23_an_index_that_leads_elsewhere_is_refused() {
    let cache = tempfile::tempdir().unwrap();
    for path in ["../../evil.safetensors", "/etc/evil.safetensors", "pytorch_model.bin", "missing.safetensors"] {
        let index = serde_json::json!({ "weight_map": { "a": path } }).to_string();
        let files = [
            ("config.json", "{}".to_owned()),
            ("tokenizer.json", "{}".to_owned()),
            ("pytorch_model.bin", "x".to_owned()),
            ("model.safetensors.index.json", index),
        ];
        let repo = Repo::of("org/model", files.map(|(name, text)| (name.to_owned(), text.into_bytes())));
        let server = HubServer::start(repo.clone());
        let hub = Hub::new(config(&server.endpoint(), cache.path())).unwrap();
        let error = fetch(&hub).await.unwrap_err();
        assert!(matches!(error, HubError::NotAModel { .. }), "{path}: {error}");
        assert!(!server.seen().iter().any(|seen| seen.target.contains(".bin") || seen.target.contains("evil")));
    }
    assert!(!cache.path().join("evil.safetensors").exists());
}

#[tokio::test]
async fn a_hub_that_is_not_there_is_named() {
    let cache = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let hub = Hub::new(config(&format!("http://{free}"), cache.path())).unwrap();
    let error = fetch(&hub).await.unwrap_err().to_string();
    assert!(error.contains(&free.to_string()) && error.contains("refused"), "{error}");
}

#[tokio::test]
async fn an_abandoned_fetch_leaves_no_lock_and_goes_on_later() {
    let (repo, cache) = (repo(8), tempfile::tempdir().unwrap());
    let server = HubServer::start(repo.clone());
    let hub = Hub::new(config(&server.endpoint(), cache.path())).unwrap();
    let fault = Fault { behaviour: Behaviour::Stall, path: "tokenizer.json".to_owned(), times: 1, after: 0, at: 500 };
    server.set_fault(Some(fault));
    let abandoned = tokio::time::timeout(std::time::Duration::from_millis(150), fetch(&hub)).await;
    drop(abandoned);
    server.set_fault(None);
    fetch(&hub).await.unwrap();
    check_cache(cache.path(), &repo, true, "abandoned");
}
