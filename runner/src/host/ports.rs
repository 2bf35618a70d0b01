//! Is a TCP port free, and if not, whose is it? Reads `/proc`; binds and connects to nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// A process that listens where we want to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listener {
    /// The process, when we may look at it.
    pub(crate) pid: Option<u32>,
}

impl std::fmt::Display for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid} ({})", crate::job::process::describe(pid)),
            None => f.write_str("a process of another user"),
        }
    }
}

/// Who listens on an address that overlaps `wanted`; `None` when the port is free or `/proc/net` cannot tell.
pub(crate) fn listener(wanted: SocketAddr) -> Option<Listener> {
    if wanted.port() == 0 {
        return None;
    }
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| std::fs::read_to_string(table).ok())
        .find_map(|table| table.lines().skip(1).find_map(|line| parse_line(line).filter(|row| row.overlaps(wanted))))
        .map(|row| Listener { pid: owner(Path::new("/proc"), row.inode) })
}

/// A listening socket of a `/proc/net/tcp*` table.
#[derive(Debug, PartialEq)]
struct Row {
    address: SocketAddr,
    inode: u64,
}

impl Row {
    /// A listener on all addresses overlaps every address, and `[::]` takes IPv4 too on its usual setting.
    fn overlaps(&self, wanted: SocketAddr) -> bool {
        let (ours, theirs) = (wanted.ip().to_canonical(), self.address.ip().to_canonical());
        let everywhere = |ip: IpAddr, other: IpAddr| ip.is_unspecified() && (ip.is_ipv6() || other.is_ipv4());
        self.address.port() == wanted.port() && (ours == theirs || everywhere(ours, theirs) || everywhere(theirs, ours))
    }
}

/// Fields: slot, local address, remote address, state (0A = listen), queues, timer, retransmits, uid, timeout, inode.
fn parse_line(line: &str) -> Option<Row> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (address, port) = fields.get(1)?.split_once(':')?;
    if *fields.get(3)? != "0A" {
        return None;
    }
    let ip = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(u32::from_str_radix(address, 16).ok()?.to_ne_bytes())),
        32 => {
            let mut bytes = [0u8; 16];
            for (word, chunk) in bytes.chunks_exact_mut(4).enumerate() {
                let text = address.get(word * 8..word * 8 + 8)?;
                chunk.copy_from_slice(&u32::from_str_radix(text, 16).ok()?.to_ne_bytes());
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(Row { address: SocketAddr::new(ip, port), inode: fields.get(9)?.parse().ok()? })
}

/// The process that holds a socket, among those whose descriptors we may read.
fn owner(proc: &Path, inode: u64) -> Option<u32> {
    let wanted = format!("socket:[{inode}]");
    let pids = std::fs::read_dir(proc).ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.into_iter().find(|pid: &u32| {
        let Ok(descriptors) = std::fs::read_dir(proc.join(pid.to_string()).join("fd")) else { return false };
        let mut targets = descriptors.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        targets.any(|target| target.as_os_str() == wanted.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_listener_is_found_with_its_owner() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let found = listener(address).unwrap();
        assert_eq!(found.pid, Some(std::process::id()));
        assert!(found.to_string().starts_with(&format!("process {} (", std::process::id())));
        let everywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
        assert!(listener(everywhere).is_some());
        drop(socket);
        assert_eq!(listener(address), None);
    }

    #[test]
    fn overlap_knows_wildcards_and_families() {
        let row = |address: &str| Row { address: address.parse().unwrap(), inode: 1 };
        let cases = [
            ("0.0.0.0:80", "127.0.0.1:80", true),
            ("[::]:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "0.0.0.0:80", true),
            ("127.0.0.1:80", "[::]:80", true),
            ("0.0.0.0:80", "[::1]:80", false),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("127.0.0.1:80", "127.0.0.1:81", false),
        ];
        for (theirs, ours, expected) in cases {
            assert_eq!(row(theirs).overlaps(ours.parse().unwrap()), expected, "{theirs} against {ours}");
        }
    }

    #[test]
    fn table_lines_are_read() {
        let line = "   0: 0100007F:22B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1660 1 0 100";
        assert_eq!(parse_line(line).unwrap(), Row { address: "127.0.0.1:8888".parse().unwrap(), inode: 1660 });
        assert_eq!(parse_line(&line.replace(" 0A ", " 01 ")), None);
        let six = line.replace("0100007F", "00000000000000000000000001000000");
        assert_eq!(parse_line(&six).unwrap().address, "[::1]:8888".parse().unwrap());
        assert_eq!(parse_line("  0: 01:xyz"), None);
    }
}
