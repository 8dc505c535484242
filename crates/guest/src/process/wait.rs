//! Waiting for the end of a process without reading what it writes.

use std::sync::Arc;

use cove_protocol::process::Selector;
use cove_protocol::{Failure, FailureKind, Reply};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::connection::Connection;
use crate::failure::{During, Result};
use crate::guest::Guest;

pub fn wait(guest: &Guest, connection: &mut Connection, selector: &Selector) -> Result<()> {
    let process = guest.table().find(selector)?;
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).during("wait for the process")?);
    let key = process.await_exit(Arc::clone(&wake));
    let exit = loop {
        if let Some(exit) = process.exit() {
            break Some(exit);
        }
        let mut sources = [PollFd::new(&*wake, PollFlags::IN), PollFd::new(connection, PollFlags::RDHUP)];
        let _ = poll(&mut sources, None);
        let [woken, host] = sources.map(|source| !source.revents().is_empty());
        if host {
            break None;
        }
        if woken {
            let mut count = [0; 8];
            let _ = rustix::io::read(&*wake, &mut count);
        }
    };
    process.leave(key, &guest.epoll);
    exit.map_or(Ok(()), |exit| connection.reply(&Reply::Exited { exit }))
}

/// Drops a finished process with its output.
pub fn forget(guest: &Guest, connection: &mut Connection, selector: &Selector) -> Result<()> {
    let process = guest.table().find(selector)?;
    if process.exit().is_none() {
        let message = format!("process {} still runs: signal it first", process.pid);
        return Err(Failure::new(FailureKind::WrongState, message));
    }
    guest.table().forget(&process);
    connection.reply(&Reply::Done)
}
