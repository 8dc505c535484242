//! A network namespace that is ready before a sandbox needs it: the pool makes them ahead, entering one takes microseconds.
//!
//! It is made by a thread that lives for nothing else. A thread that has left the host's network must never do other
//! work, and the surest way back is not to need one: the thread ends, the file descriptor keeps the namespace.

use std::io;
use std::os::fd::OwnedFd;
use std::thread;

use cove_sys::network_namespace::unshare_network;

use super::error::Error;
use super::netlink::{self, Batch, Socket};

/// What a sandbox's network can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Talks to itself only.
    Loopback,
    /// Everything that leaves is handed to the egress proxy.
    Egress,
}

/// Makes a namespace with its loopback device up. It belongs to the caller's user namespace, so that not even root of a
/// sandbox's user namespace can change it.
pub fn create(kind: Kind) -> Result<OwnedFd, Error> {
    in_thread_of_its_own(move || {
        unshare_network().map_err(Error::step("make a network namespace"))?;
        set_up(kind)?;
        current().map_err(Error::step("open the new network namespace"))
    })
}

/// The namespace the calling thread is in.
fn current() -> io::Result<OwnedFd> {
    Ok(std::fs::File::open("/proc/thread-self/ns/net")?.into())
}

fn set_up(_kind: Kind) -> Result<(), Error> {
    let mut batch = Batch::default();
    netlink::loopback_up(&mut batch);
    let socket = Socket::route().map_err(Error::step("open a route socket"))?;
    socket.execute(&batch).map_err(Error::step("bring the loopback device up"))
}

fn in_thread_of_its_own<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("cove-netns".into()).stack_size(128 * 1024);
        let thread = thread.spawn_scoped(scope, work).map_err(Error::step("start a thread for a network namespace"))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
