//! Opens the proxy's sockets inside a sandbox's network namespace.
//!
//! A socket belongs to the namespace its maker was in, for good, whoever holds it: the sockets are made inside and served
//! from the host's. The thread that goes in ends there.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use cove_sys::network_envoy::{Step, bind};
use rustix::net::SocketType;

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
        Ok(Listening {
            connections: bind(SocketType::STREAM, &PROXY, BACKLOG).map_err(|errno| Error::Listen(errno.into()))?,
            questions: bind(SocketType::DGRAM, &PROXY, 0).map_err(|errno| Error::Listen(errno.into()))?,
        })
    })
}

/// The same in a network namespace that belongs to a user namespace of an ordinary user.
pub fn open_within(user: BorrowedFd<'_>, network: BorrowedFd<'_>) -> Result<Listening, Error> {
    let bind = |kind, backlog| Step::Bind { kind, address: PROXY, backlog };
    let brought = namespace::dispatch(
        user,
        vec![
            (Step::Join(network), "enter"),
            (bind(SocketType::STREAM, BACKLOG), "open the egress proxy's listener in"),
            (bind(SocketType::DGRAM, 0), "open the egress proxy's resolver in"),
        ],
    )?;
    let sockets: [OwnedFd; 2] = brought.try_into().map_err(|_| Error::Listen(io::ErrorKind::NotFound.into()))?;
    let [connections, questions] = sockets;
    Ok(Listening { connections, questions })
}
