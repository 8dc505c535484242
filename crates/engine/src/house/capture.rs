//! What a sandbox has written becomes a layer, or another sandbox's files; and the way back.
//!
//! ```text
//!   its turn ─▶ write out ─▶ freeze ─▶ snapshot ─▶ thaw          the sandbox stands still for the snapshot alone
//! ```
//! Where the host gives it no control group, its processes are stopped by signals instead (`halt.rs`).
//! A file beside the record says that the engine holds the sandbox still: one that is killed in between leaves a frozen
//! sandbox, which the next engine thaws when it takes it over.

use std::os::fd::AsFd;
use std::sync::Arc;

use super::House;
use crate::cgroup;
use crate::error::Error;
use crate::halt::{self, Halted};
use crate::life::Live;
use crate::process;
use crate::reaper::{Reaper, Task};
use crate::spec::{LayerId, SandboxId, Source, Spec, Storage, VolumeId};
use crate::storage::{self, LayerInfo};

/// Files in memory are copied while the sandbox stands still.
const MOST_IN_MEMORY: u64 = 512 << 20;

/// A running sandbox whose processes do not move. Dropping it thaws; [`Still::thaw`] also says whether that worked.
pub(super) struct Still<'a> {
    house: &'a House,
    live: Arc<Live>,
    /// Where there is no control group to freeze.
    halted: Option<Halted>,
    over: bool,
}

impl Still<'_> {
    pub(super) fn thaw(mut self) -> Result<(), Error> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.over, true) {
            return Ok(());
        }
        self.halted.as_ref().map_or(Ok(()), Halted::release)?;
        self.live.thaw()?;
        self.house.records.forget_still(self.live.id())
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        // An error is on its way already.
        let _ = self.finish();
    }
}

impl House {
    pub fn capture(&self, reaper: &Reaper, id: &SandboxId, layer: &LayerId) -> Result<LayerInfo, Error> {
        let turn = self.turns.take(id);
        let spec = self.spec(id)?;
        if let Some(made) = self.store.layer(layer)? {
            return Ok(made);
        }
        let captured = self.while_still(&spec, |live| match spec.storage {
            Storage::Disk => Ok(self.store.capture(id, layer, &spec.root)?),
            Storage::Memory => {
                let files = files_in_memory(live, id)?;
                Ok(self.store.capture_files(files.as_fd(), layer, &spec.root)?)
            }
        });
        let captured = captured.inspect_err(|_| {
            // What was made of one that ended meanwhile; the first error is the one to tell.
            let _ = self.store.remove_layer(layer);
        })?;
        if spec.storage == Storage::Disk {
            self.store.pin(id, &self.limits(&spec))?;
            drop(turn);
            reaper.give(Task::Recount(id.clone()));
        }
        Ok(captured)
    }

    /// Does something while no process of a sandbox moves. The caller has its turn.
    pub(super) fn while_still<T>(
        &self,
        spec: &Spec,
        act: impl FnOnce(Option<&Live>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let live = match self.running(&spec.id) {
            Ok(live) => Some(live),
            Err(Error::NotRunning(_)) => None,
            Err(error) => return Err(error),
        };
        let Some(live) = live else { return act(None) };
        let _alone = live.stillness();
        if live.is_end_expected() || live.is_gone() {
            return Err(Error::Ending(spec.id.clone()));
        }
        if spec.storage == Storage::Disk {
            self.store.settle(&spec.id)?;
        }
        let still = self.still(&live)?;
        let done = act(Some(&live));
        // One whose processes died meanwhile was not still: a copy may have half of something.
        let gone = live.is_end_expected() || process::start_time(live.running.pid) != Some(live.running.start_time);
        still.map_or(Ok(()), Still::thaw)?;
        if gone { Err(Error::Ending(spec.id.clone())) } else { done }
    }

    /// Freezes a sandbox; `None` where it is paused already.
    fn still(&self, live: &Arc<Live>) -> Result<Option<Still<'_>>, Error> {
        let Some(group) = &live.group else { return self.halted(live).map(Some) };
        if group.is_frozen()? {
            return Ok(None);
        }
        self.records.note_still(live.id())?;
        let still = Still { house: self, live: Arc::clone(live), halted: None, over: false };
        match group.freeze() {
            Ok(()) => Ok(Some(still)),
            Err(cgroup::Error::NotFrozen(_)) => Err(Error::Busy(live.id().clone())),
            Err(error) => Err(error.into()),
        }
    }

    /// Stops all processes of a sandbox that has no control group.
    fn halted(&self, live: &Arc<Live>) -> Result<Still<'_>, Error> {
        self.records.note_still(live.id())?;
        let mut still = Still { house: self, live: Arc::clone(live), halted: None, over: false };
        let halted = halt::stop(live.running.pid)?;
        still.halted = Some(halted.ok_or_else(|| Error::Busy(live.id().clone()))?);
        Ok(still)
    }

    pub fn roll_back(&self, id: &SandboxId, to: &LayerId, replaced: &LayerId) -> Result<(), Error> {
        let _turn = self.turns.take(id);
        if self.lock().contains_key(id) {
            return Err(Error::AlreadyRunning(id.clone()));
        }
        let spec = self.spec(id)?;
        if spec.storage == Storage::Memory {
            return Err(Error::Invalid(format!("the files of sandbox {id} are in memory, and gone")));
        }
        let layer = self.store.layer(to)?.ok_or(Error::LayerMissing(*to))?;
        if layer.beneath.as_ref() != Some(&spec.root) {
            return Err(Error::Invalid(format!("layer {to} was not captured from a sandbox with the root of {id}")));
        }
        self.store.capture(id, replaced, &spec.root)?;
        Ok(self.store.roll_back(id, to, &self.limits(&spec))?)
    }

    /// Whether a sandbox of this data directory, running or not, stands on a layer.
    pub fn stands_on(&self, id: &LayerId) -> Result<bool, Error> {
        for sandbox in self.records.names()? {
            if self.records.spec(&sandbox)?.is_some_and(|spec| spec.root.over.contains(id)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a sandbox that runs has a volume.
    pub fn is_mounted(&self, id: &VolumeId) -> Result<bool, Error> {
        let live: Vec<SandboxId> = self.lock().keys().cloned().collect();
        for sandbox in live {
            let mounts = self.records.spec(&sandbox)?.map(|spec| spec.mounts).unwrap_or_default();
            let is_it = |source: &Source| matches!(source, Source::Volume { volume, .. } if volume == id);
            if mounts.iter().any(|mount| is_it(&mount.source)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Layers of a version that kept them elsewhere. What sandboxes that still run are mounted on stays for them.
    pub fn take_in_old_layers(&self) -> Result<(), Error> {
        if !self.store.has_old_layers() {
            return Ok(());
        }
        self.store.take_in_old_layers()?;
        for id in self.records.names()? {
            if self.records.life(&id)?.as_ref().and_then(process::open).is_some() {
                return Ok(());
            }
        }
        Ok(self.store.forget_old_layers()?)
    }
}

/// The files of a sandbox in memory, if they can be had and are not too many.
pub(super) fn files_in_memory<'a>(live: Option<&'a Live>, id: &SandboxId) -> Result<&'a std::os::fd::OwnedFd, Error> {
    let live = live.ok_or_else(|| Error::NotRunning(id.clone()))?;
    let files = live.files.as_ref().ok_or_else(|| {
        Error::Invalid(format!(
            "the files of sandbox {id} are in memory and out of reach: it was started by an earlier server, or the \
             kernel is older than Linux 6.15"
        ))
    })?;
    let bytes = live.files_in_memory();
    if bytes > MOST_IN_MEMORY {
        return Err(Error::Storage(storage::Error::InUse {
            of: format!("a copy of the files in memory of sandbox {id}"),
            limit: MOST_IN_MEMORY,
            used: bytes,
        }));
    }
    Ok(files)
}
