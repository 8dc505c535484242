//! What a test needs of the machine.
//!
//! A test that returns early because something is missing looks like a test that passed. So a missing need fails the
//! test. Only `COVE_ALLOW_SKIP` turns the failure into a skip, need by need (`COVE_ALLOW_SKIP=cgroup-v1,postgresql`, or
//! `all`). Every skip is written to the file that `COVE_SKIPPED` names; `scripts/test` counts and lists them.

use std::fmt::{self, Display};
use std::fs::File;
use std::io::Write as _;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    Root,
    /// Control groups with controllers, v1 or v2.
    ControlGroups,
    /// The controllers are in v1 trees.
    ControlGroupsV1,
    /// A v2 tree without controllers: what stands beside v1 trees.
    BareControlGroupsV2,
    /// `/dev/kmsg` can be read.
    KernelLog,
    /// The engine can make its btrfs pool: root, loop devices, `mkfs.btrfs`.
    Pool,
    PostgreSql,
    /// A Docker daemon: root, and the packages `docker.io` and `containerd` of a Debian.
    Docker,
    /// Filesystems of our own on loop devices: root, `mkfs.ext4`, and `mkfs.xfs` or `mkfs.btrfs`.
    Disks,
    Npm,
    AptGet,
    TwoProcessors,
    Ipv6,
    /// The temporary directory keeps extended attributes.
    FileAttributes,
}

impl Need {
    /// As it stands in `COVE_ALLOW_SKIP`.
    fn word(self) -> &'static str {
        match self {
            Need::Root => "root",
            Need::ControlGroups => "cgroup",
            Need::ControlGroupsV1 => "cgroup-v1",
            Need::BareControlGroupsV2 => "cgroup-v2-bare",
            Need::KernelLog => "kernel-log",
            Need::Pool => "pool",
            Need::PostgreSql => "postgresql",
            Need::Docker => "docker",
            Need::Disks => "disks",
            Need::Npm => "npm",
            Need::AptGet => "apt-get",
            Need::TwoProcessors => "two-processors",
            Need::Ipv6 => "ipv6",
            Need::FileAttributes => "file-attributes",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Need::Root => "run the tests as root",
            Need::Docker => "tests/images/run.sh prepare unpacks it",
            Need::PostgreSql | Need::Pool | Need::Disks | Need::Npm => "scripts/setup test installs it",
            Need::ControlGroups
            | Need::ControlGroupsV1
            | Need::BareControlGroupsV2
            | Need::KernelLog
            | Need::AptGet
            | Need::TwoProcessors
            | Need::Ipv6
            | Need::FileAttributes => "run the test on a machine that has it",
        }
    }
}

impl Display for Need {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.word())
    }
}

/// Skips the calling test, which returns right after. `why` says what was found instead.
///
/// # Panics
/// If `COVE_ALLOW_SKIP` does not list the need.
pub fn skip(need: Need, why: impl Display) {
    let allowed = std::env::var("COVE_ALLOW_SKIP").unwrap_or_default();
    assert!(
        allows(&allowed, need),
        "this test needs {need}: {why}\nhint: {}, or skip such tests with COVE_ALLOW_SKIP={need}",
        need.remedy()
    );
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    println!("skipped: {name} needs {need}: {why}");
    if let Some(path) = std::env::var_os("COVE_SKIPPED") {
        let mut list = File::options().append(true).create(true).open(path).expect("open the list of skips");
        // One write: tests of other processes append at the same time.
        list.write_all(format!("{name} needs {need}: {why}\n").as_bytes()).expect("list the skip");
    }
}

/// Whether the test may go on. `false` only where a skip is allowed.
///
/// # Panics
/// As [`skip`] does.
#[must_use]
pub fn root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip(Need::Root, "the tests run as an ordinary user");
    }
    root
}

fn allows(list: &str, need: Need) -> bool {
    list.split(',').map(str::trim).any(|word| word == "all" || word == need.word())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_may_be_skipped() {
        assert!(!allows("", Need::Root));
        assert!(!allows("cgroup-v1, postgresql", Need::ControlGroups));
        assert!(allows("cgroup-v1, postgresql", Need::PostgreSql));
        assert!(allows("all", Need::Ipv6));
    }
}
