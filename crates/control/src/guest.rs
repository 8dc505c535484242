//! Talking to the daemon inside a sandbox.
//!
//! A [`Guest`] is cheap to clone and has no connection: every call asks its [`Connect`] for a new one, because one
//! connection is one operation. The answer comes from the sandbox, and the sandbox is hostile: replies are bounded by
//! the frame limit and by a time limit, and an answer of the wrong kind is an error, never a panic.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cove_protocol::frame::{self, BULK, FILE_BULK};
use cove_protocol::process::Command;
use cove_protocol::{Control, Event, Failure, FailureKind, Frame, FrameError, Kind, Reply, Request};
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};

use crate::activity::{Attendance, Presence};
use crate::noted::Noted;

/// A connection to a guest, whatever carries it.
pub trait Pipe: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Pipe for T {}

/// Opens connections to one guest.
#[async_trait]
pub trait Connect: Send + Sync {
    async fn connect(&self) -> Result<Box<dyn Pipe>, GuestError>;
}

/// How long a guest may take to answer a simple request. Streams have no limit of their own.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The guest could not be reached: it does not run, or is ending.
    #[error("sandbox cannot be reached: {0}")]
    Unreachable(String),
    /// The guest refused.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The guest broke the protocol.
    #[error("sandbox broke the protocol: {0}")]
    Protocol(String),
    #[error("sandbox did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
}

impl From<FrameError> for GuestError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Io(error) => GuestError::Unreachable(error.to_string()),
            FrameError::Truncated => GuestError::Unreachable("connection closed".into()),
            error => GuestError::Protocol(error.to_string()),
        }
    }
}

/// Says no where there is no room for what a request would bring.
pub type Room = Arc<dyn Fn() -> Result<(), crate::Error> + Send + Sync>;

/// Is done before a command, which it is told, is started; says no where that must not be.
pub type Before = Arc<dyn Fn(&str) -> BoxFuture<'static, Result<(), crate::Error>> + Send + Sync>;

/// Is told how long each start of a command took up to its first answer, and how it failed.
pub type Told = Arc<dyn Fn(Duration, Option<&GuestError>) + Send + Sync>;

#[derive(Clone)]
pub struct Guest {
    connect: Arc<dyn Connect>,
    /// Where requests count as activity.
    attendance: Option<Attendance>,
    room: Option<Room>,
    before: Option<Before>,
    told: Option<Told>,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guest")
    }
}

impl Guest {
    pub fn new(connect: Arc<dyn Connect>) -> Self {
        Guest { connect, attendance: None, room: None, before: None, told: None }
    }

    /// The same, with its requests counted as activity for as long as they take.
    pub fn attended(self, attendance: Attendance) -> Self {
        Guest { attendance: Some(attendance), ..self }
    }

    /// Files that are sent to it are refused where the room is not there.
    pub fn within(self, room: Room) -> Self {
        Guest { room: Some(room), ..self }
    }

    /// The same, with something that is done before each command that is started.
    pub fn preceded(self, before: Before) -> Self {
        Guest { before: Some(before), ..self }
    }

    /// The same, with somebody who is told of each start of a command.
    pub fn telling(self, told: Told) -> Self {
        Guest { told: Some(told), ..self }
    }

    /// The same for processes of the server's own, which are nobody's commands.
    pub fn unpreceded(&self) -> Self {
        Guest { before: None, ..self.clone() }
    }

    /// Does what is to be done before a command. A start does so by itself; whoever has code run in a process that runs already
    /// calls this first.
    pub async fn precede(&self, command: &str) -> Result<(), GuestError> {
        let Some(before) = &self.before else { return Ok(()) };
        before(command).await.map_err(|error| Failure::new(FailureKind::Exhausted, error.to_string()).into())
    }

    /// Sends the request and reads the one reply.
    pub async fn call(&self, request: &Request) -> Result<Reply, GuestError> {
        self.prepare(request).await?;
        tokio::time::timeout(ANSWER_WITHIN, async {
            let mut operation = self.begin(request).await?;
            operation.reply().await
        })
        .await
        .map_err(|_| GuestError::Timeout(ANSWER_WITHIN))?
    }

    /// Sends the request; [`Operation::reply`] reads the reply later. For requests whose data comes before the reply
    /// (`Write`, `TarIn`, `Input`).
    pub async fn send(&self, request: &Request) -> Result<Operation, GuestError> {
        self.prepare(request).await?;
        self.begin(request).await
    }

    /// What this side has to do first, however long that takes: the guest has not been asked yet.
    async fn prepare(&self, request: &Request) -> Result<(), GuestError> {
        match request {
            Request::Write { .. } | Request::TarIn { .. } => {
                let room = self.room.as_ref().map_or(Ok(()), |room| room());
                room.map_err(|error| Failure::new(FailureKind::Exhausted, error.to_string()).into())
            }
            Request::Start(spec) if self.before.is_some() => match &spec.command {
                Command::Shell(line) => self.precede(line).await,
                Command::Argv(words) => self.precede(&words.join(" ")).await,
            },
            _ => Ok(()),
        }
    }

    async fn begin(&self, request: &Request) -> Result<Operation, GuestError> {
        let frame = Frame::json(Kind::Request, request);
        // A fault of the caller's, not of the sandbox.
        if frame.payload.len() > frame::MAX_PAYLOAD {
            let (bytes, most) = (frame.payload.len(), frame::MAX_PAYLOAD);
            let message =
                format!("the request has {bytes} bytes, and a sandbox takes {most} at most: send a file instead");
            return Err(Failure::new(FailureKind::InvalidArgument, message).into());
        }
        let pipe = self.connect.connect().await?;
        let (from, to) = tokio::io::split(pipe);
        let presence = self.attendance.as_ref().map(Attendance::begin);
        let mut operation = Operation { from: Receiver { from, room: None, _presence: presence }, to: Sender { to } };
        operation.to.frame(&frame).await?;
        Ok(operation)
    }

    /// Sends the request, reads the reply, and leaves the stream open.
    pub async fn open(&self, request: &Request) -> Result<(Reply, Operation), GuestError> {
        self.prepare(request).await?;
        let begun = std::time::Instant::now();
        let opened = tokio::time::timeout(ANSWER_WITHIN, async {
            let mut operation = self.begin(request).await?;
            let reply = operation.reply().await?;
            Ok((reply, operation))
        });
        let opened = opened.await.unwrap_or(Err(GuestError::Timeout(ANSWER_WITHIN)));
        if let (Some(told), Request::Start(_)) = (&self.told, request) {
            told(begun.elapsed(), opened.as_ref().err());
        }
        opened
    }

    /// A raw connection to a TCP port inside.
    pub async fn dial(&self, port: u16) -> Result<Box<dyn Pipe>, GuestError> {
        let (_, operation) = self.open(&Request::Dial { port }).await?;
        let pipe = operation.into_pipe();
        Ok(match &self.attendance {
            Some(attendance) => Box::new(Noted::new(pipe, attendance.clone())),
            None => pipe,
        })
    }
}

/// One operation under way: its connection, in both directions.
pub struct Operation {
    pub from: Receiver,
    pub to: Sender,
}

pub struct Receiver {
    from: ReadHalf<Box<dyn Pipe>>,
    /// Bytes that may still come, where the caller keeps all of them until the end.
    room: Option<usize>,
    /// Held for its end.
    _presence: Option<Presence>,
}

/// The most bytes that are gathered from a sandbox into one answer.
pub const GATHERED: usize = 128 << 20;

pub struct Sender {
    to: WriteHalf<Box<dyn Pipe>>,
}

/// The next item of a streaming operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Pty(Vec<u8>),
    Data(Vec<u8>),
    Event(Event),
}

impl Operation {
    /// For callers that keep everything until the end: more than [`GATHERED`] bytes is an error.
    pub fn gathered(mut self) -> Operation {
        self.from.room = Some(GATHERED);
        self
    }

    /// Reads the guest's reply. A close without one means that the guest has ended.
    pub async fn reply(&mut self) -> Result<Reply, GuestError> {
        let Some(frame) = frame::read_async(&mut self.from.from).await? else {
            return Err(GuestError::Unreachable("closed without an answer".into()));
        };
        match frame.kind {
            Kind::Reply => Ok(frame.parse()?),
            Kind::Failure => Err(GuestError::Failed(frame.parse()?)),
            got => Err(FrameError::Unexpected { expected: "reply", got }.into()),
        }
    }

    pub fn split(self) -> (Receiver, Sender) {
        (self.from, self.to)
    }

    fn into_pipe(self) -> Box<dyn Pipe> {
        self.from.from.unsplit(self.to.to)
    }
}

impl Receiver {
    /// The next item; `None` once the guest reports that the operation is complete. A connection that closes before
    /// that is an error, because the result is incomplete. Not cancel-safe, see [`frame::read_async`].
    pub async fn next(&mut self) -> Result<Option<Item>, GuestError> {
        let Some(frame) = frame::read_async(&mut self.from).await? else {
            return Err(GuestError::Unreachable("closed before the end".into()));
        };
        if let Some(room) = &mut self.room {
            let too_much =
                || Failure::new(FailureKind::Exhausted, format!("more than {} MiB; ask for less", GATHERED >> 20));
            *room = room.checked_sub(frame.payload.len()).ok_or_else(too_much)?;
        }
        Ok(Some(match frame.kind {
            Kind::Stdout => Item::Stdout(frame.payload),
            Kind::Stderr => Item::Stderr(frame.payload),
            Kind::Pty => Item::Pty(frame.payload),
            Kind::Data => Item::Data(frame.payload),
            Kind::Event => Item::Event(frame.parse()?),
            Kind::Failure => return Err(GuestError::Failed(frame.parse()?)),
            Kind::End => return Ok(None),
            got => return Err(FrameError::Unexpected { expected: "stream", got }.into()),
        }))
    }
}

impl Sender {
    pub async fn stdin(&mut self, bytes: &[u8]) -> Result<(), GuestError> {
        self.bulk(Kind::Stdin, bytes, BULK).await
    }

    pub async fn data(&mut self, bytes: &[u8]) -> Result<(), GuestError> {
        self.bulk(Kind::Data, bytes, FILE_BULK).await
    }

    pub async fn control(&mut self, control: &Control) -> Result<(), GuestError> {
        self.frame(&Frame::json(Kind::Control, control)).await
    }

    /// No more bytes from this side.
    pub async fn end(&mut self) -> Result<(), GuestError> {
        self.frame(&Frame::end()).await
    }

    async fn bulk(&mut self, kind: Kind, bytes: &[u8], most: usize) -> Result<(), GuestError> {
        for chunk in bytes.chunks(most) {
            frame::write_async(&mut self.to, kind, chunk).await?;
        }
        Ok(())
    }

    async fn frame(&mut self, frame: &Frame) -> Result<(), GuestError> {
        Ok(frame::write_async(&mut self.to, frame.kind, &frame.payload).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_guest_that_tells_without_end_is_not_held_without_end() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let (from, to) = tokio::io::split(Box::new(ours) as Box<dyn Pipe>);
        let mut operation =
            Operation { from: Receiver { from, room: None, _presence: None }, to: Sender { to } }.gathered();
        tokio::spawn(async move {
            let piece = vec![0; cove_protocol::MAX_PAYLOAD];
            while frame::write_async(&mut theirs, Kind::Data, &piece).await.is_ok() {}
        });
        let mut taken = 0;
        let refused = loop {
            match operation.from.next().await {
                Ok(Some(Item::Data(bytes))) => taken += bytes.len(),
                Ok(other) => panic!("{other:?}"),
                Err(error) => break error.to_string(),
            }
        };
        assert_eq!((taken, refused.as_str()), (GATHERED, "more than 128 MiB; ask for less"));
    }
}
