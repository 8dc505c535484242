//! What the engine and its reaper share: the sandboxes that live, and the means to make and clear away one.
//!
//! * [`bring_up`]: from a specification to a guest that answers
//! * [`capture`]: what a sandbox has written becomes a layer; [`fork`]: or another sandbox
//! * [`manifest`]: what files it has, noted and compared
//! * [`adopt`]: sandboxes that an earlier engine started
//! * [`burial`]: what is cleared away when one ends, or when its launch fails

mod adopt;
mod bring_up;
mod burial;
mod capture;
mod fork;
mod manifest;

pub use adopt::Adopted;
pub use bring_up::Greeting;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::Instant;

use crate::base;
use crate::cgroup::{Hierarchy, MemoryWatch};
use crate::engine::{Config, Departure};
use crate::error::Error;
use crate::fence::Inside;
use crate::hold::{Hold, Limit};
use crate::life::Live;
use crate::lock_watch::LockWatch;
use crate::memory_info;
use crate::network::Proxy;
use crate::pool::Pool;
use crate::privilege::{Ids, Privilege};
use crate::processor_time;
use crate::reaper::Task;
use crate::record::Records;
use crate::share::{self, Processes};
use crate::shelves::Shelves;
use crate::socket_watch::SocketWatch;
use crate::spawner::handle::Spawners;
use crate::spec::{Durability, Limits, SandboxId, Spec, Storage};
use crate::state::{LargestProcess, Usage};
use crate::storage::{self, Store};
use crate::turns::Turns;
use crate::user_namespace::RANGE;

pub struct House {
    /// The data directory, without symlinks.
    data: PathBuf,
    /// That, and the storage of the ones whose layers are used here: drafts lie there. Other folders in those data
    /// directories are folders of the host like any other.
    ours: Vec<PathBuf>,
    /// What is written down of each sandbox.
    pub records: Records,
    /// Files of sandboxes on disk, layers and volumes.
    pub store: Arc<Store>,
    /// Where layers are looked for.
    shelves: Shelves,
    /// One at a time for each sandbox.
    pub turns: Turns,
    /// Control groups.
    pub hierarchy: Hierarchy,
    pub spawners: Spawners,
    /// Namespaces, groups and directories made ahead.
    pub pool: Arc<Pool>,
    /// The layer of the built-in template, for the ids that most sandboxes here have.
    base: PathBuf,
    pub privilege: Privilege,
    /// Which limits hold on this host.
    pub hold: Hold,
    /// Limits that nobody asked for.
    waived: Vec<Limit>,
    /// Directories of programs that the host keeps outside of `/usr`.
    unmerged: Vec<&'static str>,
    /// How many processes sandboxes may have on this host.
    pub processes: Processes,
    /// Ends processes that hold file locks without end.
    locks: LockWatch,
    /// Ends processes whose sockets hold the kernel's memory without end.
    sockets: SocketWatch,
    /// Knows who was largest when memory ran out.
    memory: MemoryWatch,
    /// Carries what leaves sandboxes; started with the first that needs it.
    proxy: OnceLock<Proxy>,
    starting_proxy: Mutex<()>,
    /// Whether sandboxes end with this process.
    pub leashes: Leashes,
    /// Whether the host was started anew since an engine last began here.
    pub restarted: bool,
    /// Sandboxes that run or are being started.
    live: Mutex<HashMap<SandboxId, Slot>>,
    /// Ended before they were taken over, because the storage that they ran on had failed.
    pub condemned: Mutex<BTreeSet<SandboxId>>,
    /// When storage that has failed was last tried to begin anew.
    pub renewed: Mutex<Option<Instant>>,
    /// When this engine began.
    pub opened: Instant,
    /// The base layer is brought to the disk once.
    pub syncing_base: Once,
    /// How many sandboxes were shown what they have used of their disks.
    pub shown: AtomicUsize,
    /// Where sandboxes that end unasked are reported.
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

/// Whether a launch makes the sandbox or wakes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fresh {
    Yes,
    No,
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
            share::raise_terminals();
        }
        let records = Records::open(data)?;
        let hierarchy = Hierarchy::of_realm(&records.realm()?)?;
        // Those on a leash are never found again.
        let restarted = leashes == Leashes::None && records.is_another_boot()?;
        let target = if privilege == Privilege::Root { config.pool } else { 0 };
        let pool = Pool::new(target, hierarchy.clone(), records.clone());
        let (departed, departures) = channel();
        let store = Arc::new(Store::open(data)?);
        let shelves = Shelves::new(Arc::clone(&store), data, config.layers.as_deref());
        let own = data.canonicalize().map_err(Error::file("find", data))?;
        let others = shelves.places().iter().filter_map(|place| place.canonicalize().ok());
        let house = House {
            ours: [own.clone()].into_iter().chain(others.flat_map(|place| storage::tops(&place))).collect(),
            data: own,
            hold: Hold::of(privilege, &hierarchy),
            records,
            store,
            shelves,
            turns: Turns::default(),
            spawners,
            pool: Arc::new(pool),
            base: base::layer(data, usual_ids(privilege))?,
            privilege,
            waived: config.waived.clone(),
            unmerged: base::unmerged(),
            processes: Processes::of_the_host(),
            locks: LockWatch::default(),
            sockets: SocketWatch::default(),
            hierarchy,
            memory: match leashes {
                Leashes::Held => MemoryWatch::resting()?,
                Leashes::None => MemoryWatch::start()?,
            },
            proxy: OnceLock::new(),
            starting_proxy: Mutex::default(),
            leashes,
            restarted,
            live: Mutex::default(),
            condemned: Mutex::default(),
            renewed: Mutex::default(),
            opened: Instant::now(),
            syncing_base: Once::new(),
            shown: AtomicUsize::new(0),
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
            // What a capture keeps is on its account too, and its limit is wider by as much.
            usage.disk = self.store.used(id)?.bytes.min(limits.disk.unwrap_or(u64::MAX));
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

    /// What the reaper does.
    pub fn carry_out(&self, task: Task) {
        match task {
            Task::Bury(live, exit) => self.bury(&live, exit),
            Task::Settle(live, _) => {
                // Without it the largest process goes unnamed when memory runs out; nothing else depends on it.
                let _ = self.watch_memory(&live);
            }
            Task::LetGo(descriptors) => drop(descriptors),
            Task::Watch => self.watch_kernel_memory(),
            Task::Tend => {
                // What cannot be made ahead now, a launch makes and tells why.
                let _ = self.store.tend(self.pool.target());
                self.bring_base_to_disk();
            }
            Task::Room => self.look_after_room(),
            Task::Recount(id) => {
                // One that is gone has nothing to count; of one whose files are changed now the next capture counts them.
                let Some(_turn) = self.turns.try_take(&id) else { return };
                let limits = self.spec(&id).map(|spec| self.limits(&spec));
                let _ = limits.and_then(|limits| Ok(self.store.recount(&id, &limits)?));
            }
            Task::EmptyTrash => {
                // What cannot be deleted now is tried again with the next.
                let _ = self.records.empty_trash();
                let _ = self.store.empty_trash();
            }
        }
    }

    pub fn base_layer(&self) -> &Path {
        &self.base
    }

    /// What the kernel holds for sandboxes and no control group counts.
    fn watch_kernel_memory(&self) {
        if self.privilege != Privilege::Root || self.lock().is_empty() {
            return;
        }
        let running = || -> Vec<Arc<Live>> { self.lock().values().filter_map(Slot::live).collect() };
        if self.locks.is_alarmed() {
            self.locks.enforce(running().iter().filter_map(|live| live.group.as_ref()));
        }
        if let Some(alarm) = self.sockets.alarm() {
            self.sockets.enforce(alarm, running().iter().map(|live| &**live));
        }
    }

    /// Notes who is largest when memory runs out as it happens, not only when somebody asks.
    pub fn begin_to_watch_memory(&self) -> Result<(), Error> {
        Ok(self.memory.wake()?)
    }

    pub fn watch_memory(&self, live: &Live) -> Result<(), Error> {
        match &live.group {
            Some(group) => Ok(self.memory.add(&self.hierarchy, group)?),
            None => Ok(()),
        }
    }
}

/// Which ids most sandboxes have.
fn usual_ids(privilege: Privilege) -> Inside {
    match privilege {
        Privilege::Root | Privilege::User(Ids::Range) => Inside::Range,
        Privilege::User(Ids::Single) => Inside::Single(base::USER),
    }
}
