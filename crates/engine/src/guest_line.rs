//! The few words the engine itself says to a guest: are you there, and end yourself.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use cove_protocol::{Failure, Kind, Reply, Request, VERSION, frame};

/// A request whose answer is still to come.
#[derive(Debug)]
pub struct Asked(UnixStream);

/// Asks and waits at most `patience` for the answer.
pub fn ask(socket: &Path, request: &Request, patience: Duration) -> Result<Reply, String> {
    begin(socket, request, patience)?.answer()
}

/// Asks; the guest may still be waking up.
pub fn begin(socket: &Path, request: &Request, patience: Duration) -> Result<Asked, String> {
    let mut stream =
        UnixStream::connect(socket).map_err(|error| format!("connect to {}: {error}", socket.display()))?;
    let bounded = stream.set_read_timeout(Some(patience)).and_then(|()| stream.set_write_timeout(Some(patience)));
    bounded.map_err(|error| format!("set a time limit: {error}"))?;
    frame::write_json(&mut stream, Kind::Request, request).map_err(|error| format!("send: {error}"))?;
    Ok(Asked(stream))
}

impl Asked {
    /// The guest is hostile: one frame of bounded size is read.
    pub fn answer(mut self) -> Result<Reply, String> {
        let answer = frame::read(&mut self.0).map_err(|error| format!("receive: {error}"))?;
        let answer = answer.ok_or("it closed the connection: it has died or refuses to serve")?;
        match answer.kind {
            Kind::Reply => answer.parse().map_err(|error| error.to_string()),
            Kind::Failure => {
                Err(answer.parse::<Failure>().map_or_else(|error| error.to_string(), |failure| failure.message))
            }
            kind => Err(format!("a {kind:?} frame where a reply was due")),
        }
    }

    /// Whether what was asked is a ping, and the guest speaks a protocol that we understand.
    pub fn pong(self) -> Result<(), String> {
        match self.answer()? {
            Reply::Pong { version, .. } if version <= VERSION => Ok(()),
            Reply::Pong { version, .. } => Err(format!("it speaks protocol {version}, this engine only {VERSION}")),
            _ => Err("it answered a ping with something else".into()),
        }
    }
}
