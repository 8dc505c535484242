//! A running sandbox as the engine holds it, from its first process to its last.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::cgroup::Group;
use crate::error::Error;
use crate::spec::SandboxId;
use crate::state::{Ended, Running};
use crate::storage::HeldLayer;

#[derive(Debug)]
pub struct Live {
    pub running: Running,
    pub pidfd: OwnedFd,
    pub first_id: u32,
    /// Absent on a host that gives us no cgroups.
    pub group: Option<Group>,
    /// The outer end of a pipe whose closing ends the sandbox.
    pub leash: Option<OwnedFd>,
    /// Its files, where they are in memory and an engine of this life made them.
    pub files: Option<OwnedFd>,
    /// Layers of other data directories: nobody there knows that they are used.
    pub layers: Vec<HeldLayer>,
    /// Held by who freezes or thaws it.
    stillness: Mutex<()>,
    /// Bytes, for the sentence about memory that ran out.
    memory_limit: AtomicU64,
    asked: AtomicBool,
    /// Why the engine ends it unasked, where it does.
    condemned: Mutex<Option<Ended>>,
    ended: Mutex<Option<Ended>>,
    gone: Condvar,
}

impl Live {
    pub fn new(running: Running, pidfd: OwnedFd, first_id: u32, group: Option<Group>, memory_limit: u64) -> Live {
        Live {
            running,
            pidfd,
            first_id,
            group,
            leash: None,
            files: None,
            layers: Vec::new(),
            stillness: Mutex::default(),
            memory_limit: AtomicU64::new(memory_limit),
            asked: AtomicBool::new(false),
            condemned: Mutex::new(None),
            ended: Mutex::new(None),
            gone: Condvar::new(),
        }
    }

    pub fn id(&self) -> &SandboxId {
        &self.running.id
    }

    /// From now on its end is no news.
    pub fn expect_end(&self) {
        self.asked.store(true, Ordering::SeqCst);
    }

    pub fn is_end_expected(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// Ends it for a reason of the engine's own, which is told as news.
    pub fn condemn(&self, cause: Ended) -> Result<(), Error> {
        *self.condemned.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause);
        self.kill()
    }

    pub fn condemned(&self) -> Option<Ended> {
        self.condemned.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// SIGKILL to PID 1: the kernel ends everything in its pid namespace. Frozen processes are thawed, or they would
    /// not notice.
    pub fn kill(&self) -> Result<(), Error> {
        // Read before the end: its cgroup is removed with it. What cannot be read is already gone.
        let frozen = self.group.as_ref().is_some_and(|group| group.is_frozen().unwrap_or(false));
        match rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(errno) => return Err(crate::refused::Refused::new("kill the sandbox's first process", errno).into()),
        }
        if frozen { self.thaw() } else { Ok(()) }
    }

    /// Waits for whoever freezes or thaws it.
    pub fn stillness(&self) -> MutexGuard<'_, ()> {
        self.stillness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a sandbox that ends: one whose group is removed meanwhile has ended.
    pub fn thaw(&self) -> Result<(), Error> {
        let Some(group) = &self.group else { return Ok(()) };
        if group.is_frozen()?
            && let Err(error) = group.thaw()
            && !error.is_gone()
        {
            return Err(error.into());
        }
        Ok(())
    }

    /// Holds its mounts: the holder decides when they are removed, instead of the process that ends. Taking them down
    /// syncs the filesystem below, some milliseconds that a destroy should not wait for. If the process is gone and
    /// another one has its pid, that one's mounts are held for a moment, which does no harm.
    pub fn mounts(&self) -> Option<OwnedFd> {
        let path = format!("/proc/{}/ns/mnt", self.running.pid);
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    pub fn group(&self) -> Result<&Group, Error> {
        let none = || Error::Invalid(format!("sandbox {} has no cgroup: this host gives none", self.running.id));
        self.group.as_ref().ok_or_else(none)
    }

    pub fn memory_limit(&self) -> u64 {
        self.memory_limit.load(Ordering::Relaxed)
    }

    pub fn set_memory_limit(&self, bytes: u64) {
        self.memory_limit.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that files in a tmpfs root take, as the host counts them; 0 where they cannot be read.
    pub fn files_in_memory(&self) -> u64 {
        let root = format!("/proc/{}/root/", self.running.pid);
        rustix::fs::statvfs(root)
            .map_or(0, |counted| counted.f_blocks.saturating_sub(counted.f_bfree) * counted.f_frsize)
    }

    /// Called once, when nothing of it is left.
    pub fn set_ended(&self, cause: Ended) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause);
        self.gone.notify_all();
    }

    pub fn is_gone(&self) -> bool {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether all of it was gone within the time.
    pub fn wait_until_gone(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while ended.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            (ended, _) = self.gone.wait_timeout(ended, left).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}
