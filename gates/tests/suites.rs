//! Suite files: those of this repository are good, and bad ones say why.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use atlas_gates::suites;

#[test]
fn the_built_in_suites_load_and_differ() {
    let names: Vec<&str> = suites::built_in().collect();
    assert_eq!(names.len(), 7);
    let mut hashes: Vec<String> = names
        .iter()
        .map(|name| {
            let suite = suites::load(name).unwrap();
            assert_eq!(suite.name, *name);
            suites::hash(&suite).unwrap()
        })
        .collect();
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), 7);
}

#[test]
fn the_hash_is_of_the_measurement_alone() {
    let suite = suites::load("qa").unwrap();
    let hash = suites::hash(&suite).unwrap();
    let mut other = suite.clone();
    other.description = "other".into();
    other.metrics.get_mut("qa_accuracy").unwrap().tolerance = 0.5;
    assert_eq!(suites::hash(&other).unwrap(), hash, "rules and prose do not enter");
    let mut other = suite.clone();
    if let atlas_schemas::gate::Measure::Qa(measure) = &mut other.measure {
        measure.max_tokens += 1;
    }
    assert_ne!(suites::hash(&other).unwrap(), hash);
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.jsonl");
    std::fs::write(&copy, atlas_gates::data::load("qa").unwrap()).unwrap();
    let mut same = suite;
    if let atlas_schemas::gate::Measure::Qa(measure) = &mut same.measure {
        measure.cases = copy.display().to_string();
    }
    assert_eq!(suites::hash(&same).unwrap(), hash, "content, not names");
    std::fs::write(&copy, "{}").unwrap();
    assert_ne!(suites::hash(&same).unwrap(), hash);
}

fn error(text: &str) -> String {
    suites::parse(text, "bad.yaml").unwrap_err().to_string()
}

#[test]
fn bad_suites_say_where_and_why() {
    let good = "schema_version: 1\ntimeout_s: 60\nname: s\ndescription: d\nruns: 3\nmeasure:\n  ttft: {prompt_tokens: 8}\nmetrics:\n  ttft_cold_ms: {unit: ms, direction: lower, kind: relative, tolerance: 1}\n";
    assert!(suites::parse(good, "good.yaml").is_ok());
    for (from, to, cause) in [
        ("runs: 3", "rums: 3", "rums"),
        ("schema_version: 1", "schema_version: 2", "this Atlas reads 1"),
        ("timeout_s: 60", "timeout_s: 0", "timeout_s: 1 to"),
        ("runs: 3", "runs: 0", "runs: 1 to 100"),
        ("runs: 3", "runs: many", "5:7"),
        ("ttft: {prompt_tokens: 8}", "tftt: {prompt_tokens: 8}", "tftt"),
        ("prompt_tokens: 8", "prompt_token: 8", "prompt_token"),
        ("prompt_tokens: 8", "prompt_tokens: 0", "prompt_tokens: at least 1"),
        ("kind: relative", "kind: exact", "an exact metric has no tolerance"),
        ("kind: relative", "kind: relatively", "relatively"),
        ("tolerance: 1", "tolerance: -1", "not negative"),
        ("tolerance: 1", "tolerance: .nan", "not negative"),
        ("tolerance: 1", "tolerance: 1, min_runs: 4", "min_runs: 1 to runs (3)"),
        ("name: s", "name: Not A Name", "lower-case"),
    ] {
        let text = error(&good.replacen(from, to, 1));
        assert!(text.starts_with("bad.yaml: ") && text.contains(cause), "{to}: {text}");
    }
    assert!(error("").starts_with("bad.yaml: "));
    assert!(suites::load("no-such-suite").unwrap_err().to_string().contains("decode"));
}
