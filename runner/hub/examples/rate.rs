//! How fast a fetch is beside `curl` from the same server on loopback:
//! `cargo run --release -p atlas-hub --example rate -- [MEGABYTES] [ROUNDS]`.
//!
//! `curl` writes the bytes to a file. The fetch writes them, hashes them, syncs them to the disk and renames them; so
//! `curl` is also measured with `sha256sum` and `sync` after it. Rounds alternate; medians are compared.

use atlas_hub::{Hub, HubConfig, Observer, RepoId, Revision, Silent};
use atlas_hub_testing::{HubServer, Random, Repo};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let megabytes = arguments.next().transpose()?.unwrap_or(1000);
    let rounds = arguments.next().transpose()?.unwrap_or(5);
    let weights = Random::new(1).bytes(megabytes * 1_000_000);
    let files = [("config.json", b"{}".to_vec()), ("tokenizer.json", b"{}".to_vec()), ("model.safetensors", weights)];
    let repo = Repo::of("org/model", files.map(|(name, bytes)| (name.to_owned(), bytes)));
    let url_of = |server: &HubServer| server.blob_url(&repo.files["model.safetensors"].digest);
    let server = HubServer::start(repo.clone());
    let folder = tempfile::tempdir()?;
    let (mut plain, mut hashed, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    let mut resident = 0;
    for _ in 0..rounds {
        let target = folder.path().join("curl");
        plain.push(timed(|| shell(&format!("curl -sS -o {} '{}'", target.display(), url_of(&server))))?);
        std::fs::remove_file(&target)?;
        let whole = format!("curl -sS -o {0} '{1}' && sha256sum {0} && sync {0}", target.display(), url_of(&server));
        hashed.push(timed(|| shell(&whole))?);
        std::fs::remove_file(&target)?;
        let before = resident_bytes();
        ours.push(timed(|| fetch(&server.endpoint(), folder.path()))?);
        resident = resident.max(resident_bytes().saturating_sub(before));
        std::fs::remove_dir_all(folder.path().join("hub"))?;
    }
    let rate = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        megabytes as f64 / times[times.len() / 2]
    };
    let (plain, hashed, ours) = (rate(&mut plain), rate(&mut hashed), rate(&mut ours));
    println!("{megabytes} MB, {rounds} rounds, medians");
    println!("curl                          {plain:>7.0} MB/s");
    println!("curl, then sha256sum and sync {hashed:>7.0} MB/s");
    println!("fetch, sha256 and fsync in it {ours:>7.0} MB/s");
    println!("fetch / curl                  {:>7.2}", ours / plain);
    println!("fetch / curl with sha256      {:>7.2}", ours / hashed);
    println!("memory that a fetch adds      {:>7.1} MB at its peak, at most", resident as f64 / 1e6);
    Ok(())
}

fn timed(work: impl FnOnce() -> Result<(), Box<dyn std::error::Error>>) -> Result<f64, Box<dyn std::error::Error>> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_secs_f64())
}

fn shell(command: &str) -> Result<(), Box<dyn std::error::Error>> {
    let status = Command::new("sh").args(["-c", command]).stdout(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(format!("{command}: {status}").into()) }
}

fn fetch(endpoint: &str, folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let cache = folder.join("hub").display().to_string();
    let config = HubConfig::from_environment(|name| match name {
        "HF_ENDPOINT" => Some(endpoint.to_owned()),
        "HF_HUB_CACHE" => Some(cache.clone()),
        _ => None,
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let observer: Arc<dyn Observer> = Arc::new(Silent);
    let hub = Hub::new(config)?;
    runtime.block_on(hub.fetch(&RepoId::parse("org/model")?, &Revision::default(), &observer))?;
    Ok(())
}

/// The most memory that this process has had so far.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}
