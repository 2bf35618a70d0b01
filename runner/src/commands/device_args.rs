//! Flags of commands that compute without a server: which device, and in which formats.

use atlas_engine::backend::{ActivationDtype, DeviceKind};
use atlas_engine::model::LoadOptions;
use atlas_kernels::KvDtype;
use clap::{Args, ValueEnum};

/// Where and how to compute.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct DeviceArgs {
    /// Where to compute.
    #[arg(long, value_enum, default_value_t = Device::Cpu)]
    pub(crate) device: Device,
    /// Activation format: f32 on the CPU and bf16 on GPUs unless told.
    #[arg(long, value_enum)]
    activation_dtype: Option<Activations>,
    /// Format of cached keys and values: f32 on the CPU and bf16 on GPUs unless told.
    #[arg(long, value_enum)]
    kv_cache_dtype: Option<KvFormat>,
}

/// Where to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// The CPU.
    Cpu,
    /// The first NVIDIA GPU.
    Cuda,
}

/// Activation format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Activations {
    /// Reference mode.
    F32,
    /// Rounded to bfloat16 between operations.
    Bf16,
}

/// Format of cached keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KvFormat {
    /// 32-bit float.
    F32,
    /// bfloat16.
    Bf16,
    /// FP8 (E4M3).
    Fp8,
}

impl DeviceArgs {
    /// Options with these, else the defaults.
    pub(crate) fn load_options(self) -> LoadOptions {
        let (device, activations, kv_dtype) = match self.device {
            Device::Cpu => (DeviceKind::Cpu, ActivationDtype::F32, KvDtype::F32),
            Device::Cuda => (DeviceKind::Cuda(0), ActivationDtype::Bf16, KvDtype::Bf16),
        };
        LoadOptions {
            device,
            activations: self.activation_dtype.map_or(activations, |format| match format {
                Activations::F32 => ActivationDtype::F32,
                Activations::Bf16 => ActivationDtype::Bf16,
            }),
            kv_dtype: self.kv_cache_dtype.map_or(kv_dtype, |format| match format {
                KvFormat::F32 => KvDtype::F32,
                KvFormat::Bf16 => KvDtype::Bf16,
                KvFormat::Fp8 => KvDtype::Fp8,
            }),
            ..LoadOptions::default()
        }
    }
}
