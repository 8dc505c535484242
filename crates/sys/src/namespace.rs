//! unshare(2) and setns(2) for the caller's thread.

use std::os::fd::BorrowedFd;

use rustix::io::Result;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// A kind of namespace that can be left for a new one or entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    User,
    Mount,
    Network,
    Cgroup,
}

/// Leaves the caller's namespace for a new one. Only the calling thread moves (for `User` and `Mount` the kernel wants
/// a process with one thread).
pub fn unshare(kind: Kind) -> Result<()> {
    let flag = match kind {
        Kind::User => UnshareFlags::NEWUSER,
        Kind::Mount => UnshareFlags::NEWNS,
        Kind::Network => UnshareFlags::NEWNET,
        Kind::Cgroup => UnshareFlags::NEWCGROUP,
    };
    // SAFETY: unsafe only for CLONE_FILES, which would make descriptors of other threads dangle; it is never given.
    unsafe { rustix::thread::unshare_unsafe(flag) }
}

/// Enters the namespace that `namespace` is open on.
pub fn enter(namespace: BorrowedFd<'_>, kind: Kind) -> Result<()> {
    let kind = match kind {
        Kind::User => LinkNameSpaceType::User,
        Kind::Mount => LinkNameSpaceType::Mount,
        Kind::Network => LinkNameSpaceType::Network,
        Kind::Cgroup => LinkNameSpaceType::ControlGroup,
    };
    rustix::thread::move_into_link_name_space(namespace, Some(kind))
}
