//! Ends processes that fill the kernel's memory by way of sockets that no control group pays for.
//!
//! * **Netlink.** A socket keeps what the kernel answered until somebody reads it. With a few hundred of them a sandbox of
//!   64 MiB could fill the memory of the host. They cannot be refused: getifaddrs(3) asks through one for the names of
//!   interfaces, and with it every program that lists them.
//! * **Connections that nobody accepts.** The kernel makes them on nobody's account and charges the listener's control group in
//!   accept(2), with all that was received by then. A sandbox that connects to itself and never accepts could use up the
//!   memory that all of the host has for TCP (`net.ipv4.tcp_mem`).
//!
//! So two numbers of the host are checked once a second: free memory, and memory of TCP. Only when the first has fallen, or the
//! second is large, is it counted what waits in each sandbox, and the processes that hold the most are killed, as with
//! memory. The count is by network namespace, so a socket in transit between processes (`SCM_RIGHTS`) is found too.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

use crate::cgroup::Group;
use crate::life::Live;

/// How far the host's free memory must fall before it is worth counting.
const FALLEN: u64 = 128 << 20;

/// TCP's memory on the whole host from which on connections are counted. Busy servers have a tenth of it.
const MUCH_TCP: u64 = 256 << 20;

/// What others give back in the meantime hides what is taken: counted at least this often.
const AT_LATEST: Duration = Duration::from_secs(60);

/// A count that took a second is followed by so many seconds without one.
const REST: u32 = 10;

/// Up to so many netlink sockets are not looked at: programs have one or two, for a moment.
const FEW_SOCKETS: u64 = 8;

/// Up to so many connections are not looked at.
const FEW_CONNECTIONS: u64 = 128;

/// What may wait in one sandbox. Programs leave a few KiB unread, for a moment.
const MOST: u64 = 16 << 20;

/// What a connection that waits counts as, at least: many small pieces take more room than they have bytes.
const CONNECTION: u64 = 64 << 10;

#[derive(Debug, Default)]
pub struct SocketWatch {
    seen: Mutex<Seen>,
}

/// What is worth counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alarm {
    Netlink,
    NetlinkAndConnections,
}

#[derive(Debug, Default)]
struct Seen {
    /// The most memory that was free since the last count.
    free: u64,
    counted: Option<Instant>,
    rests_until: Option<Instant>,
}

impl Seen {
    /// What to count, with so much memory free and so much in use by TCP.
    fn alarm(&mut self, free: u64, tcp: u64, now: Instant) -> Option<Alarm> {
        if self.rests_until.is_some_and(|until| now < until) {
            return None;
        }
        self.free = self.free.max(free);
        let is_due = self.counted.is_none_or(|counted| now.duration_since(counted) >= AT_LATEST);
        let has_fallen = self.free - free >= FALLEN;
        if !is_due && !has_fallen && tcp <= MUCH_TCP {
            return None;
        }
        self.free = free;
        self.counted = Some(now);
        Some(if tcp > MUCH_TCP { Alarm::NetlinkAndConnections } else { Alarm::Netlink })
    }
}

impl SocketWatch {
    /// What it is time to count, if anything.
    pub fn alarm(&self) -> Option<Alarm> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (free, tcp) = (free_memory(&read("/proc/meminfo")), tcp_memory(&read("/proc/self/net/sockstat")));
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).alarm(free, tcp, Instant::now())
    }

    /// Brings each sandbox back below its bound.
    pub fn enforce<'a>(&self, alarm: Alarm, lives: impl Iterator<Item = &'a Live>) {
        let began = Instant::now();
        for live in lives {
            if let Some(group) = &live.group {
                thin_out(&waiting(live.running.pid, alarm), live.running.pid, group);
            }
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.rests_until = Some(Instant::now() + began.elapsed() * REST);
    }
}

/// Bytes that wait in the sandbox of this guest, by the inode of the socket that they end with. The lists of sockets take
/// as long as there are sockets on the whole host; their numbers, which are read first, take a moment.
fn waiting(guest: u32, alarm: Alarm) -> HashMap<u64, u64> {
    // Empty where the guest is gone, and its sockets with it.
    let read = |name: &str| fs::read_to_string(format!("/proc/{guest}/net/{name}")).unwrap_or_default();
    let mut waiting = HashMap::new();
    if netlink_sockets(&read("protocols")) > FEW_SOCKETS {
        waiting.extend(unread(&read("netlink")));
    }
    if alarm == Alarm::NetlinkAndConnections {
        let connections = connections(&read("sockstat")) + connections(&read("sockstat6"));
        if connections > FEW_CONNECTIONS {
            waiting.extend(unaccepted(&format!("{}\n{}", read("tcp"), read("tcp6"))));
        }
    }
    waiting
}

/// Kills those of the group who hold the most, until the rest is within the bound. The guest goes last, and with it the
/// sandbox. What nobody seems to hold waits for the next count if somebody was killed: the lists change while they are
/// read, and it may go with them. If nobody holds any of it, it is in transit, and the sandbox ends.
fn thin_out(waiting: &HashMap<u64, u64>, guest: u32, group: &Group) {
    let mut left: u64 = waiting.values().sum();
    if left <= MOST {
        return;
    }
    let pids = group.pids().unwrap_or_default();
    let mut holders: Vec<Holder> = pids.into_iter().filter_map(|pid| Holder::of(pid, waiting)).collect();
    // A socket that several have open ends with the last of them.
    let mut shared: HashMap<u64, usize> = HashMap::new();
    for inode in holders.iter().flat_map(|holder| &holder.sockets) {
        *shared.entry(*inode).or_default() += 1;
    }
    holders.sort_by_key(|holder| (holder.pid != guest, holder.bytes));
    let in_transit = holders.iter().all(|holder| holder.bytes == 0);
    while left > MOST
        && let Some(worst) = holders.pop_if(|holder| in_transit || holder.bytes > 0)
    {
        // ESRCH: it has ended, and its sockets with it.
        let _ = rustix::process::pidfd_send_signal(&worst.process, Signal::KILL);
        for inode in worst.sockets {
            let others = shared.entry(inode).or_default();
            *others = others.saturating_sub(1);
            if *others == 0 {
                left = left.saturating_sub(waiting.get(&inode).copied().unwrap_or(0));
            }
        }
    }
}

struct Holder {
    pid: u32,
    /// Opened before its sockets are counted: a number can be another's by then.
    process: OwnedFd,
    /// By their inodes.
    sockets: Vec<u64>,
    bytes: u64,
}

impl Holder {
    fn of(pid: u32, waiting: &HashMap<u64, u64>) -> Option<Holder> {
        let process = rustix::process::pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()?;
        let files = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
        // proc_pid_fd(5): `socket:[inode]`.
        let inode = |file: fs::DirEntry| -> Option<u64> {
            let target = fs::read_link(file.path()).ok()?;
            target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        };
        let mut sockets: Vec<u64> = files.filter_map(inode).filter(|inode| waiting.contains_key(inode)).collect();
        // Each once, by however many descriptors.
        sockets.sort_unstable();
        sockets.dedup();
        let bytes = sockets.iter().filter_map(|inode| waiting.get(inode)).sum();
        Some(Holder { pid, process, sockets, bytes })
    }
}

/// Of `/proc/meminfo`, in bytes.
fn free_memory(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| number(line, 0)).unwrap_or(0).saturating_mul(1024)
}

/// Of the whole host, in bytes, of any namespace's `/proc/net/sockstat`: `TCP: inuse 9 orphan 0 tw 57 alloc 82 mem 1233`.
fn tcp_memory(sockstat: &str) -> u64 {
    let line = sockstat.lines().find(|line| line.starts_with("TCP:"));
    line.and_then(|line| number(line, 10)).unwrap_or(0).saturating_mul(rustix::param::page_size() as u64)
}

/// Of the namespace, of `sockstat` or `sockstat6`.
fn connections(sockstat: &str) -> u64 {
    let line = sockstat.lines().find(|line| line.starts_with("TCP:") || line.starts_with("TCP6:"));
    line.and_then(|line| number(line, 2)).unwrap_or(0)
}

/// How many netlink sockets there are, of `/proc/net/protocols`. The kernel's own are not among them.
fn netlink_sockets(protocols: &str) -> u64 {
    let line = protocols.lines().find(|line| line.starts_with("NETLINK "));
    line.and_then(|line| number(line, 2)).unwrap_or(0)
}

/// How many bytes wait in each netlink socket, of `/proc/net/netlink`; of those with any.
fn unread(netlink: &str) -> HashMap<u64, u64> {
    let queue = |line: &str| Some((number(line, 9)?, number(line, 4)?)).filter(|(_, bytes)| *bytes > 0);
    netlink.lines().filter_map(queue).collect()
}

/// What connections that nobody has accepted take, by the socket that listens for them, of `/proc/net/tcp` and `tcp6`; under 0
/// where none is found. They have no inode yet, and the port of their listener.
fn unaccepted(tcp: &str) -> HashMap<u64, u64> {
    const ESTABLISHED: &str = "01";
    const CLOSE_WAIT: &str = "08";
    const LISTEN: &str = "0A";
    let mut listeners: HashMap<&str, u64> = HashMap::new();
    let mut by_port: HashMap<&str, u64> = HashMap::new();
    for line in tcp.lines() {
        let columns: Vec<&str> = line.split_whitespace().take(10).collect();
        let [_, local, _, state, queues, _, _, _, _, inode] = columns[..] else { continue };
        let (Some((_, port)), Ok(inode)) = (local.rsplit_once(':'), inode.parse::<u64>()) else { continue };
        match state {
            LISTEN => {
                listeners.insert(port, inode);
            }
            ESTABLISHED | CLOSE_WAIT if inode == 0 => {
                let received = queues.split_once(':').and_then(|(_, bytes)| u64::from_str_radix(bytes, 16).ok());
                *by_port.entry(port).or_default() += received.unwrap_or(0).max(CONNECTION);
            }
            _ => {}
        }
    }
    let mut waiting: HashMap<u64, u64> = HashMap::new();
    for (port, bytes) in by_port {
        *waiting.entry(listeners.get(port).copied().unwrap_or(0)).or_default() += bytes;
    }
    waiting
}

fn number(line: &str, place: usize) -> Option<u64> {
    line.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_read_from_the_kernels_lists() {
        let protocols = "protocol  size sockets  memory press maxhdr  slab module\n\
                         UDP       1152      3       1   NI       0   yes  kernel\n\
                         NETLINK   1096   8000      -1   NI       0   no   kernel\n";
        assert_eq!((netlink_sockets(protocols), netlink_sockets("")), (8000, 0));
        let netlink = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n\
                       00000000496c5061 0   0          00000000 0        0        0     2        0        5340281\n\
                       00000000634e0e6f 0   4294963254 00000000 212736   0        0     2        71       5340287\n";
        assert_eq!(unread(netlink), HashMap::from([(5_340_287, 212_736)]));
        assert_eq!(free_memory("MemFree: 7 kB\nMemAvailable:   1024 kB\n"), 1 << 20);
        let sockstat = "sockets: used 148\nTCP: inuse 9 orphan 0 tw 57 alloc 82 mem 1233\nUDP: inuse 1 mem 0\n";
        assert_eq!((connections(sockstat), connections("TCP6: inuse 3\n")), (9, 3));
        assert_eq!(tcp_memory(sockstat), 1233 * rustix::param::page_size() as u64);
    }

    #[test]
    fn connections_count_for_the_socket_that_listens_for_them() {
        let tcp = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000002 00:00000000 00000000  1000        0 77 1 0 100 0 0 10 0\n\
            1: 0100007F:1F90 0100007F:A001 01 00000000:00020000 00:00000000 00000000     0        0 0 1 0 20 4 0 10 -1\n\
            2: 0100007F:1F90 0100007F:A002 08 00000000:00000001 00:00000000 00000000     0        0 0 1 0 20 4 0 10 -1\n\
            3: 0100007F:1F90 0100007F:A003 01 00000000:00020000 00:00000000 00000000  1000        0 78 1 0 20 4 0 10 -1\n\
            4: 0100007F:A002 0100007F:1F90 05 00000000:00020000 00:00000000 00000000     0        0 0 1 0 20 4 0 10 -1\n\
            5: 0100007F:2000 0100007F:A004 01 00000000:00000000 00:00000000 00000000     0        0 0 1 0 20 4 0 10 -1\n";
        assert_eq!(unaccepted(tcp), HashMap::from([(77, 0x20000 + CONNECTION), (0, CONNECTION)]));
    }

    #[test]
    fn memory_that_falls_much_tcp_or_a_minute_is_worth_a_count() {
        let (mut seen, start) = (Seen::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let netlink = Some(Alarm::Netlink);
        assert_eq!(seen.alarm(10 * FALLEN, 0, at(0)), netlink, "nothing is known yet");
        assert_eq!(seen.alarm(10 * FALLEN - 1, 0, at(1)), None);
        assert_eq!(seen.alarm(11 * FALLEN, 0, at(2)), None, "somebody gave some back");
        assert_eq!(seen.alarm(10 * FALLEN, 0, at(3)), netlink, "it is less than it was");
        assert_eq!(seen.alarm(10 * FALLEN, MUCH_TCP, at(4)), None);
        assert_eq!(seen.alarm(10 * FALLEN, MUCH_TCP + 1, at(5)), Some(Alarm::NetlinkAndConnections));
        seen.rests_until = Some(at(10));
        assert_eq!(seen.alarm(0, MUCH_TCP + 1, at(9)), None);
        assert_eq!(seen.alarm(10 * FALLEN, 0, at(65)), netlink, "a minute is over");
    }
}
