//! Damaged checkpoints: every fault is an error that names the file and the tensor or field.

use atlas_engine::model::{LoadOptions, Model};
use atlas_engine::weights::ModelFiles;
use atlas_kernels::{KvDtype, KvScales};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

fn copy(case: &str) -> TempDir {
    let target = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "hf_quant_config.json"] {
        let source = crate::support::folder(case).join(name);
        if source.exists() {
            std::fs::copy(source, target.path().join(name)).unwrap();
        }
    }
    target
}

fn load_error(folder: &Path) -> String {
    let files = ModelFiles::folder(folder).unwrap();
    match Model::load(&files, &LoadOptions { context: Some(64), ..LoadOptions::default() }, |_, _| {}) {
        Ok(_) => panic!("the damaged checkpoint was loaded"),
        Err(error) => error.to_string(),
    }
}

/// Rewrites the header of the single weight file, keeping the data.
fn edit_header(folder: &Path, edit: impl FnOnce(&mut serde_json::Map<String, Value>)) {
    let path = folder.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    edit(&mut header);
    let text = serde_json::to_vec(&header).unwrap();
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text);
    out.extend(&bytes[8 + length..]);
    std::fs::write(path, out).unwrap();
}

fn edit_config(folder: &Path, edit: impl FnOnce(&mut Value)) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    edit(&mut config);
    std::fs::write(path, serde_json::to_vec(&config).unwrap()).unwrap();
}

#[track_caller]
fn assert_names(error: &str, words: &[&str]) {
    for word in words {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
}

/// Sets a tensor of one F32, which the weight file has or gets.
fn set_scalar(folder: &Path, name: &str, value: f32) {
    let path = folder.join("model.safetensors");
    let read = || {
        let bytes = std::fs::read(&path).unwrap();
        let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        (bytes, start)
    };
    let (bytes, start) = read();
    let end = bytes.len() - start;
    edit_header(folder, |header| {
        let new = json!({ "dtype": "F32", "shape": [], "data_offsets": [end, end + 4] });
        header.entry(name).or_insert(new);
    });
    let (mut bytes, start) = read();
    let header: Value = serde_json::from_slice(&bytes[8..start]).unwrap();
    let at = start + header[name]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes.resize(bytes.len().max(at + 4), 0);
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn kv_scales_come_from_the_checkpoint() {
    for case in ["llama", "llama_nvfp4_modelopt"] {
        let folder = copy(case);
        set_scalar(folder.path(), "model.layers.1.self_attn.k_proj.k_scale", 0.25);
        set_scalar(folder.path(), "model.layers.0.self_attn.v_proj.v_scale", 3.0);
        let files = ModelFiles::folder(folder.path()).unwrap();
        let options = LoadOptions { context: Some(64), kv_dtype: KvDtype::Fp8, ..LoadOptions::default() };
        let model = Model::load(&files, &options, |_, _| {}).unwrap();
        let layers = &model.backend.plan().kv_layers;
        assert_eq!(layers[0].scales, KvScales { k: 1.0, v: 3.0 }, "{case}");
        assert_eq!(layers[1].scales, KvScales { k: 0.25, v: 1.0 }, "{case}");
    }
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let folder = copy("llama");
        set_scalar(folder.path(), "model.layers.1.self_attn.k_proj.k_scale", bad);
        assert_names(&load_error(folder.path()), &["model.safetensors", "layers.1.self_attn.k_proj", "KV cache"]);
    }
}

#[test]
fn truncation_anywhere_is_an_error() {
    let folder = copy("llama");
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    for len in [0, 4, 8, 9, 500, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..len]).unwrap();
        assert_names(&load_error(folder.path()), &["model.safetensors", "truncated"]);
    }
    let mut longer = bytes;
    longer.push(0);
    std::fs::write(&path, longer).unwrap();
    assert_names(&load_error(folder.path()), &["model.safetensors", "1 bytes after"]);
}

#[test]
fn missing_unused_and_misshapen_tensors_are_named() {
    let folder = copy("qwen3");
    edit_header(folder.path(), |header| {
        let tensor = header.remove("model.layers.1.mlp.up_proj.weight").unwrap();
        header.insert("model.layers.1.mlp.side_proj.weight".into(), tensor);
    });
    assert_names(&load_error(folder.path()), &["model.safetensors", "model.layers.1.mlp.up_proj.weight", "missing"]);

    let folder = copy("qwen3");
    edit_config(folder.path(), |config| {
        config["num_hidden_layers"] = json!(3);
        config["layer_types"] = Value::Null;
    });
    assert_names(&load_error(folder.path()), &["model.safetensors", "model.layers.3.", "not used"]);

    let folder = copy("qwen3");
    edit_config(folder.path(), |config| config["intermediate_size"] = json!(64));
    assert_names(&load_error(folder.path()), &["model.safetensors", "gate_proj", "shape", "128", "64"]);
}

#[test]
fn wrong_dtypes_are_named() {
    let folder = copy("llama");
    edit_header(folder.path(), |header| {
        header["model.norm.weight"]["dtype"] = json!("I16");
    });
    assert_names(&load_error(folder.path()), &["model.safetensors", "model.norm.weight", "I16"]);

    let folder = copy("llama_nvfp4_modelopt");
    edit_header(folder.path(), |header| {
        header["model.layers.0.mlp.up_proj.weight_scale"]["dtype"] = json!("U8");
    });
    assert_names(&load_error(folder.path()), &["up_proj.weight_scale", "U8", "F8_E4M3"]);
}

#[test]
fn hostile_headers_are_refused() {
    let folder = copy("llama");
    let path = folder.path().join("model.safetensors");
    let good = std::fs::read(&path).unwrap();
    let write = |header: &[u8]| {
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend(header);
        out.extend([0; 64]);
        std::fs::write(&path, out).unwrap();
    };
    let overflow = format!(r#"{{"a":{{"dtype":"F32","shape":[{0},{0}],"data_offsets":[0,64]}}}}"#, u64::MAX / 2);
    for header in [
        r#"{"a":{"dtype":"F32","shape":[1048576],"data_offsets":[0,4194304]}}"#.as_bytes(),
        overflow.as_bytes(),
        br#"{"a":{"dtype":"F32","shape":[16],"data_offsets":[0,64]},"b":{"dtype":"F32","shape":[8],"data_offsets":[32,64]}}"#,
        br#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[64,48]}}"#,
        b"not json",
        b"",
    ] {
        write(header);
        assert_names(&load_error(folder.path()), &["model.safetensors"]);
    }
    let mut huge = u64::MAX.to_le_bytes().to_vec();
    huge.extend(&good[8..]);
    std::fs::write(&path, huge).unwrap();
    assert_names(&load_error(folder.path()), &["model.safetensors", "header"]);
}

#[test]
fn sharded_checkpoints_load_and_bad_indexes_are_named() {
    let folder = copy("llama");
    let whole = std::fs::read(folder.path().join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&whole).unwrap();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for (index, (name, view)) in file.iter().enumerate() {
        if index % 2 == 0 { first.push((name.to_owned(), view)) } else { second.push((name.to_owned(), view)) }
    }
    let mut map = serde_json::Map::new();
    for (shard, part) in [("model-00001-of-00002.safetensors", &first), ("model-00002-of-00002.safetensors", &second)] {
        std::fs::write(folder.path().join(shard), safetensors::serialize(part.clone(), None).unwrap()).unwrap();
        part.iter().for_each(|(name, _)| drop(map.insert(name.clone(), json!(shard))));
    }
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    std::fs::write(&index, json!({ "weight_map": map }).to_string()).unwrap();
    let files = ModelFiles::folder(folder.path()).unwrap();
    Model::load(&files, &LoadOptions { context: Some(64), ..LoadOptions::default() }, |_, _| {}).unwrap();

    let mut elsewhere = map.clone();
    elsewhere["model.norm.weight"] = json!("../secret.safetensors");
    std::fs::write(&index, json!({ "weight_map": elsewhere }).to_string()).unwrap();
    assert_names(&load_error(folder.path()), &["index.json", "model.norm.weight", "plain file"]);

    std::fs::write(&index, json!({ "weight_map": map }).to_string()).unwrap();
    std::fs::remove_file(folder.path().join("model-00002-of-00002.safetensors")).unwrap();
    assert_names(&load_error(folder.path()), &["model-00002-of-00002.safetensors", "no such file"]);
}

#[test]
fn configurations_that_change_the_mathematics_are_refused_by_name() {
    let edits: [(&str, &str, Value, &str); 15] = [
        ("llama", "hidden_act", json!("gelu"), "hidden_act"),
        ("llama", "rope_scaling", json!({"rope_type": "dynamic", "factor": 2.0}), "rope_type"),
        ("llama", "final_logit_softcapping", json!(30.0), "final_logit_softcapping"),
        ("llama", "num_key_value_heads", json!(4), "num_key_value_heads"),
        ("llama", "hidden_size", json!(-1), "hidden_size"),
        ("llama", "vocab_size", json!("many"), "vocab_size"),
        ("llama", "model_type", json!("mamba"), "model_type"),
        ("qwen3_5", "attn_output_gate", json!(false), "attn_output_gate"),
        ("qwen3", "layer_types", json!(["full_attention"]), "layer_types"),
        ("llama", "num_hidden_layers", json!(i32::MAX), "num_hidden_layers"),
        ("qwen3_5", "mtp_num_hidden_layers", json!(i32::MAX), "mtp_num_hidden_layers"),
        ("llama", "head_dim", json!(i32::MAX - 1), "head_dim"),
        ("llama", "rms_norm_eps", json!(-1), "rms_norm_eps"),
        ("llama", "rope_theta", json!(1e-300), "rope_theta"),
        ("llama", "original_max_position_embeddings", json!({}), "original_max_position_embeddings"),
    ];
    for (case, key, value, word) in edits {
        let folder = copy(case);
        edit_config(folder.path(), |config| config[key] = value);
        assert_names(&load_error(folder.path()), &["config.json", word]);
    }
}

#[test]
fn unknown_fields_are_visible_and_absent_draft_heads_too() {
    let folder = copy("qwen3_5");
    edit_config(folder.path(), |config| {
        config["sparkle"] = json!(3);
        config["mtp_num_hidden_layers"] = json!(1);
    });
    let files = ModelFiles::folder(folder.path()).unwrap();
    let model = Model::load(&files, &LoadOptions { context: Some(64), ..LoadOptions::default() }, |_, _| {}).unwrap();
    assert!(model.spec.warnings.iter().any(|warning| warning.contains("sparkle")), "{:?}", model.spec.warnings);
    assert!(model.spec.warnings.iter().any(|warning| warning.contains("mtp")), "{:?}", model.spec.warnings);
}

#[test]
fn a_tied_head_may_be_stored_too_but_only_if_it_is_the_embedding() {
    let folder = copy("llama");
    let path = folder.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&whole).unwrap();
    let files = ModelFiles::folder(folder.path()).unwrap();
    for (flip, loads) in [(0, true), (1, false)] {
        let embedding = file.tensor("model.embed_tokens.weight").unwrap();
        let mut bytes = embedding.data().to_vec();
        bytes[10] ^= flip;
        let head = safetensors::tensor::TensorView::new(embedding.dtype(), embedding.shape().to_vec(), &bytes).unwrap();
        let frequencies = [0u8; 32];
        let frequencies = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![8], &frequencies).unwrap();
        let mut tensors: Vec<_> = file.iter().map(|(name, view)| (name.to_owned(), view)).collect();
        tensors.push(("lm_head.weight".into(), head));
        tensors.push(("model.layers.0.self_attn.rotary_emb.inv_freq".into(), frequencies));
        std::fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
        let options = LoadOptions { context: Some(64), ..LoadOptions::default() };
        match Model::load(&files, &options, |_, _| {}) {
            Ok(_) => assert!(loads),
            Err(error) => {
                assert!(!loads, "{error}");
                assert_names(&error.to_string(), &["lm_head.weight", "not used"]);
            }
        }
    }
}

#[test]
fn weights_that_are_not_numbers_are_named() {
    for (name, dtype_bytes) in [("model.layers.0.mlp.up_proj.weight", 2), ("model.norm.weight", 2)] {
        let folder = copy("llama");
        let path = folder.path().join("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let start = 8 + length + header[name]["data_offsets"][0].as_u64().unwrap() as usize;
        bytes[start + 5 * dtype_bytes..][..2].copy_from_slice(&[0x80, 0x7f]);
        std::fs::write(&path, bytes).unwrap();
        assert_names(&load_error(folder.path()), &["model.safetensors", name, "element 5"]);
    }
}

#[test]
fn pipes_and_folders_in_place_of_files_are_named() {
    let folder = copy("llama");
    let path = folder.path().join("model.safetensors");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert_names(&load_error(folder.path()), &["model.safetensors", "not a regular file"]);
    std::fs::remove_dir(&path).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    assert_names(&load_error(folder.path()), &["model.safetensors", "not a regular file"]);
}

#[test]
fn a_draft_head_that_is_not_declared_is_left_out_visibly() {
    let folder = copy("qwen3_5");
    let path = folder.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&whole).unwrap();
    let mut tensors: Vec<_> = file.iter().map(|(name, view)| (name.to_owned(), view)).collect();
    tensors.push(("mtp.fc.weight".into(), file.tensor("model.norm.weight").unwrap()));
    std::fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
    let files = ModelFiles::folder(folder.path()).unwrap();
    let model = Model::load(&files, &LoadOptions { context: Some(64), ..LoadOptions::default() }, |_, _| {}).unwrap();
    assert!(model.spec.warnings.iter().any(|warning| warning.contains("draft head")), "{:?}", model.spec.warnings);
}
