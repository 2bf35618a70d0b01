//! Every operation of every golden model, in its place.

use super::case::Case;
use super::reference::Observed;
use super::scenario::{Scenario, run};
use super::{check_operation, check_values, concerns, lengths, rng, same_bits};
use crate::devices::targets;
use crate::support::{CASES, folder};
use atlas_engine::backend::{ActivationDtype, DeviceKind};
use atlas_engine::blocks::lower;
use atlas_engine::config::load_spec;
use atlas_engine::weights::safetensors::Tensors;
use atlas_engine::weights::{ModelFiles, loader};

fn model(name: &str) -> Case {
    let files = ModelFiles::folder(&folder(name)).unwrap();
    let tensors = Tensors::open(&files).unwrap();
    let mut spec = load_spec(&files).unwrap();
    loader::reconcile(&mut spec, &tensors);
    let plan = lower(&spec);
    let mut params = Vec::new();
    let take = |_, param| {
        params.push(param);
        Ok(())
    };
    loader::load(&spec, &plan.params, &tensors, take, |_| {}).unwrap();
    Case { plan, params }
}

#[test]
fn every_operation_of_the_golden_models() {
    for (index, name) in CASES.iter().enumerate() {
        let case = model(name);
        let mut rng = rng(16, index as u64);
        let lengths = lengths(&mut rng);
        let scenario = Scenario::ragged(&mut rng, lengths);
        for target in targets().into_iter().filter(|target| concerns(&case, target)) {
            let what = format!("{name} on {target:?}: {scenario:?}");
            let (mixed, alone) = (run(&target, &case, &scenario), run(&target, &case, &scenario.alone()));
            same_bits(&what, (&case, &mixed), (&case, &alone));
            // What a device fuses is the business of the other tests.
            check_values(&what, &target, &case, &scenario, &alone, |_| target.device != DeviceKind::Cpu);
        }
    }
}

/// The comparison can fail: two units of bf16 in one element of any operation are noticed.
#[test]
fn a_wrong_element_is_noticed() {
    let case = model("qwen3_5");
    let scenario = Scenario::ragged(&mut rng(17, 0), [20, 5, 30, 70]);
    let mode = ActivationDtype::Bf16;
    let target = targets().into_iter().find(|target| target.activations == mode).unwrap();
    let right = run(&target, &case, &scenario.alone());
    for (index, planned) in case.plan.ops.iter().enumerate() {
        let mut wrong = right.clone();
        wrong.spoil(index, 3, 69);
        let notices = |trace| {
            let (tokens, kv) = (&scenario.tokens, target.kv);
            let observed = Observed { case: &case, trace, tokens, kv, bf16_weights: false };
            std::panic::catch_unwind(|| check_operation("spoilt", &observed, mode, index, 3)).is_err()
        };
        assert!(!notices(&right) && notices(&wrong), "{}", planned.name);
    }
}
