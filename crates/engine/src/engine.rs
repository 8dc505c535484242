//! The engine: sandboxes by id, from the first launch to the last trace.
//!
//! Everything is `&self` and blocks; nothing is kept in memory that the disk and the kernel do not know as well, so an
//! engine that is opened again on the same directory finds what the last one left.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cove_protocol::Request as GuestRequest;
use cove_sys::clone::SingleThreaded;

use crate::cgroup::Group;
use crate::error::Error;
use crate::hold::{Hold, Limit};
use crate::house::{Adopted, Greeting, House, Leashes};
use crate::pool::Filler;
use crate::privilege::{self, Privilege};
use crate::reaper::{Age, Reaper, Task};
use crate::refused::{Refused, Step};
use crate::spawner::handle::{Again, Spawner, Spawners};
use crate::spawner::wire::{Outgoing, Request};
use crate::spec::{Egress, LayerId, Limits, Network, Root, SandboxId, Spec, Storage, Verdict, VolumeId};
use crate::state::{Aside, Ended, Found, LargestProcess, Running, Usage};
use crate::storage::{Against, Checked, Digest, Draft, HeldLayer, LayerInfo, Sealed, Watch};
use crate::{guest_line, guest_program, storage};

/// How long the kernel may take to end what was killed.
pub const KILL_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct Config {
    /// Where everything is kept.
    pub data: PathBuf,
    pub spawning: Spawning,
    /// How many namespaces of each kind are kept ready.
    pub pool: usize,
    /// Another data directory, whose layers sandboxes here may start from as well.
    pub layers: Option<PathBuf>,
    /// Limits that nobody asked for: where an ordinary user's host cannot hold them they are dropped instead of refused.
    pub waived: Vec<Limit>,
}

/// Who clones sandboxes.
#[derive(Debug, Clone)]
pub enum Spawning {
    /// A fork of the calling process, which must have one thread when the engine is opened: `cove run`. Its sandboxes
    /// hang on a leash: they end when the process does, however it ends.
    Inline,
    /// Processes made from `program` with the hidden argument; as many as there are cores is best.
    Processes { count: NonZeroUsize, program: PathBuf },
}

/// A sandbox that ended unasked.
pub type Departure = (SandboxId, Ended);

#[derive(Debug)]
pub struct Engine {
    house: Arc<House>,
    reaper: Reaper,
    departures: Mutex<Option<Receiver<Departure>>>,
    _filler: Option<Filler>,
}

impl Engine {
    pub fn open(config: Config) -> Result<Engine, Error> {
        let privilege = match config.spawning {
            Spawning::Inline => privilege::enter(None)?,
            Spawning::Processes { .. } => privilege::held().ok_or_else(|| {
                Error::Invalid(
                    "an ordinary user's process moves home (privilege::enter) before it opens an engine".into(),
                )
            })?,
        };
        // Before the first thread: an inline spawner is a fork of this process.
        let (spawners, filler) = start_spawners(&config)?;
        let leashes = match config.spawning {
            Spawning::Inline => Leashes::Held,
            Spawning::Processes { .. } => Leashes::None,
        };
        let (house, departures) = House::open(&config, spawners, privilege, leashes)?;
        house.free_failed_storage()?;
        let house = Arc::new(house);
        let work = Arc::clone(&house);
        let carry_out = move |task| work.carry_out(task);
        let reaper = match leashes {
            Leashes::Held => Reaper::resting(carry_out),
            Leashes::None => Reaper::start(carry_out)?,
        };
        let filler = filler.map(|start| Filler::start(Arc::clone(&house.pool), start)).transpose()?;
        match leashes {
            Leashes::Held => house.sweep_dead()?,
            Leashes::None => house.take_in_old_layers()?,
        }
        Ok(Engine { house, reaper, departures: Mutex::new(Some(departures)), _filler: filler })
    }

    /// For a server, before it serves: fails where no launch can succeed, because the host's files are on a filesystem
    /// without id-mapped mounts.
    pub fn check_host(&self) -> Result<(), Error> {
        self.house.check_layers()
    }

    /// Starts a new sandbox, or one whose files an earlier life left; returns when its guest answers.
    pub fn launch(&self, spec: &Spec) -> Result<Running, Error> {
        self.house.launch(&self.reaper, spec, Greeting::Awaited)
    }

    /// As [`Engine::launch`], without waiting for the guest: its socket takes connections already. For a caller who
    /// asks something of it next, and sees by the answer whether it is there.
    pub fn begin(&self, spec: &Spec) -> Result<Running, Error> {
        self.house.launch(&self.reaper, spec, Greeting::None)
    }

    /// For an engine that is opened inline, which begins without threads: most commands are over before those are worth
    /// their while. From now on sandboxes that end unasked are noticed, and what the kernel does not bound is watched. Whoever has waited for
    /// a moment calls it; an engine with spawners of its own has its threads from the start.
    pub fn settle(&self) -> Result<(), Error> {
        self.house.begin_to_watch_memory()?;
        self.reaper.wake()
    }

    /// For an engine that is opened inline: no launch follows, so its spawner ends, and what the last launch left over is let
    /// go. Best called while the sandbox works: both take the kernel some time.
    pub fn retire(&self) {
        self.house.spawners.retire();
        self.reaper.tidy();
    }

    /// Ends a sandbox: SIGTERM, `grace` later SIGKILL. Files on disk stay.
    pub fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), Error> {
        self.settle()?;
        let live = self.house.running(id)?;
        live.expect_end();
        // A capture that is under way is finished; no other begins.
        drop(live.stillness());
        live.thaw()?;
        let request = GuestRequest::Shutdown { grace_ms: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX) };
        // A guest that does not hear is killed like one that does not end in time.
        let heard = guest_line::ask(&live.running.socket, &request, Duration::from_secs(2)).is_ok();
        if !(heard && live.wait_until_gone(grace + Duration::from_secs(1))) {
            live.kill()?;
            if !live.wait_until_gone(KILL_PATIENCE) {
                return Err(Error::Unkillable(id.clone()));
            }
        }
        self.house.sync(id)
    }

    /// No process of it moves until [`Engine::resume`].
    pub fn pause(&self, id: &SandboxId) -> Result<(), Error> {
        let live = self.house.running(id)?;
        let _alone = live.stillness();
        Ok(live.group()?.freeze()?)
    }

    pub fn resume(&self, id: &SandboxId) -> Result<(), Error> {
        let live = self.house.running(id)?;
        let _alone = live.stillness();
        Ok(live.group()?.thaw()?)
    }

    /// Ends all processes of a sandbox at once; returns when they are gone. Its mounts are taken down in the background. Files stay.
    pub fn end(&self, id: &SandboxId) -> Result<(), Error> {
        let live = self.house.running(id)?;
        live.expect_end();
        // A capture that is under way is finished; no other begins.
        drop(live.stillness());
        let mounts = live.mounts();
        live.kill()?;
        self.reaper.see_off(&live, KILL_PATIENCE);
        if !live.wait_until_gone(KILL_PATIENCE) {
            return Err(Error::Unkillable(id.clone()));
        }
        self.reaper.give(Task::LetGo(mounts.into_iter().collect()));
        Ok(())
    }

    /// Ends a sandbox at once and removes everything of it. Returns when its processes are gone; mounts are taken down
    /// and files deleted in the background. Fine to call for what is gone.
    pub fn destroy(&self, id: &SandboxId) -> Result<(), Error> {
        loop {
            match self.end(id) {
                Ok(()) | Err(Error::NotRunning(_) | Error::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
            let _turn = self.house.turns.take(id);
            // A launch that was under way has made it run meanwhile.
            if !self.house.lock().contains_key(id) {
                self.house.erase(id)?;
                break;
            }
        }
        // After the mounts are let go: what is deleted is mounted nowhere any more.
        self.reaper.give(Task::EmptyTrash);
        Ok(())
    }

    /// Other limits, at once if it runs, and for its next life.
    pub fn resize(&self, id: &SandboxId, limits: &Limits) -> Result<(), Error> {
        let mut spec = self.house.spec(id)?;
        // Only what changes is asked for.
        let same = |limit: &Limit| match limit {
            Limit::Cpus => spec.limits.cpus == limits.cpus,
            Limit::Memory => spec.limits.memory == limits.memory,
            Limit::Pids => spec.limits.pids == limits.pids,
            Limit::Disk => spec.limits.disk == limits.disk,
        };
        let unasked: Vec<Limit> = Limit::ALL.into_iter().filter(same).collect();
        self.house.hold.check(spec.storage, limits, &unasked)?;
        if spec.limits.pids != limits.pids {
            self.house.processes.check(limits)?;
        }
        if self.house.privilege != Privilege::Root && spec.limits.pids != limits.pids && self.house.running(id).is_ok()
        {
            return Err(Error::Invalid(
                "the limit on its processes was set when it started; stop it, change the limit, and start it again"
                    .into(),
            ));
        }
        if spec.storage == Storage::Memory && spec.limits.disk != limits.disk {
            return Err(Error::Invalid("the size of files in memory cannot change while the sandbox lives".into()));
        }
        spec.limits = *limits;
        let limits = self.house.limits(&spec);
        if spec.storage == Storage::Disk {
            self.house.store.resize(id, &limits)?;
        }
        if let Ok(live) = self.house.running(id) {
            if let Some(group) = &live.group {
                group.set(&limits)?;
            }
            live.set_memory_limit(limits.memory);
            self.house.watch_memory(&live)?;
        }
        self.house.records.write_spec(&spec)
    }

    /// Another egress policy, at once if it runs. A running sandbox that shall have no network any more keeps the namespace it
    /// was born with and reaches nobody; one that was born without has no way to get one.
    pub fn set_network(&self, id: &SandboxId, network: &Network) -> Result<(), Error> {
        let mut spec = self.house.spec(id)?;
        if self.house.running(id).is_err() {
            spec.network = network.clone();
            return self.house.records.write_spec(&spec);
        }
        spec.network = match (&spec.network, network) {
            (Network::None, Network::None) => Network::None,
            (Network::Full(_), Network::Full(egress)) => {
                self.house.proxy()?.update(id, egress)?;
                network.clone()
            }
            (Network::Full(_), Network::None) => {
                let nobody = Egress { otherwise: Verdict::Deny, ..Egress::default() };
                self.house.proxy()?.update(id, &nobody)?;
                Network::Full(nobody)
            }
            (Network::None, Network::Full(_)) => {
                return Err(Error::Invalid(
                    "it was started without a network; stop it, give it one, and start it again".into(),
                ));
            }
        };
        self.house.records.rewrite_spec(&spec)
    }

    /// What this process may ask of the kernel.
    pub fn privilege(&self) -> Privilege {
        self.house.privilege
    }

    /// Which limits hold here, and whether sandboxes can pause.
    pub fn hold(&self) -> &Hold {
        &self.house.hold
    }

    pub fn usage(&self, id: &SandboxId) -> Result<Usage, Error> {
        self.house.usage(id)
    }

    /// Who held most memory when a running sandbox was last short of it.
    pub fn largest_process(&self, id: &SandboxId) -> Option<LargestProcess> {
        self.house.largest_process(id)
    }

    /// How often a running sandbox was refused a process because it had all that it may have; 0 where that is unknown.
    pub fn refused_processes(&self, id: &SandboxId) -> u64 {
        let live = self.house.running(id).ok();
        live.and_then(|live| live.group.as_ref().map(Group::refused_processes)).unwrap_or(0)
    }

    /// Every sandbox on disk, running or not. Those that run and are not held yet, because an earlier engine started
    /// them, are taken over: their network is served again and their end is noticed.
    pub fn found(&self) -> Result<Vec<Found>, Error> {
        let mut found = Vec::new();
        let mut without_record: BTreeSet<SandboxId> = self.house.store.names()?.into_iter().collect();
        for id in self.house.records.names()? {
            if let Some(one) = self.recorded(&id)? {
                without_record.remove(&id);
                found.push(one);
            }
        }
        for id in without_record {
            found.extend(self.unrecorded(id)?);
        }
        Ok(found)
    }

    /// As [`Engine::found`], of one; `None` where nothing is there.
    pub fn find(&self, id: &SandboxId) -> Result<Option<Found>, Error> {
        match self.recorded(id)? {
            Some(found) => Ok(Some(found)),
            None if self.house.store.has(id)? => self.unrecorded(id.clone()),
            None => Ok(None),
        }
    }

    fn recorded(&self, id: &SandboxId) -> Result<Option<Found>, Error> {
        let Some(spec) = self.house.records.spec(id)? else { return Ok(None) };
        let ended = match self.house.adopt(&spec)? {
            Adopted::Now(live) => {
                self.reaper.watch(&live)?;
                self.reaper.give(Task::Settle(live, Age::Settled));
                None
            }
            Adopted::Before => None,
            Adopted::Dead(ended) => ended,
        };
        let live = self.house.running(id).ok();
        // One whose group goes while we look is on its way out: the watcher tells.
        let frozen = live.as_ref().and_then(|live| live.group.as_ref()).map(|group| group.is_frozen());
        let paused = matches!(frozen, Some(Ok(true)));
        let aside = self.house.records.aside(id)?;
        Ok(Some(Found { id: id.clone(), running: live.map(|live| live.running.clone()), paused, ended, aside }))
    }

    /// A power failure can take a record that was just written and leave the files. They are somebody's.
    fn unrecorded(&self, id: SandboxId) -> Result<Option<Found>, Error> {
        if self.house.is_starting(&id) {
            return Ok(None);
        }
        let ended = Some(self.house.lost_record(&id)?);
        let aside = self.house.records.aside(&id)?;
        Ok(Some(Found { id, running: None, paused: false, ended, aside }))
    }

    /// Ends its processes and keeps its files for whoever claims them; [`Engine::take_back`] is the way back.
    pub fn keep_aside(&self, id: &SandboxId, aside: &Aside) -> Result<(), Error> {
        match self.stop(id, Duration::ZERO) {
            Ok(()) | Err(Error::NotRunning(_) | Error::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
        self.house.records.write_aside(id, aside)
    }

    /// Somebody owns it again.
    pub fn take_back(&self, id: &SandboxId) -> Result<(), Error> {
        self.house.records.remove_aside(id)
    }

    /// What it was started with last; `None` where a power failure took that.
    pub fn spec(&self, id: &SandboxId) -> Result<Option<Spec>, Error> {
        self.house.records.spec(id)
    }

    /// Whether it has written nothing that outlives it.
    pub fn is_blank(&self, id: &SandboxId) -> Result<bool, Error> {
        Ok(self.house.store.is_blank(id)?)
    }

    /// Whether the host was started anew since an engine last began on this data directory.
    pub fn is_after_a_restart(&self) -> bool {
        self.house.restarted
    }

    /// How the storage of sandboxes' files is at this moment.
    pub fn storage_health(&self) -> Result<storage::Health, Error> {
        Ok(self.house.store.health()?)
    }

    /// Removes every sandbox, and every rest of one, that `keep` does not want; says which. What is being launched
    /// right now is left alone.
    pub fn sweep(&self, keep: &dyn Fn(&SandboxId) -> bool) -> Result<Vec<SandboxId>, Error> {
        let mut swept = Vec::new();
        for id in self.house.traces()? {
            if keep(&id) || self.house.is_starting(&id) {
                continue;
            }
            self.destroy(&id)?;
            self.house.hierarchy.clear(id.as_str())?;
            swept.push(id);
        }
        self.reaper.give(Task::EmptyTrash);
        Ok(swept)
    }

    /// Writes all that a stopped sandbox has written as a tar stream, for an archive.
    pub fn export(&self, id: &SandboxId, writer: impl Write) -> Result<(), Error> {
        if self.house.running(id).is_ok() {
            return Err(Error::AlreadyRunning(id.clone()));
        }
        let limits = self.house.records.spec(id)?.map(|spec| self.house.limits(&spec));
        let unlimited = Limits { disk: None, ..Limits::default() };
        self.house.store.export(id, &limits.unwrap_or(unlimited), writer)?;
        Ok(())
    }

    /// The reverse: a stopped sandbox out of a tar stream. What was there under its id gives way; a stream that is
    /// broken leaves nothing.
    pub fn import(&self, spec: &Spec, reader: impl Read) -> Result<(), Error> {
        spec.check()?;
        if spec.storage == Storage::Memory {
            return Err(Error::Invalid("files in memory cannot come from an archive".into()));
        }
        self.destroy(&spec.id)?;
        self.house.records.write_spec(spec)?;
        // As at a launch: where a limit cannot be held, its files come back without it.
        let filled = self.house.store.import(&spec.id, &self.house.limits(spec), reader);
        if filled.is_err() {
            // The first error is the one to tell; what stays is found by the sweep.
            let _ = self.destroy(&spec.id);
        }
        filled.map(|_| ()).map_err(Error::from)
    }

    /// What a sandbox has written becomes the layer `layer`, as it is at one instant: one that runs is frozen for it, some
    /// milliseconds where the storage makes snapshots. A file that was deleted while it was open, what programs hold in
    /// their own memory, and volumes are not part of it. A layer of that name that is there already is what an earlier
    /// call made.
    pub fn capture(&self, id: &SandboxId, layer: &LayerId) -> Result<LayerInfo, Error> {
        self.house.capture(&self.reaper, id, layer)
    }

    /// Starts a new sandbox with the files that another has at this instant, running or not; it must stand on the same root.
    pub fn fork(&self, from: &SandboxId, spec: &Spec) -> Result<Running, Error> {
        let mut forked = self.forks(from, std::slice::from_ref(spec));
        forked.pop().unwrap_or_else(|| Err(Error::NotFound(from.clone())))
    }

    /// The same for several, all from one instant; each succeeds or fails alone.
    pub fn forks(&self, from: &SandboxId, specs: &[Spec]) -> Vec<Result<Running, Error>> {
        self.house.forks(&self.reaper, from, specs)
    }

    /// Gives a stopped sandbox back the files that were captured from it as `to`. What it has now becomes the layer `replaced`
    /// first, so that this can be undone in the same way.
    pub fn rollback(&self, id: &SandboxId, to: &LayerId, replaced: &LayerId) -> Result<(), Error> {
        self.house.roll_back(id, to, replaced)?;
        self.reaper.give(Task::EmptyTrash);
        Ok(())
    }

    /// Makes one layer, `new`, of several, top first; `beneath` is what the lowest of them lies on. Who starts from it sees
    /// the same files.
    pub fn flatten(&self, layers: &[LayerId], beneath: &Root, new: &LayerId) -> Result<LayerInfo, Error> {
        Ok(self.house.store.flatten(layers, beneath, new)?)
    }

    /// Writes out all files of a sandbox that is paused or stopped, and a manifest of them: every name with its kind, mode,
    /// owner, time, attributes, links, holes and the SHA-256 of its data. Layers below that have no manifest yet get one. The
    /// digest proves all of it, as long as no process of the sandbox moves. Files of volumes and of the host are no part of it.
    pub fn seal(&self, id: &SandboxId, watch: Watch<'_>) -> Result<Sealed, Error> {
        self.house.seal(id, watch)
    }

    /// Compares the files of a sandbox that is paused or stopped with the manifest of this digest; without one, reads all of
    /// them. Changes nothing.
    pub fn check(&self, id: &SandboxId, digest: Option<&Digest>, watch: Watch<'_>) -> Result<Checked, Error> {
        self.house.check(id, digest, watch)
    }

    /// The same of a layer, also while sandboxes run on it.
    pub fn check_layer(&self, id: &LayerId, against: Against, watch: Watch<'_>) -> Result<Checked, Error> {
        self.house.check_layer(id, against, watch)
    }

    /// Whether every name of a volume can be looked at. Changes nothing, and reads no data.
    pub fn check_volume(&self, id: &VolumeId, watch: Watch<'_>) -> Result<Checked, Error> {
        Ok(self.house.store.check_volume(id, watch)?)
    }

    /// An empty directory that becomes a layer, with a limit on what is put into it.
    pub fn draft(&self, limit: Option<u64>) -> Result<Draft, Error> {
        Ok(self.house.store.draft(limit)?)
    }

    /// A draft that begins with all that is in a layer.
    pub fn draft_from(&self, layer: &LayerId, limit: Option<u64>) -> Result<Draft, Error> {
        Ok(self.house.store.draft_from(layer, limit)?)
    }

    /// Writes a layer as a tar archive, which [`Draft::unpack`] reads on another machine.
    pub fn export_layer(&self, id: &LayerId, writer: impl Write) -> Result<(), Error> {
        self.house.store.export_layer(id, writer)?;
        Ok(())
    }

    pub fn layer(&self, id: &LayerId) -> Result<Option<LayerInfo>, Error> {
        Ok(self.house.store.layer(id)?)
    }

    pub fn layers(&self) -> Result<Vec<LayerId>, Error> {
        Ok(self.house.store.layers()?)
    }

    /// Keeps a layer until the value is dropped: for a caller who is about to write down that it is used.
    pub fn hold_layer(&self, id: &LayerId) -> Result<HeldLayer, Error> {
        Ok(self.house.store.hold_layer(id)?)
    }

    /// Removes a layer that no sandbox stands on, running or stopped, and nobody holds; else [`Error::LayerInUse`]. Its files are
    /// deleted in the background. Already gone: nothing to do.
    pub fn remove_layer(&self, id: &LayerId) -> Result<(), Error> {
        // A launch writes down what it stands on before it takes hold of it.
        if !self.house.store.remove_layer_unless(id, || self.house.stands_on(id))? {
            return Err(Error::LayerInUse(*id));
        }
        self.reaper.give(Task::EmptyTrash);
        Ok(())
    }

    /// An empty volume with a limit on what is in it.
    pub fn make_volume(&self, id: &VolumeId, limit: Option<u64>) -> Result<(), Error> {
        Ok(self.house.store.make_volume(id, limit)?)
    }

    pub fn resize_volume(&self, id: &VolumeId, limit: Option<u64>) -> Result<(), Error> {
        Ok(self.house.store.resize_volume(id, limit)?)
    }

    /// Removes a volume that no running sandbox has mounted; else [`Error::VolumeInUse`]. Already gone: nothing to do.
    pub fn remove_volume(&self, id: &VolumeId) -> Result<(), Error> {
        if self.house.is_mounted(id)? {
            return Err(Error::VolumeInUse(id.clone()));
        }
        self.house.store.remove_volume(id)?;
        self.reaper.give(Task::EmptyTrash);
        Ok(())
    }

    pub fn volume_usage(&self, id: &VolumeId) -> Result<storage::Used, Error> {
        Ok(self.house.store.volume_usage(id)?)
    }

    pub fn volumes(&self) -> Result<Vec<VolumeId>, Error> {
        Ok(self.house.store.volumes()?)
    }

    /// The directory of a volume, for work by descriptors. What is in it was written by sandboxes: follow no link.
    pub fn volume_root(&self, id: &VolumeId) -> Result<OwnedFd, Error> {
        Ok(self.house.store.volume_root(id)?)
    }

    /// Where the guest of a sandbox listens.
    pub fn socket(&self, id: &SandboxId) -> PathBuf {
        self.house.records.socket(id)
    }

    /// Sandboxes that end unasked, as they do. Can be taken once.
    pub fn departures(&self) -> Option<Receiver<Departure>> {
        self.departures.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn start_spawners(config: &Config) -> Result<(Spawners, Option<Arc<Again>>), Error> {
    match &config.spawning {
        Spawning::Inline => {
            let alone = SingleThreaded::claim().step("open an inline engine in a process with one thread")?;
            let spawner = Spawner::fork(&alone)?;
            // By then this process has threads and cannot be forked.
            let never = || Err(Refused::new("replace the inline spawner", rustix::io::Errno::BUSY));
            Ok((Spawners::new(vec![spawner], Arc::new(never)), None))
        }
        Spawning::Processes { count, program } => {
            let (program, guest) = (program.clone(), Arc::new(guest_program::sealed()?));
            let start: Arc<Again> = Arc::new(move || introduce(Spawner::exec(&program)?, &guest));
            let spawners = (0..count.get()).map(|_| start()).collect::<Result<Vec<_>, _>>()?;
            Ok((Spawners::new(spawners, Arc::clone(&start)), Some(start)))
        }
    }
}

/// Gives a spawner the guest; it answers when it is ready.
fn introduce(spawner: Spawner, guest: &OwnedFd) -> Result<Spawner, Refused> {
    let mut outgoing = Outgoing::default();
    if let Some(slot) = outgoing.add(guest.as_fd()) {
        spawner.call(&Request::Guest(slot), &outgoing)?;
    }
    Ok(spawner)
}
