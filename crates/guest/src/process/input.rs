//! Standard input from a connection of its own.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use cove_protocol::process::Selector;
use cove_protocol::{Failure, FailureKind, Frame, FrameError, Kind, Reply};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::{Input, Process};
use crate::connection::Connection;
use crate::failure::{Result, from_errno};
use crate::guest::Guest;

/// Passes bytes on until End; [`close`] passes the end on to the process.
pub fn write(guest: &Guest, connection: &mut Connection, selector: &Selector) -> Result<()> {
    let process = guest.table().find(selector)?;
    open_input(&process)?;
    loop {
        match connection.receive()? {
            Some(Frame { kind: Kind::Stdin, payload }) => {
                let input = open_input(&process)?;
                write_all(connection, &process, &input, &payload)?;
            }
            Some(Frame { kind: Kind::End, .. }) => return connection.reply(&Reply::Done),
            Some(frame) => {
                let error = FrameError::Unexpected { expected: "stdin or end", got: frame.kind };
                return Err(Failure::new(FailureKind::InvalidArgument, error.to_string()));
            }
            None => return Ok(()),
        }
    }
}

/// Closes standard input. Closing it twice is no error; a terminal has none to close.
pub fn close(guest: &Guest, connection: &mut Connection, selector: &Selector) -> Result<()> {
    let process = guest.table().find(selector)?;
    if process.asked.terminal {
        let message = format!("process {} has a terminal: send its end-of-file key instead", process.pid);
        return Err(Failure::new(FailureKind::WrongState, message));
    }
    if let Input::None = process.input() {
        return Err(no_input(&process));
    }
    process.close_input();
    connection.reply(&Reply::Done)
}

fn open_input(process: &Process) -> Result<Arc<OwnedFd>> {
    match process.input() {
        Input::Open(input) => Ok(input),
        Input::Closed => {
            let message = format!("standard input of process {} is closed", process.pid);
            Err(Failure::new(FailureKind::WrongState, message))
        }
        Input::None => Err(no_input(process)),
    }
}

fn no_input(process: &Process) -> Failure {
    let message = format!("process {} was started without standard input", process.pid);
    Failure::new(FailureKind::WrongState, message)
}

fn write_all(connection: &Connection, process: &Process, input: &OwnedFd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(input, bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut sources = [PollFd::new(input, PollFlags::OUT), PollFd::new(connection, PollFlags::empty())];
                let _ = poll(&mut sources, None);
                if sources.get(1).is_some_and(|host| !host.revents().is_empty()) {
                    return Err(Failure::new(FailureKind::WrongState, "the host went away"));
                }
            }
            Err(Errno::PIPE) => {
                let message = format!("process {} has closed its standard input", process.pid);
                return Err(Failure::new(FailureKind::WrongState, message));
            }
            Err(errno) => return Err(from_errno(errno, format!("write to process {}", process.pid))),
        }
    }
    Ok(())
}
