//! What the engine and its reaper share: the sandboxes that live, and the means to make and clear away one.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cove_protocol::Request as GuestRequest;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::base;
use crate::birth::Birth;
use crate::cgroup::{Group, Hierarchy, MemoryWatch};
use crate::engine::{Config, Departure, KILL_PATIENCE};
use crate::error::Error;
use crate::fence::{Fence, Inside};
use crate::guest_line::{self, Asked};
use crate::hold::{Hold, Limit};
use crate::life::Live;
use crate::lock_watch::LockWatch;
use crate::memory_info;
use crate::network::Proxy;
use crate::pool::{Identity, Pool};
use crate::privilege::{Ids, Privilege};
use crate::process;
use crate::processor_time;
use crate::reaper::{self, DYING, Exit, Task};
use crate::record::{Life, Records};
use crate::refused::{Refused, Step};
use crate::share::{self, Processes};
use crate::spawner::handle::Spawners;
use crate::spawner::wire::{Answer, Outgoing, Request};
use crate::spec::{Durability, Limits, Network, SandboxId, Spec, Storage};
use crate::state::{Ended, LargestProcess, Running, Usage};
use crate::storage::{Store, Upper};
use crate::user_namespace::RANGE;

pub struct House {
    pub data: PathBuf,
    pub records: Records,
    pub store: Store,
    pub hierarchy: Hierarchy,
    pub spawners: Spawners,
    pub pool: Arc<Pool>,
    /// The layer of the built-in template, for the ids that most sandboxes here have.
    base: PathBuf,
    pub privilege: Privilege,
    pub hold: Hold,
    /// Limits that nobody asked for.
    pub waived: Vec<Limit>,
    pub unmerged: Vec<&'static str>,
    /// How many processes sandboxes may have on this host.
    pub processes: Processes,
    locks: LockWatch,
    memory: MemoryWatch,
    proxy: OnceLock<Proxy>,
    starting_proxy: Mutex<()>,
    pub leashes: Leashes,
    /// Whether the host was started anew since an engine last began here.
    pub restarted: bool,
    live: Mutex<HashMap<SandboxId, Slot>>,
    /// Ended before they were taken over, because the storage that they ran on had failed.
    pub condemned: Mutex<BTreeSet<SandboxId>>,
    /// When storage that has failed was last tried to begin anew.
    pub renewed: Mutex<Option<Instant>>,
    pub opened: Instant,
    pub syncing_base: Once,
    departed: Mutex<Sender<Departure>>,
}

impl std::fmt::Debug for House {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("House").field("data", &self.data).finish_non_exhaustive()
    }
}

/// A sandbox that is here.
#[derive(Debug)]
pub enum Slot {
    /// A launch is under way.
    Starting,
    Running(Arc<Live>),
}

impl Slot {
    pub fn live(&self) -> Option<Arc<Live>> {
        match self {
            Slot::Starting => None,
            Slot::Running(live) => Some(Arc::clone(live)),
        }
    }
}

/// How long a new guest may take to answer; on a loaded machine a launch takes tens of milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether a launch waits for the guest's first word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Greeting {
    Awaited,
    None,
}

/// Whether a launch makes the sandbox or wakes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fresh {
    Yes,
    No,
}

/// What came of taking over a sandbox.
#[derive(Debug)]
pub enum Adopted {
    Now(Arc<Live>),
    /// It is held already, or being launched.
    Before,
    /// It does not run; how its last life ended, where nobody saw it.
    Dead(Option<Ended>),
}

/// Whether sandboxes end with this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leashes {
    Held,
    None,
}

impl House {
    pub fn open(
        config: &Config,
        spawners: Spawners,
        privilege: Privilege,
        leashes: Leashes,
    ) -> Result<(House, Receiver<Departure>), Error> {
        let data = &config.data;
        if privilege == Privilege::Root {
            share::raise_open_files();
        }
        let records = Records::open(data)?;
        let hierarchy = Hierarchy::of_realm(&records.realm()?)?;
        // Those on a leash are never found again.
        let restarted = leashes == Leashes::None && records.is_another_boot()?;
        let target = if privilege == Privilege::Root { config.pool } else { 0 };
        let pool = Pool::new(target, hierarchy.clone(), records.clone());
        let (departed, departures) = channel();
        let house = House {
            data: data.canonicalize().map_err(Error::file("find", data))?,
            hold: Hold::of(privilege, &hierarchy),
            records,
            store: Store::open(data)?,
            spawners,
            pool: Arc::new(pool),
            base: base::layer(data, usual_ids(privilege))?,
            privilege,
            waived: config.waived.clone(),
            unmerged: base::unmerged(),
            processes: Processes::of_the_host(),
            locks: LockWatch::default(),
            hierarchy,
            memory: MemoryWatch::start()?,
            proxy: OnceLock::new(),
            starting_proxy: Mutex::default(),
            leashes,
            restarted,
            live: Mutex::default(),
            condemned: Mutex::default(),
            renewed: Mutex::default(),
            opened: Instant::now(),
            syncing_base: Once::new(),
            departed: Mutex::new(departed),
        };
        Ok((house, departures))
    }

    pub fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Slot>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The egress proxy, started with the first sandbox that needs it.
    pub fn proxy(&self) -> Result<&Proxy, Error> {
        let _one = self.starting_proxy.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(proxy) = self.proxy.get() {
            return Ok(proxy);
        }
        let proxy = Proxy::start()?;
        Ok(self.proxy.get_or_init(|| proxy))
    }

    /// Marks a launch; says whether the sandbox is new.
    pub fn claim(&self, id: &SandboxId) -> Result<Fresh, Error> {
        let mut live = self.lock();
        if live.contains_key(id) {
            return Err(Error::AlreadyRunning(id.clone()));
        }
        let fresh = if self.records.directory(id).exists() { Fresh::No } else { Fresh::Yes };
        live.insert(id.clone(), Slot::Starting);
        Ok(fresh)
    }

    pub fn is_starting(&self, id: &SandboxId) -> bool {
        matches!(self.lock().get(id), Some(Slot::Starting))
    }

    pub fn running(&self, id: &SandboxId) -> Result<Arc<Live>, Error> {
        match self.lock().get(id) {
            Some(Slot::Running(live)) => Ok(Arc::clone(live)),
            Some(Slot::Starting) => Err(Error::NotRunning(id.clone())),
            None if self.records.directory(id).exists() => Err(Error::NotRunning(id.clone())),
            None => Err(Error::NotFound(id.clone())),
        }
    }

    pub fn spec(&self, id: &SandboxId) -> Result<Spec, Error> {
        self.records.spec(id)?.ok_or_else(|| Error::NotFound(id.clone()))
    }

    pub fn upper(&self, spec: &Spec) -> Result<Upper, Error> {
        if spec.storage == Storage::Disk
            && let Some(upper) = self.store.find(&spec.id)?
        {
            return Ok(upper);
        }
        Ok(self.store.create(&spec.id, spec.storage, &self.limits(spec))?)
    }

    /// After a stop files are on the disk; of those that were volatile the kernel has synced nothing.
    pub fn sync(&self, id: &SandboxId) -> Result<(), Error> {
        let spec = self.spec(id)?;
        if spec.storage == Storage::Disk && spec.durability == Durability::Volatile {
            self.store.sync(id)?;
        }
        Ok(())
    }

    /// Those that really hold.
    pub fn limits(&self, spec: &Spec) -> Limits {
        let mut limits = self.hold.effective(spec.storage, &spec.limits);
        if self.privilege == Privilege::Root {
            // A sandbox of an earlier version may have been promised more.
            limits.pids = limits.pids.min(self.processes.most_of_one());
        }
        limits
    }

    /// A user namespace for a new life, and what `other` does meanwhile.
    pub fn beside_identity<T>(
        &self,
        spec: &Spec,
        other: impl FnOnce() -> Result<T, Error>,
    ) -> (Result<Identity, Error>, Result<T, Error>) {
        match self.privilege {
            Privilege::Root => self.pool.beside_identity(&self.spawners, other),
            Privilege::User(ids) => (self.fenced(spec, ids), other()),
        }
    }

    /// An ordinary user's. With a folder of the host's it has one id, the folder's owner: no other could use it.
    fn fenced(&self, spec: &Spec, ids: Ids) -> Result<Identity, Error> {
        let is_root = matches!(spec.default_user.as_str(), "root" | "0");
        let folders = spec.mounts.iter().any(|mount| !mount.source.starts_with(&self.data));
        let inside = match ids {
            Ids::Range if is_root || !folders => Inside::Range,
            _ if is_root => Inside::Single(0),
            _ => Inside::Single(base::USER),
        };
        self.pool.fenced(&self.spawners, Fence::around(inside, spec.limits.pids))
    }

    pub fn base(&self, inside: Inside) -> Result<PathBuf, Error> {
        if (inside == Inside::Range) == (usual_ids(self.privilege) == Inside::Range) {
            return Ok(self.base.clone());
        }
        base::layer(&self.data, inside)
    }

    pub fn base_layer(&self) -> &std::path::Path {
        &self.base
    }

    /// The control group of a new life; `None` where the host gives an ordinary user none.
    pub fn group(&self, spec: &Spec) -> Result<Option<Group>, Error> {
        self.hold.check(spec.storage, &spec.limits, &self.waived)?;
        if self.privilege != Privilege::Root && self.hierarchy.absent().is_some() {
            return Ok(None);
        }
        Ok(Some(self.hierarchy.create(spec.id.as_str(), &self.limits(spec))?))
    }

    /// Has a spawner clone the sandbox and writes down who it is.
    pub fn start(
        &self,
        spec: &Spec,
        birth: &Birth,
        group: Option<Group>,
        socket: PathBuf,
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
        let (answer, mut descriptors) = answered.map_err(|source| Error::Launch { id: id.clone(), source })?;
        let (Answer::Started { pid, window }, Some(pidfd)) = (answer, descriptors.0.pop()) else {
            return Err(Refused::new("understand a spawner", rustix::io::Errno::BADMSG).into());
        };
        if let Some(group) = &group {
            group.sit(window);
        }
        let pid = pid.cast_unsigned();
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

    /// Takes over a sandbox that an earlier engine started.
    pub fn adopt(&self, spec: &Spec) -> Result<Adopted, Error> {
        let id = &spec.id;
        if self.lock().contains_key(id) {
            return Ok(Adopted::Before);
        }
        let Some(life) = self.records.life(id)? else {
            // An engine that died in the middle of a launch may have left processes that nobody wrote down: they are
            // no sandbox, and must not go on as one.
            self.hierarchy.clear(id.as_str())?;
            return Ok(Adopted::Dead(None));
        };
        let Some(pidfd) = process::open(&life) else { return self.found_dead(id, &life) };
        self.pool.reserve(life.first_id);
        if let Err(error) = self.take_over(spec, &life) {
            // One that is just being killed has a number but no namespaces any more.
            return if ends_within(&pidfd, DYING) { self.found_dead(id, &life) } else { Err(error) };
        }
        let socket = self.records.socket(id);
        let running = Running { id: id.clone(), pid: life.pid, start_time: life.start_time, socket };
        let group = self.hierarchy.open(id.as_str());
        if let Some(group) = &group {
            self.memory.expect(group, self.own_ids(life.first_id), group.memory_kills().unwrap_or(0));
        }
        let live = Arc::new(Live::new(running, pidfd, life.first_id, group, self.limits(spec).memory));
        self.lock().insert(id.clone(), Slot::Running(Arc::clone(&live)));
        Ok(Adopted::Now(live))
    }

    /// Its range of ids, and its network where it has one.
    fn take_over(&self, spec: &Spec, life: &Life) -> Result<(), Error> {
        self.pool.hand_over(life.first_id, life.pid)?;
        if let Network::Full(egress) = &spec.network {
            let path = format!("/proc/{}/ns/net", life.pid);
            let network: OwnedFd = File::open(&path).map_err(Error::file("open", &path))?.into();
            self.proxy()?.attach(&spec.id, network.as_fd(), egress)?;
        }
        Ok(())
    }

    /// One that has files and no record that can be read: whatever runs of it does so unknown, and must not go on.
    pub fn lost_record(&self, id: &SandboxId) -> Result<Ended, Error> {
        let life = self.records.life(id)?;
        self.hierarchy.clear(id.as_str())?;
        Ok(life.as_ref().map_or(Ended::Vanished, ended_unseen))
    }

    /// One that ended while nobody looked. Its record stays until the next launch or its removal: whoever asks again,
    /// because the answer was lost, is told the same.
    fn found_dead(&self, id: &SandboxId, life: &Life) -> Result<Adopted, Error> {
        self.hierarchy.clear(id.as_str())?;
        let condemned = self.condemned.lock().unwrap_or_else(PoisonError::into_inner).contains(id);
        Ok(Adopted::Dead(Some(if condemned { Ended::StorageFailed } else { ended_unseen(life) })))
    }

    /// Removes sandboxes on a leash whose engine was killed: the leash ended their processes, nobody the rest. One
    /// without a record of its life may be another engine's that is just starting; it is left alone.
    pub fn sweep_dead(&self) -> Result<(), Error> {
        for id in self.records.names()? {
            let life = self.records.life(&id)?;
            if life.is_some_and(|life| process::open(&life).is_none()) {
                // The engine of a sandbox that has just ended may be clearing it away itself, at this very moment: neither is
                // in the other's way. What stays is seen by the next sweep.
                let _ = self.hierarchy.clear(id.as_str()).map_err(Error::from).and_then(|()| self.erase(&id));
            }
        }
        Ok(())
    }

    /// Every id of which anything is there: a record, files, a cgroup.
    pub fn traces(&self) -> Result<BTreeSet<SandboxId>, Error> {
        let mut traces: BTreeSet<SandboxId> = self.records.names()?.into_iter().collect();
        traces.extend(self.store.names()?);
        traces.extend(self.hierarchy.names().into_iter().filter_map(|name| name.parse().ok()));
        Ok(traces)
    }

    pub fn largest_process(&self, id: &SandboxId) -> Option<LargestProcess> {
        let kills = self.running(id).ok()?.group.as_ref()?.memory_kills().unwrap_or(0);
        self.memory.largest(id.as_str(), kills)
    }

    /// The host's numbers for the users of one sandbox; an ordinary user's sandboxes share theirs.
    fn own_ids(&self, first_id: u32) -> Option<Range<u32>> {
        (self.privilege == Privilege::Root).then(|| first_id..first_id.saturating_add(RANGE))
    }

    pub fn usage(&self, id: &SandboxId) -> Result<Usage, Error> {
        let spec = self.spec(id)?;
        let limits = self.limits(&spec);
        let mut usage = Usage { disk_limit: limits.disk, memory_limit: limits.memory, ..Usage::default() };
        if let Ok(live) = self.running(id)
            && let Some(group) = &live.group
        {
            let counted = group.usage()?;
            usage.cpu_ns = counted.cpu_ns;
            usage.memory = counted.memory;
            usage.memory_cache = counted.memory_cache;
            usage.memory_peak = counted.memory_peak;
            usage.memory_kills = counted.memory_kills;
            usage.pids = counted.pids;
        } else if let Ok(live) = self.running(id) {
            usage.cpu_ns = processor_time::of_tree(live.running.pid);
        }
        let mut disk = None;
        if spec.storage == Storage::Disk {
            usage.disk = self.store.used(id)?.bytes;
            disk = limits.disk.map(|limit| memory_info::Share { limit, used: usage.disk });
        } else if let Ok(live) = self.running(id) {
            usage.disk = live.files_in_memory();
        }
        if usage.memory > 0 {
            let memory = memory_info::Share { limit: limits.memory, used: usage.memory };
            // A sandbox of an earlier version has no such file.
            let _ = memory_info::renew(&self.records.memory_info(id), memory, disk);
        }
        if let Some(counters) = self.proxy.get().and_then(|proxy| proxy.counters(id)) {
            (usage.network_received, usage.network_sent) = (counters.received, counters.sent);
        }
        Ok(usage)
    }

    /// Takes back a launch that failed: what runs is killed, what is new removed.
    pub fn undo(&self, id: &SandboxId, fresh: Fresh) {
        let live = match self.lock().get(id) {
            Some(Slot::Running(live)) => Some(Arc::clone(live)),
            _ => None,
        };
        if let Some(live) = live {
            live.expect_end();
            // Errors here would hide the one that matters; the sweep finds what stays.
            let _ = live.kill();
            live.wait_until_gone(KILL_PATIENCE);
        }
        self.detach(id);
        self.memory.forget(id.as_str());
        let _ = self.hierarchy.clear(id.as_str());
        let _ = self.records.end_life(id);
        if fresh == Fresh::Yes {
            let _ = self.erase(id);
        }
        self.lock().remove(id);
    }

    /// Removes the files of a sandbox that does not run.
    pub fn erase(&self, id: &SandboxId) -> Result<(), Error> {
        // Files in memory are gone with the processes; asking the store would make it choose a backing for nothing.
        if self.records.spec(id).ok().flatten().is_none_or(|spec| spec.storage == Storage::Disk) {
            self.store.remove(id)?;
        }
        self.records.remove(id)
    }

    /// What the reaper does.
    pub fn carry_out(&self, task: Task) {
        match task {
            Task::Bury(live, exit) => self.bury(&live, exit),
            Task::Settle(live, _) => {
                // Without it the largest process goes unnamed when memory runs out; nothing else depends on it.
                let _ = self.watch_memory(&live);
            }
            Task::LetGo(descriptors) => drop(descriptors),
            Task::Watch => self.watch_locks(),
            Task::Tend => {
                // What cannot be made ahead now, a launch makes and tells why.
                let _ = self.store.tend(self.pool.target());
                self.bring_base_to_disk();
            }
            Task::Room => self.look_after_room(),
            Task::EmptyTrash => {
                // What cannot be deleted now is tried again with the next.
                let _ = self.records.empty_trash();
                let _ = self.store.empty_trash();
            }
        }
    }

    fn watch_locks(&self) {
        if self.privilege != Privilege::Root || self.lock().is_empty() || !self.locks.is_alarmed() {
            return;
        }
        let running: Vec<Arc<Live>> = self.lock().values().filter_map(Slot::live).collect();
        self.locks.enforce(running.iter().filter_map(|live| live.group.as_ref()));
    }

    pub fn watch_memory(&self, live: &Live) -> Result<(), Error> {
        match &live.group {
            Some(group) => Ok(self.memory.add(&self.hierarchy, group)?),
            None => Ok(()),
        }
    }

    fn detach(&self, id: &SandboxId) {
        if let Some(proxy) = self.proxy.get() {
            proxy.detach(id);
        }
    }

    /// Clears away what a sandbox leaves when its last process is gone.
    fn bury(&self, live: &Live, exit: Exit) {
        let id = live.id();
        let cause = self.cause(live, exit);
        self.detach(id);
        self.memory.forget(id.as_str());
        if let Some(group) = &live.group {
            // Nothing of it should be left to kill; what cannot be removed the sweep finds.
            let _ = group.kill();
            let _ = group.remove();
        }
        let _ = self.records.end_life(id);
        self.pool.give_back(live.first_id);
        self.lock().remove(id);
        live.set_ended(cause.clone());
        if !live.is_end_expected() {
            // Nobody may be listening.
            let _ = self.departed.lock().unwrap_or_else(PoisonError::into_inner).send((id.clone(), cause));
        }
    }

    fn cause(&self, live: &Live, exit: Exit) -> Ended {
        if live.is_end_expected() {
            return Ended::Stopped;
        }
        if let Some(cause) = live.condemned() {
            return cause;
        }
        let killed = matches!(exit, Exit::Signal(9) | Exit::Unknown);
        if killed
            && let Some(counted) = live.group.as_ref().and_then(|group| group.usage().ok())
            && counted.memory_kills > 0
            // Where the kernel's log does not tell whose the kills were, one of them was its own.
            && self.memory.was_killed(live.id().as_str(), live.running.pid, counted.memory_kills) != Some(false)
        {
            let largest = self.memory.largest(live.id().as_str(), counted.memory_kills);
            return Ended::OutOfMemory { limit: live.memory_limit(), peak: counted.memory_peak, largest };
        }
        match exit {
            Exit::Code(code) => Ended::GuestExited { code },
            Exit::Signal(signal) => Ended::Killed { signal },
            Exit::Unknown => Ended::Vanished,
        }
    }
}

/// How a life that is over ended, as far as its record tells.
fn ended_unseen(life: &Life) -> Ended {
    let now = process::boot();
    let restarted = !now.is_empty() && !life.boot.is_empty() && life.boot != now;
    if restarted { Ended::HostRestarted } else { Ended::Vanished }
}

/// Ends one whose launch failed after all: its ids go to somebody else next, so nothing of it may be left, not even a zombie.
fn put_down(live: &Live) -> Result<(), Error> {
    live.kill()?;
    if ends_within(&live.pidfd, DYING) {
        reaper::collect(live.pidfd.as_fd());
    }
    Ok(())
}

pub fn ends_within(pidfd: &OwnedFd, limit: Timespec) -> bool {
    let mut ended = [PollFd::new(pidfd, PollFlags::IN)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut ended, Some(&limit))).is_ok_and(|many| many > 0)
}

/// Which ids most sandboxes have.
fn usual_ids(privilege: Privilege) -> Inside {
    match privilege {
        Privilege::Root | Privilege::User(Ids::Range) => Inside::Range,
        Privilege::User(Ids::Single) => Inside::Single(base::USER),
    }
}
