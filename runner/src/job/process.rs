//! Processes by number and start time, so that a reused number is never taken for the process that had it before.

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// How often a process that should end is looked at.
const POLL: Duration = Duration::from_millis(20);

/// A process of this boot or an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    /// Process number.
    pub(crate) pid: i32,
    /// Start time in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub(crate) start_ticks: u64,
    /// The boot in which the number was given.
    pub(crate) boot_id: String,
}

impl ProcessId {
    /// The process that has this number now; `None` when there is none or it has ended and only waits to be reaped.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok()?;
        Some(Self { pid, start_ticks: running_since(pid)?, boot_id: boot_id() })
    }

    /// Whether exactly this process still runs.
    pub(crate) fn is_alive(&self) -> bool {
        running_since(self.pid) == Some(self.start_ticks) && boot_id() == self.boot_id
    }

    /// Sends a signal if exactly this process still runs; false when it does not.
    pub(crate) fn signal(&self, signal: Signal) -> rustix::io::Result<bool> {
        let Some(pid) = Pid::from_raw(self.pid).filter(|pid| pid.as_raw_nonzero().get() > 0) else { return Ok(false) };
        // The descriptor pins the process: if the check after it holds, the signal cannot reach another one.
        let sent = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(_) | Err(rustix::io::Errno::NOSYS) if !self.is_alive() => return Ok(false),
            Ok(descriptor) => pidfd_send_signal(descriptor, signal),
            Err(rustix::io::Errno::NOSYS) => kill_process(pid, signal),
            Err(error) => Err(error),
        };
        match sent {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until the process has ended; false when it still runs after `limit`.
    pub(crate) async fn wait_gone(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(POLL).await;
        }
        true
    }
}

/// Start time in ticks of a process that runs (or is stopped), from `/proc/PID/stat`.
fn running_since(pid: i32) -> Option<u64> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name in the second field may hold spaces and parentheses, so fields count from the last `)`.
fn parse_stat(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// What a person calls a process: its command line, shortened, or its kernel name.
pub(crate) fn describe(pid: u32) -> String {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = command.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
    // Only the first two words: later ones may be a secret of somebody else's.
    let text = words.iter().take(2).map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ");
    let text = text.chars().filter(|c| !c.is_control()).take(80).collect::<String>();
    if text.is_empty() {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        return name.trim().chars().filter(|c| !c.is_control()).collect();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_do_not_shift_the_fields() {
        let stat = "77 (a) b) R 1 77 77 0 -1 4194304 100 0 0 0 0 0 0 0 20 0 1 0 92830 3133440 380";
        assert_eq!(parse_stat(stat), Some(92830));
        assert_eq!(parse_stat(&stat.replace(") R ", ") Z ")), None);
        assert_eq!(parse_stat("77 (a"), None);
    }

    #[test]
    fn another_start_time_or_boot_is_another_process() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        assert!(id.is_alive());
        let earlier = ProcessId { start_ticks: id.start_ticks - 1, ..id.clone() };
        let other_boot = ProcessId { boot_id: "another".to_owned(), ..id.clone() };
        for stranger in [earlier, other_boot] {
            assert!(!stranger.is_alive());
            assert!(!stranger.signal(Signal::KILL).unwrap());
        }
        assert!(child.try_wait().unwrap().is_none(), "the stranger's signal must not reach the process");
        assert!(id.signal(Signal::KILL).unwrap());
        // Dead but not reaped counts as dead.
        let deadline = Instant::now() + Duration::from_secs(5);
        while id.is_alive() && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
        assert!(!id.is_alive());
        child.wait().unwrap();
        assert!(!id.signal(Signal::TERM).unwrap());
    }

    #[test]
    fn impossible_numbers_are_nobody() {
        for pid in [0, -1, i32::MIN] {
            let id = ProcessId { pid, start_ticks: 1, boot_id: boot_id() };
            assert!(!id.signal(Signal::TERM).unwrap());
        }
    }
}
