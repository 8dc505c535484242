//! Sandboxes of this machine, by the engine.
//!
//! The only file that knows the engine: orders become its specs here, and what it reports becomes the control plane's
//! nouns. The engine is synchronous: its calls run on threads for blocking work. A sandbox's handle is its id. The guest
//! is reached by its Unix socket.

mod files;
mod manifest;
mod transfer;

use std::collections::HashSet;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cove_engine::{Config, Engine, Error as EngineError, Spawning, Spec, spec, state, storage};
use cove_protocol::{LayerId, SandboxId};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, mpsc};
use tokio_util::io::SyncIoBridge;
use tracing::Instrument as _;

use super::kind::{Count, Opening};
use super::{
    Aside, Can, Capabilities, Departure, Durability, Ended, Handle, Health, Isolation, Kind, LargestProcess, Limit,
    Limits, Network, Order, Provider, ProviderError, Root, Seen, Sighting, Space, Trouble, Under, Unheld, Usage,
    images,
};
use crate::Error;
use crate::config::key::{Kind as Value, SectionKey};
use crate::guest::{Connect, Guest, GuestError, Pipe};
use crate::image::turn::Turns;
use crate::trace::effect;

/// This machine has one engine, on the server's data directory.
pub static KIND: Kind = Kind {
    name: "local",
    keys: &[SectionKey::new(READY, Value::Integer)],
    count: Count::One,
    open: |opening| Ok(Local::open(opening)?),
};

/// Namespaces kept ready for launches to come.
const READY: &str = "ready";
const READY_DEFAULT: usize = 16;

pub struct Local {
    name: String,
    engine: Arc<Engine>,
    /// Who makes or removes which layer.
    turns: Turns,
    departures: Mutex<mpsc::UnboundedReceiver<Departure>>,
}

impl Local {
    /// Opens the engine on the server's data directory.
    fn open(opening: &Opening<'_>) -> Result<Arc<Local>, Error> {
        let count = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let config = Config {
            data: opening.config.data.clone(),
            spawning: Spawning::Processes { count, program: opening.program.to_owned() },
            pool: opening.section.integer(READY).map_or(READY_DEFAULT, |ready| ready as usize),
            layers: None,
            // A limit that a caller asks for and that cannot be enforced was refused before.
            waived: cove_engine::Limit::ALL.to_vec(),
        };
        let engine = Engine::open(config).map_err(|error| Error::internal(format!("open the engine: {error}")))?;
        engine.check_host().map_err(|error| Error::internal(format!("open the engine: {error}")))?;
        let (forward, departures) = mpsc::unbounded_channel();
        if let Some(ended) = engine.departures() {
            std::thread::spawn(move || {
                for (id, ended) in ended {
                    if forward.send(Departure { id, ended: ended.into() }).is_err() {
                        return;
                    }
                }
            });
        }
        let (name, engine, departures) = (opening.name.to_owned(), Arc::new(engine), Mutex::new(departures));
        Ok(Arc::new(Local { name, engine, turns: Turns::default(), departures }))
    }

    /// What the engine is told.
    fn spec(&self, order: &Order) -> Result<Spec, ProviderError> {
        Ok(Spec {
            id: order.id.clone(),
            root: engine_root(&order.image.root),
            storage: spec::Storage::Disk,
            durability: order.durability.into(),
            limits: order.limits.into(),
            network: order.network.clone(),
            mounts: order.volumes.iter().map(files::mount).collect(),
            hostname: order.hostname.clone(),
            env: order.env.clone(),
            default_user: order.user.clone(),
            default_cwd: order.cwd.clone(),
        })
    }

    async fn call<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Engine) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, ProviderError> {
        let engine = Arc::clone(&self.engine);
        let done = tokio::task::spawn_blocking(move || act(&engine)).await;
        let done = done.map_err(|error| ProviderError::Failed(format!("the engine's thread ended: {error}")))?;
        done.map_err(refused)
    }

    /// The same for what makes or removes a layer. The thread itself has the turn: it keeps it where nobody waits for the
    /// thread any more.
    async fn call_on<T: Send + 'static>(
        &self,
        layer: LayerId,
        act: impl FnOnce(&Engine) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, ProviderError> {
        let turn = self.turns.take(layer).await;
        self.call(move |engine| {
            let _turn = turn;
            act(engine)
        })
        .await
    }
}

/// What the engine refused, with the control plane's words.
fn refused(error: EngineError) -> ProviderError {
    match error {
        EngineError::NotFound(id) => ProviderError::NotFound(Handle::from(&id)),
        EngineError::Invalid(reason) => ProviderError::Refused(reason),
        EngineError::Unheld(_) => ProviderError::Unsupported(error.to_string()),
        EngineError::NoRange(_) | EngineError::Busy(_) | EngineError::Ending(_) => {
            ProviderError::Exhausted(error.to_string())
        }
        EngineError::VolumeInUse(_) | EngineError::VolumeMissing(_) | EngineError::LayerMissing(_) => {
            ProviderError::Refused(error.to_string())
        }
        EngineError::NoIdMaps(_) => {
            // The log has the path, which is no business of a caller.
            tracing::error!(%error, "no sandbox can start here");
            let why = "a filesystem that they need has no id-mapped mounts; `cove doctor` there shows which";
            ProviderError::Unfit(format!("this server's machine cannot start sandboxes: {why}"))
        }
        EngineError::Storage(storage::Error::NoLimits { .. }) => {
            // The log has the reason, with paths.
            tracing::error!(%error, "a disk limit cannot be held here");
            ProviderError::Unsupported(
                "a disk limit cannot be held on this server's machine; `cove doctor` there says why".into(),
            )
        }
        EngineError::Storage(
            storage::Error::Archive { .. }
            | storage::Error::Draft { .. }
            | storage::Error::Heritage { .. }
            | storage::Error::InUse { .. },
        ) => ProviderError::Refused(error.to_string()),
        EngineError::Storage(storage::Error::Broken { .. }) => ProviderError::Exhausted(error.to_string()),
        error if error.is_full() => ProviderError::Full(error.to_string()),
        error => ProviderError::Failed(error.to_string()),
    }
}

/// Already done: nothing to do.
fn unless_gone(done: Result<(), EngineError>) -> Result<(), EngineError> {
    match done {
        Err(EngineError::NotRunning(_) | EngineError::NotFound(_)) => Ok(()),
        done => done,
    }
}

/// A handle is the id.
fn id_of(handle: &Handle) -> Result<SandboxId, ProviderError> {
    handle.as_str().parse().map_err(|_| ProviderError::NotFound(handle.clone()))
}

const NO_FREEZER: &str = "without root a server needs a delegated control group (`cove doctor` tells how)";
const NO_RESIZE: &str = "without root a server needs a delegated control group for that (`cove doctor` tells how); how \
                         many processes it may have can be changed while it is stopped";

/// Whether one that runs can get other limits where these are not held. The number of its processes is set when it starts,
/// unless a control group counts them: then that holds the others too.
fn can_resize(unheld: impl Iterator<Item = cove_engine::Limit>) -> Can {
    let changeable = [cove_engine::Limit::Cpus, cove_engine::Limit::Memory, cove_engine::Limit::Disk];
    let lost = unheld.filter(|limit| changeable.contains(limit)).count();
    if lost < changeable.len() { Can::Yes } else { Can::not(NO_RESIZE) }
}

#[async_trait]
impl Provider for Local {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolation: Isolation::Namespaces,
            pause: if self.engine.hold().pause { Can::Yes } else { Can::not(NO_FREEZER) },
            resize: can_resize(self.engine.hold().unheld(spec::Storage::Disk).map(|unheld| unheld.limit)),
            persistent: Can::Yes,
            network_policy: Can::Yes,
            archive: Can::Yes,
            snapshot: Can::Yes,
            fork: Can::Yes,
            volumes: Can::Yes,
            manifest: Can::Yes,
        }
    }

    fn layers(&self) -> &dyn images::Layers {
        self
    }

    fn volumes(&self) -> &dyn images::Volumes {
        self
    }

    fn manifests(&self) -> &dyn super::manifest::Manifests {
        self
    }

    fn is_bound_to_host(&self) -> bool {
        true
    }

    fn unheld(&self) -> Vec<Unheld> {
        self.engine.hold().unheld(spec::Storage::Disk).cloned().map(Unheld::from).collect()
    }

    async fn launch(&self, order: &Order) -> Result<Handle, ProviderError> {
        let span = effect!("launch", order.id);
        let spec = self.spec(order)?;
        self.call(move |engine| match engine.launch(&spec) {
            Ok(_) | Err(EngineError::AlreadyRunning(_)) => Ok(Handle::from(&spec.id)),
            Err(error) => Err(error),
        })
        .instrument(span)
        .await
    }

    async fn stop(&self, handle: &Handle, grace: Duration) -> Result<(), ProviderError> {
        let span = effect!("stop", handle);
        let id = id_of(handle)?;
        self.call(move |engine| unless_gone(engine.stop(&id, grace))).instrument(span).await
    }

    async fn pause(&self, handle: &Handle) -> Result<(), ProviderError> {
        let span = effect!("pause", handle);
        let id = id_of(handle)?;
        self.call(move |engine| engine.pause(&id)).instrument(span).await
    }

    async fn resume(&self, handle: &Handle) -> Result<(), ProviderError> {
        let span = effect!("resume", handle);
        let id = id_of(handle)?;
        self.call(move |engine| engine.resume(&id)).instrument(span).await
    }

    async fn end(&self, handle: &Handle) -> Result<(), ProviderError> {
        let id = id_of(handle)?;
        self.call(move |engine| unless_gone(engine.end(&id))).await
    }

    async fn destroy(&self, handle: &Handle) -> Result<(), ProviderError> {
        let span = effect!("destroy", handle);
        let id = id_of(handle)?;
        self.call(move |engine| unless_gone(engine.destroy(&id))).instrument(span).await
    }

    async fn resize(&self, handle: &Handle, limits: &Limits) -> Result<(), ProviderError> {
        let (id, limits) = (id_of(handle)?, spec::Limits::from(*limits));
        self.call(move |engine| engine.resize(&id, &limits)).await
    }

    async fn set_network(&self, handle: &Handle, network: &Network) -> Result<(), ProviderError> {
        let (id, network) = (id_of(handle)?, network.clone());
        self.call(move |engine| engine.set_network(&id, &network)).await
    }

    async fn usage(&self, handle: &Handle) -> Result<Usage, ProviderError> {
        let id = id_of(handle)?;
        Ok(self.call(move |engine| engine.usage(&id)).await?.into())
    }

    fn free_memory(&self) -> Option<u64> {
        // One small read from the kernel: far cheaper than the launch that it may avoid.
        let account = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = account.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
    }

    async fn shortage(&self, handle: &Handle) -> Option<Ended> {
        let id = id_of(handle).ok()?;
        let told = self.call(move |engine| {
            let usage = engine.usage(&id)?;
            Ok((usage.memory_kills > 0).then(|| Ended::OutOfMemory {
                limit: usage.memory_limit,
                peak: usage.memory_peak,
                largest: engine.largest_process(&id).map(LargestProcess::from),
            }))
        });
        told.await.ok().flatten()
    }

    async fn sightings(&self) -> Result<Vec<Sighting>, ProviderError> {
        Ok(self.call(Engine::found).await?.into_iter().map(sighting).collect())
    }

    /// Through the thread that every call takes, and to the disk. What its storage lacks is told elsewhere.
    async fn answers(&self) -> Result<(), ProviderError> {
        let nobody = crate::random::sandbox_id();
        self.call(move |engine| engine.find(&nobody)).await.map(drop)
    }

    async fn sighting(&self, handle: &Handle) -> Result<Option<Sighting>, ProviderError> {
        let id = id_of(handle)?;
        Ok(self.call(move |engine| engine.find(&id)).await?.map(sighting))
    }

    async fn keep_aside(&self, handle: &Handle, aside: &Aside) -> Result<(), ProviderError> {
        let (id, aside) = (id_of(handle)?, state::Aside::from(aside));
        self.call(move |engine| engine.keep_aside(&id, &aside)).await
    }

    async fn take_back(&self, handle: &Handle) -> Result<(), ProviderError> {
        let id = id_of(handle)?;
        self.call(move |engine| engine.take_back(&id)).await
    }

    async fn last_order(&self, handle: &Handle) -> Result<Option<Order>, ProviderError> {
        let id = id_of(handle)?;
        self.call(move |engine| engine.spec(&id)).await?.map(order_of).transpose()
    }

    async fn is_blank(&self, handle: &Handle) -> Result<bool, ProviderError> {
        let id = id_of(handle)?;
        self.call(move |engine| engine.is_blank(&id)).await
    }

    fn is_after_a_restart(&self) -> bool {
        self.engine.is_after_a_restart()
    }

    fn storage(&self, kept: u64) -> Option<Health> {
        let health = match self.engine.storage_health() {
            Ok(health) => health,
            // What cannot be asked is in no better order than what says so.
            Err(error) => storage::Health {
                host: storage::Space { free: 0, total: 0 },
                pool: None,
                broken: Some(error.to_string()),
                unbacked: 0,
            },
        };
        let trouble = health.refusal(kept).map(|sentence| match health.broken {
            Some(_) => Trouble::Failed(sentence),
            None => Trouble::Full(sentence),
        });
        Some(Health { disk: health.host.into(), pool: health.pool.map(Space::from), trouble })
    }

    async fn sweep(&self, keep: HashSet<SandboxId>) -> Result<usize, ProviderError> {
        let swept = self.call(move |engine| engine.sweep(&|id| keep.contains(id))).await?;
        Ok(swept.len())
    }

    async fn departure(&self) -> Departure {
        match self.departures.lock().await.recv().await {
            Some(departure) => departure,
            None => std::future::pending().await,
        }
    }

    fn guest(&self, handle: &Handle) -> Guest {
        Guest::new(Arc::new(Socket(id_of(handle).ok().map(|id| self.engine.socket(&id)))))
    }

    async fn export(&self, handle: &Handle, to: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<(), ProviderError> {
        let id = id_of(handle)?;
        let (near, mut far) = tokio::io::duplex(BUFFER);
        let near = SyncIoBridge::new(near);
        let packing = self.call(move |engine| {
            let trouble = |error: io::Error| EngineError::Invalid(format!("compress the archive: {error}"));
            let mut packed = zstd::Encoder::new(near, LEVEL).map_err(trouble)?;
            packed.include_checksum(true).map_err(trouble)?;
            engine.export(&id, &mut packed)?;
            packed.finish().and_then(|mut near| near.shutdown()).map_err(trouble)
        });
        // The side that fails first ends the other: the pipe between them breaks.
        let carrying = async move {
            let carried = tokio::io::copy(&mut far, to).await;
            drop(far);
            carried.map_err(|error| ProviderError::Failed(format!("keep the archive: {error}")))
        };
        let (packed, carried) = tokio::join!(packing, carrying);
        carried?;
        packed
    }

    async fn import(&self, order: &Order, from: &mut (dyn AsyncRead + Send + Unpin)) -> Result<Handle, ProviderError> {
        let spec = self.spec(order)?;
        let (near, mut far) = tokio::io::duplex(BUFFER);
        let near = SyncIoBridge::new(near);
        let unpacking = self.call(move |engine| {
            let trouble = |error: io::Error| EngineError::Invalid(format!("unpack the archive: {error}"));
            let mut packed = zstd::Decoder::new(near).map_err(trouble)?;
            engine.import(&spec, &mut packed)?;
            // Reads to the very end: the checksum is there, and an incomplete archive fails.
            match io::copy(&mut packed, &mut io::sink()) {
                Ok(_) => Ok(()),
                Err(error) => {
                    engine.destroy(&spec.id)?;
                    Err(trouble(error))
                }
            }
        });
        let carrying = async move {
            let carried = tokio::io::copy(from, &mut far).await;
            carried
                .and(far.shutdown().await)
                .map_err(|error| ProviderError::Failed(format!("fetch the archive: {error}")))
        };
        let (unpacked, carried) = tokio::join!(unpacking, carrying);
        // If the reader stopped early, its error is the cause.
        unpacked.and(carried)?;
        Ok(Handle::from(&order.id))
    }
}

/// The engine's own word for it.
pub fn engine_root(root: &Root) -> spec::Root {
    let under = match root.under {
        Under::Host => spec::Under::Host,
        Under::Nothing => spec::Under::Nothing,
    };
    spec::Root { under, over: root.over.clone() }
}

fn root_of(root: &spec::Root) -> Root {
    let under = match root.under {
        spec::Under::Host => Under::Host,
        spec::Under::Nothing => Under::Nothing,
    };
    Root { under, over: root.over.clone() }
}

/// The program that is PID 1 of our sandboxes, for others' sandboxes to be given.
pub fn guest_program() -> &'static [u8] {
    cove_engine::guest_program()
}

/// Whether a layer is certainly not there. Opens and mounts nothing.
pub fn is_layer_missing(data: &Path, layer: &LayerId) -> bool {
    storage::is_missing(data, layer)
}

/// The order that a spec was made of.
fn order_of(spec: Spec) -> Result<Order, ProviderError> {
    Ok(Order {
        earlier: Some(Handle::from(&spec.id)),
        id: spec.id,
        image: root_of(&spec.root).into(),
        durability: match spec.durability {
            spec::Durability::Durable => Durability::Durable,
            spec::Durability::Volatile => Durability::Volatile,
        },
        limits: spec.limits.into(),
        network: spec.network,
        volumes: spec.mounts.iter().filter_map(files::volume_of).collect(),
        hostname: spec.hostname,
        env: spec.env,
        user: spec.default_user,
        cwd: spec.default_cwd,
    })
}

fn sighting(found: cove_engine::Found) -> Sighting {
    Sighting {
        handle: Handle::from(&found.id),
        id: found.id,
        ended: found.ended.map(Ended::from),
        state: match (found.running, found.paused) {
            (Some(_), true) => Seen::Paused,
            (Some(_), false) => Seen::Running,
            (None, _) => Seen::Stopped,
        },
        aside: found.aside.map(|state::Aside { since, reason }| Aside { since, reason }),
    }
}

impl From<Durability> for spec::Durability {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Durable => spec::Durability::Durable,
            Durability::Volatile => spec::Durability::Volatile,
        }
    }
}

impl From<Limits> for spec::Limits {
    fn from(Limits { cpus, memory, pids, disk, inodes }: Limits) -> Self {
        spec::Limits { cpus, memory, pids, disk, inodes }
    }
}

impl From<spec::Limits> for Limits {
    fn from(spec::Limits { cpus, memory, pids, disk, inodes }: spec::Limits) -> Self {
        Limits { cpus, memory, pids, disk, inodes }
    }
}

impl From<&Aside> for state::Aside {
    fn from(Aside { since, reason }: &Aside) -> Self {
        state::Aside { since: *since, reason: reason.clone() }
    }
}

impl From<cove_engine::Unheld> for Unheld {
    fn from(unheld: cove_engine::Unheld) -> Self {
        let limit = match unheld.limit {
            cove_engine::Limit::Cpus => Limit::Cpus,
            cove_engine::Limit::Memory => Limit::Memory,
            cove_engine::Limit::Pids => Limit::Pids,
            cove_engine::Limit::Disk => Limit::Disk,
        };
        Unheld { limit, why: unheld.why, remedy: unheld.remedy }
    }
}

impl From<storage::Space> for Space {
    fn from(storage::Space { free, total }: storage::Space) -> Self {
        Space { free, total }
    }
}

impl From<state::LargestProcess> for LargestProcess {
    fn from(state::LargestProcess { name, memory }: state::LargestProcess) -> Self {
        LargestProcess { name, memory }
    }
}

impl From<state::Ended> for Ended {
    fn from(ended: state::Ended) -> Self {
        match ended {
            state::Ended::Stopped => Ended::Stopped,
            state::Ended::OutOfMemory { limit, peak, largest } => {
                Ended::OutOfMemory { limit, peak, largest: largest.map(LargestProcess::from) }
            }
            state::Ended::Killed { signal } => Ended::Killed { signal },
            state::Ended::GuestExited { code } => Ended::GuestExited { code },
            state::Ended::HostRestarted => Ended::HostRestarted,
            state::Ended::StorageFailed => Ended::StorageFailed,
            state::Ended::Vanished => Ended::Vanished,
        }
    }
}

impl From<state::Usage> for Usage {
    fn from(usage: state::Usage) -> Self {
        Usage {
            cpu_ns: usage.cpu_ns,
            memory: usage.memory,
            memory_cache: usage.memory_cache,
            memory_peak: usage.memory_peak,
            memory_limit: usage.memory_limit,
            memory_kills: usage.memory_kills,
            pids: usage.pids,
            disk: usage.disk,
            disk_limit: usage.disk_limit,
            network_received: usage.network_received,
            network_sent: usage.network_sent,
        }
    }
}

/// The buffer between the thread that packs and the task that uploads.
const BUFFER: usize = 256 << 10;
/// The level of zstd: its default.
const LEVEL: i32 = 3;

/// Where its guest listens; nowhere where the handle is no sandbox's.
struct Socket(Option<PathBuf>);

#[async_trait]
impl Connect for Socket {
    async fn connect(&self) -> Result<Box<dyn Pipe>, GuestError> {
        let Some(path) = &self.0 else { return Err(GuestError::Unreachable("no such sandbox".into())) };
        match UnixStream::connect(path).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(GuestError::Unreachable(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_resized_where_one_of_its_limits_is_held() {
        use cove_engine::Limit;
        assert_eq!(can_resize([].into_iter()), Can::Yes);
        assert_eq!(can_resize([Limit::Cpus, Limit::Disk].into_iter()), Can::Yes, "memory is");
        assert_eq!(can_resize([Limit::Cpus, Limit::Memory, Limit::Disk].into_iter()), Can::not(NO_RESIZE));
        assert_eq!(can_resize(Limit::ALL.into_iter()), Can::not(NO_RESIZE));
    }

    #[test]
    fn what_is_no_id_is_nobodys_handle() {
        for wrong in ["", "../../../../../../..", "container-7"] {
            assert!(matches!(id_of(&Handle::new(wrong)), Err(ProviderError::NotFound(_))), "{wrong}");
        }
        let id = "a".repeat(20).parse().unwrap();
        assert_eq!(id_of(&Handle::from(&id)).unwrap(), id);
    }
}
