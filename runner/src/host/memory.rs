//! How much memory a new process may use: the system's estimate, cut down to what the control groups leave.

use atlas_schemas::outputs::ExplainHardware;
use std::path::Path;

/// Memory that can be used without swapping or being killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Available {
    /// Bytes, the smaller of the two below.
    pub(crate) bytes: u64,
    /// `MemAvailable` of `/proc/meminfo`.
    pub(crate) system_bytes: u64,
    /// What the tightest control group leaves, when one has a limit.
    pub(crate) cgroup_bytes: Option<u64>,
    /// Memory of the machine.
    pub(crate) total_bytes: u64,
}

/// This machine as `explain` compares with it: the memory that is available. Bandwidth is not guessed.
pub(crate) fn this_machine() -> ExplainHardware {
    let memory_bytes = available().map_or(0, |memory| memory.bytes);
    ExplainHardware { name: "this".into(), memory_bytes, bandwidth: None }
}

/// Memory now; `None` where `/proc/meminfo` is absent.
pub(crate) fn available() -> Option<Available> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let system_bytes = meminfo_bytes(&meminfo, "MemAvailable")?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let cgroup_bytes = cgroup_headroom(Path::new("/sys/fs/cgroup"), &groups);
    Some(Available {
        bytes: cgroup_bytes.map_or(system_bytes, |limit| limit.min(system_bytes)),
        system_bytes,
        cgroup_bytes,
        total_bytes: meminfo_bytes(&meminfo, "MemTotal")?,
    })
}

fn meminfo_bytes(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The smallest `limit - (usage - reclaimable file cache)` on the way up from this process's groups, for both
/// control-group versions. `groups` is the text of `/proc/self/cgroup`.
fn cgroup_headroom(root: &Path, groups: &str) -> Option<u64> {
    let mut tightest: Option<u64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (base, limit, usage, cache) = match controllers {
            "" => (root.to_owned(), "memory.max", "memory.current", "inactive_file"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            }
            _ => continue,
        };
        // Inside a container the group's path may not be mounted; its own files are at the root then.
        let mut folder = base.join(group.trim_start_matches('/'));
        loop {
            if let Some(left) = headroom_of(&folder, limit, usage, cache) {
                tightest = Some(tightest.map_or(left, |known| known.min(left)));
            }
            if folder == base || !folder.pop() || !folder.starts_with(&base) {
                break;
            }
        }
    }
    tightest
}

fn headroom_of(folder: &Path, limit: &str, usage: &str, cache: &str) -> Option<u64> {
    let number = |name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    // Version 1 writes "no limit" as a number near 2^63.
    let limit = number(limit).filter(|limit| *limit < 1 << 60)?;
    let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let reclaimable = stat.lines().find_map(|line| line.strip_prefix(cache)?.trim().parse::<u64>().ok()).unwrap_or(0);
    Some(limit.saturating_sub(number(usage)?.saturating_sub(reclaimable)))
}

/// Bytes for people, in binary units.
pub(crate) fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (0..4).filter(|power| bytes >> (10 * (power + 1)) > 0).count();
    let value = bytes as f64 / (1u64 << (10 * power)) as f64;
    let unit = UNITS.get(power).copied().unwrap_or("B");
    if power == 0 { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_kibibytes() {
        let text = "MemTotal:       24000000 kB\nMemAvailable:   22000000 kB\n";
        assert_eq!(meminfo_bytes(text, "MemAvailable"), Some(22_000_000 * 1024));
        assert_eq!(meminfo_bytes(text, "Mem"), None);
        assert!(available().unwrap().bytes > 0);
    }

    #[test]
    fn the_tightest_group_counts_less_its_file_cache() {
        let root = tempfile::tempdir().unwrap();
        let write = |folder: &str, files: &[(&str, &str)]| {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
            for (name, text) in files {
                std::fs::write(root.path().join(folder).join(name), text).unwrap();
            }
        };
        write(
            "a",
            &[("memory.max", "1000\n"), ("memory.current", "900\n"), ("memory.stat", "anon 1\ninactive_file 300\n")],
        );
        write("a/b", &[("memory.max", "max\n"), ("memory.current", "5\n")]);
        assert_eq!(cgroup_headroom(root.path(), "0::/a/b\n"), Some(400));
        assert_eq!(cgroup_headroom(root.path(), "0::/elsewhere\n"), None);
        write("memory/x", &[("memory.limit_in_bytes", "500"), ("memory.usage_in_bytes", "100")]);
        assert_eq!(cgroup_headroom(root.path(), "4:memory:/x\n0::/a\n"), Some(400));
        write("memory", &[("memory.limit_in_bytes", "9223372036854771712"), ("memory.usage_in_bytes", "100")]);
        assert_eq!(cgroup_headroom(root.path(), "4:cpu,memory:/\n"), None);
        assert_eq!(cgroup_headroom(root.path(), "nonsense\n"), None);
    }

    #[test]
    fn sizes_are_shown_in_binary_units() {
        assert_eq!(show_bytes(512), "512 B");
        assert_eq!(show_bytes(1536), "1.5 KiB");
        assert_eq!(show_bytes(16 << 30), "16.0 GiB");
        assert_eq!(show_bytes(u64::MAX), "16777216.0 TiB");
    }
}
