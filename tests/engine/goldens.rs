//! The CPU backend against the goldens: every layer, logits, greedy tokens, exact dequantisation, any chunk size.

use crate::support::{CASES, assert_close, folder, ids, load, tensors};
use atlas_engine::backend::Observer;
use atlas_engine::model::LoadOptions;
use atlas_engine::plan::PlannedOp;
use atlas_engine::schedule::batch::WantLogits;
use atlas_engine::session::Session;
use atlas_engine::weights::safetensors::Tensors;
use atlas_engine::weights::{ModelFiles, loader};
use atlas_kernels::PackedMatrix;
use std::collections::HashMap;

/// Keeps the residual stream after each layer, and the input of the output projection.
struct Dump {
    layer_ends: Vec<usize>,
    final_norm: usize,
    layers: HashMap<usize, Vec<f32>>,
    final_hidden: Vec<f32>,
}

impl Observer for Dump {
    fn after(&mut self, index: usize, _op: &PlannedOp, output: &[f32], _rows: usize, _width: usize) {
        if let Some(layer) = self.layer_ends.iter().position(|end| *end == index) {
            self.layers.insert(layer, output.to_vec());
        }
        if index == self.final_norm {
            self.final_hidden = output.to_vec();
        }
    }
}

#[test]
fn every_layer_equals_the_reference() {
    for case in CASES {
        let golden = tensors(&folder(case).join("golden.safetensors"));
        let mut model = load(case, &LoadOptions { context: Some(512), threads: 2, ..LoadOptions::default() });
        let plan = model.backend.plan();
        let final_norm = plan.ops.iter().position(|op| op.name == "head.norm").unwrap();
        let layers = plan.layer_ends.len();
        let mut dump =
            Dump { layer_ends: plan.layer_ends.clone(), final_norm, layers: HashMap::new(), final_hidden: Vec::new() };
        let tokens = ids(&golden["tokens.0"]);
        let mut session = Session::new(&mut model).unwrap();
        session.forward(&tokens, WantLogits::All, Some(&mut dump)).unwrap();
        for layer in 0..layers {
            let want = &golden[&format!("hidden.0.{layer}")];
            assert_close(&format!("{case} layer {layer}"), case, &dump.layers[&layer], want);
        }
        assert_close(&format!("{case} final"), case, &dump.final_hidden, &golden["hidden.0.final"]);
    }
}

#[test]
fn logits_equal_the_reference_and_do_not_depend_on_chunks() {
    for case in CASES {
        let golden = tensors(&folder(case).join("golden.safetensors"));
        let mut model = load(case, &LoadOptions { context: Some(512), threads: 2, ..LoadOptions::default() });
        for prompt in (0..).take_while(|prompt| golden.contains_key(&format!("tokens.{prompt}"))) {
            let tokens = ids(&golden[&format!("tokens.{prompt}")]);
            let whole = Session::new(&mut model).unwrap().all_logits(&tokens, tokens.len()).unwrap();
            assert_close(&format!("{case} prompt {prompt}"), case, &whole, &golden[&format!("logits.{prompt}")]);
            for chunk in [1, 7, 64] {
                let chunked = Session::new(&mut model).unwrap().all_logits(&tokens, chunk).unwrap();
                assert!(same_bits(&whole, &chunked), "{case} prompt {prompt} chunk {chunk}");
            }
        }
    }
}

#[test]
fn greedy_tokens_equal_the_reference() {
    for case in CASES {
        let golden = tensors(&folder(case).join("golden.safetensors"));
        let mut model = load(case, &LoadOptions { context: Some(512), threads: 2, ..LoadOptions::default() });
        for prompt in (0..).take_while(|prompt| golden.contains_key(&format!("tokens.{prompt}"))) {
            let tokens = ids(&golden[&format!("tokens.{prompt}")]);
            let want = ids(&golden[&format!("greedy.{prompt}")]);
            let margins = &golden[&format!("greedy_margin.{prompt}")];
            let sure = margins.iter().position(|margin| *margin < 5e-3).unwrap_or(want.len());
            let got = Session::new(&mut model).unwrap().greedy(&tokens, want.len(), 32).unwrap();
            assert_eq!(got[..sure], want[..sure], "{case} prompt {prompt}");
        }
    }
}

#[test]
fn nvfp4_is_dequantised_exactly() {
    for case in ["llama_nvfp4_modelopt", "qwen3_5_nvfp4_modelopt"] {
        let files = ModelFiles::folder(&folder(case)).unwrap();
        let source = Tensors::open(&files).unwrap();
        let mut compared = 0;
        for (name, want) in tensors(&folder(case).join("dequant.safetensors")) {
            let packed = source.get(&name).unwrap();
            let (n, k) = (packed.shape[0], packed.shape[1] * 2);
            let bytes = |name: &str| source.read(name, source.get(name).unwrap()).unwrap();
            let global = f32::from_le_bytes(bytes(&format!("{name}_scale_2")).try_into().unwrap());
            let matrix = PackedMatrix::from_nvfp4(n, k, &bytes(&name), &bytes(&format!("{name}_scale")), global);
            let mut row = vec![0.0; k];
            for index in 0..n {
                matrix.row(index, &mut row);
                assert!(same_bits(&row, &want[index * k..][..k]), "{case} {name} row {index}");
                compared += k;
            }
        }
        assert!(compared > 10_000, "{case}: only {compared} weights were compared");
    }
}

#[test]
fn explained_bytes_equal_the_bytes_that_were_read() {
    for case in CASES {
        let files = ModelFiles::folder(&folder(case)).unwrap();
        let options = LoadOptions { context: Some(512), ..LoadOptions::default() };
        let hardware = atlas_engine::explain::known_hardware("gb10").unwrap();
        let explained = atlas_engine::explain::explain(&files, &options, hardware).unwrap();
        let spec = atlas_engine::config::load_spec(&files).unwrap();
        let plan = atlas_engine::blocks::lower(&spec);
        let source = Tensors::open(&files).unwrap();
        let read = loader::load(&spec, &plan.params, &source, |_, _| Ok(()), |_| {}).unwrap();
        assert_eq!(explained.total.weight_bytes, read, "{case}");
    }
}

fn same_bits(left: &[f32], right: &[f32]) -> bool {
    left.len() == right.len() && left.iter().zip(right).all(|(l, r)| l.to_bits() == r.to_bits())
}
