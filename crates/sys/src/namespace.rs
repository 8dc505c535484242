//! unshare(2) and setns(2) for the caller's thread.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::{Errno, Result};
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

/// A secret by which a seccomp filter recognises a setns(2) into a user namespace and allows it, and no other. It is in
/// the upper halves of the two arguments, of which the kernel reads only 32 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u32; 2]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// The number of setns(2) on this machine.
    pub const CALL: u32 = libc::SYS_setns as u32;

    pub fn new() -> Result<Secret> {
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        let [a, b, c, d, e, f, g, h] = bytes;
        // Never 0, which is what a caller without a secret has there.
        Ok(Secret([u32::from_ne_bytes([a, b, c, d]) | 1, u32::from_ne_bytes([e, f, g, h]) | 1]))
    }

    /// Of the descriptor and of the kind.
    pub fn halves(self) -> [u32; 2] {
        self.0
    }

    /// What the kind must be.
    pub fn kind(self) -> u32 {
        libc::CLONE_NEWUSER.cast_unsigned()
    }

    /// Enters a user namespace past the filter.
    pub fn enter(self, namespace: BorrowedFd<'_>) -> Result<()> {
        let [first, second] = self.0.map(|half| i64::from(half) << 32);
        let (descriptor, kind) = (first | i64::from(namespace.as_raw_fd()), second | i64::from(self.kind()));
        // SAFETY: setns(2) takes two numbers and no pointer; the descriptor is open across the call.
        let result = unsafe { libc::syscall(libc::SYS_setns, descriptor, kind) };
        if result == 0 {
            Ok(())
        } else {
            Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
        }
    }
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

/// The user namespace in which `namespace`, another one, was made. `EPERM` if that is outside of the caller's own.
pub fn parent(namespace: BorrowedFd<'_>) -> Result<OwnedFd> {
    // SAFETY: opcode and output are right for a descriptor of a user namespace; for any other the kernel answers with an
    // error and opens nothing.
    unsafe { rustix::ioctl::ioctl(namespace, Parent) }
}
