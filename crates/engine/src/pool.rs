//! Namespaces made before anybody asks: they cost more than all the rest of a launch together.
//!
//! A filler thread keeps a number of user namespaces (each with its range of ids), of network namespaces and of control
//! groups ready, and directories to write sandboxes down in. A caller that finds none makes its own and wakes the filler.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::cgroup::Hierarchy;
use crate::cradle::Cradle;
use crate::error::Error;
use crate::fence::{Fence, Inside};
use crate::network::namespace::{self, Kind};
use crate::record::Records;
use crate::refused::Refused;
use crate::registry::Registry;
use crate::spawner::handle::{Again, Spawner, Spawners, is_death};
use crate::spawner::wire::{Outgoing, Request};
use crate::user_namespace::{COUNT, Maps, Pair, Ranges};

/// How long what is made ahead waits after a launch: the first command in the new sandbox wants the processors.
const REST: Duration = Duration::from_millis(20);

/// A user namespace and its range, for one sandbox.
#[derive(Debug)]
pub struct Identity {
    /// The engine's number for the sandbox's user 0.
    pub first_id: u32,
    pub pair: Pair,
    pub inside: Inside,
}

#[derive(Debug)]
pub struct Pool {
    target: usize,
    /// Keeps groups ready itself.
    hierarchy: Hierarchy,
    records: Records,
    ranges: Mutex<Ranges>,
    registry: Registry,
    ready: Mutex<Ready>,
    wanted: Condvar,
}

#[derive(Debug, Default)]
struct Ready {
    cradles: VecDeque<Cradle>,
    identities: VecDeque<Identity>,
    loopback: VecDeque<namespace::Ready>,
    egress: VecDeque<namespace::Ready>,
    /// Launches under way: they come before what is made ahead.
    launches: usize,
    /// The end of the latest.
    launched: Option<Instant>,
    closed: bool,
}

impl Ready {
    fn networks(&mut self, kind: Kind) -> &mut VecDeque<namespace::Ready> {
        match kind {
            Kind::Loopback => &mut self.loopback,
            Kind::Egress => &mut self.egress,
        }
    }
}

impl Pool {
    pub fn new(target: usize, hierarchy: Hierarchy, records: Records) -> Pool {
        let mut place = [0u8; 4];
        // Without it ranges begin with the first; that is as good on a host with one engine.
        let _ = rustix::rand::getrandom(&mut place, rustix::rand::GetRandomFlags::empty());
        let ranges = Ranges::beginning_at(u32::from_ne_bytes(place));
        Pool {
            target,
            hierarchy,
            records,
            ranges: Mutex::new(ranges),
            registry: Registry::of_the_host(),
            ready: Mutex::default(),
            wanted: Condvar::new(),
        }
    }

    /// How many of each are kept ready.
    pub fn target(&self) -> usize {
        self.target
    }

    pub fn reserve(&self, first_id: u32) {
        lock(&self.ranges).reserve(first_id);
    }

    /// A range that no sandbox of this host has.
    fn take_range(&self) -> Result<u32, Error> {
        // Each is tried once: those of other engines stay marked until all are.
        let mut others = Vec::new();
        let taken = loop {
            let Some(first_id) = lock(&self.ranges).take() else { break Err(Error::NoRange(COUNT)) };
            match self.registry.take(first_id) {
                Ok(true) => break Ok(first_id),
                Ok(false) => others.push(first_id),
                Err(error) => {
                    others.push(first_id);
                    break Err(error);
                }
            }
        };
        let mut ranges = lock(&self.ranges);
        others.into_iter().for_each(|first_id| ranges.give_back(first_id));
        taken
    }

    /// The range is the sandbox's from now on, however its engine ends.
    pub fn hand_over(&self, first_id: u32, pid: u32) -> Result<(), Error> {
        // An ordinary user's sandboxes share that user's ids: there is no range to hold.
        if first_id == 0 {
            return Ok(());
        }
        self.registry.hand_to(first_id, pid)
    }

    /// When the last process of a sandbox is gone.
    pub fn give_back(&self, first_id: u32) {
        self.registry.give_back(first_id);
        lock(&self.ranges).give_back(first_id);
    }

    /// An identity, and what `other` does; where none is ready the two are made at the same time.
    pub fn beside_identity<T>(
        &self,
        spawners: &Spawners,
        other: impl FnOnce() -> Result<T, Error>,
    ) -> (Result<Identity, Error>, Result<T, Error>) {
        let ready = lock(&self.ready).identities.pop_front();
        if let Some(identity) = ready {
            return (Ok(identity), other());
        }
        let first_id = match self.take_range() {
            Ok(first_id) => first_id,
            Err(error) => return (Err(error), other()),
        };
        let asked = spawners.ask(&Request::UserNamespace(Maps::range(first_id)), &Outgoing::default());
        let other = other();
        (self.identity(first_id, asked.answer().map(|(_, descriptors)| descriptors.0)), other)
    }

    /// An ordinary user's: made for this sandbox, with its limit on processes.
    pub fn fenced(&self, spawners: &Spawners, fence: Fence) -> Result<Identity, Error> {
        let inside = fence.inside;
        let (_, descriptors) = spawners.call(&Request::Fence(fence), &Outgoing::default())?;
        Ok(Identity { first_id: 0, pair: pair(descriptors.0)?, inside })
    }

    /// A directory, if one is ready.
    pub fn cradle(&self) -> Option<Cradle> {
        lock(&self.ready).cradles.pop_front()
    }

    pub fn network(&self, kind: Kind) -> Result<namespace::Ready, Error> {
        let ready = lock(&self.ready).networks(kind).pop_front();
        ready.map_or_else(|| Ok(namespace::make_ready(kind)?), Ok)
    }

    /// While the value lives, and a moment longer, the filler keeps still, unless half of something is used up: it would take
    /// the processors and the kernel's locks from the launch.
    pub fn launching(&self) -> Launching<'_> {
        lock(&self.ready).launches += 1;
        Launching(self)
    }

    fn make_identity(&self, call: impl FnOnce(&Request) -> Result<Vec<OwnedFd>, Refused>) -> Result<Identity, Error> {
        let first_id = self.take_range()?;
        self.identity(first_id, call(&Request::UserNamespace(Maps::range(first_id))))
    }

    /// The namespaces that a spawner made for a range; where it made none the range is free again.
    fn identity(&self, first_id: u32, made: Result<Vec<OwnedFd>, Refused>) -> Result<Identity, Error> {
        match made.and_then(pair) {
            Ok(pair) => Ok(Identity { first_id, pair, inside: Inside::Range }),
            Err(refused) => {
                self.give_back(first_id);
                Err(refused.into())
            }
        }
    }

    /// The filler: runs until the pool is closed. It has a spawner of its own, so that a launch never waits for it.
    /// What it cannot make, the next launch tries itself and tells why.
    fn fill(&self, mut spawner: Spawner, again: &Again) {
        self.records.clear_of_the_dead();
        while let Some(missing) = self.wait_for_want() {
            let made = match missing {
                Missing::Identity => self
                    .make_identity(|request| Ok(spawner.call(request, &Outgoing::default())?.1.0))
                    .map(|identity| self.add(|ready| ready.identities.push_back(identity))),
                Missing::Network(kind) => namespace::make_ready(kind)
                    .map(|network| self.add(|ready| ready.networks(kind).push_back(network)))
                    .map_err(Error::from),
                Missing::Cradle => {
                    self.records.make_cradle().map(|cradle| self.add(|ready| ready.cradles.push_back(cradle)))
                }
                Missing::Group => self.hierarchy.make_ready().map_err(Error::from),
            };
            let Err(error) = made else { continue };
            match &error {
                Error::Refused(refused) if is_death(refused) => {
                    if let Ok(another) = again() {
                        spawner = another;
                    }
                }
                // Not at once again: whatever is exhausted needs somebody to end.
                _ => self.rest(),
            }
        }
    }

    /// What to make next; `None` when the pool is closed.
    fn wait_for_want(&self) -> Option<Missing> {
        let mut ready = lock(&self.ready);
        while !ready.closed {
            let rest = ready.launched.map_or(Duration::ZERO, |at| REST.saturating_sub(at.elapsed()));
            let busy = ready.launches > 0 || !rest.is_zero();
            let target = if busy { self.target.div_ceil(2) } else { self.target };
            if let Some(missing) = ready.missing(target, self.hierarchy.ready()) {
                return Some(missing);
            }
            ready = if rest.is_zero() {
                self.wanted.wait(ready).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.wanted.wait_timeout(ready, rest).unwrap_or_else(PoisonError::into_inner).0
            };
        }
        None
    }

    fn rest(&self) {
        let ready = lock(&self.ready);
        if !ready.closed {
            drop(self.wanted.wait_timeout(ready, Duration::from_secs(1)).unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn add(&self, put: impl FnOnce(&mut Ready)) {
        let mut ready = lock(&self.ready);
        put(&mut ready);
        if ready.closed {
            self.empty(&mut ready);
        }
    }

    pub fn close(&self) {
        let mut ready = lock(&self.ready);
        ready.closed = true;
        self.empty(&mut ready);
        self.wanted.notify_all();
    }

    fn empty(&self, ready: &mut Ready) {
        for identity in ready.identities.drain(..) {
            self.registry.give_back(identity.first_id);
        }
        for cradle in ready.cradles.drain(..) {
            cradle.discard();
        }
        ready.loopback.clear();
        ready.egress.clear();
    }
}

/// A launch under way.
#[derive(Debug)]
pub struct Launching<'a>(&'a Pool);

impl Drop for Launching<'_> {
    fn drop(&mut self) {
        let mut ready = lock(&self.0.ready);
        ready.launches -= 1;
        ready.launched = Some(Instant::now());
        drop(ready);
        self.0.wanted.notify_one();
    }
}

fn pair(mut descriptors: Vec<OwnedFd>) -> Result<Pair, Refused> {
    let assembly = descriptors.pop();
    let (user, assembly) = descriptors
        .pop()
        .zip(assembly)
        .ok_or_else(|| Refused::new("receive a user namespace", rustix::io::Errno::BADMSG))?;
    Ok(Pair { user, assembly })
}

enum Missing {
    Cradle,
    Group,
    Identity,
    Network(Kind),
}

impl Ready {
    /// What there is least of.
    fn missing(&self, target: usize, groups: Option<usize>) -> Option<Missing> {
        let counts = [
            (groups.unwrap_or(target), Missing::Group),
            (self.cradles.len(), Missing::Cradle),
            (self.identities.len(), Missing::Identity),
            (self.loopback.len(), Missing::Network(Kind::Loopback)),
            (self.egress.len(), Missing::Network(Kind::Egress)),
        ];
        counts
            .into_iter()
            .filter(|(count, _)| *count < target)
            .min_by_key(|(count, _)| *count)
            .map(|(_, missing)| missing)
    }
}

/// The thread of [`Pool::fill`]; ends with the value.
#[derive(Debug)]
pub struct Filler {
    pool: Arc<Pool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Filler {
    pub fn start(pool: Arc<Pool>, again: Arc<Again>) -> Result<Filler, Error> {
        let (filled, spawner) = (Arc::clone(&pool), again()?);
        let thread =
            std::thread::Builder::new().name("cove-filler".into()).spawn(move || filled.fill(spawner, &*again));
        let thread = thread.map_err(Error::file("start a thread for", "the pool"))?;
        Ok(Filler { pool, thread: Some(thread) })
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.pool.close();
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell: what it failed at, launches tell.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
