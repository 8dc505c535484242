//! Moves a thread into a new, empty network namespace.
//!
//! Joining an existing one needs no unsafe (`rustix::thread::move_into_link_name_space`).

use std::io;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Gives the calling thread, and no other, a network namespace of its own. It has only a loopback device, which is
/// down.
///
/// The namespace belongs to the user namespace the thread is in: a process without `CAP_NET_ADMIN` *there* cannot
/// change it.
pub fn unshare_network() -> io::Result<()> {
    // SAFETY: the call is unsafe for `CLONE_FILES` alone, which takes file descriptors away from other threads' sight; that
    // flag is not given.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(io::Error::from)
}
