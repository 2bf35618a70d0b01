//! The embedded model's accuracy through the command line, and the whole life of a gate.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn atlas(arguments: &[&str]) -> Output {
    // The repository is the place where baselines are looked for.
    atlas_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), arguments)
}

fn atlas_in(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_atlas")).current_dir(folder).args(arguments).arg("--quiet").output().unwrap()
}

fn succeed(arguments: &[&str]) -> Value {
    let output = atlas(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What the model's card says, and how far a measurement may be from it.
fn near(value: &Value, card: f64, tolerance: f64) {
    let value = value.as_f64().unwrap();
    assert!((value - card).abs() <= tolerance, "{value} is not within {tolerance} of {card}");
}

#[test]
fn the_embedded_model_is_as_accurate_as_its_card_says() {
    let perplexity = succeed(&["eval", "perplexity", "embedded", "--json"]);
    near(&perplexity["perplexity"], 2.577, 0.005 * 2.577);
    near(&perplexity["assistant_perplexity"], 3.972, 0.005 * 3.972);
    assert_eq!((perplexity["documents"].as_u64(), perplexity["tokens"].as_u64()), (Some(360), Some(50759)));
    assert_eq!(perplexity["assistant_tokens"].as_u64(), Some(27748));
    let tools = succeed(&["eval", "tools", "embedded", "--json"]);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("qa.json").display().to_string();
    let qa = succeed(&["eval", "qa", "embedded", "--cases", "gates/data/qa.jsonl", "--out", &out, "--json"]);
    near(&tools["accuracy"], 0.917, 0.02);
    for (category, card) in [("simple", 0.987), ("multiple", 0.920), ("parallel", 0.867), ("irrelevance", 0.893)] {
        near(&tools["categories"][category]["accuracy"], card, 0.04);
    }
    near(&qa["accuracy"], 0.930, 0.02);
    assert_eq!(tools["results"].as_array().unwrap().len(), 300);
    let written: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(written, qa);
}

#[test]
fn a_gate_is_run_checked_blessed_and_broken() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (record, baseline) = (file("record.json"), file("baseline.json"));
    let suites = ["--suite", "consistency", "--suite", "ttft"];
    let measured = succeed(&[&["gate", "run", "@atlas/tiny", "--out", &record, "--json"][..], &suites].concat());
    assert_eq!(measured["target"]["name"], "tiny");
    for known in ["recipe_hash", "weights_hash", "weight_bytes_per_token", "flops_per_token"] {
        assert!(!measured["target"][known].is_null(), "{known}");
    }
    assert!(measured["engine"]["binary_sha256"].is_string() && measured["probe"].is_object());

    // What is committed is promised: consistency is exact.
    let check = |arguments: &[&str]| atlas(&[&["gate", "check"], arguments].concat());
    let kept = check(&[&record, "--suite", "consistency"]);
    assert_eq!(kept.status.code(), Some(0), "{}", String::from_utf8_lossy(&kept.stdout));
    assert_eq!(check(&[&record]).status.code(), Some(1), "suites that were not run are missing");
    assert_eq!(check(&[&record, "--baseline", &record]).status.code(), Some(1), "a record is no baseline");

    let blessed = atlas(&["gate", "bless", &record, "--out", &baseline]);
    assert!(blessed.status.success(), "{}", String::from_utf8_lossy(&blessed.stderr));
    assert_eq!(check(&[&record, "--baseline", &baseline]).status.code(), Some(0));

    // Seeded regressions of the record: other values under the same promise.
    let exit_of = |change: &dyn Fn(&mut Value)| {
        let (mut changed, path) = (measured.clone(), file("changed.json"));
        change(&mut changed["suites"]);
        std::fs::write(&path, changed.to_string()).unwrap();
        check(&[&path, "--baseline", &baseline]).status.code()
    };
    let samples = |values: [f64; 3]| {
        let (median, spread) = (values[1], (values[2] - values[0]) / 2.0);
        serde_json::json!({ "values": values, "median": median, "spread": spread })
    };
    let cold = measured["suites"]["ttft"]["metrics"]["ttft_cold_ms"]["samples"]["median"].as_f64().unwrap();
    let set = |suites: &mut Value, values| suites["ttft"]["metrics"]["ttft_cold_ms"]["samples"] = samples(values);
    assert_eq!(exit_of(&|_| {}), Some(0));
    assert_eq!(exit_of(&|suites| set(suites, [9.9 * cold, 10.0 * cold, 10.1 * cold])), Some(1), "slower");
    assert_eq!(exit_of(&|suites| set(suites, [0.5 * cold, 4.0 * cold, 7.5 * cold])), Some(3), "too noisy");
    let wrong = serde_json::json!({ "values": [1.0], "median": 1.0, "spread": 0.0 });
    let mismatches = |suites: &mut Value| {
        suites["consistency"]["metrics"]["consistency_mismatches"]["samples"] = wrong.clone();
    };
    assert_eq!(exit_of(&mismatches), Some(1), "wrong");
    let missing = |suites: &mut Value| {
        suites["ttft"]["metrics"].as_object_mut().unwrap().remove("ttft_warm_ms");
    };
    assert_eq!(exit_of(&missing), Some(1), "a metric is missing");
    assert_eq!(exit_of(&|suites| *suites = serde_json::json!({})), Some(1), "nothing was measured");

    let report = String::from_utf8(atlas(&["gate", "report", &record, "--baseline", &baseline]).stdout).unwrap();
    assert!(report.starts_with("## Gate tiny on cpu: pass\n") && report.contains("| consistency |"), "{report}");
}

#[test]
fn wrong_gate_commands_are_refused_before_anything_starts() {
    for (arguments, code, word) in [
        (&["gate", "run", "@atlas/tiny", "--suite", "no-such-suite"][..], 2, "no-such-suite"),
        (&["gate", "run", "--url", "http://127.0.0.1:1"], 2, "--name"),
        (&["gate", "run", "--url", "https://127.0.0.1:1", "--name", "x"], 2, "https"),
        (&["gate", "run"], 2, "RECIPE"),
        (&["gate", "run", "/no/such/model"], 1, "/no/such/model"),
        (&["gate", "check"], 2, "RECORD"),
        (&["gate", "check", "/no/such/record.json"], 1, "/no/such/record.json"),
        (&["gate", "check", "--changed", "no-such-revision"], 2, "no-such-revision"),
        (&["gate", "bless", "Cargo.toml"], 1, "Cargo.toml"),
        (&["eval", "qa", "embedded", "--cases", "Cargo.toml"], 1, "Cargo.toml:1"),
    ] {
        let output = atlas(arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        assert!(message.contains(word), "{arguments:?}: {message}");
    }
}

#[test]
fn a_change_is_judged_recipe_by_recipe() {
    let folder = tempfile::tempdir().unwrap();
    let git = |arguments: &[&str]| {
        let identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"];
        let output = Command::new("git").current_dir(folder.path()).args(identity).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let recipe = |name: &str, rest: &str| {
        let text = format!("recipe_version: \"2\"\nmodel: embedded\nruntime: atlas\n{rest}");
        std::fs::write(folder.path().join("recipes").join(name), text).unwrap();
    };
    std::fs::create_dir(folder.path().join("recipes")).unwrap();
    recipe("old.yaml", "broken: but not changed\n");
    git(&["init", "-q"]);
    git(&["add", "-A"]);
    git(&["commit", "-q", "-m", "start"]);
    let check = || {
        let output = atlas_in(folder.path(), &["gate", "check", "--changed", "HEAD", "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), report)
    };
    let (code, report) = check();
    assert_eq!((code, report["recipes"].as_array().unwrap().len()), (Some(0), 0), "nothing changed");

    // A valid recipe, and one whose promise is measured here and kept: the baseline is the one inside the binary.
    recipe("plain.yaml", "");
    recipe("tiny.yaml", "gates:\n  suites: [consistency]\n  classes: [cpu]\n");
    let (code, report) = check();
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(report["recipes"][1]["reports"][0]["rows"].as_array().unwrap().len(), 2);

    // No record on the other class, no baseline, and a mistake: each is told.
    recipe("tiny.yaml", "gates:\n  suites: [decode]\n  classes: [gb10]\n");
    recipe("plain.yaml", "modle: x\n");
    let (code, report) = check();
    assert_eq!((code, report["verdict"].as_str()), (Some(1), Some("fail")));
    let problem = |recipe: usize| report["recipes"][recipe]["problems"][0].as_str().unwrap();
    assert!(problem(0).contains("recipes/plain.yaml:4:1") && problem(0).contains("did you mean `model`"), "{report}");
    assert!(problem(1).contains("no record below gates/records/gb10"), "{report}");
}

#[test]
fn an_interrupted_gate_leaves_no_server() {
    let mut gate = Command::new(env!("CARGO_BIN_EXE_atlas"))
        .args(["gate", "run", "embedded", "--suite", "perplexity"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(gate.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("perplexity:")), "the measurement begins");
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", gate.id())).unwrap();
    let server: i32 = children.split_whitespace().next().expect("a server runs").parse().unwrap();
    kill_process(Pid::from_raw(gate.id().cast_signed()).unwrap(), Signal::TERM).unwrap();
    assert_eq!(gate.wait().unwrap().code(), Some(130));
    assert!(!Path::new(&format!("/proc/{server}")).exists(), "the server is gone");
}
