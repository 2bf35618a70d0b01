//! Where a number comes from: hashes, the machine, the state of the source tree, the time.

use atlas_schemas::gate::{GitState, MachineFacts};
use atlas_schemas::hardware::CpuFacts;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::Command;

/// Instruction sets by which kernels are chosen, as Linux spells them.
const KERNEL_FEATURES: [&str; 9] =
    ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "asimd", "asimddp"];

/// Lower-case hexadecimal sha256.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// sha256 of a file, read in pieces.
pub fn sha256_file(path: &Path) -> io::Result<String> {
    let (mut file, mut hash, mut buffer) = (File::open(path)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&buffer[..read]),
        }
    }
}

/// sha256 over the names and contents of a model folder's `*.safetensors`, in the order of their names. None if the
/// folder has none.
pub fn weights_hash(folder: &Path) -> io::Result<Option<String>> {
    let mut files: Vec<_> = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    files.retain(|entry| entry.path().extension().is_some_and(|extension| extension == "safetensors"));
    files.sort_by_key(|entry| entry.file_name());
    let mut listing = String::new();
    for file in &files {
        listing += &format!("{}  {}\n", sha256_file(&file.path())?, file.file_name().to_string_lossy());
    }
    Ok((!files.is_empty()).then(|| sha256(listing.as_bytes())))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// This machine.
pub fn machine() -> MachineFacts {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let kib = field(&meminfo, "MemTotal").and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    let siblings = field(&cpuinfo, "siblings").and_then(|value| value.parse::<u32>().ok());
    let cores = field(&cpuinfo, "cpu cores").and_then(|value| value.parse::<u32>().ok());
    let flags = field(&cpuinfo, "flags").or(field(&cpuinfo, "Features")).unwrap_or_default();
    let known = |flag: &&str| KERNEL_FEATURES.contains(flag);
    MachineFacts {
        os: std::env::consts::OS.into(),
        arch: std::env::consts::ARCH.into(),
        cpu: CpuFacts {
            model: field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".into()),
            cores: match (cores, siblings) {
                (Some(cores), Some(siblings)) if siblings > 0 => (threads * cores / siblings).max(1),
                _ => threads,
            },
            threads,
            features: flags.split_whitespace().filter(known).map(str::to_owned).collect(),
        },
        memory_bytes: kib.unwrap_or(0) * 1024,
        gpus: Vec::new(),
    }
}

/// State of the git work tree that holds `folder`; none outside one, or without git.
pub fn git_state(folder: &Path) -> Option<GitState> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "HEAD"])?;
    let dirty = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(GitState { commit, dirty })
}

/// Now, RFC 3339 in UTC with whole seconds.
pub fn now() -> String {
    let now = jiff::Timestamp::now();
    now.round(jiff::Unit::Second).unwrap_or(now).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_known() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc"), abc);
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(weights_hash(folder.path()).unwrap(), None);
        std::fs::write(folder.path().join("b.safetensors"), b"abc").unwrap();
        assert_eq!(sha256_file(&folder.path().join("b.safetensors")).unwrap(), abc);
        let one = weights_hash(folder.path()).unwrap();
        std::fs::write(folder.path().join("config.json"), b"{}").unwrap();
        assert_eq!(weights_hash(folder.path()).unwrap(), one, "only weights count");
        std::fs::write(folder.path().join("a.safetensors"), b"x").unwrap();
        assert_ne!(weights_hash(folder.path()).unwrap(), one);
    }

    #[test]
    fn the_time_is_utc_in_whole_seconds() {
        let now = now();
        assert!(now.len() == "2026-01-01T00:00:00Z".len() && now.ends_with('Z'), "{now}");
    }

    #[test]
    fn the_git_state_tells_clean_from_dirty() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(git_state(folder.path()), None);
        let git = |arguments: &[&str]| {
            let status = Command::new("git").arg("-C").arg(folder.path()).args(arguments).output().unwrap().status;
            assert!(status.success(), "{arguments:?}");
        };
        git(&["init", "-q"]);
        std::fs::write(folder.path().join("f"), "1").unwrap();
        git(&["add", "f"]);
        git(&["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", "m"]);
        assert!(!git_state(folder.path()).unwrap().dirty);
        std::fs::write(folder.path().join("f"), "2").unwrap();
        assert!(git_state(folder.path()).unwrap().dirty);
    }
}
