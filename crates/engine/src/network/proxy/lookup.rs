//! A sandbox's question by datagram, passed on to a resolver from a socket of its own.
//!
//! Each question leaves from a fresh port with a random identifier, so that nobody off the path can guess an answer in.
//! What a name resolves to is not judged here: the connection that follows is, by the address it really goes to.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType};
use rustix::net::{connect, recv, recvfrom, send, sendto, socket_with};
use rustix::rand::{GetRandomFlags, getrandom};

use super::arena::Key;
use super::budget::{Permit, Purpose};
use super::source::Source;
use super::worker::Worker;
use crate::network::dns::{self, REFUSED, SERVER_FAILURE};

/// So many questions of one sandbox may be in flight.
const MOST_AT_ONCE: usize = 64;
/// So many are taken before others get their turn.
const TURN: usize = 64;
/// Longer questions exist only to do harm.
const LONGEST_QUESTION: usize = 1232;
const ATTEMPTS: usize = 3;

pub struct Lookup {
    pub sandbox: Key,
    /// When the resolver has been waited for long enough.
    pub deadline: Instant,
    asker: SocketAddrAny,
    /// The identifier the asker chose; the question goes out under another.
    identifier: u16,
    query: Vec<u8>,
    name: String,
    servers: Vec<IpAddr>,
    attempt: usize,
    upstream: Option<OwnedFd>,
    _permit: Permit,
}

impl Worker {
    pub fn take_questions(&mut self, key: Key, now: Instant) {
        for _ in 0..TURN {
            let Some(sandbox) = self.sandboxes.get(key) else { return };
            let mut buffer = [0u8; LONGEST_QUESTION + 1];
            match recvfrom(&sandbox.listening.questions, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _, Some(asker))) => self.take_question(key, &buffer[..length], asker, now),
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn take_question(&mut self, key: Key, message: &[u8], asker: SocketAddrAny, now: Instant) {
        let question = match self.admit_question(key, message) {
            Ok(question) => question,
            Err(code) => return self.answer(key, &asker, &dns::refusal(message, code)),
        };
        let servers = self.servers(key, now);
        let Some(sandbox) = self.sandboxes.get_mut(key) else { return };
        let permit = if sandbox.lookups < MOST_AT_ONCE { self.budget.take(Purpose::Passing, 1) } else { None };
        let Some(permit) = permit else {
            return self.answer(key, &asker, &dns::refusal(message, SERVER_FAILURE));
        };
        sandbox.lookups += 1;
        let lookup = Lookup {
            sandbox: key,
            deadline: now,
            asker,
            identifier: dns::identifier(message),
            query: message.to_vec(),
            name: question.name,
            servers,
            attempt: 0,
            upstream: None,
            _permit: permit,
        };
        let key = self.lookups.insert(lookup);
        self.ask_again(key, now);
    }

    /// Checks a question before anybody is asked; the error is the code of the answer.
    pub fn admit_question(&mut self, key: Key, message: &[u8]) -> Result<dns::Question, u8> {
        let Some(sandbox) = self.sandboxes.get(key) else { return Err(SERVER_FAILURE) };
        sandbox.account.questions.add(1);
        if message.len() > LONGEST_QUESTION {
            return Err(REFUSED);
        }
        let question = dns::question(message).map_err(|unanswerable| unanswerable.0)?;
        self.settings.journal.asked(&sandbox.id, &question.name);
        if sandbox.policy.resolves_names { Ok(question) } else { Err(REFUSED) }
    }

    /// Whom to ask for this sandbox.
    pub fn servers(&mut self, key: Key, now: Instant) -> Vec<IpAddr> {
        let Some(sandbox) = self.sandboxes.get(key) else { return Vec::new() };
        if sandbox.policy.resolvers.is_empty() {
            return self.resolvers.current(now);
        }
        let policy = sandbox.policy.clone();
        let allowed = |address: &&IpAddr| policy.may_resolve_at(**address, self.place(**address)).is_allowed();
        policy.resolvers.iter().filter(allowed).copied().collect()
    }

    /// Asks the next resolver, or gives up.
    pub fn ask_again(&mut self, key: Key, now: Instant) {
        let patience = self.settings.resolver_patience;
        loop {
            let Some(lookup) = self.lookups.get_mut(key) else { return };
            if lookup.servers.is_empty() || lookup.attempt >= ATTEMPTS.max(lookup.servers.len()) {
                let mut refusal = dns::refusal(&lookup.query, SERVER_FAILURE);
                dns::set_identifier(&mut refusal, lookup.identifier);
                return self.conclude(key, &refusal);
            }
            let server = lookup.servers[lookup.attempt % lookup.servers.len()];
            lookup.attempt += 1;
            lookup.deadline = now + patience;
            if let Ok(upstream) = ask(&mut lookup.query, server) {
                lookup.upstream = Some(upstream);
                let Some(upstream) = self.lookups.get(key).and_then(|lookup| lookup.upstream.as_ref()) else { return };
                if self.watch(upstream, Source::Lookup(key), EventFlags::IN).is_ok() {
                    return;
                }
            }
        }
    }

    pub fn lookup_event(&mut self, key: Key, now: Instant) {
        let Some(lookup) = self.lookups.get_mut(key) else { return };
        let Some(upstream) = &lookup.upstream else { return };
        match recv(upstream, &mut self.scratch[..], RecvFlags::empty()) {
            Ok((length, _)) => {
                let answer = &mut self.scratch[..length];
                // Anything else on this port is noise, or somebody who guesses: wait on.
                if dns::answers(answer, &lookup.query) {
                    dns::set_identifier(answer, lookup.identifier);
                    let answer = answer.to_vec();
                    let (sandbox, name) = (lookup.sandbox, std::mem::take(&mut lookup.name));
                    self.learn(sandbox, &name, &answer);
                    self.conclude(key, &answer);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Nobody listens there: no need to wait.
            Err(_) => self.ask_again(key, now),
        }
    }

    /// Remembers which addresses the sandbox was told for a name.
    pub fn learn(&mut self, key: Key, name: &str, answer: &[u8]) {
        if let Some(sandbox) = self.sandboxes.get_mut(key) {
            for address in dns::addresses(answer) {
                sandbox.names.remember(address, name);
            }
        }
    }

    fn conclude(&mut self, key: Key, answer: &[u8]) {
        let Some(lookup) = self.lookups.remove(key) else { return };
        if let Some(sandbox) = self.sandboxes.get_mut(lookup.sandbox) {
            sandbox.lookups -= 1;
            sandbox.account.sent.add(lookup.query.len());
            sandbox.account.received.add(answer.len());
        }
        self.answer(lookup.sandbox, &lookup.asker, answer);
    }

    fn answer(&self, key: Key, asker: &SocketAddrAny, answer: &[u8]) {
        if let Some(sandbox) = self.sandboxes.get(key) {
            // An asker that is gone, or whose buffer is full, asks again.
            let _ = sendto(&sandbox.listening.questions, answer, SendFlags::empty(), asker);
        }
    }
}

/// Sends the question, under a new identifier, to a resolver.
fn ask(query: &mut [u8], server: IpAddr) -> Result<OwnedFd, Errno> {
    dns::set_identifier(query, unguessable()?);
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    connect(&socket, &SocketAddr::new(server, 53))?;
    send(&socket, query, SendFlags::empty())?;
    Ok(socket)
}

pub fn unguessable() -> Result<u16, Errno> {
    let mut bytes = [0u8; 2];
    getrandom(&mut bytes[..], GetRandomFlags::empty())?;
    Ok(u16::from_ne_bytes(bytes))
}

/// How long one resolver is waited for, where nothing else is set: three of them fit in the five seconds that a C library waits.
pub const PATIENCE: Duration = Duration::from_millis(1500);
