//! DNS by TCP: a question whose answer did not fit a datagram comes again over a connection. One question after the
//! other, each passed on over a connection of its own to a resolver.
//!
//! Whatever the sandbox connected to on port 53, it finds this: no other protocol gets out under that number.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::accept::{Buffers, EDGES, dial};
use super::arena::Key;
use super::budget::Permit;
use super::lookup::unguessable;
use super::source::Source;
use super::worker::Worker;
use crate::network::dns::{self, SERVER_FAILURE};

/// How long an asker may be silent, and a resolver slow.
const PATIENCE: Duration = Duration::from_secs(10);
/// So many questions of one connection are dealt with before others get their turn: those that are refused cost their
/// asker nothing but the bytes.
const TURN: usize = 64;

pub struct Stream {
    pub sandbox: Key,
    pub deadline: Instant,
    /// Waits for its next turn.
    pub queued: bool,
    client: Pipe,
    asking: Option<Asking>,
    _permit: Permit,
}

/// A question that a resolver is working on.
struct Asking {
    upstream: Pipe,
    identifier: u16,
    query: Vec<u8>,
    name: String,
    /// Resolvers not yet tried.
    others: Vec<IpAddr>,
}

/// A socket with what was read from it and what is still to be written to it. Both stay small: one message each.
struct Pipe {
    socket: OwnedFd,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
}

/// A message with its two bytes of length.
const LARGEST: usize = 2 + 65_535;

enum Next {
    Wait,
    Ask(Vec<u8>),
    Answered,
    AskAnother,
    End,
}

impl Worker {
    pub fn open_stream(&mut self, sandbox: Key, client: OwnedFd, permit: Permit, now: Instant) {
        let (deadline, client) = (now + PATIENCE, Pipe::new(client));
        let stream = Stream { sandbox, deadline, queued: false, client, asking: None, _permit: permit };
        let key = self.streams.insert(stream);
        if let Some(sandbox) = self.sandboxes.get_mut(sandbox) {
            sandbox.connections += 1;
        }
        let Some(stream) = self.streams.get(key) else { return };
        if self.watch(&stream.client.socket, Source::StreamClient(key), EDGES).is_err() {
            self.end_stream(key);
        }
    }

    pub fn end_stream(&mut self, key: Key) {
        if let Some(stream) = self.streams.remove(key)
            && let Some(sandbox) = self.sandboxes.get_mut(stream.sandbox)
        {
            sandbox.connections -= 1;
        }
    }

    pub fn stream_event(&mut self, key: Key, now: Instant) {
        let mut asked = 0;
        loop {
            let Some(stream) = self.streams.get_mut(key).filter(|stream| !stream.queued) else { return };
            if asked == TURN {
                stream.queued = true;
                return self.queue_stream(key);
            }
            match stream.advance() {
                Next::Wait => return,
                Next::Ask(message) => {
                    asked += 1;
                    self.ask_by_stream(key, message, now);
                }
                Next::Answered => self.pass_answer(key, now),
                Next::AskAnother => self.ask_another(key),
                Next::End => return self.end_stream(key),
            }
        }
    }

    fn ask_by_stream(&mut self, key: Key, message: Vec<u8>, now: Instant) {
        let Some(sandbox) = self.streams.get(key).map(|stream| stream.sandbox) else { return };
        let admitted = self.admit_question(sandbox, &message);
        let servers = self.servers(sandbox, now);
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.deadline = now + PATIENCE;
        match (admitted, servers.split_first(), unguessable()) {
            (Ok(question), Some((&first, others)), Ok(identifier)) => {
                let mut query = message.clone();
                dns::set_identifier(&mut query, identifier);
                let Ok(upstream) = dial(SocketAddr::new(first, 53), Buffers::Small) else {
                    return stream.client.put(&dns::refusal(&message, SERVER_FAILURE));
                };
                let mut upstream = Pipe::new(upstream);
                upstream.put(&query);
                let identifier = dns::identifier(&message);
                let asking = Asking { upstream, identifier, query, name: question.name, others: others.to_vec() };
                stream.asking = Some(asking);
                self.watch_upstream(key);
            }
            (Err(code), ..) => stream.client.put(&dns::refusal(&message, code)),
            _ => stream.client.put(&dns::refusal(&message, SERVER_FAILURE)),
        }
    }

    fn watch_upstream(&mut self, key: Key) {
        let Some(asking) = self.streams.get(key).and_then(|stream| stream.asking.as_ref()) else { return };
        if self.watch(&asking.upstream.socket, Source::StreamServer(key), EDGES).is_err() {
            self.end_stream(key);
        }
    }

    fn pass_answer(&mut self, key: Key, now: Instant) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let Some(mut asking) = stream.asking.take() else { return };
        let Some(mut answer) = asking.upstream.take() else { return };
        if !dns::answers(&answer, &asking.query) {
            answer = dns::refusal(&asking.query, SERVER_FAILURE);
        }
        dns::set_identifier(&mut answer, asking.identifier);
        stream.client.put(&answer);
        stream.deadline = now + PATIENCE;
        let sandbox = stream.sandbox;
        self.learn(sandbox, &asking.name, &answer);
        if let Some(sandbox) = self.sandboxes.get(sandbox) {
            sandbox.account.sent.add(asking.query.len());
            sandbox.account.received.add(answer.len());
        }
    }

    /// The resolver hung up: try the next, or say that none answers.
    fn ask_another(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let Some(mut asking) = stream.asking.take() else { return };
        while let Some(server) = asking.others.pop() {
            if let Ok(socket) = dial(SocketAddr::new(server, 53), Buffers::Small) {
                asking.upstream = Pipe::new(socket);
                asking.upstream.put(&asking.query);
                stream.asking = Some(asking);
                return self.watch_upstream(key);
            }
        }
        let mut refusal = dns::refusal(&asking.query, SERVER_FAILURE);
        dns::set_identifier(&mut refusal, asking.identifier);
        stream.client.put(&refusal);
    }
}

impl Stream {
    fn advance(&mut self) -> Next {
        if self.client.write().is_err() {
            return Next::End;
        }
        if let Some(asking) = &mut self.asking {
            let upstream = &mut asking.upstream;
            let alive = upstream.write().and_then(|()| upstream.read());
            return match (upstream.holds_message(), alive) {
                (true, _) => Next::Answered,
                (false, Ok(Flow::Open)) => Next::Wait,
                (false, Ok(Flow::Ended) | Err(_)) => Next::AskAnother,
            };
        }
        if !self.client.outbox.is_empty() {
            return Next::Wait;
        }
        let alive = self.client.read();
        match (self.client.take(), alive) {
            (Some(message), _) => Next::Ask(message),
            (None, Ok(Flow::Open)) => Next::Wait,
            (None, Ok(Flow::Ended) | Err(_)) => Next::End,
        }
    }
}

enum Flow {
    Open,
    Ended,
}

impl Pipe {
    fn new(socket: OwnedFd) -> Pipe {
        Pipe { socket, inbox: Vec::new(), outbox: Vec::new() }
    }

    fn put(&mut self, message: &[u8]) {
        self.outbox.extend((message.len() as u16).to_be_bytes());
        self.outbox.extend(message);
    }

    fn holds_message(&self) -> bool {
        self.length().is_some_and(|length| self.inbox.len() >= 2 + length)
    }

    fn length(&self) -> Option<usize> {
        self.inbox.first_chunk().map(|bytes| usize::from(u16::from_be_bytes(*bytes)))
    }

    fn take(&mut self) -> Option<Vec<u8>> {
        let end = 2 + self.length()?;
        let message = self.inbox.get(2..end)?.to_vec();
        self.inbox.drain(..end);
        Some(message)
    }

    fn write(&mut self) -> Result<(), Errno> {
        while !self.outbox.is_empty() {
            match send(&self.socket, &self.outbox, SendFlags::NOSIGNAL) {
                Ok(count) => drop(self.outbox.drain(..count)),
                // Still dialing counts as not yet.
                Err(Errno::AGAIN | Errno::NOTCONN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<Flow, Errno> {
        while self.inbox.len() < LARGEST && !self.holds_message() {
            let mut buffer = [0u8; 4096];
            match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => return Ok(Flow::Ended),
                Ok((count, _)) => self.inbox.extend(&buffer[..count]),
                Err(Errno::AGAIN | Errno::NOTCONN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(Flow::Open)
    }
}
