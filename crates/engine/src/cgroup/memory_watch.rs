//! Who was largest when memory ran out.
//!
//! The kernel counts its kills (`memory_kills`) and writes names only to its log, which is not ours to read. So a thread
//! looks at a group's processes when the kernel says that memory is short there, and keeps what it saw:
//!
//! * v1: when reclaim fails (`memory.pressure_level` critical), and when the out-of-memory killer is called
//!   (`memory.oom_control`), which tells us before it chooses. Not by a threshold on `memory.usage_in_bytes`: setting one
//!   waits for a grace period of the kernel, 8 ms each;
//! * v2: when a charge meets `memory.max` (the `max` line of `memory.events` changes), which is before anybody is killed.
//!
//! A process can allocate faster than we look. Then the one found dying is named, with what the others do not hold. The
//! evidence is for people; limits do not depend on it. One eventfd serves many groups, so that thousands of sandboxes
//! cost a few descriptors.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify;
use rustix::io::Errno;

use super::group::Group;
use super::largest::sample;
use super::{Error, Hierarchy, Version, file};
use crate::state::LargestProcess;

/// eventfds for all v1 groups; a group is found by looking at those that share one.
const BUCKETS: usize = 32;
/// A group that dances around its limit is not looked at more often.
const REST: Duration = Duration::from_millis(20);
/// A smaller process seen later does not hide a larger one seen before, for so long.
const FRESH: Duration = Duration::from_secs(10);

pub struct MemoryWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// Ends the thread.
    stop: OwnedFd,
    /// v1.
    buckets: Vec<OwnedFd>,
    /// v2.
    inotify: OwnedFd,
    groups: Mutex<HashMap<String, Watched>>,
}

struct Watched {
    bucket: usize,
    watch: Option<i32>,
    directory: PathBuf,
    looked: Option<Instant>,
    seen: Option<(Instant, LargestProcess)>,
}

impl MemoryWatch {
    /// Starts the thread.
    pub fn start() -> Result<MemoryWatch, Error> {
        let new = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let make = || -> Result<Shared, Errno> {
            Ok(Shared {
                stop: new()?,
                buckets: (0..BUCKETS).map(|_| new()).collect::<Result<_, _>>()?,
                inotify: inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?,
                groups: Mutex::default(),
            })
        };
        let shared = Arc::new(make().map_err(|errno| Error::at("watch memory of", Path::new("groups"))(errno.into()))?);
        let thread = std::thread::Builder::new().name("memory-watch".into()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.run()
        });
        let thread = thread.map_err(Error::at("start a thread for", Path::new("memory-watch")))?;
        Ok(MemoryWatch { shared, thread: Some(thread) })
    }

    /// Watches a group until it is removed and forgotten.
    pub fn add(&self, hierarchy: &Hierarchy, group: &Group) -> Result<(), Error> {
        let Some(directory) = group.memory_directory() else { return Ok(()) };
        let bucket =
            group.name().bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % BUCKETS;
        let watch = match hierarchy.version() {
            Version::V1 => register(&self.shared.buckets[bucket], &directory).map(|()| None)?,
            _ => Some(self.shared.follow(&directory.join("memory.events"))?),
        };
        let watched = Watched { bucket, watch, directory, looked: None, seen: None };
        self.shared.lock().insert(group.name().to_owned(), watched);
        Ok(())
    }

    /// The largest process when memory was last short.
    pub fn largest(&self, group: &str) -> Option<LargestProcess> {
        self.shared.lock().get(group)?.seen.as_ref().map(|(_, largest)| largest.clone())
    }

    pub fn forget(&self, group: &str) {
        self.shared.lock().remove(group);
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        // An eventfd takes a 1 at any time short of 2^64 of them.
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
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
        loop {
            let files = std::iter::once(&self.stop).chain(std::iter::once(&self.inotify)).chain(&self.buckets);
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
            for bucket in (0..BUCKETS).filter(|bucket| ready[bucket + 2]) {
                let mut count = [0; 8];
                // EAGAIN: somebody read it before; the look is due all the same.
                let _ = rustix::io::read(&self.buckets[bucket], &mut count);
                self.look(|watched| watched.bucket == bucket && watched.is_short());
            }
        }
    }

    fn look_at_followed(&self) {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.inotify.as_fd(), &mut buffer);
        let mut changed = Vec::new();
        while let Ok(event) = reader.next() {
            changed.push(event.wd());
        }
        self.look(|watched| watched.watch.is_some_and(|watch| changed.contains(&watch)));
    }

    fn look(&self, due: impl Fn(&Watched) -> bool) {
        for watched in self.lock().values_mut().filter(|watched| due(watched)) {
            watched.look(Instant::now());
        }
    }
}

impl Watched {
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
