//! A connection to the guest that never blocks: bytes gather until a frame is whole, and wait until the socket takes
//! them.
//!
//! The sandbox's code may hold the other end. What it sends is bounded by the frame limit, and a guest that stops
//! reading or writing stalls only its own streams, never the signals and timers of the loop that owns this.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use cove_protocol::frame::{self, BULK};
use cove_protocol::{Failure, Frame, FrameError, Kind, Reply, Request};

pub struct Connection {
    stream: UnixStream,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    closed: bool,
}

impl Connection {
    /// Connects and queues the request.
    pub fn open(socket: &Path, request: &Request) -> io::Result<Connection> {
        let stream = UnixStream::connect(socket)?;
        stream.set_nonblocking(true)?;
        let mut connection = Connection { stream, incoming: Vec::new(), outgoing: Vec::new(), closed: false };
        connection.queue(Frame::json(Kind::Request, request));
        connection.flush()?;
        Ok(connection)
    }

    pub fn queue(&mut self, frame: Frame) {
        frame::write(&mut self.outgoing, frame.kind, &frame.payload).expect("our own frames keep the limit");
    }

    /// Room for more standard input: what waits already has been taken.
    pub fn takes_more(&self) -> bool {
        self.outgoing.is_empty()
    }

    pub fn has_more_to_send(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Sends what the socket takes now. A guest that is gone shows on the reading side, where its last words are.
    pub fn flush(&mut self) -> io::Result<()> {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.outgoing.clear(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what is there, at most one bulk's worth.
    pub fn fill(&mut self) -> io::Result<()> {
        let mut buffer = [0u8; BULK];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.closed = true,
            Ok(count) => self.incoming.extend_from_slice(&buffer[..count]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => self.closed = true,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The next whole frame, if one has come.
    pub fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((frame, length)) = frame::split(&self.incoming)? else { return Ok(None) };
        self.incoming.drain(..length);
        Ok(Some(frame))
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Why a call to the guest brought no reply.
#[derive(Debug)]
pub enum CallError {
    Failed(Failure),
    Lost(String),
}

/// Asks one question and waits for the answer, but not for ever.
pub fn call(socket: &Path, request: &Request) -> Result<Reply, CallError> {
    ask(socket, request, None)
}

/// The same, with bytes that follow the question.
pub fn send(socket: &Path, request: &Request, bytes: &[u8]) -> Result<Reply, CallError> {
    ask(socket, request, Some(bytes))
}

fn ask(socket: &Path, request: &Request, bytes: Option<&[u8]>) -> Result<Reply, CallError> {
    const WITHIN: Duration = Duration::from_secs(10);
    let lost = |error: &dyn std::fmt::Display| CallError::Lost(error.to_string());
    let mut stream = UnixStream::connect(socket).map_err(|error| lost(&error))?;
    stream.set_read_timeout(Some(WITHIN)).map_err(|error| lost(&error))?;
    frame::write_json(&mut stream, Kind::Request, request).map_err(|error| lost(&error))?;
    if let Some(bytes) = bytes {
        let sent =
            frame::write(&mut stream, Kind::Data, bytes).and_then(|()| frame::write(&mut stream, Kind::End, &[]));
        sent.map_err(|error| lost(&error))?;
    }
    match frame::read(&mut stream).map_err(|error| lost(&error))? {
        Some(frame) if frame.kind == Kind::Reply => frame.parse().map_err(|error| lost(&error)),
        Some(frame) if frame.kind == Kind::Failure => {
            Err(CallError::Failed(frame.parse().map_err(|error| lost(&error))?))
        }
        Some(frame) => Err(lost(&FrameError::Unexpected { expected: "reply", got: frame.kind })),
        None => Err(CallError::Lost("closed without an answer".into())),
    }
}
