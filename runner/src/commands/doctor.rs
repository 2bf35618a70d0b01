//! `atlas doctor`: would a run work here, and if not, what is in the way?

use crate::errors::CliError;
use crate::host::memory::{available, show_bytes};
use crate::host::ports;
use crate::job::private_dir::PrivateDir;
use crate::job::store::state_dir;
use crate::model::hub_cache;
use crate::output::{GlobalArgs, print_json, write_stdout};
use clap::Args;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

const GIB: u64 = 1 << 30;
const DEFAULT_PORT: u16 = 8888;

/// Check this machine: processor, memory, disk, GPU, limits, directories, environment, and the engine itself.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    /// A run works, but not as well as it could.
    Warn,
    /// A run would fail.
    Fail,
}

/// One named check.
#[derive(Debug, Clone, Serialize)]
struct Check {
    name: &'static str,
    status: Status,
    value: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    suggestion: Option<String>,
}

impl Check {
    fn ok(name: &'static str, value: impl Into<String>) -> Self {
        Self { name, status: Status::Ok, value: value.into(), suggestion: None }
    }

    fn warn(name: &'static str, value: impl Into<String>, suggestion: impl Into<String>) -> Self {
        Self { name, status: Status::Warn, value: value.into(), suggestion: Some(suggestion.into()) }
    }

    fn fail(name: &'static str, value: impl Into<String>, suggestion: impl Into<String>) -> Self {
        Self { name, status: Status::Fail, value: value.into(), suggestion: Some(suggestion.into()) }
    }
}

impl DoctorArgs {
    /// Prints every check; exits 1 when one failed that would stop a run.
    pub(crate) fn run(self, global: &GlobalArgs) -> Result<(), CliError> {
        let checks = [
            cpu(),
            cores(),
            memory(),
            disk(),
            gpu(Path::new("/")),
            open_files(getrlimit(Resource::Nofile).current),
            port(),
            state_directory(),
            cache_directory(),
            environment(|name| std::env::var(name).ok()),
            clock(jiff::Timestamp::now()),
            engine(),
        ];
        let ok = checks.iter().all(|check| check.status != Status::Fail);
        if global.json {
            print_json(&serde_json::json!({ "ok": ok, "checks": checks }));
        } else {
            write_stdout(&checks.iter().map(line).collect::<String>());
        }
        if ok { Ok(()) } else { Err(CliError::Reported) }
    }
}

fn line(check: &Check) -> String {
    let word = match check.status {
        Status::Ok => "ok",
        Status::Warn => "warn",
        Status::Fail => "FAIL",
    };
    let mut text = format!("{word:<5} {:<12} {}\n", check.name, check.value);
    if let Some(suggestion) = &check.suggestion {
        text.push_str(&format!("{:19}{suggestion}\n", ""));
    }
    text
}

fn cpu() -> Check {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim()));
    let (features, vector) = cpu_features();
    let value = format!("{} ({}): {}", model.unwrap_or("unknown model"), std::env::consts::ARCH, features.join(" "));
    if vector {
        Check::ok("cpu", value)
    } else {
        Check::warn("cpu", value, "without wide vector instructions the CPU backend is slow")
    }
}

/// The features that the CPU kernels know, and whether there is at least one set with fused multiply-add.
#[cfg(target_arch = "x86_64")]
fn cpu_features() -> (Vec<&'static str>, bool) {
    let all = [
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("fma", std::arch::is_x86_feature_detected!("fma")),
        ("f16c", std::arch::is_x86_feature_detected!("f16c")),
        ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
        ("avx512vnni", std::arch::is_x86_feature_detected!("avx512vnni")),
        ("avx512bf16", std::arch::is_x86_feature_detected!("avx512bf16")),
        ("avxvnni", std::arch::is_x86_feature_detected!("avxvnni")),
    ];
    let has = |name| all.iter().any(|(known, there)| *known == name && *there);
    (all.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect(), has("avx2") && has("fma"))
}

/// The features that the CPU kernels know; every 64-bit Arm has vectors with fused multiply-add.
#[cfg(target_arch = "aarch64")]
fn cpu_features() -> (Vec<&'static str>, bool) {
    let all = [
        ("neon", std::arch::is_aarch64_feature_detected!("neon")),
        ("dotprod", std::arch::is_aarch64_feature_detected!("dotprod")),
        ("i8mm", std::arch::is_aarch64_feature_detected!("i8mm")),
        ("bf16", std::arch::is_aarch64_feature_detected!("bf16")),
        ("fp16", std::arch::is_aarch64_feature_detected!("fp16")),
        ("sve", std::arch::is_aarch64_feature_detected!("sve")),
    ];
    (all.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect(), true)
}

/// No kernels are specialised for other processors.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn cpu_features() -> (Vec<&'static str>, bool) {
    (Vec::new(), false)
}

fn cores() -> Check {
    match std::thread::available_parallelism() {
        Ok(count) => Check::ok("cores", format!("{count} usable")),
        Err(error) => Check::warn("cores", format!("unknown ({error})"), "set `--threads`"),
    }
}

fn memory() -> Check {
    let Some(memory) = available() else { return Check::warn("memory", "unknown", "/proc/meminfo cannot be read") };
    let limit = memory.cgroup_bytes.map(|bytes| format!(", control group leaves {}", show_bytes(bytes)));
    let value = format!(
        "{} available of {}{}",
        show_bytes(memory.bytes),
        show_bytes(memory.total_bytes),
        limit.unwrap_or_default()
    );
    match memory.bytes {
        bytes if bytes < GIB / 4 => Check::fail("memory", value, "free memory: not even the embedded model fits"),
        bytes if bytes < 4 * GIB => Check::warn("memory", value, "only small models fit"),
        _ => Check::ok("memory", value),
    }
}

fn disk() -> Check {
    let Some(cache) = hub_cache() else { return Check::warn("disk", "no cache directory", "set HOME or HF_HOME") };
    let there = nearest_existing(&cache);
    match rustix::fs::statvfs(&there) {
        Err(error) => Check::warn("disk", format!("{}: {error}", there.display()), "weights may not be storable there"),
        Ok(status) => {
            let free = status.f_bavail.saturating_mul(status.f_frsize);
            let value = format!("{} free for weights ({})", show_bytes(free), cache.display());
            if free < 20 * GIB {
                Check::warn("disk", value, "a 27B model in 4 bits takes about 18 GiB; point HF_HOME at a larger disk")
            } else {
                Check::ok("disk", value)
            }
        }
    }
}

fn nearest_existing(path: &Path) -> PathBuf {
    path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("/")).to_owned()
}

/// Looks for device files and the driver's library under `root`; loads nothing.
fn gpu(root: &Path) -> Check {
    let is_gpu = |name: &str| name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u8>().is_ok());
    let names = std::fs::read_dir(root.join("dev")).into_iter().flatten().flatten();
    let devices = names.filter(|entry| entry.file_name().to_str().is_some_and(is_gpu)).count();
    let folders = [
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
        "usr/lib64",
        "usr/lib",
        "usr/lib/wsl/lib",
        "usr/local/cuda/compat",
    ];
    let library = folders.iter().map(|folder| root.join(folder).join("libcuda.so.1")).find(|path| path.exists());
    let version = std::fs::read_to_string(root.join("proc/driver/nvidia/version")).unwrap_or_default();
    let version =
        version.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'));
    match (devices, library) {
        (0, None) => Check::ok("gpu", "none; the CPU is used"),
        (0, Some(path)) => Check::warn(
            "gpu",
            format!("driver library {} but no /dev/nvidia*", path.display()),
            "load the driver's kernel module, or give the container its GPUs",
        ),
        (count, None) => Check::warn(
            "gpu",
            format!("{count} device(s) but no libcuda.so.1"),
            "install the driver's user-space library of the same version",
        ),
        (count, Some(_)) => {
            Check::ok("gpu", format!("{count} device(s), driver {}", version.unwrap_or("of unknown version")))
        }
    }
}

/// `None` is no limit.
fn open_files(limit: Option<u64>) -> Check {
    let remedy = "raise it with `ulimit -n 65536`";
    match limit {
        None => Check::ok("open files", "no limit"),
        Some(limit) if limit < 256 => Check::fail("open files", format!("limit {limit}"), remedy),
        Some(limit) if limit < 1024 => Check::warn("open files", format!("limit {limit}"), remedy),
        Some(limit) => Check::ok("open files", format!("limit {limit}")),
    }
}

fn port() -> Check {
    match ports::listener(SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT))) {
        None => Check::ok("port", format!("{DEFAULT_PORT} is free")),
        Some(owner) => Check::warn(
            "port",
            format!("{DEFAULT_PORT} is in use by {owner}"),
            "stop it, or serve elsewhere with `--port N`",
        ),
    }
}

fn state_directory() -> Check {
    const REMEDY: &str = "set ATLAS_STATE_DIR to a directory of your own, mode 0700";
    let path = match state_dir() {
        Ok(path) => path,
        Err(error) => return Check::fail("state", error.to_string(), REMEDY),
    };
    match PrivateDir::open_base(&path) {
        Err(error) => Check::fail("state", error.to_string(), REMEDY),
        Ok(_) => writable("state", &path, Status::Fail, REMEDY),
    }
}

fn cache_directory() -> Check {
    let Some(path) = hub_cache() else { return Check::warn("cache", "no place", "set HOME or HF_HOME") };
    writable("cache", &path, Status::Warn, "weights cannot be stored there; set HF_HOME")
}

fn writable(name: &'static str, path: &Path, otherwise: Status, suggestion: &str) -> Check {
    let there = nearest_existing(path);
    match rustix::fs::access(&there, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK) {
        Ok(()) if there == path => Check::ok(name, format!("{} is writable", path.display())),
        Ok(()) => Check::ok(name, format!("{} can be created", path.display())),
        Err(error) => Check {
            name,
            status: otherwise,
            value: format!("{}: {error}", there.display()),
            suggestion: Some(suggestion.to_owned()),
        },
    }
}

/// The Hugging Face variables that matter; a token's value is never shown.
fn environment(variable: impl Fn(&str) -> Option<String>) -> Check {
    let names = ["HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"];
    let set: Vec<(&str, String)> = names.iter().filter_map(|name| Some((*name, variable(name)?))).collect();
    let shown: Vec<String> = set
        .iter()
        .map(|(name, value)| if *name == "HF_TOKEN" { format!("{name} is set") } else { format!("{name}={value}") })
        .collect();
    let value = if shown.is_empty() { "no Hugging Face variables".to_owned() } else { shown.join(", ") };
    let endpoint = set.iter().find(|(name, _)| *name == "HF_ENDPOINT").map(|(_, value)| value.as_str());
    if endpoint.is_some_and(|url| !url.starts_with("http://") && !url.starts_with("https://")) {
        return Check::warn("environment", value, "HF_ENDPOINT must be a URL");
    }
    Check::ok("environment", value)
}

/// A clock that stands before this release breaks TLS certificates and the order of jobs.
fn clock(now: jiff::Timestamp) -> Check {
    let value = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    if now.strftime("%Y").to_string().as_str() < "2026" {
        return Check::warn("clock", value, "the clock is wrong; set it, or start time synchronisation");
    }
    Check::ok("clock", value)
}

fn engine() -> Check {
    match crate::engine_host::self_test() {
        Ok(value) => Check::ok("engine", value),
        Err(error) => {
            Check::fail("engine", error.to_string(), "the engine does not compute right on this machine; report it")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_not_shown() {
        let check = environment(|name| (name == "HF_TOKEN").then(|| "sentinel".to_owned()));
        assert_eq!((check.status, check.value.as_str()), (Status::Ok, "HF_TOKEN is set"));
        let check = environment(|name| (name == "HF_ENDPOINT").then(|| "hub.local".to_owned()));
        assert_eq!(check.status, Status::Warn);
    }

    #[test]
    fn limits_and_clocks_are_judged() {
        let status = |limit| open_files(limit).status;
        assert_eq!(
            [status(None), status(Some(65536)), status(Some(512)), status(Some(64))],
            [Status::Ok, Status::Ok, Status::Warn, Status::Fail]
        );
        assert_eq!(clock(jiff::Timestamp::UNIX_EPOCH).status, Status::Warn);
        assert_eq!(clock("2027-01-01T00:00:00Z".parse().unwrap()).status, Status::Ok);
    }

    #[test]
    fn a_gpu_needs_its_device_and_its_library() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("dev")).unwrap();
        assert_eq!(gpu(root.path()).value, "none; the CPU is used");
        std::fs::write(root.path().join("dev/nvidia0"), "").unwrap();
        std::fs::write(root.path().join("dev/nvidiactl"), "").unwrap();
        assert_eq!(gpu(root.path()).value, "1 device(s) but no libcuda.so.1");
        std::fs::create_dir_all(root.path().join("usr/lib64")).unwrap();
        std::fs::write(root.path().join("usr/lib64/libcuda.so.1"), "").unwrap();
        std::fs::create_dir_all(root.path().join("proc/driver/nvidia")).unwrap();
        std::fs::write(
            root.path().join("proc/driver/nvidia/version"),
            "NVRM version: NVIDIA UNIX Kernel Module  580.95.05  date",
        )
        .unwrap();
        assert_eq!(gpu(root.path()).value, "1 device(s), driver 580.95.05");
        std::fs::remove_file(root.path().join("dev/nvidia0")).unwrap();
        assert_eq!(gpu(root.path()).status, Status::Warn);
    }
}
