//! What is written down about a job: the record of `atlas-schemas`, read with the eyes of this machine.

use super::process::ProcessId;
use atlas_schemas::job::{JobRecord, RankRecord};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// `exit.json`: the last words of a server process that ended by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExitNote {
    /// Exit code.
    pub(crate) code: u8,
    /// Why, if it failed.
    pub(crate) message: Option<String>,
}

/// The server process, once it exists.
pub(crate) fn server_process(record: &JobRecord) -> Option<ProcessId> {
    let rank = record.ranks.first()?;
    Some(ProcessId {
        pid: i32::try_from(rank.pid?).ok()?,
        start_ticks: rank.pid_start_ticks?,
        boot_id: rank.boot_id.clone()?,
    })
}

/// Puts the server process into the record.
pub(crate) fn set_server_process(rank: &mut RankRecord, process: &ProcessId) {
    rank.pid = u32::try_from(process.pid).ok();
    rank.pid_start_ticks = Some(process.start_ticks);
    rank.boot_id = Some(process.boot_id.clone());
}

/// Where the job serves, once its port is known.
pub(crate) fn url(record: &JobRecord) -> Option<String> {
    (record.port != 0).then(|| url_of(&record.host, record.port))
}

/// A URL that this machine can use for a server that listens on `host`.
pub(crate) fn url_of(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) if address.is_unspecified() => format!("http://127.0.0.1:{port}"),
        Ok(IpAddr::V6(address)) if address.is_unspecified() => format!("http://[::1]:{port}"),
        Ok(IpAddr::V6(address)) => format!("http://[{address}]:{port}"),
        _ => format!("http://{host}:{port}"),
    }
}

/// The time now, as records have it.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_an_address_that_can_be_called() {
        assert_eq!(url_of("0.0.0.0", 1), "http://127.0.0.1:1");
        assert_eq!(url_of("::", 1), "http://[::1]:1");
        assert_eq!(url_of("fe80::1", 1), "http://[fe80::1]:1");
        assert_eq!(url_of("localhost", 1), "http://localhost:1");
    }
}
