//! unshare(2) and setns(2) for the caller's thread.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

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

/// `NS_GET_PARENT` of ioctl_nsfs(2): `_IO(0xb7, 0x2)`.
const GET_PARENT: rustix::ioctl::Opcode = 0xb702;

struct Parent;

// SAFETY: the call takes no argument and answers with a new descriptor, which `output_from_ptr` takes as its own.
unsafe impl rustix::ioctl::Ioctl for Parent {
    type Output = OwnedFd;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> rustix::ioctl::Opcode {
        GET_PARENT
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: rustix::ioctl::IoctlOutput, _argument: *mut std::ffi::c_void) -> Result<OwnedFd> {
        // SAFETY: the kernel has just opened it for this call; nobody else knows its number.
        Ok(unsafe { OwnedFd::from_raw_fd(out) })
    }
}

/// The user namespace in which `namespace`, another one, was made. `EPERM` where that lies outside of the caller's own.
pub fn parent(namespace: BorrowedFd<'_>) -> Result<OwnedFd> {
    // SAFETY: opcode and output are right for a descriptor of a user namespace; for any other the kernel answers with an
    // error and opens nothing.
    unsafe { rustix::ioctl::ioctl(namespace, Parent) }
}
