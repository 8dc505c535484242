//! How a sandbox is born: from a specification to a guest that answers, in one direction.
//!
//! ```text
//!   launch ─▶ bring_up: its record ─▶ files ─▶ identity │ control group, network ─▶ deliver ─▶ watched, answered
//!                                                                                     │
//!                                        Birth::prepare (layers, by descriptor) ─▶ start: a spawner clones, the life
//!                                                                                  is written down
//! ```
//! Whatever fails on the way, `launch` takes back all that was done.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cove_protocol::Request as GuestRequest;

use super::burial::put_down;
use super::{Fresh, House, Leashes, Slot, usual_ids};
use crate::base;
use crate::birth::{self, Birth, Layers, Reachable, identity_files};
use crate::cgroup::Group;
use crate::cradle::Nest;
use crate::error::Error;
use crate::fence::{Fence, Inside};
use crate::guest_line::{self, Asked};
use crate::life::Live;
use crate::network::namespace::{Kind, Ready};
use crate::pool::Identity;
use crate::privilege::{Ids, Privilege};
use crate::process;
use crate::reaper::{Age, Reaper, Task};
use crate::record::Life;
use crate::refused::{Fault, Refused, Step};
use crate::shelves::Found;
use crate::spawner::wire::{Answer, Outgoing, Request};
use crate::spec::{Network, SandboxId, Source, Spec, Storage};
use crate::state::Running;
use crate::storage::Upper;

/// How long a new guest may take to answer; on a loaded machine a launch takes tens of milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether a launch waits for the guest's first word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Greeting {
    Awaited,
    None,
}

/// A sandbox that is written down and has files.
pub(super) struct Begun {
    pub fresh: Fresh,
    pub nest: Nest,
    pub upper: Upper,
    /// Written into its root: its name, its resolver.
    pub files: Vec<(String, String)>,
}

/// Everything a life takes along that other lives do not share.
struct Means {
    begun: Begun,
    identity: Identity,
    group: Option<Group>,
    network: Ready,
}

impl House {
    /// Starts a new sandbox, or one whose files an earlier life left. A launch that fails leaves nothing that was not there.
    pub fn launch(&self, reaper: &Reaper, spec: &Spec, greeting: Greeting) -> Result<Running, Error> {
        let _turn = self.turns.take(&spec.id);
        let fresh = self.admit(spec)?;
        let started = self.write_down(spec, fresh).and_then(|nest| {
            let upper = self.upper(spec)?;
            let files = if fresh == Fresh::Yes { identity_files(spec) } else { Vec::new() };
            self.bring_up(reaper, spec, Begun { fresh, nest, upper, files }, greeting)
        });
        if started.is_err() {
            self.undo(reaper, &spec.id, fresh);
        }
        started
    }

    /// Refuses what cannot be, and marks a launch; says whether the sandbox is new.
    pub(super) fn admit(&self, spec: &Spec) -> Result<Fresh, Error> {
        spec.check()?;
        self.hold.check(spec.storage, &spec.limits, &self.waived)?;
        self.claim(&spec.id)
    }

    fn claim(&self, id: &SandboxId) -> Result<Fresh, Error> {
        let mut live = self.lock();
        if live.contains_key(id) {
            return Err(Error::AlreadyRunning(id.clone()));
        }
        let fresh = if self.records.directory(id).exists() { Fresh::No } else { Fresh::Yes };
        live.insert(id.clone(), Slot::Starting);
        Ok(fresh)
    }

    /// Before anything else of it is made.
    pub(super) fn write_down(&self, spec: &Spec, fresh: Fresh) -> Result<Nest, Error> {
        match fresh {
            Fresh::Yes => {
                self.processes.check(&spec.limits)?;
                self.records.begin(spec, self.pool.cradle())
            }
            Fresh::No => self.records.begin_again(spec),
        }
    }

    pub(super) fn bring_up(
        &self,
        reaper: &Reaper,
        spec: &Spec,
        begun: Begun,
        greeting: Greeting,
    ) -> Result<Running, Error> {
        let id = &spec.id;
        let _first = self.pool.launching();
        if begun.fresh == Fresh::No {
            // An engine that died in the middle of a launch may have left processes that nobody wrote down.
            self.hierarchy.clear(id.as_str())?;
        }
        let kind = match spec.network {
            Network::None => Kind::Loopback,
            Network::Full(_) => Kind::Egress,
        };
        // A namespace that is not ready takes a millisecond, and so does the other: side by side.
        let (identity, rest) = self.beside_identity(spec, || Ok((self.group(spec)?, self.pool.network(kind)?)));
        let identity = identity?;
        let first_id = identity.first_id;
        let delivered = rest.and_then(|(group, network)| {
            self.deliver(reaper, spec, Means { begun, identity, group, network }, greeting)
        });
        let (live, asked) = delivered.inspect_err(|_| self.pool.give_back(first_id))?;
        self.lock().insert(id.clone(), Slot::Running(Arc::clone(&live)));
        reaper.watch(&live)?;
        if let Some(asked) = asked {
            asked.pong().map_err(|reason| Error::Guest { id: id.clone(), reason })?;
        }
        Ok(live.running.clone())
    }

    fn upper(&self, spec: &Spec) -> Result<Upper, Error> {
        if spec.storage == Storage::Disk
            && let Some(upper) = self.store.find(&spec.id)?
        {
            return Ok(upper);
        }
        Ok(self.store.create(&spec.id, spec.storage, &self.limits(spec))?)
    }

    /// A user namespace for a new life, and what `other` does meanwhile.
    fn beside_identity<T>(
        &self,
        spec: &Spec,
        other: impl FnOnce() -> Result<T, Error>,
    ) -> (Result<Identity, Error>, Result<T, Error>) {
        match self.privilege {
            Privilege::Root => self.pool.beside_identity(&self.spawners, other),
            Privilege::User(ids) => (self.fenced(spec, ids), other()),
        }
    }

    /// See [`crate::Engine::check_host`].
    pub fn check_layers(&self) -> Result<(), Error> {
        if self.privilege != Privilege::Root {
            return Ok(());
        }
        let (identity, _) = self.pool.beside_identity(&self.spawners, || Ok(()));
        // Ranges or namespaces that are used up become free again, and until then a launch says so.
        let Ok(identity) = identity else { return Ok(()) };
        let checked = birth::try_layers(&[self.base.as_path(), Path::new("/usr")], identity.pair.user.as_fd());
        self.pool.give_back(identity.first_id);
        match checked {
            Err(error @ Error::NoIdMaps(_)) => Err(error),
            _ => Ok(()),
        }
    }

    /// An ordinary user's. With a folder of the host's it has one id, the folder's owner: no other could use it.
    fn fenced(&self, spec: &Spec, ids: Ids) -> Result<Identity, Error> {
        let is_root = matches!(spec.default_user.as_str(), "root" | "0");
        let is_folder = |source: &Source| match source {
            Source::Path(path) => !self.ours.iter().any(|place| path.starts_with(place)),
            Source::Volume { .. } => false,
        };
        let folders = spec.mounts.iter().any(|mount| is_folder(&mount.source));
        let inside = match ids {
            Ids::Range if is_root || !folders => Inside::Range,
            _ if is_root => Inside::Single(0),
            _ => Inside::Single(base::USER),
        };
        self.pool.fenced(&self.spawners, Fence::around(inside, spec.limits.pids))
    }

    /// The control group of a new life; `None` where the host gives an ordinary user none.
    fn group(&self, spec: &Spec) -> Result<Option<Group>, Error> {
        self.hold.check(spec.storage, &spec.limits, &self.waived)?;
        if self.privilege != Privilege::Root && self.hierarchy.absent().is_some() {
            return Ok(None);
        }
        Ok(Some(self.hierarchy.create(spec.id.as_str(), &self.limits(spec))?))
    }

    /// Puts the layers together, has the process started, and gives the reaper what is left over.
    fn deliver(
        &self,
        reaper: &Reaper,
        spec: &Spec,
        means: Means,
        greeting: Greeting,
    ) -> Result<(Arc<Live>, Option<Asked>), Error> {
        let Means { begun: Begun { nest, upper, files, .. }, identity, group, network } = means;
        // Held until it is mounted. After that its record says what it stands on.
        let over = spec.root.over.iter().map(|id| self.shelves.hold(id)).collect::<Result<Vec<Found>, _>>()?;
        let layers = Layers {
            spec,
            over: &over,
            base: &self.base(identity.inside)?,
            unmerged: &self.unmerged,
            ours: &self.ours,
            store: &self.store,
            files,
            privilege: self.privilege,
            reach: if self.leashes == Leashes::None { Reachable::Yes } else { Reachable::No },
            memory: self.hold.holds_memory().then_some(spec.limits.memory),
        };
        let entry = group.as_ref().map(Group::entry).transpose()?.unwrap_or_default();
        let mut birth = Birth::prepare(layers, &upper, identity, network.namespace, entry, nest, &self.spawners)?;
        if let (Network::Full(egress), Some(listening)) = (&spec.network, network.listening) {
            self.proxy()?.attach_ready(&spec.id, listening, egress)?;
        }
        let (mut live, asked) = self.start(spec, &birth, group, greeting)?;
        live.files = birth.in_memory.take();
        live.layers = over.into_iter().filter(|found| found.is_foreign).map(|found| found.layer).collect();
        let live = Arc::new(live);
        reaper.give(Task::LetGo(birth.leftovers()));
        if spec.storage == Storage::Disk && self.leashes == Leashes::None {
            reaper.give(Task::Tend);
        }
        let age = if self.leashes == Leashes::Held { Age::Young } else { Age::Settled };
        reaper.give(Task::Settle(Arc::clone(&live), age));
        Ok((live, asked))
    }

    /// The built-in template's layer, for a sandbox with these ids.
    fn base(&self, inside: Inside) -> Result<PathBuf, Error> {
        if (inside == Inside::Range) == (usual_ids(self.privilege) == Inside::Range) {
            return Ok(self.base.clone());
        }
        base::layer(&self.data, inside)
    }

    /// Has a spawner clone the sandbox and writes down who it is.
    fn start(
        &self,
        spec: &Spec,
        birth: &Birth,
        group: Option<Group>,
        greeting: Greeting,
    ) -> Result<(Live, Option<Asked>), Error> {
        let id = &spec.id;
        let leash = match self.leashes {
            Leashes::None => None,
            Leashes::Held => {
                Some(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).step("make a leash for the sandbox")?)
            }
        };
        if let Some(group) = &group {
            self.memory.expect(group, self.own_ids(birth.identity.first_id), 0);
        }
        let mut outgoing = Outgoing::default();
        let inner_end = leash.as_ref().map(|(inner, _)| inner.as_fd());
        let request = Request::Launch(Box::new(birth.request(spec, inner_end, &mut outgoing)?));
        let answered = self.spawners.call(&request, &outgoing);
        let (answer, mut descriptors) = answered.map_err(|source| match source.fault {
            Fault::Host => Error::Launch { id: id.clone(), source },
            Fault::Files => Error::Invalid(format!("no sandbox can be made of these files: {source}")),
        })?;
        let (Answer::Started { pid, window }, Some(pidfd)) = (answer, descriptors.0.pop()) else {
            return Err(Refused::new("understand a spawner", rustix::io::Errno::BADMSG).into());
        };
        if let Some(group) = &group {
            group.sit(window);
        }
        let (pid, socket) = (pid.cast_unsigned(), self.records.socket(id));
        // At once: it wakes up while the rest is done.
        let greet = || guest_line::begin(&socket, &GuestRequest::Ping, PATIENCE);
        let asked = (greeting == Greeting::Awaited).then(greet).transpose();
        let start_time = process::start_time(pid).unwrap_or(0);
        let life = Life { pid, start_time, first_id: birth.identity.first_id, boot: process::boot() };
        let running = Running { id: id.clone(), pid, start_time, socket };
        let mut live = Live::new(running, pidfd, birth.identity.first_id, group, self.limits(spec).memory);
        live.leash = leash.map(|(_, outer)| outer);
        let written = birth.nest.write_life(&life);
        let born = written
            .and_then(|()| self.pool.hand_over(life.first_id, pid))
            .and_then(|()| asked.map_err(|reason| Error::Guest { id: id.clone(), reason }));
        match born {
            Ok(asked) => Ok((live, asked)),
            Err(error) => {
                put_down(&live)?;
                Err(error)
            }
        }
    }
}
