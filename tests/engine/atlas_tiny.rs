//! The embedded model, which is trained: greedy tokens on every device against the CPU in f32.

use crate::devices::{Target, targets};
use crate::support::{options, root};
use atlas_engine::model::{LoadOptions, Model};
use atlas_engine::schedule::batch::WantLogits;
use atlas_engine::session::Session;
use atlas_engine::weights::ModelFiles;
use atlas_kernels::KvDtype;

/// "Explain dinosaurs to a child." as a chat.
const PROMPT: [u32; 14] = [4088, 339, 198, 872, 3597, 301, 258, 1563, 13, 4089, 198, 4088, 347, 198];
const TOKENS: usize = 256;

fn load(options: &LoadOptions) -> Model {
    let files = ModelFiles::folder(&root().join("runner/embedded/atlas-tiny-nvfp4")).unwrap();
    Model::load(&files, &LoadOptions { context: Some(512), ..*options }, |_, _| {}).unwrap()
}

/// Logits before each of `path`'s tokens, which follow the prompt one by one.
fn along(model: &mut Model, path: &[u32]) -> Vec<Vec<f32>> {
    let mut session = Session::new(model).unwrap();
    let mut logits = vec![session.forward(&PROMPT, WantLogits::Last, None).unwrap()];
    for token in &path[..path.len() - 1] {
        logits.push(session.forward(&[*token], WantLogits::Last, None).unwrap());
    }
    logits
}

/// Greatest and root mean square of the differences.
fn differences(left: &[Vec<f32>], right: &[Vec<f32>]) -> (f32, f64) {
    let pairs = left.iter().flatten().zip(right.iter().flatten());
    let (mut greatest, mut squares, mut count) = (0.0, 0.0, 0);
    for difference in pairs.map(|(left, right)| (left - right).abs()) {
        assert!(difference.is_finite());
        greatest = f32::max(greatest, difference);
        squares += f64::from(difference).powi(2);
        count += 1;
    }
    (greatest, (squares / f64::from(count)).sqrt())
}

/// By how much the chosen token's logit exceeds all others.
fn margin(logits: &[f32], chosen: u32) -> f32 {
    let others = logits.iter().enumerate().filter(|(id, _)| *id != chosen as usize);
    logits[chosen as usize] - others.map(|(_, logit)| *logit).fold(f32::NEG_INFINITY, f32::max)
}

/// Along the greedy path of f32. The same rounding points give errors of the same size: a device may be as far from f32
/// as the CPU is in the same mode, and half as much again because its roundings fall otherwise. Where f32's margin is
/// more than twice that, two logits cannot change places: the device chooses the same token.
#[test]
fn greedy_tokens_agree_where_margins_allow() {
    let all = targets();
    let exact = all.iter().find(|target| target.is_exact()).unwrap();
    let mut model = load(&options(exact));
    let path = Session::new(&mut model).unwrap().greedy(&PROMPT, TOKENS, 64).unwrap();
    let reference = along(&mut model, &path);
    let margins: Vec<f32> = reference.iter().zip(&path).map(|(logits, token)| margin(logits, *token)).collect();
    for target in &all {
        let cpu = Target { device: exact.device, ..*target };
        let (greatest, typical) = differences(&along(&mut load(&options(&cpu)), &path), &reference);
        let (greatest, typical) = (1.5 * greatest, 1.5 * typical);
        let mut model = load(&options(target));
        let logits = along(&mut model, &path);
        let (most, mean) = differences(&logits, &reference);
        let decisive = margins.iter().filter(|margin| **margin > 2.0 * greatest).count();
        println!("{target:?}: logits differ by {most:.3} at most (of {greatest:.3}), {mean:.4} rms (of {typical:.4})");
        println!("{target:?}: {decisive} of {TOKENS} margins are decisive");
        assert!(most <= greatest && mean <= typical, "{target:?}: logits differ by {most}, {mean} rms");
        assert!(decisive >= if target.kv == KvDtype::Fp8 { TOKENS / 8 } else { TOKENS / 2 }, "{target:?}: {decisive}");
        for (index, (logits, token)) in logits.iter().zip(&path).enumerate() {
            let agrees = margin(logits, *token) > 0.0;
            assert!(agrees || margins[index] <= 2.0 * greatest, "{target:?}: token {index}, margin {}", margins[index]);
        }
        // On its own path: the first token that differs does so for want of a margin.
        let greedy = Session::new(&mut model).unwrap().greedy(&PROMPT, TOKENS, 64).unwrap();
        if let Some(first) = greedy.iter().zip(&path).position(|(got, want)| got != want) {
            println!("{target:?}: {first} of {TOKENS} tokens agree, then the margin is {:.4}", margins[first]);
            assert!(!target.is_exact() && margins[first] <= 2.0 * greatest, "{target:?}: token {first} differs");
        }
    }
}
