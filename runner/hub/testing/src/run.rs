//! One seeded run: a random repository, a random fault at a random place, and what must hold afterwards.

use crate::behaviour::{Behaviour, End, Fault, Kind};
use crate::repo::{Random, Repo};
use crate::server::HubServer;
use atlas_hub::{FileSystem, Hub, HubConfig, HubError, Limits, Observer, OpenFile, RepoId, Revision, Silent};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A run that has not ended by itself after this never will.
const WATCHDOG: Duration = Duration::from_secs(300);
/// The token that must not leave the hub.
const TOKEN: &str = "hf_sentinel";
/// Largest file.
const LARGEST: u64 = 200 << 10;

/// What came of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// The fault.
    pub fault: Fault,
    /// Whether the fault was met at all.
    pub injected: u64,
    /// The error, if the run ended with one.
    pub error: Option<String>,
}

/// Waits that are short enough for thousands of runs.
pub fn limits() -> Limits {
    Limits {
        connect: Duration::from_secs(2),
        headers: Duration::from_millis(500),
        idle: Duration::from_millis(400),
        rate_window: Duration::from_millis(300),
        min_rate: 1000,
        failures: 5,
        progress: 16 << 10,
        backoff: Duration::from_millis(2),
        max_pause: Duration::from_millis(50),
        buffer: 4 << 10,
        segment: 32 << 10,
        listing: 1 << 20,
        lock_patience: Duration::from_secs(5),
        lock_poll: Duration::from_millis(5),
        spare: 0,
        ..Limits::default()
    }
}

/// The same without a hurry.
fn patient(limits: Limits) -> Limits {
    Limits { connect: WATCHDOG, headers: WATCHDOG, idle: WATCHDOG, rate_window: WATCHDOG, ..limits }
}

/// A disk that does not wait: what a power cut would leave is not what most tests are about.
#[derive(Debug)]
pub struct Unsynced;

impl FileSystem for Unsynced {
    fn sync(&self, _: &OpenFile) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// Runs one seed: first with the fault, then without it on what the first run left. Panics with the seed and the
/// behaviour when anything that must hold does not.
pub fn run_seed(seed: u64) -> Report {
    let mut random = Random::new(seed);
    let repo = Repo::random(&mut random, LARGEST);
    let always = random.below(2) == 0;
    let behaviour = Behaviour::ALL[(seed % Behaviour::ALL.len() as u64) as usize];
    let path = target(&mut random, &repo, behaviour);
    let fault = Fault {
        behaviour,
        path,
        times: if always { u32::MAX } else { 1 },
        after: if behaviour.kind() == Kind::Body { random.below(6).saturating_sub(3) as u32 } else { 0 },
        at: random.below(1001),
    };
    let place = format!("seed {seed}: {behaviour:?} ({}) {fault:?}", behaviour.text());
    let server = HubServer::start(repo.clone());
    let cache = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Only what waits needs short timers; everything else must not depend on how busy the machine is.
    let mut limits = if behaviour.waits() { limits() } else { patient(limits()) };
    limits.failures = if always { 4 } else { 12 };
    limits.connections = 1 + random.below(4) as usize;
    limits.segment = (8 << 10) << random.below(4);
    let faulty = hub(&server, cache.path(), limits.clone());

    server.set_fault(Some(fault.clone()));
    let outcome = runtime.block_on(fetch(&faulty, &place));
    let injected = server.injected();
    check_cache(cache.path(), &repo, outcome.is_ok(), &place);
    check_requests(&server, &repo, &place);
    check_end(&fault, injected, always, outcome.as_ref().err(), &place);

    server.set_fault(None);
    let healed = hub(&server, cache.path(), patient(limits));
    if let Err(error) = runtime.block_on(fetch(&healed, &place)) {
        panic!("{place}: after {outcome:?}, without a fault: {error}");
    }
    check_cache(cache.path(), &repo, true, &place);
    Report { fault, injected, error: outcome.err().map(|error| error.to_string()) }
}

/// A file that the behaviour can happen to.
fn target(random: &mut Random, repo: &Repo, behaviour: Behaviour) -> String {
    let size = |path: &&String| repo.files[*path].content.len();
    let large = |path: &&String| repo.files[*path].lfs && size(path) > 0;
    let only_large =
        matches!(behaviour, Behaviour::Forbidden | Behaviour::Gone | Behaviour::Expire | Behaviour::RedirectOn);
    let fitting: Vec<&String> = match only_large || random.below(3) > 0 {
        true => repo.wanted.iter().filter(large).collect(),
        false => repo.wanted.iter().filter(|path| size(path) > 0).collect(),
    };
    let all: Vec<&String> = if fitting.is_empty() { repo.wanted.iter().collect() } else { fitting };
    all[random.below(all.len() as u64) as usize].clone()
}

fn hub(server: &HubServer, cache: &Path, limits: Limits) -> Hub {
    let variables = [("HF_ENDPOINT", server.endpoint()), ("HF_TOKEN", TOKEN.to_owned())];
    let cache = cache.join("hub").display().to_string();
    let mut config = HubConfig::from_environment(|name| match name {
        "HF_HUB_CACHE" => Some(cache.clone()),
        other => variables.iter().find(|(key, _)| *key == other).map(|(_, value)| value.clone()),
    })
    .unwrap();
    config.limits = limits;
    Hub::with_files(config, Arc::new(Unsynced)).unwrap()
}

async fn fetch(hub: &Hub, place: &str) -> Result<(), HubError> {
    let observer: Arc<dyn Observer> = Arc::new(Silent);
    let repo = RepoId::parse("org/model").unwrap();
    let revision = Revision::default();
    let fetched = tokio::time::timeout(WATCHDOG, hub.fetch(&repo, &revision, &observer)).await;
    fetched.unwrap_or_else(|_| panic!("{place}: did not end")).map(|_| ())
}

/// No file that can be seen is wrong, whatever happened; with `whole`, the model is there and nothing else.
pub fn check_cache(cache: &Path, repo: &Repo, whole: bool, place: &str) {
    let folder = cache.join("hub/models--org--model");
    let entries = |path: &Path| -> Vec<std::path::PathBuf> {
        std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    for path in entries(&folder.join("blobs")) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.contains(".atlas-") {
            // What the hub promised and never had stays until it is pruned.
            let known = repo.by_digest(name.split('.').next().unwrap()).is_some();
            assert!(!whole || !known, "{place}: {name} was left behind");
            continue;
        }
        let truth = repo.by_digest(name).unwrap_or_else(|| panic!("{place}: an unknown blob {name}"));
        assert!(std::fs::read(&path).unwrap() == *truth.content, "{place}: WRONG BYTES in blob {name}");
    }
    let snapshot = folder.join("snapshots").join(&repo.commit);
    let mut seen = Vec::new();
    for path in entries(&snapshot) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let truth = repo.files.get(&name).unwrap_or_else(|| panic!("{place}: an unknown file {name}"));
        assert!(std::fs::read(&path).unwrap() == *truth.content, "{place}: WRONG BYTES in {name}");
        seen.push(name);
    }
    seen.sort();
    let name = std::fs::read_to_string(folder.join("refs/main")).ok();
    if whole {
        assert_eq!(seen, repo.wanted, "{place}");
        assert_eq!(name.as_deref(), Some(repo.commit.as_str()), "{place}");
    } else {
        assert_eq!((seen.len(), name), (0, None), "{place}: a failed run shows something");
    }
    assert!(entries(&folder.join("snapshots")).len() <= 1, "{place}");
}

/// The token stays at the hub, and nothing is asked for that a model does not need.
fn check_requests(server: &HubServer, repo: &Repo, place: &str) {
    for seen in server.seen() {
        let token = seen.authorization.as_deref();
        match seen.hub {
            true => assert_eq!(token, Some("Bearer hf_sentinel"), "{place}: {seen:?}"),
            false => assert_eq!(token, None, "{place}: THE TOKEN LEAKED {seen:?}"),
        }
        let file = seen.target.split_once(&format!("/resolve/{}/", repo.commit)).map(|(_, path)| path.to_owned());
        assert!(file.is_none_or(|file| repo.wanted.contains(&file)), "{place}: {seen:?}");
    }
}

fn check_end(fault: &Fault, injected: u64, always: bool, error: Option<&HubError>, place: &str) {
    let end = match injected {
        // On a busy machine a short timer may end the run before the fault is met.
        _ if fault.behaviour.waits() && always => End::Any,
        0 => End::Whole,
        _ => fault.behaviour.end(always),
    };
    match (end, error) {
        (End::Whole, None) | (End::Any, None) => {}
        (End::Whole, Some(error)) => panic!("{place}: must end well, but: {error}"),
        (End::Error, None) => panic!("{place}: must fail, but did not"),
        (End::Error | End::Any, Some(error)) => {
            assert!(!matches!(error, HubError::Internal(_)), "{place}: {error}");
            let text = error.to_string();
            assert!(text.len() > 20 && !text.contains("sig="), "{place}: {text}");
        }
    }
}
