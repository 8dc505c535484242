//! One connection of a sandbox, joined to the one we opened for it outside: bytes go over in both directions.
//!
//! An end is read only while the other can take more, so a slow reader slows its sender down and at most the rest of
//! one buffer per direction is kept here. An end that has finished sending is passed on (half-close); an end that fails
//! resets the other.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_linger, socket_error};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::account::Account;
use super::arena::Key;
use super::budget::Permit;
use crate::network::policy::Destination;

/// So much a connection may move before others get their turn.
const TURN: usize = 1 << 20;

pub struct Relay {
    pub sandbox: Key,
    pub destination: Destination,
    pub client: End,
    pub server: End,
    pub phase: Phase,
    /// When bytes last moved, or when the dial began.
    pub moved: Instant,
    pub account: Arc<Account>,
    /// Waits for its next turn.
    pub queued: bool,
    pub _permit: Permit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Dialing,
    Flowing,
}

/// The state of a connection after its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Until the kernel reports something.
    Waiting,
    /// It could go on at once, but others come first.
    Unfinished,
    /// Both ends have said everything.
    Over,
    /// One end is lost.
    Broken,
}

pub struct End {
    pub socket: OwnedFd,
    readable: bool,
    writable: bool,
    /// The kernel has reported an end of what it sends: a short read is not yet the last.
    hung_up: bool,
    /// Nothing more comes from it.
    finished: bool,
    /// The end was passed on to the other side.
    passed_on: bool,
    /// Read from it, not yet taken by the other.
    held: Vec<u8>,
    written: usize,
}

impl End {
    pub fn new(socket: OwnedFd) -> End {
        End {
            socket,
            readable: false,
            writable: false,
            hung_up: false,
            finished: false,
            passed_on: false,
            held: Vec::new(),
            written: 0,
        }
    }

    pub fn note(&mut self, events: EventFlags) {
        let ended = events.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        self.readable |= ended || events.contains(EventFlags::IN);
        self.writable |= events.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR);
        self.hung_up |= ended;
    }

    /// Gone in both directions, not merely silent in one.
    pub fn is_lost(events: EventFlags) -> bool {
        events.intersects(EventFlags::HUP | EventFlags::ERR)
    }
}

impl Relay {
    /// Whether the dial has ended, and how.
    pub fn dialed(&self) -> Option<Result<(), Errno>> {
        self.server.writable.then(|| socket_error(&self.server.socket).and_then(|outcome| outcome))
    }

    /// Moves what can be moved.
    pub fn turn(&mut self, scratch: &mut [u8], now: Instant) -> Standing {
        let mut quota = TURN;
        let sent = transfer(&mut self.client, &mut self.server, scratch, &mut quota);
        let received = transfer(&mut self.server, &mut self.client, scratch, &mut quota);
        let (Ok(sent), Ok(received)) = (sent, received) else { return Standing::Broken };
        if sent + received > 0 {
            self.account.sent.add(sent);
            self.account.received.add(received);
            self.moved = now;
        }
        if self.client.passed_on && self.server.passed_on {
            Standing::Over
        } else if quota == 0 {
            Standing::Unfinished
        } else {
            Standing::Waiting
        }
    }

    pub fn has_expired(&self, now: Instant, dial: Duration, idle: Duration) -> bool {
        let limit = match self.phase {
            Phase::Dialing => dial,
            Phase::Flowing => idle,
        };
        now.duration_since(self.moved) >= limit
    }

    /// Ends it so that both sides see a broken connection, not an orderly end.
    pub fn reset(self) {
        reset(self.client.socket);
        reset(self.server.socket);
    }
}

/// Closes a connection with a reset: the other side knows at once, and nothing lingers.
pub fn reset(socket: OwnedFd) {
    // The socket may already be closed: nothing to do.
    let _ = set_socket_linger(&socket, Some(Duration::ZERO));
}

fn transfer(from: &mut End, to: &mut End, scratch: &mut [u8], quota: &mut usize) -> Result<usize, Errno> {
    let mut moved = 0;
    while *quota > 0 {
        if from.written < from.held.len() {
            if !to.writable {
                break;
            }
            match write(to, &from.held[from.written..])? {
                0 => break,
                count => from.written += count,
            }
            if from.written == from.held.len() {
                from.held = Vec::new();
                from.written = 0;
            }
        } else if from.finished {
            if !from.passed_on {
                from.passed_on = true;
                match shutdown(&to.socket, Shutdown::Write) {
                    Ok(()) | Err(Errno::NOTCONN) => {}
                    Err(errno) => return Err(errno),
                }
            }
            break;
        } else if !from.readable || !to.writable {
            break;
        } else {
            let length = match recv(&from.socket, &mut *scratch, RecvFlags::empty()) {
                Ok((length, _)) => length,
                Err(Errno::AGAIN) => {
                    from.readable = false;
                    break;
                }
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            if length == 0 {
                from.finished = true;
                continue;
            }
            // With edge-triggered events a short read means empty, unless an end of file may follow.
            from.readable = length == scratch.len() || from.hung_up;
            moved += length;
            *quota = quota.saturating_sub(length);
            let written = write(to, &scratch[..length])?;
            from.held.extend_from_slice(&scratch[written..length]);
        }
    }
    Ok(moved)
}

/// Writes what the socket takes now.
fn write(to: &mut End, bytes: &[u8]) -> Result<usize, Errno> {
    let mut written = 0;
    while written < bytes.len() {
        match send(&to.socket, &bytes[written..], SendFlags::NOSIGNAL) {
            Ok(count) => written += count,
            Err(Errno::AGAIN) => {
                to.writable = false;
                break;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(written)
}
