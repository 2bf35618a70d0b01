//! Models from a hub on loopback: fetched, verified, found again offline, listed, pruned.

use crate::support::{Home, outcome};
use atlas_hub_testing::{Behaviour, Fault, HubServer, Repo};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const MODEL: &str = "org/tiny";

/// The embedded model, at a hub.
fn tiny() -> Repo {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("embedded/atlas-tiny-nvfp4");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let wanted = entries.filter(|path| !path.ends_with("LICENSE") && !path.ends_with("README.md"));
    Repo::of(MODEL, wanted.map(|path| (name(&path), std::fs::read(&path).unwrap())))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

fn online(home: &Home, server: &HubServer, args: &[&str]) -> Command {
    let mut command = home.atlas(args);
    command.env("HF_HUB_OFFLINE", "0").env("HF_ENDPOINT", server.endpoint()).env("HF_TOKEN", "hf_sentinel");
    command
}

fn run(home: &Home, server: &HubServer, args: &[&str]) -> (i32, String, String) {
    outcome(online(home, server, args).output().unwrap())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn cache(home: &Home) -> PathBuf {
    home.path().join(".cache/huggingface/hub/models--org--tiny")
}

fn weights(home: &Home, repo: &Repo) -> PathBuf {
    cache(home).join("blobs").join(&repo.files["model.safetensors"].digest)
}

#[test]
fn a_recipe_fetches_its_model_once_and_runs_offline_from_then_on() {
    let home = Home::new();
    let (repo, recipe) = (tiny(), home.path().join("tiny.yaml"));
    std::fs::write(
        &recipe,
        format!("recipe_version: \"2\"\nmodel: {MODEL}\nruntime: atlas\ndefaults: {{max_seq_len: 512}}\n"),
    )
    .unwrap();
    let recipe = recipe.to_str().unwrap();
    let server = HubServer::start(repo.clone());
    let args = ["run", recipe, "--port", "0", "--detach", "--json"];
    let (code, _, stderr) = run(&home, &server, &[&args[..], &["--dry-run"]].concat());
    assert_eq!((code, server.seen().len(), cache(&home).exists()), (0, 0, false), "a plan touches nothing: {stderr}");

    let (code, stdout, stderr) = run(&home, &server, &args);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("fetching 7 files") || stderr.contains("fetching 8 files"), "{stderr}");
    assert!(stderr.contains("model.safetensors: whole and verified"), "{stderr}");
    assert!(!format!("{stdout}{stderr}").contains("hf_sentinel"));
    let job = json(&stdout)["job"].as_str().unwrap().to_owned();
    assert_eq!(home.outcome(&["stop", &job]).0, 0);

    // The hub is away now.
    let asked = server.seen().len();
    drop(server);
    let (code, stdout, stderr) = home.outcome(&args);
    assert_eq!(code, 0, "{stderr}");
    assert!(!stderr.contains("verifying"), "nothing is hashed again: {stderr}");
    assert_eq!(home.outcome(&["stop", json(&stdout)["job"].as_str().unwrap()]).0, 0);
    assert!(asked > 0);
}

#[test]
fn a_busy_port_is_refused_before_anything_is_fetched() {
    let home = Home::new();
    let server = HubServer::start(tiny());
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = busy.local_addr().unwrap().port().to_string();
    let (code, _, stderr) = run(&home, &server, &["serve", "org/tiny@main", "--port", &port]);
    assert_eq!((code, stderr.contains("is in use"), server.seen().len()), (4, true, 0), "{stderr}");
}

#[test]
fn gated_and_missing_models_say_what_to_do() {
    let home = Home::new();
    let repo = tiny();
    let server = HubServer::start(repo.clone());
    let gated =
        |path: &str| Fault { behaviour: Behaviour::Gated, path: path.to_owned(), times: u32::MAX, after: 0, at: 0 };
    server.set_fault(Some(gated("config.json")));
    let (code, _, stderr) = run(&home, &server, &["pull", MODEL]);
    assert_eq!(
        (code, stderr.contains(&format!("open {}/org/tiny in a browser", server.endpoint()))),
        (4, true),
        "{stderr}"
    );
    server.set_fault(None);
    let (code, _, stderr) = run(&home, &server, &["pull", "org/other"]);
    assert_eq!((code, stderr.contains("has no model org/other")), (4, true), "{stderr}");
    let (code, _, stderr) = home.outcome(&["pull", MODEL]);
    assert_eq!((code, stderr.contains("HF_HUB_OFFLINE")), (4, true), "{stderr}");
    let (code, _, stderr) = home.outcome(&["serve", MODEL, "--port", "0"]);
    assert_eq!((code, stderr.contains("atlas pull org/tiny")), (4, true), "{stderr}");
}

#[test]
fn damage_is_found_before_it_is_used_and_repaired_by_a_pull() {
    let home = Home::new();
    let repo = tiny();
    let server = HubServer::start(repo.clone());
    let (code, stdout, stderr) = run(&home, &server, &["pull", MODEL, "--json"]);
    assert_eq!(code, 0, "{stderr}");
    let report = json(&stdout);
    assert_eq!(report["commit"], repo.commit.as_str());
    assert_eq!(report["files"].as_array().unwrap().len(), repo.wanted.len());
    assert_eq!(home.outcome(&["cache", "verify"]).0, 0);

    let blob = weights(&home, &repo);
    let mut bytes = std::fs::read(&blob).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&blob, bytes).unwrap();
    let (code, _, stderr) = home.outcome(&["serve", MODEL, "--port", "0"]);
    assert_eq!((code, stderr.contains("is damaged")), (1, true), "{stderr}");
    let (code, stdout, _) = home.outcome(&["cache", "verify", "--json"]);
    let report = json(&stdout);
    assert_eq!((code, &report["whole"]), (1, &Value::Bool(false)));
    assert_eq!(report["models"][0]["problems"].as_array().unwrap().len(), 1, "{report}");

    let (code, stdout, stderr) = run(&home, &server, &["pull", MODEL, "--json"]);
    assert_eq!((code, &json(&stdout)["fetched"]), (0, &Value::from(1)), "{stderr}");
    assert_eq!(home.outcome(&["cache", "verify"]).0, 0);
    assert_eq!(std::fs::read(&blob).unwrap(), *repo.files["model.safetensors"].content);
}

#[test]
fn the_cache_is_listed_and_pruned_after_a_look() {
    let home = Home::new();
    let (code, stdout, _) = home.outcome(&["cache", "list", "--json"]);
    assert_eq!((code, &json(&stdout)["bytes"]), (0, &Value::from(0)), "an empty cache is no error");
    let first = tiny();
    let server = HubServer::start(first.clone());
    assert_eq!(run(&home, &server, &["pull", MODEL]).0, 0);
    // A second revision that shares the weights.
    let mut second = first.clone();
    second.commit = "beef".repeat(10);
    second.files.insert("generation_config.json".to_owned(), atlas_hub_testing::File::new(b"{}".to_vec(), false));
    server.set_repo(second.clone());
    let (code, stdout, stderr) = run(&home, &server, &["pull", MODEL, "--json"]);
    assert_eq!((code, &json(&stdout)["fetched"]), (0, &Value::from(1)), "{stderr}");
    // An interrupted download.
    let part = cache(&home).join("blobs").join(format!("{}.atlas-part", "ab".repeat(32)));
    std::fs::write(&part, vec![7; 5000]).unwrap();

    let listed = json(&home.outcome(&["cache", "list", "--json"]).1);
    let model = &listed["models"][0];
    assert_eq!((&model["model"], &model["unfinished_bytes"]), (&Value::from(MODEL), &Value::from(5000)), "{listed}");
    let revisions = model["revisions"].as_array().unwrap();
    assert_eq!((revisions.len(), revisions.iter().all(|revision| revision["verified"] == true)), (2, true), "{listed}");
    let (all, each) = (model["bytes"].as_u64().unwrap(), revisions[0]["bytes"].as_u64().unwrap());
    assert!(all < 2 * each, "what is shared counts once: {listed}");

    let pruned = json(&home.outcome(&["cache", "prune", "--json"]).1);
    assert_eq!((&pruned["dry_run"], pruned["items"].as_array().unwrap().len()), (&Value::from(true), 1), "{pruned}");
    assert!(part.exists(), "a look removes nothing");
    let pruned = json(&home.outcome(&["cache", "prune", "--detached", "--yes", "--json"]).1);
    assert!(pruned["items"].as_array().unwrap().iter().all(|item| item["outcome"] == "removed"), "{pruned}");
    assert!(!part.exists() && !cache(&home).join("snapshots").join(&first.commit).exists());
    assert!(weights(&home, &first).exists(), "another revision needs them");
    assert_eq!(home.outcome(&["cache", "verify"]).0, 0);

    assert_eq!(home.outcome(&["cache", "prune", "org/other", "--yes"]).0, 2);
    assert_eq!(home.outcome(&["cache", "prune", MODEL, "--yes"]).0, 0);
    assert!(!cache(&home).exists());
}
