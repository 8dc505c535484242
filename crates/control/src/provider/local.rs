//! Sandboxes of this machine, by the engine.
//!
//! The engine is synchronous: its calls run on threads for blocking work. The guest is reached by its Unix socket.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cove_engine::spec::{Limits, Network, Storage};
use cove_engine::state::{Ended, Usage};
use cove_engine::{Config, Engine, Error as EngineError, SandboxId, Spec};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, mpsc};
use tokio_util::io::SyncIoBridge;
use tracing::Instrument as _;

use super::{
    Aside, Capabilities, Departure, Health, Isolation, Provider, ProviderError, Seen, Sighting, Space, Unheld,
};
use crate::guest::{Connect, Guest, GuestError, Pipe};
use crate::trace::effect;

pub struct Local {
    engine: Arc<Engine>,
    departures: Mutex<mpsc::UnboundedReceiver<Departure>>,
}

impl Local {
    /// Opens the engine on its data directory. Blocking; call it before serving.
    pub fn open(config: Config) -> Result<Arc<Local>, EngineError> {
        let engine = Engine::open(config)?;
        let (forward, departures) = mpsc::unbounded_channel();
        if let Some(ended) = engine.departures() {
            std::thread::spawn(move || {
                for (id, ended) in ended {
                    if forward.send(Departure { id, ended }).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Arc::new(Local { engine: Arc::new(engine), departures: Mutex::new(departures) }))
    }

    async fn call<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Engine) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, ProviderError> {
        let engine = Arc::clone(&self.engine);
        let done = tokio::task::spawn_blocking(move || act(&engine)).await;
        let done = done.map_err(|error| ProviderError::Failed(format!("the engine's thread ended: {error}")))?;
        done.map_err(|error| match error {
            EngineError::NotFound(id) => ProviderError::NotFound(id),
            EngineError::Invalid(reason) => ProviderError::Refused(reason),
            EngineError::Unheld(_) => ProviderError::Unsupported(error.to_string()),
            EngineError::NoRange(_) => ProviderError::Exhausted(error.to_string()),
            EngineError::Storage(cove_engine::storage::Error::Archive { .. }) => {
                ProviderError::Refused(error.to_string())
            }
            error if error.is_full() => ProviderError::Full(error.to_string()),
            error => ProviderError::Failed(error.to_string()),
        })
    }
}

/// Already done: nothing to do.
fn unless_gone(done: Result<(), EngineError>) -> Result<(), EngineError> {
    match done {
        Err(EngineError::NotRunning(_) | EngineError::NotFound(_)) => Ok(()),
        done => done,
    }
}

#[async_trait]
impl Provider for Local {
    fn name(&self) -> &'static str {
        "local"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            pause: self.engine.hold().pause,
            resize: true,
            persistent: true,
            network_policy: true,
            isolation: Isolation::Namespaces,
        }
    }

    fn unheld(&self) -> Vec<Unheld> {
        self.engine.hold().unheld(Storage::Disk).cloned().collect()
    }

    async fn launch(&self, spec: &Spec) -> Result<(), ProviderError> {
        let span = effect!("launch", spec.id);
        let spec = spec.clone();
        self.call(move |engine| match engine.launch(&spec) {
            Ok(_) | Err(EngineError::AlreadyRunning(_)) => Ok(()),
            Err(error) => Err(error),
        })
        .instrument(span)
        .await
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), ProviderError> {
        let span = effect!("stop", id);
        let id = id.clone();
        self.call(move |engine| unless_gone(engine.stop(&id, grace))).instrument(span).await
    }

    async fn pause(&self, id: &SandboxId) -> Result<(), ProviderError> {
        let span = effect!("pause", id);
        let id = id.clone();
        self.call(move |engine| engine.pause(&id)).instrument(span).await
    }

    async fn resume(&self, id: &SandboxId) -> Result<(), ProviderError> {
        let span = effect!("resume", id);
        let id = id.clone();
        self.call(move |engine| engine.resume(&id)).instrument(span).await
    }

    async fn end(&self, id: &SandboxId) -> Result<(), ProviderError> {
        let id = id.clone();
        self.call(move |engine| unless_gone(engine.end(&id))).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), ProviderError> {
        let span = effect!("destroy", id);
        let id = id.clone();
        self.call(move |engine| unless_gone(engine.destroy(&id))).instrument(span).await
    }

    async fn resize(&self, id: &SandboxId, limits: &Limits) -> Result<(), ProviderError> {
        let (id, limits) = (id.clone(), *limits);
        self.call(move |engine| engine.resize(&id, &limits)).await
    }

    async fn set_network(&self, id: &SandboxId, network: &Network) -> Result<(), ProviderError> {
        let (id, network) = (id.clone(), network.clone());
        self.call(move |engine| engine.set_network(&id, &network)).await
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, ProviderError> {
        let id = id.clone();
        self.call(move |engine| engine.usage(&id)).await
    }

    fn free_memory(&self) -> Option<u64> {
        // One small read from the kernel: far cheaper than the launch that it may avoid.
        let account = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = account.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
    }

    async fn shortage(&self, id: &SandboxId) -> Option<Ended> {
        let id = id.clone();
        let told = self.call(move |engine| {
            let usage = engine.usage(&id)?;
            Ok((usage.memory_kills > 0).then(|| Ended::OutOfMemory {
                limit: usage.memory_limit,
                peak: usage.memory_peak,
                largest: engine.largest_process(&id),
            }))
        });
        told.await.ok().flatten()
    }

    async fn sightings(&self) -> Result<Vec<Sighting>, ProviderError> {
        Ok(self.call(Engine::found).await?.into_iter().map(sighting).collect())
    }

    async fn sighting(&self, id: &SandboxId) -> Result<Option<Sighting>, ProviderError> {
        let id = id.clone();
        Ok(self.call(move |engine| engine.find(&id)).await?.map(sighting))
    }

    async fn keep_aside(&self, id: &SandboxId, aside: &Aside) -> Result<(), ProviderError> {
        let (id, aside) = (id.clone(), aside.clone());
        self.call(move |engine| engine.keep_aside(&id, &aside)).await
    }

    async fn take_back(&self, id: &SandboxId) -> Result<(), ProviderError> {
        let id = id.clone();
        self.call(move |engine| engine.take_back(&id)).await
    }

    async fn last_spec(&self, id: &SandboxId) -> Result<Option<Spec>, ProviderError> {
        let id = id.clone();
        self.call(move |engine| engine.spec(&id)).await
    }

    async fn is_blank(&self, id: &SandboxId) -> Result<bool, ProviderError> {
        let id = id.clone();
        self.call(move |engine| engine.is_blank(&id)).await
    }

    fn is_after_a_restart(&self) -> bool {
        self.engine.is_after_a_restart()
    }

    fn storage(&self) -> Option<Health> {
        // What cannot be asked is in no better order than what says so.
        let broken = |error: EngineError| Health {
            host: Space { free: 0, total: 0 },
            pool: None,
            broken: Some(error.to_string()),
            unbacked: 0,
        };
        Some(self.engine.storage_health().unwrap_or_else(broken))
    }

    async fn sweep(&self, keep: std::collections::HashSet<SandboxId>) -> Result<usize, ProviderError> {
        let swept = self.call(move |engine| engine.sweep(&|id| keep.contains(id))).await?;
        Ok(swept.len())
    }

    async fn departure(&self) -> Departure {
        match self.departures.lock().await.recv().await {
            Some(departure) => departure,
            None => std::future::pending().await,
        }
    }

    fn guest(&self, id: &SandboxId) -> Guest {
        Guest::new(Arc::new(Socket(self.engine.socket(id))))
    }

    async fn export(&self, id: &SandboxId, to: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<(), ProviderError> {
        let id = id.clone();
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

    async fn import(&self, spec: &Spec, from: &mut (dyn AsyncRead + Send + Unpin)) -> Result<(), ProviderError> {
        let spec = spec.clone();
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
        unpacked.and(carried)
    }
}

fn sighting(found: cove_engine::Found) -> Sighting {
    Sighting {
        id: found.id,
        ended: found.ended,
        state: match (found.running, found.paused) {
            (Some(_), true) => Seen::Paused,
            (Some(_), false) => Seen::Running,
            (None, _) => Seen::Stopped,
        },
        aside: found.aside,
    }
}

/// The buffer between the thread that packs and the task that uploads.
const BUFFER: usize = 256 << 10;
/// The level of zstd: its default.
const LEVEL: i32 = 3;

struct Socket(PathBuf);

#[async_trait]
impl Connect for Socket {
    async fn connect(&self) -> Result<Box<dyn Pipe>, GuestError> {
        match UnixStream::connect(&self.0).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(GuestError::Unreachable(error.to_string())),
        }
    }
}
