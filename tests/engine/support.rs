//! What the engine's tests share: golden folders and their tensors.

use crate::devices::Target;
use atlas_engine::model::{LoadOptions, Model};
use atlas_engine::weights::ModelFiles;
use safetensors::SafeTensors;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

pub(crate) const CASES: [&str; 7] =
    ["llama", "llama31", "llama_nvfp4_modelopt", "qwen3", "qwen3_5", "qwen3_5_vl", "qwen3_5_nvfp4_modelopt"];

/// The repository: `ATLAS_TEST_ROOT` for test binaries that run elsewhere than they were built.
pub(crate) fn root() -> PathBuf {
    std::env::var_os("ATLAS_TEST_ROOT").map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), PathBuf::from)
}

pub(crate) fn folder(case: &str) -> PathBuf {
    root().join("tests/goldens").join(case)
}

/// Options for a target; one sequence of the checkpoint's context unless changed.
pub(crate) fn options(target: &Target) -> LoadOptions {
    LoadOptions {
        device: target.device,
        activations: target.activations,
        kv_dtype: target.kv,
        threads: 2,
        ..LoadOptions::default()
    }
}

pub(crate) fn load(case: &str, options: &LoadOptions) -> Model {
    let files = ModelFiles::folder(&folder(case)).unwrap();
    Model::load(&files, options, |_, _| {}).unwrap()
}

/// All tensors of a golden file, as f32 (integers become floats exactly).
pub(crate) fn tensors(path: &Path) -> HashMap<String, Vec<f32>> {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let value = |dtype: safetensors::Dtype, b: &[u8]| {
        let word = [b[0], b[1], b[2], b[3]];
        if dtype == safetensors::Dtype::I32 { i32::from_le_bytes(word) as f32 } else { f32::from_le_bytes(word) }
    };
    file.iter()
        .map(|(name, view)| {
            let dtype = view.dtype();
            assert!(matches!(dtype, safetensors::Dtype::I32 | safetensors::Dtype::F32), "{name}: {dtype:?}");
            (name.to_owned(), view.data().chunks_exact(4).map(|word| value(dtype, word)).collect())
        })
        .collect()
}

pub(crate) fn ids(values: &[f32]) -> Vec<u32> {
    values.iter().map(|id| *id as u32).collect()
}

/// Fails unless relative L2 and greatest absolute difference are within the golden's tolerance.
pub(crate) fn assert_close(what: &str, case: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let (mut difference, mut norm, mut greatest) = (0f64, 0f64, 0f32);
    for (g, w) in got.iter().zip(want) {
        assert!(g.is_finite(), "{what}: {g}");
        difference += f64::from(g - w).powi(2);
        norm += f64::from(*w).powi(2);
        greatest = greatest.max((g - w).abs());
    }
    let relative = (difference / norm.max(1e-30)).sqrt();
    let bound = if case.starts_with("qwen3_5") { 2e-3 } else { 3e-4 };
    assert!(relative <= 1e-4 && greatest <= bound, "{what}: relative L2 {relative:.1e}, greatest {greatest:.1e}");
}
