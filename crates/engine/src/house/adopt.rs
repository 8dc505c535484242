//! Sandboxes that an earlier engine started: those that still run are taken over, the others are found dead.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};

use super::{House, Slot};
use crate::error::Error;
use crate::halt;
use crate::life::Live;
use crate::process;
use crate::reaper;
use crate::record::Life;
use crate::spec::{Network, SandboxId, Spec};
use crate::state::{Ended, Running};

/// What came of taking over a sandbox.
#[derive(Debug)]
pub enum Adopted {
    Now(Arc<Live>),
    /// It is held already, or being launched.
    Before,
    /// It does not run; how its last life ended, where nobody saw it.
    Dead(Option<Ended>),
}

impl House {
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
            return if reaper::ends_within(&pidfd, reaper::DYING) { self.found_dead(id, &life) } else { Err(error) };
        }
        let socket = self.records.socket(id);
        let running = Running { id: id.clone(), pid: life.pid, start_time: life.start_time, socket };
        let group = self.hierarchy.open(id.as_str());
        if self.records.is_still(id) {
            // Its engine died in the middle of a capture.
            match &group {
                Some(group) => group.thaw()?,
                None => halt::release(life.pid)?,
            }
            self.records.forget_still(id)?;
        }
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
}

/// How a life that is over ended, as far as its record tells.
fn ended_unseen(life: &Life) -> Ended {
    let now = process::boot();
    let restarted = !now.is_empty() && !life.boot.is_empty() && life.boot != now;
    if restarted { Ended::HostRestarted } else { Ended::Vanished }
}
