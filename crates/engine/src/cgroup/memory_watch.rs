//! Who was largest when memory ran out.
//!
//! That memory ran out is the kernel's own count (`memory_kills`) and never guessed. Who was killed, and how large it was, is in the
//! kernel's log ([`KernelLog`]): every group is expected in it from before its first process on. Where the log is not
//! ours to read, a thread looks at a group's processes when the kernel says that memory is short there, and keeps what it saw:
//!
//! * v1: when reclaim fails (`memory.pressure_level` critical), and when the out-of-memory killer is called
//!   (`memory.oom_control`), which tells us before it chooses. Not by a threshold on `memory.usage_in_bytes`: setting one
//!   waits for a grace period of the kernel, 8 ms each;
//! * v2: when a charge meets `memory.max` (the `max` line of `memory.events` changes), which is before anybody is killed.
//!
//! A process can allocate faster than we look. Then the one found dying is named, with what the others do not hold, or nobody. The
//! evidence is for people; limits do not depend on it. One eventfd serves many groups, so that thousands of sandboxes
//! cost a few descriptors.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify;
use rustix::io::Errno;

use super::group::Group;
use super::kernel_log::{KernelLog, Kill};
use super::largest::sample;
use super::{Error, Hierarchy, Version, file};
use crate::state::LargestProcess;

/// eventfds for all v1 groups; a group is found by looking at those that share one. Where the kernel's log tells of kills, few
/// groups need one, and one serves them: a short life like `cove run`'s opens and closes no more than it uses.
const BUCKETS: usize = 32;
/// A group that dances around its limit is not looked at more often.
const REST: Duration = Duration::from_millis(20);
/// A smaller process seen later does not hide a larger one seen before, for so long.
const FRESH: Duration = Duration::from_secs(10);
/// The kernel counts a kill, sends the signal, and then writes its log: the line may come after the death.
const LATE: Duration = Duration::from_millis(500);
/// Of whom the log told, for each group.
const REMEMBERED: usize = 64;

pub struct MemoryWatch {
    shared: Arc<Shared>,
    /// `None` until it is woken: the log can be read when somebody asks, too.
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    /// Ends the thread.
    stop: OwnedFd,
    /// v1.
    buckets: Vec<OwnedFd>,
    /// v2.
    inotify: OwnedFd,
    log: Option<Mutex<KernelLog>>,
    groups: Mutex<HashMap<String, Watched>>,
    /// The log told of a kill.
    told: Condvar,
}

struct Watched {
    directory: PathBuf,
    /// The host's numbers for the users inside, where no other group has them.
    uids: Option<Range<u32>>,
    events: Option<Events>,
    looked: Option<Instant>,
    seen: Option<(Instant, LargestProcess)>,
    killed: Killed,
}

/// By what the kernel tells that memory is short.
enum Events {
    Bucket(usize),
    Inotify(i32),
}

/// What the log told of a group.
#[derive(Default)]
struct Killed {
    /// Kills that need not be waited for.
    told: u64,
    /// Those of before.
    before: u64,
    last: Option<LargestProcess>,
    pids: VecDeque<u32>,
}

impl MemoryWatch {
    /// Starts the thread.
    pub fn start() -> Result<MemoryWatch, Error> {
        let watch = MemoryWatch::resting()?;
        watch.wake()?;
        Ok(watch)
    }

    /// Without its thread: what the kernel's log tells is read when somebody asks, and groups are not looked at. For a life
    /// that is most likely too short for more.
    pub fn resting() -> Result<MemoryWatch, Error> {
        MemoryWatch::with(KernelLog::open())
    }

    fn with(log: Option<KernelLog>) -> Result<MemoryWatch, Error> {
        let new = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let make = || -> Result<Shared, Errno> {
            Ok(Shared {
                stop: new()?,
                buckets: (0..if log.is_some() { 1 } else { BUCKETS }).map(|_| new()).collect::<Result<_, _>>()?,
                inotify: inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?,
                log: log.map(Mutex::new),
                groups: Mutex::default(),
                told: Condvar::new(),
            })
        };
        let shared = Arc::new(make().map_err(|errno| Error::at("watch memory of", Path::new("groups"))(errno.into()))?);
        Ok(MemoryWatch { shared, thread: Mutex::new(None) })
    }

    /// Has its thread from now on.
    pub fn wake(&self) -> Result<(), Error> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let started = std::thread::Builder::new().name("memory-watch".into()).spawn(move || shared.run());
            *thread = Some(started.map_err(Error::at("start a thread for", Path::new("memory-watch")))?);
        }
        Ok(())
    }

    /// From now on the kernel's log is read for this group. To be called before its first process starts; `before` are the kills
    /// of an earlier time. `uids` only where no other group's processes have them.
    pub fn expect(&self, group: &Group, uids: Option<Range<u32>>, before: u64) {
        let Some(directory) = group.memory_directory() else { return };
        let mut watched = Watched::new(directory, uids);
        (watched.killed.told, watched.killed.before) = (before, before);
        self.shared.lock().insert(group.name().to_owned(), watched);
    }

    /// Looks at a group's processes too when memory is short, until it is removed and forgotten: where the log would not name
    /// every victim. (On v1 a group's removal wakes the thread as well, which then looks at all that share an eventfd.)
    pub fn add(&self, hierarchy: &Hierarchy, group: &Group) -> Result<(), Error> {
        let Some(directory) = group.memory_directory() else { return Ok(()) };
        if self.shared.log.is_some() && self.shared.lock().get(group.name()).is_some_and(|known| known.uids.is_some()) {
            return Ok(());
        }
        let bucket = group.name().bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
            % self.shared.buckets.len();
        let events = match hierarchy.version() {
            Version::V1 => register(&self.shared.buckets[bucket], &directory).map(|()| Events::Bucket(bucket))?,
            _ => Events::Inotify(self.shared.follow(&directory.join("memory.events"))?),
        };
        let mut groups = self.shared.lock();
        let watched = groups.entry(group.name().to_owned()).or_insert_with(|| Watched::new(directory, None));
        watched.events = Some(events);
        Ok(())
    }

    /// The largest process when memory last ran out, of a group in which `kills` have been counted.
    pub fn largest(&self, group: &str, kills: u64) -> Option<LargestProcess> {
        let groups = self.hear(group, kills);
        let watched = groups.get(group)?;
        watched.killed.last.clone().or_else(|| watched.seen.as_ref().map(|(_, largest)| largest.clone()))
    }

    /// Whether one of the `kills` counted was of this process; `None` where there were some and the log does not tell whose.
    pub fn was_killed(&self, group: &str, pid: u32, kills: u64) -> Option<bool> {
        let groups = self.hear(group, kills);
        let killed = groups.get(group).map(|watched| &watched.killed);
        if kills <= killed.map_or(0, |killed| killed.before) {
            return Some(false);
        }
        killed.filter(|killed| !killed.pids.is_empty()).map(|killed| killed.pids.contains(&pid))
    }

    fn hear(&self, group: &str, kills: u64) -> MutexGuard<'_, HashMap<String, Watched>> {
        // A line of the log may come after the death: the thread sees it come. Without one the wait ends by itself.
        let _ = self.wake();
        self.shared.hear(group, kills)
    }

    pub fn forget(&self, group: &str) {
        self.shared.lock().remove(group);
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // An eventfd takes a 1 at any time short of 2^64 of them.
            let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
            // It panicked: there is no evidence to be had, and nothing else depends on it.
            let _ = thread.join();
        }
    }
}

/// `cgroup.event_control` takes "eventfd, control file, argument". What a kernel does not know it refuses; the out-of-memory
/// event is the one that must be had.
fn register(event: &OwnedFd, directory: &Path) -> Result<(), Error> {
    let one = |name: &str, argument: &str| -> Result<(), Error> {
        let path = directory.join(name);
        let control = File::open(&path).map_err(Error::at("open", &path))?;
        let line = format!("{} {} {argument}", event.as_raw_fd(), control.as_raw_fd());
        file::write(&directory.join("cgroup.event_control"), line.trim_end())
    };
    one("memory.oom_control", "")?;
    let _ = one("memory.pressure_level", "critical");
    Ok(())
}

impl Shared {
    fn follow(&self, events: &Path) -> Result<i32, Error> {
        inotify::add_watch(&self.inotify, events, inotify::WatchFlags::MODIFY)
            .map_err(|errno| Error::at("watch", events)(errno.into()))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Watched>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        // A duplicate: the log itself is locked by whoever reads it.
        let log = self.log.as_ref().and_then(|log| locked(log).file().try_clone().ok());
        loop {
            let files = [&self.stop, &self.inotify].into_iter().chain(&self.buckets).chain(&log);
            let mut files: Vec<PollFd<'_>> = files.map(|file| PollFd::new(file, PollFlags::IN)).collect();
            match poll(&mut files, None) {
                Ok(_) | Err(Errno::INTR) => {}
                // Out of kernel memory: without evidence, but not in a busy loop.
                Err(_) => return,
            }
            let ready: Vec<bool> = files.iter().map(|file| !file.revents().is_empty()).collect();
            if ready[0] {
                return;
            }
            if ready[1] {
                self.look_at_followed();
            }
            for bucket in (0..self.buckets.len()).filter(|bucket| ready[bucket + 2]) {
                let mut count = [0; 8];
                // EAGAIN: somebody read it before; the look is due all the same.
                let _ = rustix::io::read(&self.buckets[bucket], &mut count);
                let due = |watched: &Watched| matches!(watched.events, Some(Events::Bucket(own)) if own == bucket);
                self.look(|watched| due(watched) && watched.is_short());
            }
            if ready.get(self.buckets.len() + 2) == Some(&true) {
                self.read_log();
            }
        }
    }

    /// Takes down what the log has told since the last time.
    fn read_log(&self) {
        let Some(log) = &self.log else { return };
        // Held until all is taken down: who comes next finds it there.
        let mut log = locked(log);
        let kills = log.read();
        if kills.is_empty() {
            return;
        }
        let mut groups = self.lock();
        for kill in kills {
            let whose = groups.values_mut().find(|watched| kill.was_in(&watched.directory, watched.uids.as_ref()));
            if let Some(watched) = whose {
                watched.killed.note(kill);
            }
        }
        self.told.notify_all();
    }

    /// The groups, once the log has told of so many kills of one, or is not going to.
    fn hear(&self, group: &str, kills: u64) -> MutexGuard<'_, HashMap<String, Watched>> {
        self.read_log();
        let groups = self.lock();
        if self.log.is_none() {
            return groups;
        }
        let waiting = |groups: &mut HashMap<String, Watched>| {
            groups.get(group).is_some_and(|watched| watched.killed.told < kills)
        };
        let (mut groups, _) =
            self.told.wait_timeout_while(groups, LATE, waiting).unwrap_or_else(PoisonError::into_inner);
        if let Some(watched) = groups.get_mut(group) {
            // Lines that were overwritten unread are waited for once.
            watched.killed.told = watched.killed.told.max(kills);
        }
        groups
    }

    fn look_at_followed(&self) {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.inotify.as_fd(), &mut buffer);
        let mut changed = Vec::new();
        while let Ok(event) = reader.next() {
            changed.push(event.wd());
        }
        self.look(|watched| matches!(watched.events, Some(Events::Inotify(watch)) if changed.contains(&watch)));
    }

    fn look(&self, due: impl Fn(&Watched) -> bool) {
        for watched in self.lock().values_mut().filter(|watched| due(watched)) {
            watched.look(Instant::now());
        }
    }
}

fn locked(log: &Mutex<KernelLog>) -> MutexGuard<'_, KernelLog> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Killed {
    fn note(&mut self, kill: Kill) {
        self.told += 1;
        self.last = Some(kill.process);
        if let Some(pid) = kill.pid {
            self.pids.truncate(REMEMBERED - 1);
            self.pids.push_front(pid);
        }
    }
}

impl Watched {
    fn new(directory: PathBuf, uids: Option<Range<u32>>) -> Watched {
        Watched { directory, uids, events: None, looked: None, seen: None, killed: Killed::default() }
    }

    /// v1: the events do not say whose they are.
    fn is_short(&self) -> bool {
        let number = |name: &str| file::read_number(&self.directory.join(name)).unwrap_or(0);
        number("memory.usage_in_bytes") >= number("memory.limit_in_bytes") / 4 * 3
    }

    fn look(&mut self, now: Instant) {
        if self.looked.is_some_and(|looked| now - looked < REST) && self.seen.is_some() {
            return;
        }
        self.looked = Some(now);
        let Ok(pids) = file::read_pids(&self.directory.join("cgroup.procs")) else { return };
        let sample = sample(&pids);
        let usage = ["memory.max_usage_in_bytes", "memory.peak", "memory.current"]
            .iter()
            .find_map(|name| file::read_number(&self.directory.join(name)).ok());
        let dying = sample.dying.map(|name| {
            let memory = usage.unwrap_or(0).saturating_sub(sample.resident);
            LargestProcess { name, memory }
        });
        let found = [sample.largest, dying].into_iter().flatten().max_by_key(|process| process.memory);
        let Some(found) = found else { return };
        let hidden = self.seen.as_ref().is_some_and(|(at, seen)| now - *at < FRESH && seen.memory > found.memory);
        if !hidden {
            self.seen = Some((now, found));
        }
    }
}
