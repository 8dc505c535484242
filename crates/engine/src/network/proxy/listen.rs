//! Opens the proxy's sockets inside a sandbox's network namespace.
//!
//! A socket belongs to the namespace its maker was in, for good, whoever holds it: the sockets are made inside and served
//! from the host's. The thread that goes in ends there.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};

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

/// As many connections may wait to be looked at; beyond it the kernel lets the sandbox's connects wait.
const BACKLOG: i32 = 1024;

pub fn open(network: BorrowedFd<'_>) -> Result<Listening, Error> {
    namespace::within(network, || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connections = || {
            let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
            // Connections of an earlier server may linger on the port.
            set_socket_reuseaddr(&socket, true)?;
            bind(&socket, &PROXY)?;
            listen(&socket, BACKLOG)?;
            Ok::<_, Errno>(socket)
        };
        let questions = || {
            let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
            bind(&socket, &PROXY)?;
            Ok::<_, Errno>(socket)
        };
        Ok(Listening {
            connections: connections().map_err(|errno| Error::Listen(errno.into()))?,
            questions: questions().map_err(|errno| Error::Listen(errno.into()))?,
        })
    })
}
