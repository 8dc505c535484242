//! Namespaces and what is built with them: each kind is made, in a child that ends at once.

use std::io;

use cove_sys::probe::{in_child, leave};
use rustix::thread::UnshareFlags;

use super::{Finding, is_root};
use crate::network::{self, namespace};

const KINDS: [(&str, UnshareFlags, &str); 7] = [
    (
        "user namespaces",
        UnshareFlags::NEWUSER,
        "sandboxes have user ids of their own; their root is nobody on the host",
    ),
    ("mount namespaces", UnshareFlags::NEWNS, "sandboxes see their own files only"),
    ("pid namespaces", UnshareFlags::NEWPID, "sandboxes see their own processes only"),
    ("network namespaces", UnshareFlags::NEWNET, "sandboxes have a network of their own"),
    ("ipc namespaces", UnshareFlags::NEWIPC, "sandboxes share no memory segments and queues with the host"),
    ("uts namespaces", UnshareFlags::NEWUTS, "sandboxes have a host name of their own"),
    ("cgroup namespaces", UnshareFlags::NEWCGROUP, "sandboxes do not see the host's control groups"),
];

pub(super) fn examine() -> Vec<Finding> {
    let mut findings: Vec<Finding> = KINDS.iter().map(|(name, kind, means)| of_kind(name, *kind, means)).collect();
    findings.push(firewall());
    findings
}

fn of_kind(name: &str, kind: UnshareFlags, means: &str) -> Finding {
    // An ordinary user may make the others only within a user namespace of its own.
    let kind = if is_root() { kind } else { kind | UnshareFlags::NEWUSER };
    match in_child(|| leave(kind)) {
        Ok(()) => Finding::ok(name, means),
        Err(error) => Finding::missing(name, format!("refused by the kernel: {error}"), remedy(&error)),
    }
    .required()
}

pub(super) fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOSPC) => {
            "raise user.max_*_namespaces: sysctl -w user.max_user_namespaces=100000 (and the others)"
        }
        Some(rustix::io::Errno::INVAL) => {
            "a kernel built with CONFIG_NAMESPACES, CONFIG_USER_NS, CONFIG_PID_NS and CONFIG_NET_NS"
        }
        _ => {
            "run as root; as an ordinary user allow them: sysctl -w kernel.unprivileged_userns_clone=1 (Debian), \
             sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); in a container give it CAP_SYS_ADMIN"
        }
    }
}

/// The egress of a sandbox is an nft redirect within its own network namespace; the whole of it is made once.
pub(super) fn firewall() -> Finding {
    let name = "nftables";
    let made = if is_root() {
        namespace::create(namespace::Kind::Egress).map(drop).map_err(|error| error.to_string())
    } else {
        // The child returns only a number.
        super::ordinary::at_home(|| {
            namespace::create(namespace::Kind::Egress).map(drop).map_err(network::Error::into_io)
        })
        .map_err(|error| error.to_string())
    };
    match made {
        Ok(()) => Finding::ok(name, "sandboxes can have a network through the egress proxy"),
        Err(error) => Finding::missing(
            name,
            format!("sandboxes have no network beyond loopback: {error}"),
            "load the modules nf_tables, nft_chain_nat and nft_redir, or use a kernel that has them (CONFIG_NF_TABLES)",
        ),
    }
}
