//! The devices and arithmetic modes that a test runs on.
//!
//! The CPU is always there. A GPU is used when there is one; without one, a test says on stderr that its part on CUDA
//! was skipped, and fails instead if `ATLAS_TEST_CUDA=required`. `ATLAS_TEST_CUDA=only` also leaves the CPU out, for
//! slow tools that watch the device.

use atlas_engine::backend::{ActivationDtype, Backend, BackendOptions, DeviceKind, prepare};
use atlas_engine::cache::CacheSizes;
use atlas_engine::plan::Plan;
use atlas_engine::weights::RawParam;
use atlas_kernels::KvDtype;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Mutex;

/// Rows that a backend prepares for: fewer than some steps have, so that it has to grow.
const STEP_ROWS: usize = 48;

/// A device with one of its arithmetic modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) device: DeviceKind,
    pub(crate) activations: ActivationDtype,
    pub(crate) kv: KvDtype,
}

impl Target {
    /// A backend for `plan` with caches of `sizes`.
    pub(crate) fn backend(
        &self,
        plan: &Plan,
        params: impl IntoIterator<Item = RawParam>,
        sizes: CacheSizes,
    ) -> Box<dyn Backend> {
        let options = BackendOptions {
            device: self.device,
            threads: 2,
            activations: self.activations,
            kv_dtype: self.kv,
            sizes,
            step_rows: STEP_ROWS,
        };
        let mut backend = prepare(plan.clone(), &options).unwrap();
        for (index, param) in params.into_iter().enumerate() {
            backend.load(index, param).unwrap();
        }
        backend.finish().unwrap()
    }
}

/// Every device that is there, in each of its modes.
pub(crate) fn targets() -> Vec<Target> {
    let (f32, bf16) = (ActivationDtype::F32, ActivationDtype::Bf16);
    let target = |device, activations, kv| Target { device, activations, kv };
    let mut targets = vec![
        target(DeviceKind::Cpu, f32, KvDtype::F32),
        target(DeviceKind::Cpu, f32, KvDtype::Bf16),
        target(DeviceKind::Cpu, bf16, KvDtype::Bf16),
        target(DeviceKind::Cpu, bf16, KvDtype::Fp8),
    ];
    match atlas_engine::backend::cuda::available() {
        Ok(()) => {
            if only_cuda() {
                targets.clear();
            }
            targets.extend([KvDtype::Bf16, KvDtype::Fp8].map(|kv| target(DeviceKind::Cuda(0), bf16, kv)));
        }
        Err(reason) => skipped("cuda", &reason.to_string()),
    }
    targets
}

impl Target {
    /// f32 throughout: what goldens were computed in.
    pub(crate) fn is_exact(&self) -> bool {
        self.activations == ActivationDtype::F32 && self.kv == KvDtype::F32
    }
}

fn only_cuda() -> bool {
    std::env::var("ATLAS_TEST_CUDA").as_deref() == Ok("only")
}

/// Says once a test, past the capture of its output, that a device was left out.
fn skipped(device: &str, reason: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let demand = std::env::var("ATLAS_TEST_CUDA").unwrap_or_default();
    assert!(demand.is_empty(), "ATLAS_TEST_CUDA={demand}, but there is no {device}: {reason}");
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let line = format!("SKIPPED on {device}: {reason}: {test}\n");
    if SAID.lock().unwrap().insert(test) {
        // The handle itself, because only the print macros are captured.
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
}

/// Cases that a test draws: `usual`, or fewer when `ATLAS_TEST_CASES` says so (for slow tools that watch the device).
pub(crate) fn cases(usual: u64) -> u64 {
    let most = std::env::var("ATLAS_TEST_CASES").ok().map(|cases| cases.parse().unwrap());
    most.map_or(usual, |most: u64| most.min(usual))
}
