//! Which names mean this machine.

use crate::errors::CliError;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;

/// Whether `host` (a name or an address, perhaps `user@host`) is the machine that `atlas` runs on.
pub(crate) fn is_this_machine(host: &str) -> bool {
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = host.parse::<IpAddr>() {
        let address = address.to_canonical();
        // The system lets a socket be bound to its own addresses only; no packet is sent.
        return address.is_loopback() || (!address.is_unspecified() && UdpSocket::bind((address, 0)).is_ok());
    }
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    if name == "localhost" || name == "localhost.localdomain" || name.ends_with(".localhost") {
        return true;
    }
    let uname = rustix::system::uname();
    let own = uname.nodename().to_string_lossy().to_ascii_lowercase();
    let short = own.split('.').next().unwrap_or(&own);
    !own.is_empty() && (name == own || name == short || name == format!("{short}.local"))
}

/// Hosts as one list: `a,b` or one per line with `#` comments; names of one machine count once.
pub(crate) fn parse_list(text: &str) -> Vec<String> {
    let mut hosts: Vec<String> = Vec::new();
    let words =
        text.lines().map(|line| line.split('#').next().unwrap_or("")).flat_map(|line| line.split([',', ' ', '\t']));
    for host in words.map(str::trim).filter(|host| !host.is_empty()) {
        let host = if is_this_machine(host) { "localhost" } else { host };
        if !hosts.iter().any(|known| known == host) {
            hosts.push(host.to_owned());
        }
    }
    hosts
}

/// Where a command's hosts come from, the first that is given wins.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct HostArgs {
    /// Hosts to run on, separated by commas.
    #[arg(long, value_name = "LIST", group = "host_source")]
    pub(crate) hosts: Option<String>,
    /// File with one host per line; `#` starts a comment.
    #[arg(long, value_name = "FILE", group = "host_source")]
    pub(crate) hosts_file: Option<std::path::PathBuf>,
    /// Name of a saved cluster.
    #[arg(long, value_name = "NAME", group = "host_source")]
    pub(crate) cluster: Option<String>,
}

impl HostArgs {
    /// The hosts, each once, in order; this machine is `localhost`. A cluster that is not known is an error, never
    /// a reason to run elsewhere.
    pub(crate) fn resolve(&self) -> Result<Vec<String>, CliError> {
        let (source, hosts) = match self {
            Self { cluster: Some(name), .. } => {
                return Err(CliError::Usage(format!(
                    "unknown cluster `{name}`: no clusters are saved on this machine"
                )));
            }
            Self { hosts: Some(list), .. } => ("--hosts".to_owned(), parse_list(list)),
            Self { hosts_file: Some(file), .. } => (file.display().to_string(), parse_list(&read_hosts(file)?)),
            _ => return Ok(vec!["localhost".to_owned()]),
        };
        if hosts.is_empty() {
            return Err(CliError::Usage(format!("{source} names no host")));
        }
        Ok(hosts)
    }
}

/// Launching elsewhere than here is refused for now; says which hosts are elsewhere.
pub(crate) fn require_local(hosts: &[String]) -> Result<(), CliError> {
    let remote: Vec<&str> = hosts.iter().map(String::as_str).filter(|host| *host != "localhost").collect();
    if remote.is_empty() {
        return Ok(());
    }
    Err(CliError::Refused(format!(
        "{} {} not this machine, and running on other hosts is not supported yet; use `--hosts localhost`",
        remote.iter().map(|host| format!("`{host}`")).collect::<Vec<_>>().join(", "),
        if remote.len() == 1 { "is" } else { "are" },
    )))
}

fn read_hosts(file: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(file).map_err(|error| CliError::Usage(format!("{}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_this_machine_is_one_host() {
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let list = format!("localhost,127.0.0.1, ::1,[::1],127.8.9.1,LOCALHOST.,{own}");
        assert_eq!(parse_list(&list), ["localhost"]);
    }

    #[test]
    fn others_are_others_and_lists_are_not_split_into_characters() {
        assert_eq!(parse_list("gpu-1, gpu-2 # spare\n# gpu-3\ngpu-1\n127.0.0.1"), ["gpu-1", "gpu-2", "localhost"]);
        // Documentation addresses are never assigned to a machine; 0.0.0.0 names no machine.
        for other in ["192.0.2.1", "2001:db8::1", "0.0.0.0", "localhost.example.com", "me@localhost"] {
            assert!(!is_this_machine(other), "{other}");
        }
        let error = require_local(&parse_list("gpu-1,localhost")).unwrap_err();
        assert_eq!(error.exit_code(), 4);
        assert!(error.to_string().contains("`gpu-1` is not this machine"));
    }

    #[test]
    fn unknown_clusters_and_empty_lists_are_errors() {
        let cluster = HostArgs { cluster: Some("lab".to_owned()), ..HostArgs::default() };
        assert!(cluster.resolve().unwrap_err().to_string().contains("unknown cluster `lab`"));
        let empty = HostArgs { hosts: Some(" , ".to_owned()), ..HostArgs::default() };
        assert_eq!(empty.resolve().unwrap_err().exit_code(), 2);
        assert_eq!(HostArgs::default().resolve().unwrap(), ["localhost"]);
    }
}
