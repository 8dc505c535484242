//! A thread of the proxy: one epoll, the sandboxes that were given to it, and everything that goes on in them.
//!
//! A sandbox stays with one worker, so nothing here is shared and nothing is locked. The thread lives in the host's
//! network and never leaves it; sockets of the sandboxes' namespaces come to it ready-made.
//!
//! ```text
//!  sandbox's namespace │ host's
//!   connect 1.2.3.4 ──▶ listener ── accept.rs: policy ── dial ──▶ 1.2.3.4
//!                      │                 relay.rs: bytes
//!   ask 8.8.8.8:53  ──▶ resolver ── lookup.rs: one question ────▶ a resolver, by UDP
//!   the same by TCP ──▶ listener ── stream.rs: one after another ▶ a resolver, by TCP
//! ```

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::Settings;
use super::account::Account;
use super::arena::{Arena, Key};
use super::budget::{Budget, Permit};
use super::listen::Listening;
use super::lookup::Lookup;
use super::relay::Relay;
use super::source::Source;
use super::stream::Stream;
use crate::network::names::Names;
use crate::network::place::Places;
use crate::network::policy::Place;
use crate::network::resolvers::HostResolvers;
use crate::network::rules::Rules;
use crate::spec::SandboxId;

/// What a worker is told to do. It answers when it is done.
pub struct Order {
    pub command: Command,
    pub done: Sender<io::Result<()>>,
}

pub enum Command {
    Attach(Box<Attach>),
    Update(SandboxId, Arc<Rules>),
    Detach(SandboxId),
    Stop,
}

pub struct Attach {
    pub id: SandboxId,
    pub listening: Listening,
    pub policy: Arc<Rules>,
    pub account: Arc<Account>,
    pub permit: Permit,
}

/// A sandbox in this worker's care.
pub struct Sandbox {
    pub id: SandboxId,
    pub listening: Listening,
    pub policy: Arc<Rules>,
    pub account: Arc<Account>,
    pub names: Names,
    /// Relays and streams.
    pub connections: usize,
    pub lookups: usize,
    _permit: Permit,
}

pub struct Worker {
    pub epoll: OwnedFd,
    pub settings: Arc<Settings>,
    pub budget: Arc<Budget>,
    pub sandboxes: Arena<Sandbox>,
    pub relays: Arena<Relay>,
    pub lookups: Arena<Lookup>,
    pub streams: Arena<Stream>,
    pub resolvers: HostResolvers,
    /// How many of the relays are still dialing.
    pub dialing: usize,
    pub scratch: Vec<u8>,
    /// Given up for a moment when the process has no descriptor left to refuse a connection with.
    pub spare: Option<OwnedFd>,
    by_id: HashMap<SandboxId, Key>,
    unfinished: VecDeque<Key>,
    unfinished_streams: VecDeque<Key>,
    orders: Receiver<Order>,
    wake: Arc<OwnedFd>,
    places: Places,
    looked_at_clocks: Instant,
}

/// One read's worth; also the most that a stuck connection keeps in memory per direction.
const SCRATCH: usize = 64 * 1024;
const TICK: Duration = Duration::from_millis(250);
const SLOW_TICK: Duration = Duration::from_secs(5);

impl Worker {
    pub fn new(
        settings: Arc<Settings>,
        budget: Arc<Budget>,
        orders: Receiver<Order>,
        wake: Arc<OwnedFd>,
    ) -> io::Result<Worker> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*wake, EventData::new_u64(Source::Wake.encode()), EventFlags::IN)?;
        Ok(Worker {
            epoll,
            resolvers: HostResolvers::new(settings.resolv_conf.clone()),
            settings,
            budget,
            sandboxes: Arena::default(),
            relays: Arena::default(),
            lookups: Arena::default(),
            streams: Arena::default(),
            dialing: 0,
            scratch: vec![0; SCRATCH],
            spare: spare(),
            by_id: HashMap::new(),
            unfinished: VecDeque::new(),
            unfinished_streams: VecDeque::new(),
            orders,
            wake,
            places: Places::open()?,
            looked_at_clocks: Instant::now(),
        })
    }

    /// Works until told to stop.
    pub fn run(mut self) {
        let mut events = [MaybeUninit::<Event>::uninit(); 256];
        loop {
            let reported = match epoll::wait(&self.epoll, &mut events[..], self.patience().as_ref()) {
                Ok((reported, _)) => reported,
                Err(Errno::INTR) => continue,
                Err(errno) => unreachable!("epoll_wait on an epoll of our own: {errno}"),
            };
            let now = Instant::now();
            for event in reported.iter() {
                let (data, flags) = (event.data, event.flags);
                match Source::decode(data.u64()) {
                    Source::Wake => {
                        if self.obey() == Stopped::Yes {
                            return;
                        }
                    }
                    Source::Connections(key) => self.accept(key, now),
                    Source::Questions(key) => self.take_questions(key, now),
                    Source::Client(key) => self.client_event(key, flags, now),
                    Source::Server(key) => self.server_event(key, flags, now),
                    Source::Lookup(key) => self.lookup_event(key, now),
                    Source::StreamClient(key) | Source::StreamServer(key) => self.stream_event(key, now),
                }
            }
            for _ in 0..self.unfinished.len() {
                let Some(key) = self.unfinished.pop_front() else { break };
                if let Some(relay) = self.relays.get_mut(key) {
                    relay.queued = false;
                    self.give_turn(key, now);
                }
            }
            for _ in 0..self.unfinished_streams.len() {
                let Some(key) = self.unfinished_streams.pop_front() else { break };
                if let Some(stream) = self.streams.get_mut(key) {
                    stream.queued = false;
                    self.stream_event(key, now);
                }
            }
            if now.duration_since(self.looked_at_clocks) >= TICK {
                self.looked_at_clocks = now;
                self.look_at_clocks(now);
            }
        }
    }

    pub fn watch(&self, socket: impl AsFd, source: Source, events: EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, socket, EventData::new_u64(source.encode()), events)
    }

    /// Puts a connection that had its turn behind the others.
    pub fn queue(&mut self, key: Key) {
        self.unfinished.push_back(key);
    }

    /// The same for a connection that asks for names.
    pub fn queue_stream(&mut self, key: Key) {
        self.unfinished_streams.push_back(key);
    }

    /// Whose address it is.
    pub fn place(&self, address: std::net::IpAddr) -> Place {
        self.places.of(address)
    }

    /// How long nothing needs doing unless something is reported.
    fn patience(&self) -> Option<Timespec> {
        let wait = if !self.unfinished.is_empty() || !self.unfinished_streams.is_empty() {
            Duration::ZERO
        } else if !self.lookups.is_empty() || !self.streams.is_empty() || self.dialing > 0 {
            TICK
        } else if self.relays.is_empty() {
            return None;
        } else {
            SLOW_TICK.min(self.settings.idle)
        };
        Timespec::try_from(wait).ok()
    }

    fn look_at_clocks(&mut self, now: Instant) {
        let (dial, idle) = (self.settings.dial, self.settings.idle);
        for key in self.relays.keys(|relay| relay.has_expired(now, dial, idle)) {
            self.break_off(key);
        }
        for key in self.lookups.keys(|lookup| lookup.deadline <= now) {
            self.ask_again(key, now);
        }
        for key in self.streams.keys(|stream| stream.deadline <= now) {
            self.end_stream(key);
        }
    }

    fn obey(&mut self) -> Stopped {
        // Reset first: an order that arrives later wakes again.
        let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
        while let Ok(Order { command, done }) = self.orders.try_recv() {
            let mut outcome = Ok(());
            match command {
                Command::Attach(attach) => outcome = self.attach(*attach),
                Command::Update(id, policy) => self.update(&id, policy),
                Command::Detach(id) => self.detach(&id),
                Command::Stop => return Stopped::Yes,
            }
            // Whoever asked may have given up waiting.
            let _ = done.send(outcome);
        }
        Stopped::No
    }

    fn attach(&mut self, attach: Attach) -> io::Result<()> {
        let Attach { id, listening, policy, account, permit } = attach;
        let (connections, questions) = (listening.connections.as_fd(), listening.questions.as_fd());
        let key = self.sandboxes.next();
        self.watch(connections, Source::Connections(key), EventFlags::IN)?;
        self.watch(questions, Source::Questions(key), EventFlags::IN)?;
        let names = Names::default();
        let sandbox =
            Sandbox { id: id.clone(), listening, policy, account, names, connections: 0, lookups: 0, _permit: permit };
        self.sandboxes.insert(sandbox);
        self.by_id.insert(id, key);
        Ok(())
    }

    /// The new policy holds for what comes, and ends what it would no longer let through.
    fn update(&mut self, id: &SandboxId, policy: Arc<Rules>) {
        let Some(&key) = self.by_id.get(id) else { return };
        let Some(sandbox) = self.sandboxes.get_mut(key) else { return };
        sandbox.policy = policy.clone();
        for relay in self.relays.keys(|relay| relay.sandbox == key && !policy.decide(&relay.destination).is_allowed()) {
            self.break_off(relay);
        }
        if !policy.resolves_names {
            for stream in self.streams.keys(|stream| stream.sandbox == key) {
                self.end_stream(stream);
            }
        }
    }

    fn detach(&mut self, id: &SandboxId) {
        let Some(key) = self.by_id.remove(id) else { return };
        for relay in self.relays.keys(|relay| relay.sandbox == key) {
            self.break_off(relay);
        }
        for stream in self.streams.keys(|stream| stream.sandbox == key) {
            self.end_stream(stream);
        }
        for lookup in self.lookups.keys(|lookup| lookup.sandbox == key) {
            self.lookups.remove(lookup);
        }
        self.sandboxes.remove(key);
    }
}

#[derive(PartialEq, Eq)]
enum Stopped {
    Yes,
    No,
}

pub fn spare() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}
