//! Every device against the goldens: every layer, logits, greedy tokens, exact dequantisation, any chunk size.

use crate::devices::{Target, targets};
use crate::support::{CASES, assert_close, folder, ids, load, options, tensors};
use atlas_engine::backend::Observer;
use atlas_engine::model::{LoadOptions, Model};
use atlas_engine::plan::{Op, Plan, PlannedOp};
use atlas_engine::schedule::batch::WantLogits;
use atlas_engine::session::Session;
use atlas_engine::weights::safetensors::Tensors;
use atlas_engine::weights::{ModelFiles, loader};
use atlas_kernels::{KvDtype, PackedMatrix};
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

/// What independent roundings do to a row: each to bf16 has a relative error of 1.66e-3 (root mean square; the error is
/// uniform within half a unit, the value's size within its power of two), each to E4M3 sixteen times that. They add up
/// over the operations up to and with `last`: one to bf16 each, and keys and values in fp8 before each attention.
fn expected_error(plan: &Plan, last: usize, kv: KvDtype) -> f64 {
    let attentions = plan.ops[..=last].iter().filter(|op| matches!(op.op, Op::Attention { .. })).count();
    let fp8 = if kv == KvDtype::Fp8 { 2 * 256 * attentions } else { 0 };
    1.66e-3 * ((last + 1 + fp8) as f64).sqrt()
}

/// Relative L2 of each row over what is expected, ascending.
fn row_errors(got: &[f32], want: &[f32], width: usize, expected: f64) -> Vec<f64> {
    assert_eq!(got.len(), want.len());
    let relative = |(got, want): (&[f32], &[f32])| {
        let square = |sum: f64, (got, want): (&f32, &f32)| sum + f64::from(got - want).powi(2);
        let norm: f64 = want.iter().map(|want| f64::from(*want).powi(2)).sum();
        (got.iter().zip(want).fold(0.0, square) / norm).sqrt() / expected
    };
    let mut errors: Vec<f64> = got.chunks_exact(width).zip(want.chunks_exact(width)).map(relative).collect();
    assert!(errors.iter().all(|error| error.is_finite()));
    errors.sort_by(f64::total_cmp);
    errors
}

/// The delta rule is ill-conditioned where a query nearly is at right angles to its key and the norm after it makes
/// little of much: in recurrent families a few rows differ by more than roundings explain, so only their median counts.
fn assert_rounded(what: &str, recurrent: bool, errors: &[f64], median: f64) {
    let (half, worst) = (errors[errors.len() / 2], errors[errors.len() - 1]);
    assert!(half <= median, "{what}: the median row has {half:.1} times the expected error");
    assert!(recurrent || worst <= 6.0, "{what}: the worst row has {worst:.1} times the expected error");
}

#[test]
fn every_layer_equals_the_reference() {
    for (case, target) in everything() {
        let golden = tensors(&folder(case).join("golden.safetensors"));
        let mut model = load(case, &LoadOptions { context: Some(512), ..options(&target) });
        let plan = model.backend.plan();
        let final_norm = plan.ops.iter().position(|op| op.name == "head.norm").unwrap();
        let layer_ends = plan.layer_ends.clone();
        let expected: Vec<f64> = (0..plan.ops.len()).map(|last| expected_error(plan, last, target.kv)).collect();
        let (hidden, recurrent) = (model.spec.hidden, model.is_recurrent());
        let mut dump =
            Dump { layer_ends: layer_ends.clone(), final_norm, layers: HashMap::new(), final_hidden: Vec::new() };
        let tokens = ids(&golden["tokens.0"]);
        let mut session = Session::new(&mut model).unwrap();
        session.forward(&tokens, WantLogits::All, Some(&mut dump)).unwrap();
        let layers = layer_ends.iter().enumerate().map(|(layer, end)| (layer.to_string(), *end, &dump.layers[&layer]));
        for (name, end, got) in layers.chain([("final".to_owned(), final_norm, &dump.final_hidden)]) {
            let what = format!("{case} on {target:?}, hidden {name}");
            let want = &golden[&format!("hidden.0.{name}")];
            if target.is_exact() {
                assert_close(&what, case, got, want);
            } else {
                let median = if recurrent { 25.0 } else { 2.0 };
                assert_rounded(&what, recurrent, &row_errors(got, want, hidden, expected[end]), median);
            }
        }
    }
}

#[test]
fn logits_equal_the_reference_and_do_not_depend_on_chunks() {
    for (case, target) in everything() {
        let golden = tensors(&folder(case).join("golden.safetensors"));
        let mut model = load(case, &LoadOptions { context: Some(512), ..options(&target) });
        let (vocab, recurrent, plan) = (model.spec.vocab, model.is_recurrent(), model.backend.plan());
        let expected = expected_error(plan, plan.ops.len() - 1, target.kv);
        let mut errors = Vec::new();
        for prompt in prompts(&golden) {
            let what = format!("{case} on {target:?}, prompt {prompt}");
            let tokens = ids(&golden[&format!("tokens.{prompt}")]);
            let want = &golden[&format!("logits.{prompt}")];
            let whole = Session::new(&mut model).unwrap().all_logits(&tokens, tokens.len()).unwrap();
            if target.is_exact() {
                assert_close(&what, case, &whole, want);
            }
            errors.extend(row_errors(&whole, want, vocab, expected));
            for chunk in [1, 7, 64] {
                let chunked = Session::new(&mut model).unwrap().all_logits(&tokens, chunk).unwrap();
                assert!(same_bits(&whole, &chunked), "{what} chunk {chunk}");
            }
        }
        errors.sort_by(f64::total_cmp);
        assert_rounded(&format!("{case} on {target:?}"), recurrent, &errors, if recurrent { 4.0 } else { 2.0 });
    }
}

#[test]
fn greedy_tokens_equal_the_reference() {
    for (case, target) in everything() {
        let golden = tensors(&folder(case).join("golden.safetensors"));
        let mut model = load(case, &LoadOptions { context: Some(512), ..options(&target) });
        if model.is_recurrent() && !target.is_exact() {
            // A few of their rows differ by more than any margin: `atlas_tiny` compares a trained model.
            continue;
        }
        for prompt in prompts(&golden) {
            let tokens = ids(&golden[&format!("tokens.{prompt}")]);
            let want = ids(&golden[&format!("greedy.{prompt}")]);
            let margins = &golden[&format!("greedy_margin.{prompt}")];
            let least = if target.is_exact() { 5e-3 } else { rounded_margin(&model, target.kv, &golden, prompt) };
            let sure = margins.iter().position(|margin| f64::from(*margin) < least).unwrap_or(want.len());
            let got = Session::new(&mut model).unwrap().greedy(&tokens, want.len(), 32).unwrap();
            assert_eq!(got[..sure], want[..sure], "{case} on {target:?}, prompt {prompt}");
        }
    }
}

/// A margin that roundings do not bridge: six times the expected error of the difference of two logits.
fn rounded_margin(model: &Model, kv: KvDtype, golden: &HashMap<String, Vec<f32>>, prompt: usize) -> f64 {
    let logits = &golden[&format!("logits.{prompt}")];
    let squares: f64 = logits.iter().map(|logit| f64::from(*logit).powi(2)).sum();
    let size = (squares / logits.len() as f64).sqrt();
    let plan = model.backend.plan();
    6.0 * std::f64::consts::SQRT_2 * expected_error(plan, plan.ops.len() - 1, kv) * size
}

fn everything() -> impl Iterator<Item = (&'static str, Target)> {
    CASES.into_iter().flat_map(|case| targets().into_iter().map(move |target| (case, target)))
}

fn prompts(golden: &HashMap<String, Vec<f32>>) -> impl Iterator<Item = usize> {
    (0..).take_while(|prompt| golden.contains_key(&format!("tokens.{prompt}")))
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
