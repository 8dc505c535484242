//! A sandbox's connection arrives: where did it want to go, may it, and if so, open the way.
//!
//! The sandbox's own connect has succeeded by now, since it was our listener that took it. A refusal and a failed dial
//! are therefore told by a reset: the program sees "connection reset" at its first read or write.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::sockopt::{
    ip_original_dst, set_socket_keepalive, set_socket_recv_buffer_size, set_socket_send_buffer_size, set_tcp_keepidle,
    set_tcp_nodelay,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, connect, socket_with};

use super::arena::Key;
use super::budget::Purpose;
use super::relay::{End, Phase, Relay, Standing, reset};
use super::source::Source;
use super::worker::{Worker, spare};
use crate::network::policy::Destination;

/// So many connections of one sandbox are taken before others get their turn.
const TURN: usize = 64;
const NAMES_PORT: u16 = 53;
/// Everything the kernel can report, once each time it becomes true.
pub const EDGES: EventFlags = EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

impl Worker {
    pub fn accept(&mut self, key: Key, now: Instant) {
        for _ in 0..TURN {
            let Some(sandbox) = self.sandboxes.get(key) else { return };
            match accept_with(&sandbox.listening.connections, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(client) => self.receive(key, client, now),
                Err(Errno::MFILE | Errno::NFILE) => {
                    // Nothing left to accept with. Refuse with the spare, or the kernel reports the same one for ever.
                    self.spare = None;
                    if let Ok(client) = accept_with(&sandbox.listening.connections, SocketFlags::CLOEXEC) {
                        sandbox.account.refused.add(1);
                        reset(client);
                    }
                    self.spare = spare();
                    return;
                }
                // Gone again while it waited.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn receive(&mut self, key: Key, client: OwnedFd, now: Instant) {
        let most = self.settings.connections_per_sandbox;
        let Some(sandbox) = self.sandboxes.get(key) else { return };
        let permit = if sandbox.connections < most { self.budget.take(Purpose::Passing, 2) } else { None };
        // A connection to the proxy itself was not redirected: it has no original destination, or the proxy's own.
        let (Some(permit), Ok(target)) = (permit, ip_original_dst(&client)) else {
            sandbox.account.refused.add(1);
            return reset(client);
        };
        if target.port() == NAMES_PORT {
            return self.open_stream(key, client, permit, now);
        }
        let address = IpAddr::V4(*target.ip());
        let destination = Destination {
            address,
            port: target.port(),
            place: self.place(address),
            name: sandbox.names.of(address).map(str::to_owned),
        };
        let decision = sandbox.policy.decide(&destination);
        self.settings.journal.decided(&sandbox.id, &destination, &decision);
        if !decision.is_allowed() {
            sandbox.account.refused.add(1);
            return reset(client);
        }
        sandbox.account.allowed.add(1);
        let buffers = if sandbox.connections < FULL_BUFFERS { Buffers::Full } else { Buffers::Small };
        let Ok(server) = dial(SocketAddr::V4(target), buffers) else {
            sandbox.account.failed.add(1);
            return reset(client);
        };
        let account = sandbox.account.clone();
        let relay = Relay {
            sandbox: key,
            destination,
            client: End::new(client),
            server: End::new(server),
            phase: Phase::Dialing,
            moved: now,
            account,
            queued: false,
            _permit: permit,
        };
        self.join(relay);
    }

    fn join(&mut self, relay: Relay) {
        let sandbox = relay.sandbox;
        let key = self.relays.insert(relay);
        self.dialing += 1;
        if let Some(sandbox) = self.sandboxes.get_mut(sandbox) {
            sandbox.connections += 1;
        }
        let Some(relay) = self.relays.get(key) else { return };
        let watched = set_tcp_nodelay(&relay.client.socket, true)
            .and_then(|()| self.watch(&relay.client.socket, Source::Client(key), EDGES))
            .and_then(|()| self.watch(&relay.server.socket, Source::Server(key), EDGES));
        if watched.is_err() {
            self.break_off(key);
        }
    }

    pub fn client_event(&mut self, key: Key, events: EventFlags, now: Instant) {
        let Some(relay) = self.relays.get_mut(key) else { return };
        relay.client.note(events);
        if relay.phase == Phase::Flowing {
            self.give_turn(key, now);
        } else if End::is_lost(events) {
            self.break_off(key);
        }
    }

    pub fn server_event(&mut self, key: Key, events: EventFlags, now: Instant) {
        let Some(relay) = self.relays.get_mut(key) else { return };
        relay.server.note(events);
        if relay.phase == Phase::Dialing {
            match relay.dialed() {
                None => return,
                Some(Ok(())) => {
                    relay.phase = Phase::Flowing;
                    self.dialing -= 1;
                }
                Some(Err(_)) => return self.break_off(key),
            }
        }
        self.give_turn(key, now);
    }

    pub fn give_turn(&mut self, key: Key, now: Instant) {
        let Some(relay) = self.relays.get_mut(key).filter(|relay| !relay.queued) else { return };
        match relay.turn(&mut self.scratch, now) {
            Standing::Waiting => {}
            Standing::Unfinished => {
                relay.queued = true;
                self.queue(key);
            }
            Standing::Over => drop(self.forget(key)),
            Standing::Broken => self.break_off(key),
        }
    }

    /// Ends a connection so that both sides notice.
    pub fn break_off(&mut self, key: Key) {
        if let Some(relay) = self.forget(key) {
            if relay.phase == Phase::Dialing {
                relay.account.failed.add(1);
            }
            relay.reset();
        }
    }

    fn forget(&mut self, key: Key) -> Option<Relay> {
        let relay = self.relays.remove(key)?;
        if relay.phase == Phase::Dialing {
            self.dialing -= 1;
        }
        if let Some(sandbox) = self.sandboxes.get_mut(relay.sandbox) {
            sandbox.connections -= 1;
        }
        Some(relay)
    }
}

/// How much the kernel may hold for a connection outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffers {
    /// As much as a far and fast peer needs: megabytes.
    Full,
    Small,
}

/// So many connections of a sandbox get full buffers: enough for speed, too few to fill the kernel's memory for TCP.
const FULL_BUFFERS: usize = 16;
const SMALL: usize = 128 * 1024;

/// Starts a connection from the host's network; the kernel reports when it stands.
pub fn dial(target: SocketAddr, buffers: Buffers) -> Result<OwnedFd, Errno> {
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if buffers == Buffers::Small {
        set_socket_recv_buffer_size(&socket, SMALL)?;
        set_socket_send_buffer_size(&socket, SMALL)?;
    }
    set_tcp_nodelay(&socket, true)?;
    // A peer that vanished without a word is noticed long before the idle limit.
    set_socket_keepalive(&socket, true)?;
    set_tcp_keepidle(&socket, Duration::from_secs(120))?;
    match connect(&socket, &target) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}
