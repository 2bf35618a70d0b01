//! NUMERICS with the prefix cache: what begins from shared pages and anchors has the bits of a lone run.

use crate::support::load;
use atlas_engine::backend::ActivationDtype;
use atlas_engine::blocks;
use atlas_engine::cache::{Caches, Checkpoint, PrefixCache, Rank, Sequence};
use atlas_engine::config::hf;
use atlas_engine::config::spec::ParamSpec;
use atlas_engine::explain::{explain_spec, known_hardware};
use atlas_engine::model::{LoadOptions, Model};
use atlas_engine::schedule::StepBatch;
use atlas_engine::schedule::batch::WantLogits;
use atlas_engine::weights::ModelFiles;
use atlas_kernels::KvDtype;
use std::path::Path;

const CHECKPOINTS: usize = 6;

fn tokens(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 8 + (i * 37 + seed * 101 + i * i % 7) % 480).collect()
}

struct Bench {
    model: Model,
    caches: Caches,
    prefix: PrefixCache,
    vocab: usize,
}

impl Bench {
    fn new(case: &str, kv_dtype: KvDtype, activations: ActivationDtype) -> Self {
        let options = LoadOptions {
            threads: 2,
            sequences: 4,
            context: Some(320),
            checkpoints: CHECKPOINTS,
            ..LoadOptions::default()
        };
        let model = load(case, &LoadOptions { kv_dtype, activations, ..options });
        let caches = Caches::new(&model.sizes, model.is_recurrent());
        let prefix = PrefixCache::new(&model.sizes, model.is_recurrent(), true);
        let vocab = model.spec.vocab;
        Self { model, caches, prefix, vocab }
    }

    /// Computes `tokens` after `sequence` in one step that keeps `checkpoints`; all logits' bits.
    fn extend(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        checkpoints: &[usize],
    ) -> (Vec<u32>, Vec<Checkpoint>) {
        let (start, end) = (sequence.len(), sequence.len() + tokens.len());
        let kept: Vec<usize> = checkpoints.iter().copied().filter(|at| (start + 1..=end).contains(at)).collect();
        let reservation = self.caches.reserve_keeping(sequence, tokens.len(), &kept).unwrap();
        let mut batch = StepBatch::default();
        batch.push(sequence, &reservation, tokens, WantLogits::All);
        let logits = self.model.backend.execute(&batch, None).unwrap().logits().unwrap();
        let made = sequence.commit(reservation, tokens.len());
        (logits.iter().map(|logit| logit.to_bits()).collect(), made)
    }

    fn lone(&mut self, tokens: &[u32]) -> Vec<u32> {
        let mut sequence = self.caches.sequence().unwrap();
        self.extend(&mut sequence, tokens, &[]).0
    }

    /// Computes what the prefix cache does not have of `tokens`, in chunks, and leaves all of it there. Returns how much
    /// it had, and the bits of the rest.
    fn cached(&mut self, tokens: &[u32], chunk: usize, checkpoints: &[usize]) -> (usize, Vec<u32>) {
        let hit = self.prefix.find(0, tokens, tokens.len() - 1);
        let (mut lease, len) = (hit.lease, hit.len);
        let mut sequence = self.caches.resume(hit).unwrap();
        let (mut bits, mut computed) = (Vec::new(), len);
        for part in tokens[len..].chunks(chunk) {
            let (logits, made) = self.extend(&mut sequence, part, checkpoints);
            computed += part.len();
            bits.extend(logits);
            let made = made.into_iter().map(|checkpoint| (Rank::TurnEnd, checkpoint)).collect();
            self.prefix.insert(&mut lease, &mut sequence, &tokens[..computed], made);
        }
        let end = sequence.checkpoint().map(|checkpoint| (Rank::TurnEnd, checkpoint));
        self.prefix.insert(&mut lease, &mut sequence, tokens, end.into_iter().collect());
        self.prefix.release(lease);
        drop(sequence);
        self.prefix.check(true).unwrap();
        (len, bits)
    }
}

fn check(case: &str, kv_dtype: KvDtype, activations: ActivationDtype) {
    let mut bench = Bench::new(case, kv_dtype, activations);
    let recurrent = bench.model.is_recurrent();
    let vocab = bench.vocab;
    let base = tokens(1, 300);
    let alone = bench.lone(&base);
    for (round, chunk) in [300, 64, 1, 7, 130].into_iter().enumerate() {
        let what = format!("{case} {kv_dtype:?} {activations:?}, chunks of {chunk}");
        // Every length ends differently within page and block; checkpoints stand inside chunks and at their ends.
        for (len, checkpoints) in [(130, vec![64]), (203, vec![128, 192]), (300, vec![256]), (300, vec![])] {
            let (hit, bits) = bench.cached(&base[..len], chunk, &checkpoints);
            assert!(alone[hit * vocab..len * vocab] == bits, "{what}: {len} tokens, {hit} of them cached");
        }
        assert_eq!(bench.cached(&base, chunk, &[]).0, if recurrent { 256 } else { 288 }, "{what}");
        // Another sequence parts from it in the middle, and writes nothing that the first reads.
        let other = [base[..200].to_vec(), tokens(7 + round as u32, 60)].concat();
        let other_alone = bench.lone(&other);
        for _ in 0..2 {
            let (hit, bits) = bench.cached(&other, chunk, &[192]);
            assert!(hit >= 128 && other_alone[hit * vocab..] == bits, "{what}: parting after {hit}");
            let (hit, bits) = bench.cached(&base, chunk, &[]);
            assert!(hit >= 192 && alone[hit * vocab..] == bits, "{what}: once more after {hit}");
        }
        // Two at once, in one step, from the same pages and state.
        let mut pair: Vec<_> = (0..2)
            .map(|_| {
                let hit = bench.prefix.find(0, &base, 299);
                let (lease, len) = (hit.lease, hit.len);
                (lease, len, bench.caches.resume(hit).unwrap())
            })
            .collect();
        let mut batch = StepBatch::default();
        let reservations: Vec<_> =
            pair.iter().map(|(_, len, sequence)| bench.caches.reserve(sequence, 300 - len).unwrap()).collect();
        for ((_, len, sequence), reservation) in pair.iter().zip(&reservations) {
            batch.push(sequence, reservation, &base[*len..], WantLogits::All);
        }
        let logits = bench.model.backend.execute(&batch, None).unwrap().logits().unwrap();
        let bits: Vec<u32> = logits.iter().map(|logit| logit.to_bits()).collect();
        let rest = &alone[pair[0].1 * vocab..];
        assert!(bits == [rest, rest].concat(), "{what}: two at once");
        drop(reservations);
        for (lease, _, sequence) in pair.drain(..) {
            drop(sequence);
            bench.prefix.release(lease);
        }
        // From nothing again, so that the next chunk size fills the caches.
        bench.prefix = PrefixCache::new(&bench.model.sizes, recurrent, true);
        assert!(bench.caches.is_idle());
    }
}

#[test]
fn a_hit_has_the_bits_of_a_lone_run() {
    for case in crate::support::CASES {
        check(case, KvDtype::F32, ActivationDtype::F32);
    }
}

#[test]
fn in_every_format_too() {
    for case in ["llama_nvfp4_modelopt", "qwen3_5"] {
        check(case, KvDtype::Bf16, ActivationDtype::F32);
        check(case, KvDtype::Bf16, ActivationDtype::Bf16);
    }
}

/// With the 64 slots of its recipe, the 27B model has 9.4 GiB of states for the prefix cache.
#[test]
fn checkpoints_of_the_27b_model_cost_what_their_slots_say() {
    let folder = tempfile::tempdir().unwrap();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gates/configs/qwen3.8-27b.json");
    std::fs::copy(config, folder.path().join("config.json")).unwrap();
    let spec = hf::load_spec(&ModelFiles::folder(folder.path()).unwrap()).unwrap();
    // 48 layers of 48 states of 128 x 128, each with the 3 inputs of 10,240 channels before it.
    let each = blocks::lower(&spec).anchor_bytes();
    assert_eq!(each, 48 * (48 * 128 * 128 + 3 * 10_240) * 4);
    assert!((149..=151).contains(&(each >> 20)), "{} MiB", each >> 20);
    let memory = |checkpoints| {
        let options = LoadOptions { checkpoints, context: Some(4096), ..LoadOptions::default() };
        let stored = |param: &ParamSpec| Ok((param.format, param.bytes()));
        explain_spec(&spec, stored, &options, known_hardware("gb10").unwrap()).unwrap().memory_bytes
    };
    assert_eq!(memory(64) - memory(0), 64 * each);
}
