//! A network namespace that is ready before a sandbox needs it: the pool makes them ahead, entering one takes microseconds.
//!
//! It is made by a thread that lives for nothing else. A thread that has left the host's network must never do other
//! work, and the surest way back is not to need one: the thread ends, the file descriptor keeps the namespace.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use cove_sys::netlink::Subsystem;
use cove_sys::network_namespace::unshare_network;
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::error::Error;
use super::firewall::{self, Ipv6};
use super::netlink::{self, Batch, Socket};
use super::proxy::listen::{self, Listening};
use crate::privilege::{self, Ids, Privilege};
use crate::settings::Settings;
use crate::user_namespace::write_beneath;

/// What a sandbox's network can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Talks to itself only.
    Loopback,
    /// Everything that leaves is handed to the egress proxy.
    Egress,
}

/// The sandbox's own address. Connections leave from it: with 127.0.0.1 as their source the kernel would drop what follows
/// the handshake.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 2);

/// What `/etc/resolv.conf` inside should name. Any address would do: every question to port 53 is answered by the proxy.
pub const RESOLVER: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);

/// Where the proxy listens inside. No program asks for this port, and no process of the sandbox may take it, not even
/// while the server is away: see [`FIRST_OPEN_PORT`].
pub(super) const PROXY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 200, 0, 1), 1);

/// Ports from here on can be bound by anybody inside, as in a container: a web server on 80 needs no root. Only the
/// proxy's port is below it.
const FIRST_OPEN_PORT: &str = "2";

/// A namespace, and the proxy's sockets in it where it has egress.
#[derive(Debug)]
pub struct Ready {
    pub namespace: OwnedFd,
    pub listening: Option<Listening>,
}

/// As [`create`], with the proxy's sockets open, so that a launch need not enter the namespace.
pub fn make_ready(kind: Kind) -> Result<Ready, Error> {
    in_thread_of_its_own(move || {
        let namespace = create_here(kind)?;
        let listening = match kind {
            Kind::Loopback => None,
            Kind::Egress => Some(listen::open_here()?),
        };
        Ok(Ready { namespace, listening })
    })
}

/// Makes a namespace with its loopback device up. It belongs to the caller's user namespace, so that not even root of a
/// sandbox's user namespace can change it.
pub fn create(kind: Kind) -> Result<OwnedFd, Error> {
    in_thread_of_its_own(move || create_here(kind))
}

/// Makes a namespace of somebody else's, which has a loopback device and nothing else, one for egress, as [`create`] makes a
/// new one. Once for each namespace: what is there already is an error. Nobody inside may have CAP_NET_ADMIN.
pub fn adopt(network: BorrowedFd<'_>) -> Result<(), Error> {
    within(network, || set_up(Kind::Egress))
}

/// The calling thread stays in it.
fn create_here(kind: Kind) -> Result<OwnedFd, Error> {
    unshare_network().map_err(Error::step("make a network namespace"))?;
    set_up(kind)?;
    current().map_err(Error::step("open the new network namespace"))
}

/// Does something inside a namespace, by a thread that ends with it.
pub(super) fn within<T: Send>(
    network: BorrowedFd<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    in_thread_of_its_own(|| {
        move_into_link_name_space(network, Some(LinkNameSpaceType::Network))
            .map_err(|errno| Error::Step { step: "enter a sandbox's network namespace", source: errno.into() })?;
        work()
    })
}

/// The namespace the calling thread is in.
fn current() -> io::Result<OwnedFd> {
    Ok(File::open("/proc/thread-self/ns/net")?.into())
}

fn set_up(kind: Kind) -> Result<(), Error> {
    let route = Socket::open(Subsystem::Route).map_err(Error::step("open a route socket"))?;
    route.execute(&devices(kind)).map_err(Error::step("set up the loopback device and its routes"))?;
    if kind == Kind::Egress {
        let netfilter = Socket::open(Subsystem::Netfilter).map_err(Error::Firewall)?;
        netfilter.execute(&firewall(ipv6())).map_err(Error::Firewall)?;
    }
    let proc = proc().map_err(Error::step("open /proc"))?;
    for (name, value) in settings() {
        match write_beneath(proc.as_fd(), name, value).map_err(|refused| Errno::from_raw_os_error(refused.errno)) {
            // A container's /proc/sys is read-only, a kernel without connection tracking has no limits for it, and some
            // of them are not an ordinary user's to set.
            Err(Errno::ROFS | Errno::NOENT | Errno::ACCESS | Errno::PERM) => {}
            result => result.map_err(io::Error::from).map_err(Error::step("set the limits of a network namespace"))?,
        }
    }
    Ok(())
}

fn proc() -> io::Result<Arc<OwnedFd>> {
    static SETTINGS: Mutex<Option<Settings>> = Mutex::new(None);
    let mut settings = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let settings = match &mut *settings {
        Some(settings) => settings,
        none => none.insert(Settings::new(File::open("/proc")?.into())),
    };
    Ok(settings.proc())
}

/// Settings of the namespace. None of them is part of the wall: where they cannot be made, a sandbox has less comfort and may use
/// more of the kernel's memory.
fn settings() -> [(&'static str, &'static str); 8] {
    // `ping` to oneself without raw sockets, for all groups that this user namespace knows.
    static GROUPS: OnceLock<&str> = OnceLock::new();
    let groups = GROUPS.get_or_init(|| match privilege::held() {
        Some(Privilege::Root) => "0 2147483647",
        Some(Privilege::User(Ids::Range)) => "0 65535",
        Some(Privilege::User(Ids::Single)) | None => "0 0",
    });
    [
        ("sys/net/ipv4/ip_unprivileged_port_start", FIRST_OPEN_PORT),
        ("sys/net/ipv4/ping_group_range", groups),
        // Buffers of the kernel's, which no cgroup of the sandbox pays for. Nothing inside is far away: these are large enough.
        ("sys/net/ipv4/tcp_rmem", "4096 131072 1048576"),
        ("sys/net/ipv4/tcp_wmem", "4096 65536 1048576"),
        // Options of one socket, memberships in groups for example: no cgroup pays for them either. The kernel's own number until
        // Linux 6.8, which raised it and has one for each namespace.
        ("sys/net/core/optmem_max", "20480"),
        // What is remembered of finished connections; by default 32 MiB.
        ("sys/net/ipv4/tcp_max_tw_buckets", "16384"),
        // Finished connections are dropped from tracking soon.
        ("sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait", "5"),
        ("sys/net/netfilter/nf_conntrack_udp_timeout", "10"),
    ]
}

fn devices(kind: Kind) -> Batch {
    let mut batch = Batch::default();
    netlink::loopback_up(&mut batch);
    if kind == Kind::Egress {
        netlink::loopback_address(&mut batch, ADDRESS);
        netlink::default_over_loopback(&mut batch, ADDRESS);
    }
    batch
}

fn firewall(ipv6: Ipv6) -> Batch {
    firewall::redirect_everything(ADDRESS, PROXY, ipv6)
}

fn ipv6() -> Ipv6 {
    if Path::new("/proc/net/if_inet6").exists() { Ipv6::Present } else { Ipv6::Absent }
}

fn in_thread_of_its_own<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("cove-netns".into()).stack_size(128 * 1024);
        let thread = thread.spawn_scoped(scope, work).map_err(Error::step("start a thread for a network namespace"))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
