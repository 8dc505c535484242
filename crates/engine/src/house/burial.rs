//! What is cleared away: of a sandbox whose last process is gone, and of a launch that failed.

use std::os::fd::AsFd;
use std::sync::{Arc, PoisonError};

use super::{Fresh, House, Slot};
use crate::engine::KILL_PATIENCE;
use crate::error::Error;
use crate::life::Live;
use crate::reaper::{self, Exit, Reaper, Task};
use crate::spec::{SandboxId, Storage};
use crate::state::Ended;

impl House {
    /// Takes back a launch that failed: what runs is killed, what is new removed.
    pub(super) fn undo(&self, reaper: &Reaper, id: &SandboxId, fresh: Fresh) {
        let live = match self.lock().get(id) {
            Some(Slot::Running(live)) => Some(Arc::clone(live)),
            _ => None,
        };
        if let Some(live) = live {
            live.expect_end();
            // Errors here would hide the one that matters; the sweep finds what stays.
            let _ = live.kill();
            reaper.see_off(&live, KILL_PATIENCE);
            live.wait_until_gone(KILL_PATIENCE);
        }
        self.detach(id);
        self.memory.forget(id.as_str());
        let _ = self.hierarchy.clear(id.as_str());
        let _ = self.records.end_life(id);
        if fresh == Fresh::Yes {
            let _ = self.erase(id);
            reaper.give(Task::EmptyTrash);
        }
        self.lock().remove(id);
    }

    /// Removes the files of a sandbox that does not run. The caller has its turn.
    pub fn erase(&self, id: &SandboxId) -> Result<(), Error> {
        // Files in memory are gone with the processes; asking the store would make it choose a backing for nothing.
        if self.records.spec(id).ok().flatten().is_none_or(|spec| spec.storage == Storage::Disk) {
            self.store.remove(id)?;
        }
        self.records.remove(id)
    }

    fn detach(&self, id: &SandboxId) {
        if let Some(proxy) = self.proxy.get() {
            proxy.detach(id);
        }
    }

    /// Clears away what a sandbox leaves when its last process is gone.
    pub(super) fn bury(&self, live: &Live, exit: Exit) {
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

/// Ends one whose launch failed after all: its ids go to somebody else next, so nothing of it may be left, not even a zombie.
pub(super) fn put_down(live: &Live) -> Result<(), Error> {
    live.kill()?;
    if reaper::ends_within(&live.pidfd, reaper::DYING) {
        reaper::collect(live.pidfd.as_fd());
    }
    Ok(())
}
