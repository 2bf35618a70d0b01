//! The tensors of one or several safetensors files.
//!
//! Headers are checked before anything is allocated: sizes, overlaps, offsets beyond the end, names in two files.

use super::files::{Blob, ModelFiles};
use crate::errors::EngineError;
use ::safetensors::Dtype;
use ::safetensors::tensor::Metadata;
use serde_json::Value;
use std::collections::BTreeMap;

/// The largest header that is accepted, in bytes.
const MAX_HEADER: u64 = 100 << 20;
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Where a tensor lies.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Length in bytes.
    pub bytes: u64,
    file: usize,
    offset: u64,
}

/// All tensors of a checkpoint.
#[derive(Debug)]
pub struct Tensors {
    files: Vec<Blob>,
    tensors: BTreeMap<String, TensorInfo>,
}

impl Tensors {
    /// Opens `model.safetensors`, or the shards that its index names.
    pub fn open(files: &ModelFiles) -> Result<Self, EngineError> {
        let mut this = Self { files: Vec::new(), tensors: BTreeMap::new() };
        let Some(index) = crate::config::hf::read_json(files, INDEX)? else {
            let blob = files.open(SINGLE)?.ok_or_else(|| EngineError::Weights {
                path: files.display(SINGLE),
                message: format!("there is no such file and no {INDEX} beside it"),
            })?;
            this.add(blob)?;
            return Ok(this);
        };
        let bad = |message: String| EngineError::Weights { path: files.display(INDEX), message };
        let map =
            index.get("weight_map").and_then(Value::as_object).ok_or_else(|| bad("has no `weight_map`".into()))?;
        let mut shards: Vec<&str> = Vec::new();
        for (tensor, shard) in map {
            let shard = shard.as_str().filter(|name| is_plain_file_name(name));
            let shard = shard.ok_or_else(|| bad(format!("names no plain file for `{tensor}`")))?;
            if !shards.contains(&shard) {
                shards.push(shard);
            }
        }
        shards.sort_unstable();
        for shard in shards {
            let blob = files.open(shard)?.ok_or_else(|| EngineError::Weights {
                path: files.display(shard),
                message: format!("there is no such file, but {INDEX} names it"),
            })?;
            this.add(blob)?;
        }
        for (tensor, shard) in map {
            let found = this.tensors.get(tensor).map(|info| this.files[info.file].name.as_str());
            let expected = files.display(shard.as_str().unwrap_or_default());
            if found != Some(expected.as_str()) {
                return Err(EngineError::Weights {
                    path: expected,
                    message: format!("does not hold `{tensor}`, which {INDEX} places there"),
                });
            }
        }
        Ok(this)
    }

    fn add(&mut self, blob: Blob) -> Result<(), EngineError> {
        let fail = |message: String| EngineError::Weights { path: blob.name.clone(), message };
        let mut length = [0; 8];
        blob.read_at(0, &mut length).map_err(|_| fail(format!("is truncated: {} bytes hold no header", blob.len)))?;
        let header = u64::from_le_bytes(length);
        if header > MAX_HEADER || header > blob.len.saturating_sub(8) {
            return Err(fail(format!(
                "has a header of {header} bytes in a file of {}: truncated or damaged",
                blob.len
            )));
        }
        let mut bytes = vec![0; header as usize];
        blob.read_at(8, &mut bytes).map_err(|error| fail(format!("header: {error}")))?;
        // Deserialising validates: shapes against offsets, and tensors that neither overlap nor leave gaps.
        let metadata: Metadata = serde_json::from_slice(&bytes).map_err(|error| fail(format!("header: {error}")))?;
        let data = 8 + header;
        let file = self.files.len();
        let mut end = data;
        for (name, info) in metadata.tensors() {
            let (from, to) = (data + info.data_offsets.0 as u64, data + info.data_offsets.1 as u64);
            end = end.max(to);
            if to > blob.len {
                return Err(fail(format!("is truncated: `{name}` ends at byte {to} of {}", blob.len)));
            }
            let tensor =
                TensorInfo { dtype: info.dtype, shape: info.shape.clone(), bytes: to - from, file, offset: from };
            if self.tensors.insert(name.clone(), tensor).is_some() {
                return Err(fail(format!("holds `{name}`, which another file holds too")));
            }
        }
        if end != blob.len {
            return Err(fail(format!("has {} bytes after its last tensor", blob.len - end)));
        }
        self.files.push(blob);
        Ok(())
    }

    /// Finds a tensor.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// All tensors by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &TensorInfo)> {
        self.tensors.iter().map(|(name, info)| (name.as_str(), info))
    }

    /// The file a tensor lies in, for messages; the first file when there is no such tensor.
    pub fn file_of(&self, name: &str) -> String {
        let file = self.tensors.get(name).map_or(0, |info| info.file);
        self.files.get(file).map(|blob| blob.name.clone()).unwrap_or_default()
    }

    /// Reads a tensor's bytes.
    pub fn read(&self, name: &str, info: &TensorInfo) -> Result<Vec<u8>, EngineError> {
        let mut bytes = vec![0; info.bytes as usize];
        let blob = &self.files[info.file];
        blob.read_at(info.offset, &mut bytes).map_err(|error| EngineError::Weights {
            path: blob.name.clone(),
            message: format!("`{name}`: {error}; the file was truncated while it was read"),
        })?;
        Ok(bytes)
    }
}

fn is_plain_file_name(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.contains(['/', '\\', '\0']) && !name.starts_with('.')
}
