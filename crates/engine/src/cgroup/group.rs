//! One sandbox's control group, and its operations.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::processors::{Choice, Seat};
use super::v1::Fresh;
use super::{Deadline, Error, Inner, Tree, file, largest, v2};
use crate::spec::Limits;
use crate::state::LargestProcess;

/// One sandbox's limits and account.
#[derive(Debug)]
pub struct Group {
    inner: Arc<Inner>,
    name: String,
    seat: Mutex<Option<Seat>>,
    /// Opened ahead, for one launch.
    opened: Mutex<Option<Opened>>,
    choices: Mutex<Vec<Choice>>,
    killed: AtomicBool,
}

/// What a launcher needs to put its child into the group: it writes `0` into each of `tasks` as the child, and passes
/// `directory` to clone3 with `CLONE_INTO_CGROUP`. A hybrid host has both. It joins one of `windows`: best the one
/// whose processors it is running on, and passes it to [`Group::sit`].
#[derive(Debug, Default)]
pub struct Entry {
    pub tasks: Vec<OwnedFd>,
    pub windows: Vec<Window>,
    pub directory: Option<OwnedFd>,
    /// The kernel's count of out-of-memory kills, open for reading: the guest reports it with its processes' ends.
    pub kills: Option<OwnedFd>,
}

/// A v1 cpuset that a launch may join.
#[derive(Debug)]
pub struct Window {
    pub tasks: Arc<OwnedFd>,
    pub processors: Vec<u32>,
}

/// The files of a group through which it is joined.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) tasks: Vec<OwnedFd>,
    pub(super) directory: Option<OwnedFd>,
    pub(super) kills: Option<OwnedFd>,
}

/// What the group used so far, as the kernel counts it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_ns: u64,
    /// Bytes in use, without reclaimable cache; tmpfs and shared memory are in it.
    pub memory: u64,
    pub memory_cache: u64,
    /// The most ever in use, cache included.
    pub memory_peak: u64,
    /// Processes that the out-of-memory killer ended.
    pub memory_kills: u64,
    pub pids: u64,
}

impl Group {
    pub(super) fn new(inner: &Arc<Inner>, name: &str, seat: Option<Seat>, opened: Option<Opened>) -> Group {
        Group {
            inner: Arc::clone(inner),
            name: name.to_owned(),
            seat: Mutex::new(seat),
            opened: Mutex::new(opened),
            choices: Mutex::default(),
            killed: AtomicBool::new(false),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn entry(&self) -> Result<Entry, Error> {
        match &self.inner.tree {
            Tree::V1(tree) => {
                let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).take();
                let Opened { tasks, directory, kills } = opened.map_or_else(|| tree.open(&self.name), Ok)?;
                let choices = self.lock_seat().as_ref().map(Seat::choices).unwrap_or_default();
                let window = |choice: &Choice| tree.window(&choice.list, &choice.numbers);
                let windows = choices.iter().map(window).collect::<Result<_, _>>()?;
                *self.choices.lock().unwrap_or_else(PoisonError::into_inner) = choices;
                Ok(Entry { tasks, windows, directory, kills })
            }
            Tree::V2(tree) => tree.entry(&self.name),
            Tree::Absent(absent) => Err(absent.clone().into()),
        }
    }

    /// Which of the entry's windows was taken.
    pub fn sit(&self, window: usize) {
        let choices = std::mem::take(&mut *self.choices.lock().unwrap_or_else(PoisonError::into_inner));
        if let (Some(choice), Some(seat)) = (choices.get(window), self.lock_seat().as_mut()) {
            seat.move_to(choice);
        }
    }

    /// Other limits for a group, also while it runs. A memory limit below what is in use and cannot be reclaimed is refused on
    /// v1; v2 accepts it and kills.
    pub fn set(&self, limits: &Limits) -> Result<(), Error> {
        let seat = self.inner.tree.seat(limits.cpus);
        let moved = {
            let mut held = self.lock_seat();
            let same = held.as_ref().map(Seat::width) == seat.as_ref().map(Seat::width);
            if !same {
                *held = seat;
            }
            !same
        };
        self.write(limits, Fresh::No)?;
        match &self.inner.tree {
            Tree::V1(tree) if moved => tree.reseat(&self.name, self.lock_seat().as_ref()),
            _ => Ok(()),
        }
    }

    pub(super) fn write(&self, limits: &Limits, fresh: Fresh) -> Result<(), Error> {
        let seat = self.lock_seat();
        match &self.inner.tree {
            Tree::V1(tree) => tree.set(&self.name, limits, seat.as_ref(), fresh),
            Tree::V2(tree) => tree.set(&self.name, limits, seat.as_ref(), fresh),
            Tree::Absent(absent) => Err(absent.clone().into()),
        }
    }

    /// How many processors `nproc` shows inside, if the group has fewer than the machine.
    pub fn processors(&self) -> Option<usize> {
        self.lock_seat().as_ref().map(Seat::width)
    }

    /// Returns when no process of the group moves any more.
    pub fn freeze(&self) -> Result<(), Error> {
        match &self.inner.tree {
            Tree::V1(tree) => tree.freeze(&self.name),
            Tree::V2(tree) => v2::freeze(&tree.directory(&self.name), &self.name),
            Tree::Absent(absent) => Err(absent.clone().into()),
        }
    }

    pub fn thaw(&self) -> Result<(), Error> {
        match &self.inner.tree {
            Tree::V1(tree) => tree.thaw(&self.name),
            Tree::V2(tree) => v2::thaw(&tree.directory(&self.name)),
            Tree::Absent(absent) => Err(absent.clone().into()),
        }
    }

    pub fn is_frozen(&self) -> Result<bool, Error> {
        let frozen = match &self.inner.tree {
            Tree::V1(tree) => tree.is_frozen(&self.name),
            Tree::V2(tree) => v2::is_frozen(&tree.directory(&self.name)),
            Tree::Absent(_) => Ok(false),
        };
        match frozen {
            // Nothing is frozen in it.
            Err(error) if error.is_gone() => Ok(false),
            other => other,
        }
    }

    /// SIGKILL to everybody in it. They are gone a moment later; `remove` waits for that.
    pub fn kill(&self) -> Result<(), Error> {
        self.killed.store(true, Ordering::Relaxed);
        match &self.inner.tree {
            Tree::V1(tree) => tree.kill(&self.name),
            Tree::V2(tree) => v2::kill(&tree.directory(&self.name)),
            Tree::Absent(_) => Ok(()),
        }
    }

    pub fn pids(&self) -> Result<Vec<u32>, Error> {
        match &self.inner.tree {
            Tree::V1(tree) => tree.pids(&self.name),
            Tree::V2(tree) => v2::pids(&tree.directory(&self.name)),
            Tree::Absent(_) => Ok(Vec::new()),
        }
    }

    pub fn usage(&self) -> Result<Usage, Error> {
        match &self.inner.tree {
            Tree::V1(tree) => tree.usage(&self.name),
            Tree::V2(tree) => tree.usage(&self.name),
            Tree::Absent(absent) => Err(absent.clone().into()),
        }
    }

    /// How many processes the out-of-memory killer has ended here.
    pub fn memory_kills(&self) -> Result<u64, Error> {
        match &self.inner.tree {
            Tree::V1(tree) => tree.memory_kills(&self.name),
            Tree::V2(tree) => tree.memory_kills(&self.name),
            Tree::Absent(absent) => Err(absent.clone().into()),
        }
    }

    /// How often a process or thread was refused because the group had all that its limit allows; 0 where that is unknown.
    pub fn refused_processes(&self) -> u64 {
        let directory = match &self.inner.tree {
            Tree::V1(tree) => tree.pids_directory(&self.name),
            Tree::V2(tree) => tree.landmark().join(&self.name),
            Tree::Absent(_) => return 0,
        };
        file::read(&directory.join("pids.events")).map_or(0, |events| file::keyed(&events, "max"))
    }

    /// The process that uses most memory now; [`super::MemoryWatch`] reports the largest one when memory ran out.
    pub fn largest_process(&self) -> Result<Option<LargestProcess>, Error> {
        Ok(largest::sample(&self.pids()?).largest)
    }

    pub(super) fn memory_directory(&self) -> Option<PathBuf> {
        match &self.inner.tree {
            Tree::V1(tree) => Some(tree.memory_directory(&self.name)),
            Tree::V2(tree) => Some(tree.directory(&self.name)),
            Tree::Absent(_) => None,
        }
    }

    /// Lets go of page cache that a stopped sandbox's kept files hold; slow (tens of milliseconds), for the background.
    pub fn reclaim(&self) -> Result<(), Error> {
        match &self.inner.tree {
            Tree::V1(tree) => tree.reclaim(&self.name),
            Tree::V2(tree) => tree.reclaim(&self.name),
            Tree::Absent(_) => Ok(()),
        }
    }

    /// Takes the group away; processes that are just dying are waited for: half a minute where we killed them, else two
    /// seconds. Fine to call twice.
    pub fn remove(&self) -> Result<(), Error> {
        let killed = self.killed.load(Ordering::Relaxed);
        let deadline = if killed { Deadline::of_the_killed() } else { Deadline::default() };
        match &self.inner.tree {
            Tree::V1(tree) => tree.remove(&self.name, &deadline)?,
            Tree::V2(tree) => tree.remove(&self.name, &deadline)?,
            Tree::Absent(_) => {}
        }
        *self.lock_seat() = None;
        Ok(())
    }

    fn lock_seat(&self) -> MutexGuard<'_, Option<Seat>> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
