//! A connection to a port of the sandbox, carried over the host's connection.
//!
//! Each side's end is passed on as an end and nothing more: a client that has sent everything may still be reading. The
//! pipe ends when both sides have ended, or when one of them fails.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use cove_protocol::{Failure, FailureKind, Reply};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::connection::Connection;
use crate::failure::{During, Result, from_errno, invalid};

/// A listener on loopback answers at once, or its queue is full.
const WITHIN: Duration = Duration::from_secs(10);

/// Bytes on their way in each direction.
const BUFFER: usize = 32 << 10;

pub fn dial(connection: &mut Connection, port: u16) -> Result<()> {
    if port == 0 {
        return Err(invalid("dial port 0: ports begin at 1"));
    }
    let stream = connect(port)?;
    let _ = stream.set_nodelay(true);
    connection.reply(&Reply::Done)?;
    stream.set_nonblocking(true).during("dial")?;
    connection.socket.set_nonblocking(true).during("dial")?;
    let host = &connection.socket;
    let mut inwards = Flow::default();
    let mut outwards = Flow::default();
    loop {
        let moved = inwards.step(&mut &*host, &mut &stream, || stream.shutdown(Shutdown::Write))?;
        let moved = outwards.step(&mut &stream, &mut &*host, || host.shutdown(Shutdown::Write))? || moved;
        if inwards.is_over() && outwards.is_over() {
            return Ok(());
        }
        if moved {
            continue;
        }
        let host_wants = inwards.wants_in() | outwards.wants_out();
        let stream_wants = outwards.wants_in() | inwards.wants_out();
        // A side that has ended in both directions says so again and again: it is asked only where something is
        // wanted of it. The host is also asked when it has nothing more to send, because its close is the end.
        let listens = !host_wants.is_empty() || inwards.is_over();
        let host_source = listens.then(|| PollFd::from_borrowed_fd(host.as_fd(), host_wants));
        let stream_source = (!stream_wants.is_empty()).then(|| PollFd::from_borrowed_fd(stream.as_fd(), stream_wants));
        let mut sources: Vec<_> = [host_source, stream_source].into_iter().flatten().collect();
        match poll(&mut sources, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(from_errno(errno, format!("carry port {port}"))),
        }
        let host_is_gone =
            sources.first().is_some_and(|source| source.revents().intersects(PollFlags::HUP | PollFlags::ERR));
        if listens && inwards.is_over() && host_is_gone {
            return Ok(());
        }
    }
}

/// IPv4 first: most servers listen there, and some only there.
fn connect(port: u16) -> Result<TcpStream> {
    let addresses = [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
    let mut refused = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, WITHIN) {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let error = refused.unwrap_or_else(|| io::ErrorKind::ConnectionRefused.into());
    let nothing = matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::TimedOut);
    if nothing {
        return Err(Failure::new(FailureKind::Refused, format!("dial port {port}: nothing listens there")));
    }
    Err(error).during(format!("dial port {port}"))
}

/// One direction.
#[derive(Default)]
struct Flow {
    buffer: Vec<u8>,
    sent: usize,
    /// The source has ended.
    ended: bool,
    /// The end was passed on, or the target has closed.
    closed: bool,
}

impl Flow {
    /// Moves what can be moved now. True if anything was.
    fn step(&mut self, from: &mut impl Read, to: &mut impl Write, close: impl Fn() -> io::Result<()>) -> Result<bool> {
        if self.closed {
            return Ok(false);
        }
        let mut moved = false;
        if !self.ended && self.sent == self.buffer.len() {
            self.buffer.resize(BUFFER, 0);
            let read = from.read(&mut self.buffer);
            self.sent = 0;
            match read {
                Ok(count) => {
                    self.ended = count == 0;
                    self.buffer.truncate(count);
                    moved = true;
                }
                Err(error) => {
                    self.buffer = Vec::new();
                    self.ended = !is_later(&error);
                }
            }
        }
        while self.sent < self.buffer.len() {
            match to.write(self.buffer.get(self.sent..).unwrap_or_default()) {
                Ok(count) => {
                    self.sent += count;
                    moved = true;
                }
                Err(error) if is_later(&error) => return Ok(moved),
                Err(_) => {
                    self.closed = true;
                    return Ok(true);
                }
            }
        }
        if self.ended {
            // Fails only if the other side is already gone.
            let _ = close();
            self.closed = true;
            moved = true;
        }
        Ok(moved)
    }

    fn wants_in(&self) -> PollFlags {
        if !self.ended && !self.closed && self.sent == self.buffer.len() { PollFlags::IN } else { PollFlags::empty() }
    }

    fn wants_out(&self) -> PollFlags {
        if !self.closed && self.sent < self.buffer.len() { PollFlags::OUT } else { PollFlags::empty() }
    }

    fn is_over(&self) -> bool {
        self.closed
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
