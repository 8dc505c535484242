//! Opens the proxy's sockets inside a sandbox's network namespace.
//!
//! A socket always belongs to the namespace in which it was made: the sockets are made inside and served from the
//! host's. The thread that goes in ends there; for a namespace made ahead they are made with it.

use std::net::SocketAddrV4;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::network::error::Error;
use crate::network::namespace::{self, PROXY};

/// The sockets that serve one sandbox.
#[derive(Debug)]
pub struct Listening {
    /// Every TCP connection that leaves the sandbox arrives here.
    pub connections: OwnedFd,
    /// Every datagram to port 53 arrives here.
    pub questions: OwnedFd,
}

/// How many connections may wait; beyond it the kernel makes the sandbox's connects wait.
const BACKLOG: i32 = 1024;

pub fn open(network: BorrowedFd<'_>) -> Result<Listening, Error> {
    namespace::within(network, open_here)
}

/// In the network namespace of the calling thread.
pub fn open_here() -> Result<Listening, Error> {
    Ok(Listening {
        connections: bind(SocketType::STREAM, &PROXY, BACKLOG).map_err(|errno| Error::Listen(errno.into()))?,
        questions: bind(SocketType::DGRAM, &PROXY, 0).map_err(|errno| Error::Listen(errno.into()))?,
    })
}

/// A socket in the calling thread's network namespace, bound and, if it is a stream, listening.
fn bind(kind: SocketType, address: &SocketAddrV4, backlog: i32) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None)?;
    if kind == SocketType::STREAM {
        // Connections of an earlier server may linger on the port.
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    rustix::net::bind(&socket, address)?;
    if kind == SocketType::STREAM {
        rustix::net::listen(&socket, backlog)?;
    }
    Ok(socket)
}
