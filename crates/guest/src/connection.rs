//! One connection from the host: one operation.
//!
//! The socket is blocking; a thread serves it from the request to the end. A failed send means that the host is gone;
//! the operation then ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cove_protocol::frame::{self, Frame, FrameError, Kind, Reader};
use cove_protocol::{Event, Failure, FailureKind, MAX_PAYLOAD, Reply, Request};
use rustix::event::{PollFd, PollFlags, poll};

use crate::failure::Result;
use crate::token::Token;

/// How long a host may take to say what it wants.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);

/// How long the rest of a refused upload is read and dropped, so that the host gets to read the reason.
const DRAIN_WITHIN: Duration = Duration::from_secs(30);

pub struct Connection {
    pub socket: UnixStream,
    uploaded: Reader,
}

impl Connection {
    pub fn new(socket: UnixStream) -> Self {
        Connection { socket, uploaded: Reader::default() }
    }

    /// The first frame, after the token where the guest has one. `None` when the host closed without a request or sent none
    /// in time.
    pub fn request(&mut self, token: Option<&Token>) -> Result<Option<Request>> {
        self.request_within(REQUEST_WITHIN, token)
    }

    pub fn request_within(&mut self, limit: Duration, token: Option<&Token>) -> Result<Option<Request>> {
        let _ = self.socket.set_read_timeout(Some(limit));
        if let Some(token) = token {
            match self.first()? {
                None => return Ok(None),
                Some(frame) if frame.kind == Kind::Token && token.is(&frame.payload) => {}
                Some(_) => {
                    return Err(Failure::new(FailureKind::PermissionDenied, "the token of this sandbox is wanted"));
                }
            }
        }
        let Some(frame) = self.first()? else { return Ok(None) };
        let _ = self.socket.set_read_timeout(None);
        if frame.kind != Kind::Request {
            return Err(bad_frame(&FrameError::Unexpected { expected: "request", got: frame.kind }));
        }
        match frame.parse() {
            Ok(request) => Ok(Some(request)),
            Err(error) => Err(unknown_or_malformed(&frame, &error)),
        }
    }

    /// The next frame; `None` at the end of the connection, or where none comes in time.
    fn first(&mut self) -> Result<Option<Frame>> {
        match self.receive() {
            Err(failure) if failure.kind == FailureKind::Exhausted => Ok(None),
            other => other,
        }
    }

    /// The next frame; `None` at the end of the connection.
    pub fn receive(&mut self) -> Result<Option<Frame>> {
        match frame::read(&mut self.socket) {
            Ok(frame) => Ok(frame),
            Err(FrameError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(Failure::new(FailureKind::Exhausted, "the host said nothing in time"))
            }
            Err(error) => Err(bad_frame(&error)),
        }
    }

    /// The next bytes of an upload, there until the next call; `None` at its End. A close before that is a failure:
    /// half is not the whole.
    pub fn data(&mut self) -> Result<Option<&[u8]>> {
        match self.uploaded.next(&mut self.socket).map_err(|error| bad_frame(&error))? {
            Some((Kind::Data, bytes)) => Ok(Some(bytes)),
            Some((Kind::End, _)) => Ok(None),
            Some((got, _)) => Err(bad_frame(&FrameError::Unexpected { expected: "data", got })),
            None => Err(bad_frame(&FrameError::Truncated)),
        }
    }

    pub fn reply(&mut self, reply: &Reply) -> Result<()> {
        self.send_json(Kind::Reply, reply)
    }

    pub fn event(&mut self, event: &Event) -> Result<()> {
        self.send_json(Kind::Event, event)
    }

    pub fn end(&mut self) -> Result<()> {
        self.send(Kind::End, &[])
    }

    pub fn send(&mut self, kind: Kind, payload: &[u8]) -> Result<()> {
        frame::write(&mut self.socket, kind, payload).map_err(|error| gone(&error))
    }

    fn send_json(&mut self, kind: Kind, message: &impl serde::Serialize) -> Result<()> {
        let frame = Frame::json(kind, message);
        if frame.payload.len() > MAX_PAYLOAD {
            return Err(Failure::new(FailureKind::Exhausted, "the answer is too long for one frame"));
        }
        self.send(kind, &frame.payload)
    }

    /// Reports the failure to the host, then reads on until the host has noticed.
    pub fn fail(mut self, failure: &Failure) {
        if frame::write_json(&mut self.socket, Kind::Failure, failure).is_err() {
            return;
        }
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
        let _ = self.socket.set_read_timeout(Some(DRAIN_WITHIN));
        while let Ok(Some(frame)) = frame::read(&mut self.socket) {
            if frame.kind == Kind::End {
                return;
            }
        }
    }

    /// Reports the failure to the host and ends.
    pub fn refuse(mut self, failure: &Failure) {
        let _ = frame::write_json(&mut self.socket, Kind::Failure, failure);
    }

    /// Whether the host has closed: checked between the steps of long work that sends nothing.
    pub fn is_gone(&self) -> bool {
        let mut sockets = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut sockets, Some(&now)), Ok(1..))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn bad_frame(error: &FrameError) -> Failure {
    Failure::new(FailureKind::InvalidArgument, error.to_string())
}

fn gone(error: &FrameError) -> Failure {
    Failure::new(FailureKind::WrongState, format!("the host went away: {error}"))
}

/// A request with an unknown `op` comes from a newer host.
fn unknown_or_malformed(frame: &Frame, error: &FrameError) -> Failure {
    let text = error.to_string();
    let kind = if text.contains("unknown variant") && frame.payload.len() <= MAX_PAYLOAD {
        FailureKind::Unsupported
    } else {
        FailureKind::InvalidArgument
    };
    Failure::new(kind, text)
}
