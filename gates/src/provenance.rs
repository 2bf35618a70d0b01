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

/// sha256 over a model's weight files, given as name and sha256 each: over the lines `SHA256  NAME`, sorted by name.
/// None if there are none.
pub fn weights_hash(mut files: Vec<(String, String)>) -> Option<String> {
    files.sort();
    let listing: String = files.iter().map(|(name, hash)| format!("{hash}  {name}\n")).collect();
    (!files.is_empty()).then(|| sha256(listing.as_bytes()))
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
        std::fs::write(folder.path().join("b"), b"abc").unwrap();
        assert_eq!(sha256_file(&folder.path().join("b")).unwrap(), abc);
    }

    #[test]
    fn the_weights_hash_is_of_names_and_contents() {
        let files =
            |files: &[(&str, &str)]| weights_hash(files.iter().map(|(n, h)| ((*n).into(), (*h).into())).collect());
        assert_eq!(files(&[]), None);
        assert_eq!(files(&[("a", "1")]), Some(sha256(b"1  a\n")));
        assert_eq!(files(&[("b", "2"), ("a", "1")]), files(&[("a", "1"), ("b", "2")]));
        assert_ne!(files(&[("a", "1")]), files(&[("b", "1")]));
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
