//! A process and a connection, joined until one of them ends.
//!
//! One thread moves both directions, so nothing here may block but the one `poll`: output goes to the host as fast as
//! it takes it, input to the process as fast as it reads, and neither waits for the other.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use cove_protocol::frame::{BULK, Decoder, Frame, FrameError, Kind, encode};
use cove_protocol::process::{OnDisconnect, Selector};
use cove_protocol::{Control, Event, Failure, FailureKind, Reply};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::{Found, Input, Process, signal, start};
use crate::connection::Connection;
use crate::failure::{During, Result, from_errno};
use crate::guest::Guest;

/// Input that the process has not read yet is held up to here; then the host has to wait.
const PENDING_INPUT: usize = 256 << 10;

/// A reader that has joined its process.
pub struct Follower {
    pub process: Arc<Process>,
    pub key: u64,
    pub wake: Arc<OwnedFd>,
}

/// Joins a process that was started before.
pub fn attach(guest: &Guest, connection: &mut Connection, selector: &Selector, from: Option<u64>) -> Result<()> {
    let process = guest.table().find(selector)?;
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).during("follow the process")?);
    let (key, position) = process.join(from, Arc::clone(&wake));
    let reply = Reply::Started { pid: process.pid, output_start: position };
    let follower = Follower { process, key, wake };
    if let Err(failure) = connection.reply(&reply) {
        follower.abandon(guest, OnDisconnect::Keep);
        return Err(failure);
    }
    follower.follow(guest, connection, OnDisconnect::Keep)
}

impl Follower {
    pub fn follow(self, guest: &Guest, connection: &mut Connection, on_disconnect: OnDisconnect) -> Result<()> {
        let outcome = connection.socket.set_nonblocking(true).during("follow the process").and_then(|()| {
            let mut join = Join {
                guest,
                connection,
                follower: &self,
                decoder: Decoder::default(),
                scratch: vec![0; BULK / 2],
                outbound: Vec::new(),
                sent: 0,
                complete: false,
                pending: VecDeque::new(),
                input_ended: false,
                heard_all: false,
            };
            join.run()
        });
        let _ = connection.socket.set_nonblocking(false);
        match &outcome {
            Ok(Ended::Complete) => self.process.leave(self.key, &guest.epoll),
            Ok(Ended::Disconnected) | Err(_) => self.abandon(guest, on_disconnect),
        }
        outcome.map(drop)
    }

    /// The host is gone before the process.
    pub fn abandon(&self, guest: &Guest, on_disconnect: OnDisconnect) {
        self.process.leave(self.key, &guest.epoll);
        if on_disconnect == OnDisconnect::Kill {
            signal::kill_group(guest, &self.process);
        }
    }
}

enum Ended {
    Complete,
    Disconnected,
}

struct Join<'a> {
    guest: &'a Guest,
    connection: &'a mut Connection,
    follower: &'a Follower,
    decoder: Decoder,
    scratch: Vec<u8>,
    /// Frames on their way to the host.
    outbound: Vec<u8>,
    sent: usize,
    /// The last frame is in `outbound`.
    complete: bool,
    /// Input on its way to the process.
    pending: VecDeque<u8>,
    /// The host has said End.
    input_ended: bool,
    /// The host has closed its side after End.
    heard_all: bool,
}

impl Join<'_> {
    fn run(&mut self) -> Result<Ended> {
        loop {
            if !self.send()? {
                return Ok(Ended::Disconnected);
            }
            if self.complete && self.outbound.is_empty() {
                return Ok(Ended::Complete);
            }
            self.feed();
            let ready = self.wait()?;
            if ready.input && !self.hear()? {
                self.feed();
                return Ok(Ended::Disconnected);
            }
            if ready.closed && !ready.input {
                return Ok(Ended::Disconnected);
            }
            if ready.woken {
                let mut count = [0; 8];
                let _ = rustix::io::read(&*self.follower.wake, &mut count);
            }
        }
    }

    /// Sleeps until something can move.
    fn wait(&self) -> Result<Ready> {
        let mut socket = PollFlags::empty();
        if !self.heard_all && self.pending.len() < PENDING_INPUT {
            socket |= PollFlags::IN;
        }
        if !self.outbound.is_empty() {
            socket |= PollFlags::OUT;
        }
        let input = match self.follower.process.input() {
            Input::Open(input) if !self.pending.is_empty() => Some(input),
            _ => None,
        };
        // The wake stays in the set even with frames under way: a reader's exit must not wait for the host.
        let wake = if self.outbound.is_empty() { PollFlags::IN } else { PollFlags::empty() };
        let mut sources = vec![
            PollFd::new(&self.connection.socket, socket),
            PollFd::from_borrowed_fd(std::os::fd::AsFd::as_fd(&*self.follower.wake), wake),
        ];
        if let Some(input) = &input {
            sources.push(PollFd::new(&**input, PollFlags::OUT));
        }
        match poll(&mut sources, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(from_errno(errno, "follow the process")),
        }
        let seen = |place: usize, flags| sources.get(place).is_some_and(|source| source.revents().intersects(flags));
        Ok(Ready {
            input: seen(0, PollFlags::IN),
            closed: seen(0, PollFlags::HUP | PollFlags::ERR),
            woken: seen(1, PollFlags::IN),
        })
    }

    /// Fills and empties `outbound` until the socket takes no more or there is nothing to say. False: host is gone.
    fn send(&mut self) -> Result<bool> {
        loop {
            if self.outbound.is_empty() && !self.complete {
                self.fill()?;
            }
            if self.outbound.is_empty() {
                return Ok(true);
            }
            let rest = self.outbound.get(self.sent..).unwrap_or_default();
            match self.connection.socket.write(rest) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return Ok(false),
            }
            if self.sent >= self.outbound.len() {
                self.outbound.clear();
                self.sent = 0;
            }
        }
    }

    /// The next message for the host.
    fn fill(&mut self) -> Result<()> {
        let Follower { process, key, .. } = self.follower;
        let found = process.take(*key, &self.guest.epoll, &mut self.scratch);
        match found {
            Found::Bytes(stream, count) => {
                let bytes = self.scratch.get(..count).unwrap_or_default();
                encode(&mut self.outbound, stream.kind(), bytes).map_err(|error| broken(&error))
            }
            Found::Lost(bytes) => self.tell(&Event::Lost { bytes }),
            Found::Exited(exit) => {
                self.complete = true;
                self.tell(&Event::Exited { exit })?;
                encode(&mut self.outbound, Kind::End, &[]).map_err(|error| broken(&error))
            }
            Found::Nothing => Ok(()),
        }
    }

    fn tell(&mut self, event: &Event) -> Result<()> {
        let frame = Frame::json(Kind::Event, event);
        encode(&mut self.outbound, frame.kind, &frame.payload).map_err(|error| broken(&error))
    }

    /// Takes in what the host says. False: the host has closed.
    fn hear(&mut self) -> Result<bool> {
        let count = match self.connection.socket.read(&mut self.scratch) {
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return Ok(true),
            Err(_) => return Ok(false),
        };
        if count == 0 {
            // A host that has said End may close its side and read on; one that has not is gone.
            self.heard_all = self.input_ended;
            return Ok(self.input_ended);
        }
        self.decoder.push(self.scratch.get(..count).unwrap_or_default());
        while let Some(frame) = self.decoder.next_frame().map_err(|error| broken(&error))? {
            self.obey(frame)?;
        }
        Ok(true)
    }

    fn obey(&mut self, frame: Frame) -> Result<()> {
        match frame.kind {
            Kind::Stdin => {
                if let Input::Open(_) = self.follower.process.input()
                    && !self.input_ended
                {
                    self.pending.extend(frame.payload);
                }
            }
            Kind::End => self.input_ended = true,
            Kind::Control => match frame.parse().map_err(|error| broken(&error))? {
                Control::Resize { size } => {
                    if let Some(terminal) = self.follower.process.terminal() {
                        start::set_size(&terminal, size).during("resize the terminal")?;
                    }
                }
                // The process has ended meanwhile: nothing to do.
                Control::Signal { signal, group } => {
                    let _ = signal::send(self.guest, &self.follower.process, signal, signal::Target::of(group));
                }
            },
            got => return Err(broken(&FrameError::Unexpected { expected: "stdin, control or end", got })),
        }
        Ok(())
    }

    /// Gives the process as much of its input as it takes.
    fn feed(&mut self) {
        let Input::Open(input) = self.follower.process.input() else {
            self.pending = VecDeque::new();
            return;
        };
        while !self.pending.is_empty() {
            let (front, _) = self.pending.as_slices();
            match rustix::io::write(&*input, front) {
                Ok(count) => drop(self.pending.drain(..count.min(front.len()))),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The process has closed its input: the rest is dropped.
                Err(_) => self.pending = VecDeque::new(),
            }
        }
        // A terminal is not a pipe: its end of input is a key, not a close.
        if self.input_ended && self.follower.process.terminal().is_none() {
            self.follower.process.close_input();
        }
    }
}

struct Ready {
    input: bool,
    closed: bool,
    woken: bool,
}

fn broken(error: &FrameError) -> Failure {
    Failure::new(FailureKind::InvalidArgument, error.to_string())
}
