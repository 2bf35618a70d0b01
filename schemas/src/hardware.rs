//! Facts about a host, as probed, and the class that gates compare by.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a host is made of. Everything is probed on the host itself; what could not be probed is absent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostFacts {
    /// Host name.
    pub hostname: String,
    /// The system's stable identity: two names with one machine id are one host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_id: Option<String>,
    /// Operating system and version, as in `Linux 6.8.0`.
    pub os: String,
    /// CPU architecture, as in `x86_64` or `aarch64`.
    pub arch: String,
    /// The CPU.
    pub cpu: CpuFacts,
    /// Memory of the host, in bytes.
    pub memory_bytes: u64,
    /// Memory that was free for use when probed, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_available_bytes: Option<u64>,
    /// GPUs in device order.
    #[serde(default)]
    pub gpus: Vec<GpuFacts>,
    /// Network links that are up, loopback excluded.
    #[serde(default)]
    pub links: Vec<LinkFacts>,
    /// Measured speeds, if they were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<SpeedProbe>,
}

/// A CPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CpuFacts {
    /// Model name as the CPU reports it.
    pub model: String,
    /// Cores that the process may use, without hyper-threads where that is known.
    pub cores: u32,
    /// Hardware threads that the process may use.
    pub threads: u32,
    /// Instruction sets that kernels choose by, as in `avx2`, `avx512f`, `neon`.
    #[serde(default)]
    pub features: Vec<String>,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GpuFacts {
    /// Name as the driver reports it.
    pub name: String,
    /// Compute capability, as in `12.1`.
    pub compute_capability: String,
    /// Memory in bytes. On unified-memory machines this is the host's memory.
    pub memory_bytes: u64,
    /// Whether GPU and CPU share one memory.
    #[serde(default)]
    pub unified_memory: bool,
    /// Driver version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
}

/// A network link.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkFacts {
    /// Interface name.
    pub name: String,
    /// Addresses, without prefix length.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Speed in megabits a second, where the driver says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub megabits: Option<u64>,
    /// RDMA device on the same port, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma_device: Option<String>,
}

/// Speeds of a host, measured at the size that a model works at.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeedProbe {
    /// Bytes that the probe swept, so that it sees the memory that the model sees.
    pub working_set_bytes: u64,
    /// Threads that the probe used.
    pub threads: u32,
    /// Read bandwidth in bytes a second: median of the runs.
    pub read_bytes_per_second: f64,
    /// Arithmetic in floating-point operations a second: median of the runs.
    pub flops_per_second: f64,
    /// Largest deviation from the median, as a fraction of it, over both.
    pub spread: f64,
}

/// A kind of machine that a gate's promise holds on.
///
/// `cpu` is any machine without a usable GPU; the others are machines whose GPUs are of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HardwareClass {
    /// CPU only. Speed is compared as a fraction of the machine's own roofline.
    Cpu,
    /// NVIDIA GB10 (DGX Spark).
    Gb10,
    /// Two NVIDIA GB10.
    #[serde(rename = "gb10-x2")]
    Gb10X2,
    /// NVIDIA H200.
    H200,
}

impl HardwareClass {
    /// The name in files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gb10 => "gb10",
            Self::Gb10X2 => "gb10-x2",
            Self::H200 => "h200",
        }
    }

    /// Every class.
    pub const ALL: [Self; 4] = [Self::Cpu, Self::Gb10, Self::Gb10X2, Self::H200];
}

impl std::fmt::Display for HardwareClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for HardwareClass {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::as_str);
        Self::ALL.into_iter().find(|class| class.as_str() == text).ok_or_else(|| {
            format!("unknown hardware class, not one of {}{}", names.join(", "), crate::suggest::hint(text, names))
        })
    }
}
