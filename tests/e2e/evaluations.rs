//! `atlas eval`, `explain` and `bench --synthetic` through the command line.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn atlas(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_atlas")).args(arguments).output().unwrap()
}

fn json_of(arguments: &[&str]) -> Value {
    let output = atlas(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn golden(case: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/goldens").join(case).display().to_string()
}

struct Tensor {
    shape: Vec<usize>,
    words: Vec<[u8; 4]>,
}

fn tensor(path: &Path, name: &str) -> Tensor {
    let bytes = std::fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let view = file.tensor(name).unwrap();
    let words = view.data().chunks_exact(4).map(|word| word.try_into().unwrap()).collect();
    Tensor { shape: view.shape().to_vec(), words }
}

fn tokens_file(folder: &Path, case: &str, prompt: usize) -> PathBuf {
    let golden = tensor(&PathBuf::from(golden(case)).join("golden.safetensors"), &format!("tokens.{prompt}"));
    let ids: Vec<i32> = golden.words.into_iter().map(i32::from_le_bytes).collect();
    let path = folder.join("tokens.json");
    std::fs::write(&path, json!(ids).to_string()).unwrap();
    path
}

#[test]
fn logits_and_greedy_tokens_equal_the_goldens() {
    let folder = tempfile::tempdir().unwrap();
    for case in ["llama31", "qwen3_5_vl"] {
        let tokens = tokens_file(folder.path(), case, 1).display().to_string();
        let out = folder.path().join("out.safetensors");
        let shown = out.display().to_string();
        let golden_file = PathBuf::from(golden(case)).join("golden.safetensors");
        let want = tensor(&golden_file, "logits.1");
        for chunk in ["1000", "7"] {
            let arguments = ["eval", "logits", &golden(case), "--tokens", &tokens, "--out", &shown, "--device", "cpu"];
            let done = json_of(&[&arguments[..], &["--chunk", chunk, "--json"]].concat());
            assert_eq!(done["shape"], json!(want.shape));
            let got = tensor(&out, "logits");
            assert_eq!(got.shape, want.shape);
            let far = (got.words.iter().zip(&want.words))
                .map(|(g, w)| (f32::from_le_bytes(*g) - f32::from_le_bytes(*w)).abs())
                .fold(0.0, f32::max);
            assert!(far <= 2e-3, "{case} chunk {chunk}: {far:e}");
        }
        let margins = tensor(&golden_file, "greedy_margin.1").words.into_iter().map(f32::from_le_bytes);
        let sure = margins.take_while(|margin| *margin >= 5e-3).count();
        let want: Vec<i32> = tensor(&golden_file, "greedy.1").words.into_iter().map(i32::from_le_bytes).collect();
        let got = json_of(&["eval", "generate", &golden(case), "--tokens", &tokens, "--max-tokens", "24", "--json"]);
        assert_eq!(got["tokens"].as_array().unwrap().len(), 24);
        assert_eq!(json!(want[..sure]), json!(got["tokens"].as_array().unwrap()[..sure]), "{case}");
    }
}

#[test]
fn bad_input_is_refused_with_its_name_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens.json");
    let out = folder.path().join("out.safetensors");
    let (tokens_shown, out_shown) = (tokens.display().to_string(), out.display().to_string());
    for (text, word) in [("[]", "empty"), ("{}", "array"), ("[-1]", "array"), ("[70000]", "70000"), ("[1", "array")] {
        std::fs::write(&tokens, text).unwrap();
        let output = atlas(&["eval", "logits", &golden("llama"), "--tokens", &tokens_shown, "--out", &out_shown]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}: {message}");
        assert!(message.contains(word), "{text}: {message}");
        assert!(!out.exists());
    }
    std::fs::write(&tokens, "[1]").unwrap();
    let output = atlas(&["eval", "logits", "/nowhere", "--tokens", &tokens_shown, "--out", &out_shown]);
    assert_ne!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere"));
}

#[test]
fn explanations_follow_their_schema_and_add_up() {
    for model in ["embedded", &golden("llama"), &golden("qwen3_5_nvfp4_modelopt")] {
        let explained = json_of(&["explain", model, "--hardware", "gb10", "--json"]);
        let typed: atlas_schemas::outputs::ExplainReport = serde_json::from_value(explained.clone()).unwrap();
        let sum: u64 = typed.sublayers.iter().map(|row| row.cost.weight_bytes).sum();
        assert_eq!(sum, typed.total.weight_bytes, "{model}");
        assert!(typed.fits && typed.decode_tok_s_bound.is_some_and(|bound| bound > 0.0), "{model}");
    }
}

#[test]
fn a_synthetic_model_is_measured_in_every_combination() {
    let config = format!("{}/config.json", golden("qwen3_5"));
    let record = json_of(&[
        "bench",
        "--synthetic",
        &config,
        "--weights",
        "nvfp4",
        "--prompt",
        "16,33",
        "--decode",
        "4",
        "--concurrency",
        "1,3",
        "--runs",
        "1",
        "--json",
        "--quiet",
    ]);
    let record: atlas_schemas::bench::BenchRecord = serde_json::from_value(record).unwrap();
    assert_eq!(record.rows.len(), 4);
    for row in &record.rows {
        assert!(row.decode_tok_s > 0.0 && row.prefill_tok_s > 0.0 && row.ttft_ms > 0.0, "{row:?}");
        assert!(row.weight_bytes_per_token.is_some_and(|bytes| bytes > 10_000), "{row:?}");
    }
}

#[test]
fn output_goes_through_links_and_leaves_neighbours_alone() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = tokens_file(folder.path(), "llama", 0).display().to_string();
    let (real, link) = (folder.path().join("real"), folder.path().join("out.f32"));
    let neighbour = folder.path().join("out.partial");
    std::fs::write(&real, "old").unwrap();
    std::fs::write(&neighbour, "mine").unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    json_of(&["eval", "logits", &golden("llama"), "--tokens", &tokens, "--out", &link.display().to_string(), "--json"]);
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(tensor(&real, "logits").shape, [7, 512]);
    assert_eq!(std::fs::read_to_string(&neighbour).unwrap(), "mine");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4, "no temporary file is left");
}
