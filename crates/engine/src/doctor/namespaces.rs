//! Namespaces and what is built with them: each kind is made, in a child that ends at once.

use std::fs;
use std::io;

use cove_sys::probe::{become_user, in_child, leave};
use rustix::thread::UnshareFlags;

use super::{Finding, is_root};
use crate::network::namespace;

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
    findings.push(unprivileged());
    findings.push(id_ranges());
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

fn remedy(error: &io::Error) -> &'static str {
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

/// Whether `cove run` works for ordinary users too. Having a user namespace is half of it: some distributions let one be made and
/// then give no rights in it.
fn unprivileged() -> Finding {
    let name = "unprivileged user namespaces";
    let attempt = in_child(|| {
        if is_root() {
            become_user(65_534)?;
        }
        leave(UnshareFlags::NEWUSER)?;
        leave(UnshareFlags::NEWNS)
    });
    match attempt {
        Ok(()) => Finding::ok(name, "the kernel would let users without root make them; the engine itself needs root"),
        Err(error) => Finding::weaker(name, format!("only root can run sandboxes: {error}"), remedy(&error)),
    }
}

/// More than one id for an ordinary user's sandbox takes setuid helpers and a range in /etc/subuid.
fn id_ranges() -> Finding {
    let name = "id ranges for users";
    let helpers = ["newuidmap", "newgidmap"].iter().all(|program| super::host::find_program(program).is_some());
    if !helpers {
        return Finding::weaker(
            name,
            "newuidmap is not installed: sandboxes of ordinary users have a single user id",
            "install newuidmap and newgidmap (Debian: apt-get install uidmap)",
        );
    }
    let user = rustix::process::getuid();
    if user.is_root() {
        return Finding::ok(name, "newuidmap is there for ordinary users; root needs none");
    }
    let names = user_names(user.as_raw());
    let listed = |path: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| line.split(':').next().is_some_and(|owner| names.iter().any(|name| name == owner)))
    };
    if listed("/etc/subuid") && listed("/etc/subgid") {
        Finding::ok(name, "this user has a range of ids for its sandboxes")
    } else {
        Finding::weaker(
            name,
            "this user has no range in /etc/subuid: its sandboxes have a single user id",
            format!("as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {}", names[0]),
        )
    }
}

/// As /etc/subuid may call a user: by name or by number.
fn user_names(user: u32) -> Vec<String> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name_of = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(user)).then(|| name.to_owned())
    };
    let mut names: Vec<String> = passwd.lines().filter_map(name_of).collect();
    names.push(user.to_string());
    names
}

/// The egress of a sandbox is an nft redirect within its own network namespace; the whole of it is made once.
fn firewall() -> Finding {
    let name = "nftables";
    if !is_root() {
        let detail = "not tried: an ordinary user's network namespaces are made with the sandbox";
        return Finding::weaker(name, detail, "run cove doctor as root to have it tried");
    }
    match namespace::create(namespace::Kind::Egress) {
        Ok(_) => Finding::ok(name, "sandboxes can have a network through the egress proxy"),
        Err(error) => Finding::missing(
            name,
            format!("sandboxes have no network beyond loopback: {error}"),
            "load the modules nf_tables, nft_chain_nat and nft_redir, or use a kernel that has them (CONFIG_NF_TABLES)",
        ),
    }
}
