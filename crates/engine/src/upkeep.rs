//! What keeps storage fit to be written to: room ahead of writers, and a new beginning where a filesystem has failed.
//!
//! A pool whose filesystem turned read-only (an I/O error, or an image without its blocks on a full disk) serves nobody:
//! what its sandboxes write is refused. It can be mounted anew once every block of the image can be had and nobody holds the
//! old filesystem. So the sandboxes on it are ended, told why, and can be started again on what was written in time.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::base;
use crate::engine::KILL_PATIENCE;
use crate::error::Error;
use crate::house::{House, Leashes, Slot};
use crate::life::Live;
use crate::memory_info;
use crate::process;
use crate::reaper;
use crate::spec::{SandboxId, Storage};
use crate::state::Ended;
use crate::storage;

/// Sandboxes that are shown what they have used of their disks with one look, which takes about a millisecond.
const SHOWN: usize = 32;

/// After a new beginning that did not work.
const AGAIN: Duration = Duration::from_secs(2);

/// By then the kernel has written most of what a first start wrote, and short lives are over.
const BASE_AFTER: Duration = Duration::from_secs(60);

impl House {
    pub fn look_after_room(&self) {
        // What cannot be had now is asked for again with the next look; until then `health` tells what is lacking.
        let _ = self.store.make_room();
        if self.store.has_failed() {
            let _ = self.begin_storage_anew();
            return;
        }
        self.show_disks();
    }

    /// Shows some sandboxes what they have used of their disks, the next ones with the next look. Where there are very many,
    /// whoever reads their usage does so sooner.
    fn show_disks(&self) {
        let some: Vec<SandboxId> = {
            let live = self.lock();
            let begin = self.shown.fetch_add(SHOWN, Ordering::Relaxed) % live.len().max(1);
            live.keys().cycle().skip(begin).take(SHOWN.min(live.len())).cloned().collect()
        };
        for id in some {
            // One that ends meanwhile, or that an earlier version started, has nothing to be shown.
            let _ = self.show_disk(&id);
        }
    }

    fn show_disk(&self, id: &SandboxId) -> Result<(), Error> {
        let spec = self.spec(id)?;
        let Some(limit) = self.limits(&spec).disk.filter(|_| spec.storage == Storage::Disk) else { return Ok(()) };
        let used = self.store.used(id)?.bytes.min(limit);
        memory_info::renew_disk(&self.records.memory_info(id), memory_info::Share { limit, used })
    }

    fn begin_storage_anew(&self) -> Result<(), Error> {
        {
            let mut tried = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
            if tried.is_some_and(|tried| tried.elapsed() < AGAIN) {
                return Ok(());
            }
            *tried = Some(Instant::now());
        }
        // While blocks are missing it would fail again: whoever runs may as well go on reading.
        self.store.may_renew()?;
        let held: Vec<Arc<Live>> = self.lock().values().filter_map(Slot::live).collect();
        let held: Vec<_> = held.into_iter().filter(|live| self.is_on_disk(live.id())).collect();
        for live in &held {
            live.condemn(Ended::StorageFailed)?;
        }
        for live in &held {
            if !live.wait_until_gone(KILL_PATIENCE) {
                return Err(Error::Unkillable(live.id().clone()));
            }
        }
        Ok(self.store.renew()?)
    }

    /// Before anything else is done on a data directory: where sandboxes of an earlier engine hold a filesystem that has failed, they
    /// are ended, and it is begun anew.
    pub fn free_failed_storage(&self) -> Result<(), Error> {
        if self.leashes == Leashes::Held || !matches!(self.store.names(), Err(storage::Error::Broken { .. })) {
            return Ok(());
        }
        for id in self.records.names()? {
            let Some(pidfd) = self.records.life(&id)?.as_ref().and_then(process::open) else { continue };
            if !self.is_on_disk(&id) {
                continue;
            }
            self.condemned.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone());
            // Gone already is as good.
            let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
            if reaper::ends_within(&pidfd, reaper::DYING) {
                reaper::collect(pidfd.as_fd());
            }
            self.hierarchy.clear(id.as_str())?;
        }
        let begun = Instant::now();
        loop {
            match self.store.names() {
                Err(storage::Error::Broken { .. }) if begun.elapsed() < KILL_PATIENCE => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                other => return other.map(|_| ()).map_err(Error::from),
            }
        }
    }

    fn is_on_disk(&self, id: &SandboxId) -> bool {
        self.records.spec(id).ok().flatten().is_none_or(|spec| spec.storage == Storage::Disk)
    }

    /// Once, and on a thread of its own: it may take as long as the disk takes for all that waits to be written.
    pub fn bring_base_to_disk(&self) {
        if self.opened.elapsed() < BASE_AFTER {
            return;
        }
        self.syncing_base.call_once(|| {
            let layer = self.base_layer().to_owned();
            // A layer that was not synced is made anew after the next boot: nothing else depends on it.
            let _ = std::thread::Builder::new().name("cove-base".into()).spawn(move || base::bring_to_disk(&layer));
        });
    }
}
