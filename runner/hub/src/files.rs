//! Which files of a repository a model needs. Code, pickles and everything else stay where they are.

use crate::id::is_safe_path;
use std::collections::BTreeSet;
use std::path::Path;

/// The index of a model in several files.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// A model in one file.
const SINGLE: &str = "model.safetensors";
/// Configuration, tokenizer, template.
const NAMES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "quantization_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    INDEX,
];
/// One of these is a tokenizer.
const TOKENIZERS: &[&str] = &["tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"];

/// Whether a file is configuration, tokenizer, template or index: what is fetched before the weights.
pub fn is_wanted(path: &str) -> bool {
    NAMES.contains(&path) || (!path.contains('/') && path.ends_with(".tiktoken") && is_safe_path(path))
}

/// The weight files of a repository that has no index: the one model, else whatever safetensors its root holds.
pub(crate) fn unindexed_weights<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let root: Vec<&str> =
        paths.filter(|path| !path.contains('/') && path.ends_with(".safetensors") && is_safe_path(path)).collect();
    if root.contains(&SINGLE) { vec![SINGLE] } else { root }
}

/// The shard files that an index names, each once, in order. An index that names anything but safetensors inside the
/// repository is an error.
pub fn shards(index: &str) -> Result<Vec<String>, String> {
    let index: serde_json::Value = serde_json::from_str(index).map_err(|error| format!("{INDEX}: {error}"))?;
    let map = index.get("weight_map").and_then(serde_json::Value::as_object);
    let map = map.ok_or_else(|| format!("{INDEX} has no `weight_map`"))?;
    let mut names = BTreeSet::new();
    for (tensor, file) in map {
        let file = file.as_str().unwrap_or_default();
        if !is_safe_path(file) || !file.ends_with(".safetensors") {
            return Err(format!("{INDEX}: tensor `{tensor}` is said to be in `{}`", file.escape_debug()));
        }
        names.insert(file.to_owned());
    }
    match names.is_empty() {
        true => Err(format!("{INDEX} names no file")),
        false => Ok(names.into_iter().collect()),
    }
}

/// What a folder lacks to be a model: its configuration, or weight files that the index names. (A folder with the
/// configuration alone, as an interrupted download leaves it, is not a model.)
pub fn missing_files(folder: &Path) -> Vec<String> {
    let mut missing = Vec::new();
    if !folder.join("config.json").is_file() {
        missing.push("config.json".to_owned());
    }
    match weight_names(folder) {
        Ok(names) => missing.extend(names.into_iter().filter(|name| !folder.join(name).is_file())),
        Err(problem) => missing.push(problem),
    }
    missing.sort();
    missing
}

/// Whether a folder has a tokenizer of any kind.
pub(crate) fn has_tokenizer(folder: &Path) -> bool {
    TOKENIZERS.iter().any(|name| folder.join(name).is_file())
}

/// The weight files that a folder should have.
fn weight_names(folder: &Path) -> Result<Vec<String>, String> {
    let index = folder.join(INDEX);
    if index.symlink_metadata().is_ok() {
        let text = std::fs::read_to_string(&index).map_err(|error| format!("{INDEX} ({error})"))?;
        return shards(&text);
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let weights = unindexed_weights(names.iter().map(String::as_str));
    Ok(if weights.is_empty() { vec![SINGLE.to_owned()] } else { weights.into_iter().map(str::to_owned).collect() })
}

/// The files of a model folder that matter, in order: those that are there and wanted, and its weights.
pub(crate) fn model_files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut files: BTreeSet<String> = names.filter(|name| is_wanted(name)).collect();
    files.extend(weight_names(folder).unwrap_or_default().into_iter().filter(|name| folder.join(name).exists()));
    files.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s22_no_code_and_no_pickle_is_wanted() {
        for path in [
            "pytorch_model.bin",
            "modeling_x.py",
            "model.pt",
            "x.pkl",
            "model.gguf",
            "README.md",
            ".gitattributes",
            "original/config.json",
            "../config.json",
            "training_args.bin",
            "../x.tiktoken",
        ] {
            assert!(!is_wanted(path), "{path}");
            assert!(unindexed_weights([path].into_iter()).is_empty(), "{path}");
        }
        for path in ["config.json", "tokenizer.json", "chat_template.jinja", "hf_quant_config.json", "qwen.tiktoken"] {
            assert!(is_wanted(path), "{path}");
        }
    }

    #[test]
    fn weights_are_what_the_index_names() {
        let index = r#"{"weight_map":{"a":"m-2.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"}}"#;
        assert_eq!(shards(index).unwrap(), ["m-1.safetensors", "m-2.safetensors"]);
        for wrong in [
            "",
            "[]",
            r#"{"weight_map":{}}"#,
            r#"{"weight_map":{"a":"../m.safetensors"}}"#,
            r#"{"weight_map":{"a":"/etc/m.safetensors"}}"#,
            r#"{"weight_map":{"a":"m.bin"}}"#,
            r#"{"weight_map":{"a":7}}"#,
        ] {
            assert!(shards(wrong).is_err(), "{wrong}");
        }
        let both = ["consolidated.safetensors", "model.safetensors", "sub/x.safetensors"];
        assert_eq!(unindexed_weights(both.into_iter()), ["model.safetensors"]);
        assert_eq!(
            unindexed_weights(["a.safetensors", "b.safetensors"].into_iter()),
            ["a.safetensors", "b.safetensors"]
        );
    }

    #[test]
    fn a_configuration_alone_is_not_a_model() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(missing_files(folder.path()), ["config.json", "model.safetensors"]);
        write("config.json", "{}");
        write(INDEX, r#"{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#);
        write("m-1.safetensors", "");
        assert_eq!(missing_files(folder.path()), ["m-2.safetensors"]);
        write("m-2.safetensors", "");
        assert!(missing_files(folder.path()).is_empty());
        assert_eq!(model_files(folder.path()), ["config.json", "m-1.safetensors", "m-2.safetensors", INDEX]);
        write(INDEX, "{");
        assert_eq!(missing_files(folder.path()).len(), 1);
    }
}
