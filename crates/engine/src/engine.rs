//! The engine: sandboxes by id, from the first launch to the last trace.
//!
//! Everything is `&self` and blocks; nothing is kept in memory that the disk and the kernel do not know as well, so an
//! engine that is opened again on the same directory finds what the last one left.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cove_protocol::Request as GuestRequest;
use cove_sys::clone::SingleThreaded;

use crate::birth::{self, Birth, Layers};
use crate::cgroup::{Group, Hierarchy};
use crate::error::Error;
use crate::life::Live;
use crate::network::namespace::Kind;
use crate::pool::{Filler, Pool};
use crate::process;
use crate::reaper::{Exit, Reaper, Task};
use crate::record::{Life, Records};
use crate::refused::{Refused, Step};
use crate::spawner::handle::{Spawner, Spawners};
use crate::spawner::wire::{Answer, Outgoing, Request};
use crate::spec::{Network, SandboxId, Spec, Storage};
use crate::state::{Ended, Running};
use crate::storage::{Store, Upper};
use crate::{guest_line, guest_program};

/// How long a new guest may take to answer; on a loaded machine a launch takes tens of milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the kernel may take to end what was killed.
const KILL_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct Config {
    /// Where everything is kept.
    pub data: PathBuf,
    pub spawning: Spawning,
    /// How many namespaces of each kind are kept ready.
    pub pool: usize,
}

/// Who clones sandboxes.
#[derive(Debug, Clone)]
pub enum Spawning {
    /// A fork of the calling process, which must have one thread when the engine is opened: `cove run`.
    Inline,
    /// Processes made from `program` with the hidden argument; as many as there are cores is best.
    Processes { count: NonZeroUsize, program: PathBuf },
}

/// A sandbox that ended unasked.
pub type Departure = (SandboxId, Ended);

#[derive(Debug)]
pub struct Engine {
    core: Arc<Core>,
    reaper: Reaper,
    departures: Mutex<Option<Receiver<Departure>>>,
    _filler: Option<Filler>,
}

/// What the engine shares with its reaper.
#[derive(Debug)]
struct Core {
    records: Records,
    store: Store,
    hierarchy: Hierarchy,
    spawners: Spawners,
    pool: Arc<Pool>,
    base: PathBuf,
    live: Mutex<HashMap<SandboxId, Slot>>,
    departed: Mutex<Sender<Departure>>,
}

#[derive(Debug)]
enum Slot {
    /// A launch is under way.
    Starting,
    Running(Arc<Live>),
}

impl Engine {
    pub fn open(config: Config) -> Result<Engine, Error> {
        // Before the first thread: an inline spawner is a fork of this process.
        let (spawners, filler) = start_spawners(&config)?;
        let (departed, departures) = channel();
        let core = Arc::new(Core {
            records: Records::open(&config.data)?,
            store: Store::open(&config.data)?,
            hierarchy: Hierarchy::detect()?,
            spawners,
            pool: Arc::new(Pool::new(config.pool)),
            base: birth::base_layer(&config.data)?,
            live: Mutex::default(),
            departed: Mutex::new(departed),
        });
        let work = Arc::clone(&core);
        let reaper = Reaper::start(move |task| work.carry_out(task))?;
        let filler = filler.map(|spawner| Filler::start(Arc::clone(&core.pool), spawner)).transpose()?;
        Ok(Engine { core, reaper, departures: Mutex::new(Some(departures)), _filler: filler })
    }

    /// Starts a new sandbox, or one whose files an earlier life left; returns when its guest answers.
    pub fn launch(&self, spec: &Spec) -> Result<Running, Error> {
        check(spec)?;
        let fresh = self.core.claim(&spec.id)?;
        let started = self.bring_up(spec);
        if started.is_err() {
            self.core.undo(&spec.id, fresh);
        }
        started
    }

    fn bring_up(&self, spec: &Spec) -> Result<Running, Error> {
        let (core, id) = (&*self.core, &spec.id);
        core.records.write_spec(spec)?;
        let upper = core.upper(spec)?;
        let kind = match spec.network {
            Network::None => Kind::Loopback,
            Network::Full(_) => Kind::Egress,
        };
        let group = core.hierarchy.create(id.as_str(), &spec.limits)?;
        let identity = core.pool.identity(&core.spawners)?;
        let first_id = identity.first_id;
        let born = || -> Result<Arc<Live>, Error> {
            let network = core.pool.network(kind)?;
            let layers = Layers { spec, base: &core.base };
            let socket = core.records.socket(id);
            let birth = Birth::prepare(&layers, &upper, identity, network, group.entry()?, &socket)?;
            let live = Arc::new(core.start(spec, &birth, group, socket)?);
            self.reaper.give(Task::LetGo(birth.leftovers()));
            Ok(live)
        };
        let live = born().inspect_err(|_| core.pool.give_back(first_id))?;
        core.lock().insert(id.clone(), Slot::Running(Arc::clone(&live)));
        self.reaper.watch(&live)?;
        let ready = guest_line::ping(&live.running.socket, PATIENCE);
        ready.map_err(|reason| Error::Guest { id: id.clone(), reason })?;
        Ok(live.running.clone())
    }

    /// Ends a sandbox: SIGTERM, `grace` later SIGKILL. Files on disk stay.
    pub fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), Error> {
        let live = self.core.running(id)?;
        live.expect_end();
        if let Some(group) = &live.group
            && group.is_frozen()?
        {
            group.thaw()?;
        }
        let request = GuestRequest::Shutdown { grace_ms: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX) };
        // A guest that does not hear is killed like one that does not end in time.
        let heard = guest_line::ask(&live.running.socket, &request, Duration::from_secs(2)).is_ok();
        if heard && live.wait_until_gone(grace + Duration::from_secs(1)) {
            return Ok(());
        }
        live.kill()?;
        if live.wait_until_gone(KILL_PATIENCE) { Ok(()) } else { Err(Error::Unkillable(id.clone())) }
    }

    /// Ends a sandbox at once and removes everything of it. Returns when its processes are gone; files are deleted
    /// in the background.
    pub fn destroy(&self, id: &SandboxId) -> Result<(), Error> {
        match self.core.running(id) {
            Ok(live) => {
                live.expect_end();
                live.kill()?;
                if !live.wait_until_gone(KILL_PATIENCE) {
                    return Err(Error::Unkillable(id.clone()));
                }
            }
            Err(Error::NotRunning(_)) => {}
            Err(error) => return Err(error),
        }
        self.core.erase(id)?;
        self.reaper.give(Task::EmptyTrash);
        Ok(())
    }

    /// Where the guest of a sandbox listens.
    pub fn socket(&self, id: &SandboxId) -> PathBuf {
        self.core.records.socket(id)
    }

    /// Sandboxes that end unasked, as they do. Can be taken once.
    pub fn departures(&self) -> Option<Receiver<Departure>> {
        self.departures.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Slot>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks a launch; says whether the sandbox is new.
    fn claim(&self, id: &SandboxId) -> Result<Fresh, Error> {
        let mut live = self.lock();
        if live.contains_key(id) {
            return Err(Error::AlreadyRunning(id.clone()));
        }
        let fresh = if self.records.directory(id).exists() { Fresh::No } else { Fresh::Yes };
        live.insert(id.clone(), Slot::Starting);
        Ok(fresh)
    }

    fn running(&self, id: &SandboxId) -> Result<Arc<Live>, Error> {
        match self.lock().get(id) {
            Some(Slot::Running(live)) => Ok(Arc::clone(live)),
            Some(Slot::Starting) => Err(Error::NotRunning(id.clone())),
            None if self.records.directory(id).exists() => Err(Error::NotRunning(id.clone())),
            None => Err(Error::NotFound(id.clone())),
        }
    }

    fn upper(&self, spec: &Spec) -> Result<Upper, Error> {
        if spec.storage == Storage::Disk
            && let Some(upper) = self.store.find(&spec.id)?
        {
            return Ok(upper);
        }
        Ok(self.store.create(&spec.id, spec.storage, &spec.limits)?)
    }

    /// Has a spawner clone the sandbox and writes down who it is.
    fn start(&self, spec: &Spec, birth: &Birth, group: Group, socket: PathBuf) -> Result<Live, Error> {
        let id = &spec.id;
        let mut outgoing = Outgoing::default();
        let request = Request::Launch(Box::new(birth.request(spec, &mut outgoing)?));
        let answered = self.spawners.call(&request, &outgoing);
        let (answer, mut descriptors) = answered.map_err(|source| Error::Launch { id: id.clone(), source })?;
        let (Answer::Started { pid }, Some(pidfd)) = (answer, descriptors.0.pop()) else {
            return Err(Refused::new("understand a spawner", rustix::io::Errno::BADMSG).into());
        };
        let pid = pid.cast_unsigned();
        let start_time = process::start_time(pid).unwrap_or(0);
        let life = Life { pid, start_time, first_id: birth.identity.first_id, boot: process::boot() };
        let running = Running { id: id.clone(), pid, start_time, socket };
        let live = Live::new(running, pidfd, birth.identity.first_id, Some(group), spec.limits.memory);
        if let Err(error) = self.records.write_life(id, &life) {
            live.kill()?;
            return Err(error);
        }
        Ok(live)
    }

    /// Takes back a launch that failed: what runs is killed, what is new removed.
    fn undo(&self, id: &SandboxId, fresh: Fresh) {
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
        let _ = self.hierarchy.clear(id.as_str());
        let _ = self.records.end_life(id);
        if fresh == Fresh::Yes {
            let _ = self.erase(id);
        }
        self.lock().remove(id);
    }

    /// Removes the files of a sandbox that does not run.
    fn erase(&self, id: &SandboxId) -> Result<(), Error> {
        self.store.remove(id)?;
        self.records.remove(id)
    }

    fn carry_out(&self, task: Task) {
        match task {
            Task::Bury(live, exit) => self.bury(&live, exit),
            Task::LetGo(descriptors) => drop(descriptors),
            Task::EmptyTrash => {
                // What cannot be deleted now is tried again with the next.
                let _ = self.store.empty_trash();
            }
        }
    }

    /// Clears away what a sandbox leaves when its last process is gone.
    fn bury(&self, live: &Live, exit: Exit) {
        let id = live.id();
        let cause = match exit {
            _ if live.is_end_expected() => Ended::Stopped,
            Exit::Code(code) => Ended::GuestExited { code },
            Exit::Signal(signal) => Ended::Killed { signal },
            Exit::Unknown => Ended::Vanished,
        };
        if let Some(group) = &live.group {
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
}

/// Whether a launch made the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fresh {
    Yes,
    No,
}

/// What needs no kernel to be refused.
fn check(spec: &Spec) -> Result<(), Error> {
    let label = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.');
    if spec.hostname.is_empty() || spec.hostname.len() > 63 || !label(&spec.hostname) {
        return Err(Error::Invalid(format!(
            "host name {:?} is not 1 to 63 letters, digits, '-' and '.'",
            spec.hostname
        )));
    }
    Ok(())
}

fn start_spawners(config: &Config) -> Result<(Spawners, Option<Spawner>), Error> {
    let guest = guest_program::sealed()?;
    let ready = |spawner: Spawner| -> Result<Spawner, Error> {
        let mut outgoing = Outgoing::default();
        if let Some(slot) = outgoing.add(guest.as_fd()) {
            spawner.call(&Request::Guest(slot), &outgoing)?;
        }
        Ok(spawner)
    };
    match &config.spawning {
        Spawning::Inline => {
            let alone = SingleThreaded::claim().step("open an inline engine in a process with one thread")?;
            Ok((Spawners::new(vec![ready(Spawner::fork(&alone)?)?]), None))
        }
        Spawning::Processes { count, program } => {
            let start = |program: &Path| ready(Spawner::exec(program)?);
            let spawners = (0..count.get()).map(|_| start(program)).collect::<Result<Vec<_>, _>>()?;
            Ok((Spawners::new(spawners), Some(start(program)?)))
        }
    }
}
