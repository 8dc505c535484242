//! The few requests of the engine itself to a guest: a ping, and the order to end.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use cove_protocol::{Failure, Kind, Reply, Request, VERSION, frame};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A request whose answer is still to come.
#[derive(Debug)]
pub struct Asked(UnixStream);

/// Asks and waits at most `patience` for the answer.
pub fn ask(socket: &Path, request: &Request, patience: Duration) -> Result<Reply, String> {
    begin(socket, request, patience)?.answer()
}

/// Asks; the guest may still be waking up.
pub fn begin(socket: &Path, request: &Request, patience: Duration) -> Result<Asked, String> {
    let mut stream = connect(socket, patience).map_err(|error| format!("connect to {}: {error}", socket.display()))?;
    stream.set_read_timeout(Some(patience)).map_err(|error| format!("set a time limit: {error}"))?;
    frame::write_json(&mut stream, Kind::Request, request).map_err(|error| format!("send: {error}"))?;
    Ok(Asked(stream))
}

/// A guest that accepts nobody has a full backlog, and there connect(2) waits: for as long as SO_SNDTIMEO says
/// (`unix_stream_connect` in net/unix/af_unix.c), which later bounds each write as well.
fn connect(socket: &Path, patience: Duration) -> rustix::io::Result<UnixStream> {
    let stream = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    net::sockopt::set_socket_timeout(&stream, net::sockopt::Timeout::Send, Some(patience))?;
    match net::connect(&stream, &SocketAddrUnix::new(socket)?) {
        Err(Errno::AGAIN) => Err(Errno::TIMEDOUT),
        Err(error) => Err(error),
        Ok(()) => Ok(UnixStream::from(stream)),
    }
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_guest_that_takes_no_connection_is_not_waited_for_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("guest.sock");
        let listener = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        net::bind(&listener, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
        net::listen(&listener, 1).unwrap();
        let patience = Duration::from_millis(20);
        // Connections that nobody accepts, until the backlog is full.
        let mut waiting = Vec::new();
        let refused = loop {
            match connect(&socket, patience) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 100, "the backlog has no end");
        };
        assert_eq!(refused, Errno::TIMEDOUT);
        let begun = Instant::now();
        let told = ask(&socket, &Request::Ping, patience).unwrap_err();
        assert!(told.starts_with("connect to ") && begun.elapsed() < Duration::from_secs(5), "{told}");
    }
}
