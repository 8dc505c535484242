//! Listening ports and their processes, from `/proc/net/tcp` and `tcp6` (proc(5)).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;

use cove_protocol::Reply;
use cove_protocol::message::Port;
use cove_sys::file_identity;
use rustix::fs::{CWD, readlinkat};

use crate::connection::Connection;
use crate::failure::Result;

/// The kernel's number for a socket that listens.
const LISTENING: &str = "0A";

/// The most bytes that are read of a table of connections.
const LONGEST: u64 = 8 << 20;

/// The most ports that are reported.
const MOST: usize = 2000;

/// The host's own listener inside, which takes what leaves the sandbox: no server of the sandbox's.
const EGRESS_PROXY: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::new(127, 200, 0, 1)), 1);

/// The most descriptors that are checked for owners.
const LOOKS: usize = 100_000;

pub fn list(connection: &mut Connection) -> Result<()> {
    let mut listeners: Vec<_> = listeners("/proc/net/tcp").into_iter().chain(listeners("/proc/net/tcp6")).collect();
    listeners.retain(|listener| (listener.address, listener.port) != EGRESS_PROXY);
    listeners.sort_by_key(|listener| (listener.port, listener.address));
    listeners.dedup_by_key(|listener| (listener.port, listener.address));
    listeners.truncate(MOST);
    let owners = owners(&listeners);
    let ports = listeners.iter().map(|listener| {
        let owner = owners.get(&listener.inode);
        Port {
            port: listener.port,
            address: listener.address.to_string(),
            pid: owner.map(|(pid, _)| *pid),
            process: owner.map(|(_, name)| name.clone()),
        }
    });
    connection.reply(&Reply::Ports { ports: ports.collect() })
}

#[derive(Debug, PartialEq, Eq)]
struct Listener {
    address: IpAddr,
    port: u16,
    inode: u64,
}

fn listeners(path: &str) -> Vec<Listener> {
    let mut table = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(LONGEST).read_to_end(&mut table);
    }
    String::from_utf8_lossy(&table).lines().skip(1).filter_map(parse).collect()
}

fn parse(line: &str) -> Option<Listener> {
    let mut fields = line.split_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    if fields.nth(1)? != LISTENING {
        return None;
    }
    let port = u16::from_str_radix(port, 16).ok()?;
    let inode = fields.nth(5)?.parse().ok()?;
    Some(Listener { address: parse_address(address)?, port, inode })
}

/// Words of four bytes, each in the machine's order.
fn parse_address(text: &str) -> Option<IpAddr> {
    let mut bytes = Vec::new();
    for at in (0..text.len()).step_by(8) {
        let word = u32::from_str_radix(text.get(at..at + 8)?, 16).ok()?;
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes.as_slice()) {
        return Some(Ipv4Addr::from(bytes).into());
    }
    <[u8; 16]>::try_from(bytes.as_slice()).ok().map(|bytes| Ipv6Addr::from(bytes).into())
}

/// The process of each socket, found by reading all processes' descriptors.
///
/// Only a tracer may read another user's, and nobody in a sandbox has CAP_SYS_PTRACE. But what counts there are this
/// thread's filesystem ids (PTRACE_MODE_READ_FSCREDS in ptrace(2)), so it takes those of each process in turn. The thread
/// serves this request alone.
fn owners(listeners: &[Listener]) -> BTreeMap<u64, (u32, String)> {
    let mut owners = BTreeMap::new();
    let mut looks = 0;
    let Ok(processes) = std::fs::read_dir("/proc") else { return owners };
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // The owner of the directory is the process's user; of one that may not be read at all it is root.
        let Ok(owner) = process.metadata() else { continue };
        if file_identity::set_group(owner.gid()).and_then(|()| file_identity::set_user(owner.uid())).is_err() {
            continue;
        }
        let Ok(files) = std::fs::read_dir(process.path().join("fd")) else { continue };
        for file in files.flatten() {
            looks += 1;
            if looks > LOOKS || owners.len() == listeners.len() {
                return owners;
            }
            let Ok(target) = readlinkat(CWD, file.path(), Vec::new()) else { continue };
            let target = target.to_string_lossy();
            let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')?.parse::<u64>().ok());
            if let Some(inode) = inode
                && listeners.iter().any(|listener| listener.inode == inode)
            {
                let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                // The one that opened it before its children inherited it has the lowest number, mostly.
                let name = name.trim_end().to_owned();
                let known = owners.entry(inode).or_insert((pid, name.clone()));
                if pid < known.0 {
                    *known = (pid, name);
                }
            }
        }
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_read_from_the_kernels_table() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 27653 1 0 100 0";
        let expected = Listener { address: Ipv4Addr::LOCALHOST.into(), port: 8080, inode: 27653 };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(parse("nonsense"), None);
        assert_eq!(parse_address("00000000000000000000000001000000"), Some(Ipv6Addr::LOCALHOST.into()));
    }
}
