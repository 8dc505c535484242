//! Netlink requests to the kernel: sends messages and waits for every answer. Allocates nothing, so that a forked child
//! may use it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

/// The part of the kernel that is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subsystem {
    Route,
    Netfilter,
}

/// Opens a socket to the network namespace that the calling thread is in.
pub fn open(subsystem: Subsystem) -> Result<OwnedFd, Errno> {
    let protocol = match subsystem {
        Subsystem::Route => None,
        Subsystem::Netfilter => Some(netlink::NETFILTER),
    };
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    // The kernel answers within the call; the limit keeps even a kernel bug from hanging a launch.
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(10)))?;
    Ok(socket)
}

pub fn send(socket: impl AsFd, messages: &[u8]) -> Result<(), Errno> {
    sendto(socket, messages, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).map(|_| ())
}

/// Sends messages and waits for as many answers as they ask for; the first refusal is the result.
pub fn execute(socket: impl AsFd, messages: &[u8], mut answers: u32) -> Result<(), Errno> {
    send(&socket, messages)?;
    let mut refused = None;
    let mut buffer = [0u8; 8192];
    while answers > 0 {
        let (length, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        for answer in Answers(&buffer[..length]) {
            if let Some(outcome) = answer.outcome() {
                answers = answers.saturating_sub(1);
                refused = refused.or(outcome.err());
            }
        }
    }
    refused.map_or(Ok(()), Err)
}

/// A message of the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    pub kind: u16,
    pub sequence: u32,
    pub body: &'a [u8],
}

impl Answer<'_> {
    /// The result of a request; `None` for a message that carries data.
    pub fn outcome(&self) -> Option<Result<(), Errno>> {
        const ERROR: u16 = 2;
        if self.kind != ERROR {
            return None;
        }
        let code = self.body.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
        Some(if code == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(-code)) })
    }
}

/// The messages in a datagram of the kernel.
#[derive(Debug)]
pub struct Answers<'a>(pub &'a [u8]);

impl<'a> Iterator for Answers<'a> {
    type Item = Answer<'a>;

    fn next(&mut self) -> Option<Answer<'a>> {
        const HEADER: usize = 16;
        let header = self.0.first_chunk::<HEADER>()?;
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let sequence = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
        let body = self.0.get(HEADER..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Answer { kind, sequence, body })
    }
}
