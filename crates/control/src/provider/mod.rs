//! Where sandboxes run.
//!
//! A provider makes and keeps isolated computers; the control plane decides when. [`Capabilities`] lists what a
//! provider can do, and the control plane refuses the rest before it tries. All calls are idempotent: a crash between a
//! call and the note of its success is repaired by calling again.

pub mod fake;
pub mod local;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
pub use cove_engine::Unheld;
pub use cove_engine::spec::{Egress, Limits, Mount, Network, Root, SandboxId, Spec, Storage};
pub use cove_engine::state::{Aside, Ended, Usage};
pub use cove_engine::storage::{Health, Space};

use crate::Error;
use crate::config::Config;
use crate::guest::Guest;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    pub pause: bool,
    pub resize: bool,
    /// Files outlive a stop.
    pub persistent: bool,
    pub network_policy: bool,
    /// What isolates a sandbox from its host, as the API reports it.
    pub isolation: Isolation,
}

/// Degrees of isolation, weakest first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// For tests: none.
    None,
    Namespaces,
    Gvisor,
    Microvm,
}

/// What a provider knows about one of its sandboxes.
#[derive(Debug, Clone, PartialEq)]
pub struct Sighting {
    pub id: SandboxId,
    pub state: Seen,
    /// How its processes ended, if that happened while no server was running.
    pub ended: Option<Ended>,
    /// Since when and why it is kept although nobody is known to own it.
    pub aside: Option<Aside>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Seen {
    Running,
    Paused,
    /// Its files are there, its processes are not.
    Stopped,
}

/// A sandbox's processes ended without a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    pub id: SandboxId,
    pub ended: Ended,
}

#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    #[error("sandbox {0} is not known to the provider")]
    NotFound(SandboxId),
    #[error("{0}")]
    Unsupported(String),
    /// The request can never succeed; the sentence says why.
    #[error("{0}")]
    Refused(String),
    /// No room now; may succeed later.
    #[error("{0}")]
    Exhausted(String),
    /// A disk has no room.
    #[error("{0}")]
    Full(String),
    #[error("{0}")]
    Failed(String),
}

/// The providers that a server has by its configuration. `program` is the path of this program, which spawners run.
/// Blocking; call it before serving.
pub fn configured(config: &Config, program: PathBuf) -> Result<Vec<Arc<dyn Provider>>, Error> {
    match config.provider.as_str() {
        "fake" => Ok(vec![fake::Fake::new()]),
        "local" => {
            let count = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
            let engine = cove_engine::Config {
                data: config.data.clone(),
                spawning: cove_engine::Spawning::Processes { count, program },
                pool: READY,
                // A limit that a caller asks for and that cannot be enforced was refused before.
                waived: cove_engine::Limit::ALL.to_vec(),
            };
            let local = local::Local::open(engine)
                .map_err(|error| Error::internal(format!("open the engine: {error}; `cove doctor` checks the host")))?;
            Ok(vec![local])
        }
        other => Err(Error::invalid("provider", format!("{other:?} is not one of local, fake"))),
    }
}

/// Namespaces kept ready for launches to come.
const READY: usize = 16;

#[async_trait]
pub trait Provider: Send + Sync {
    fn name(&self) -> &'static str;
    fn capabilities(&self) -> Capabilities;

    /// Limits that are not enforced here.
    fn unheld(&self) -> Vec<Unheld> {
        Vec::new()
    }

    /// Makes the sandbox and starts it; if it has files from an earlier life, it is a start. Returns when the guest
    /// answers.
    async fn launch(&self, spec: &Spec) -> Result<(), ProviderError>;
    /// Ends all processes and keeps the files. Already stopped: nothing to do.
    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), ProviderError>;
    async fn pause(&self, id: &SandboxId) -> Result<(), ProviderError>;
    async fn resume(&self, id: &SandboxId) -> Result<(), ProviderError>;
    /// Ends its processes at once and touches no files: what can be done ahead of [`Provider::destroy`]. Already gone, or
    /// impossible without the files: nothing to do.
    async fn end(&self, _id: &SandboxId) -> Result<(), ProviderError> {
        Ok(())
    }
    /// Removes everything. Already gone: nothing to do.
    async fn destroy(&self, id: &SandboxId) -> Result<(), ProviderError>;
    async fn resize(&self, id: &SandboxId, limits: &Limits) -> Result<(), ProviderError>;
    async fn set_network(&self, id: &SandboxId, network: &Network) -> Result<(), ProviderError>;
    async fn usage(&self, id: &SandboxId) -> Result<Usage, ProviderError>;
    /// The last time that memory ran out in it, as the host saw it; `None` where it did not, or where that is unknown.
    async fn shortage(&self, _id: &SandboxId) -> Option<Ended> {
        None
    }

    /// Bytes of memory that its machine has left; `None` where that is unknown.
    fn free_memory(&self) -> Option<u64> {
        None
    }

    /// Every sandbox that the provider has, for reconcile.
    async fn sightings(&self) -> Result<Vec<Sighting>, ProviderError>;
    /// What it has of one; `None` where it has nothing.
    async fn sighting(&self, id: &SandboxId) -> Result<Option<Sighting>, ProviderError> {
        Ok(self.sightings().await?.into_iter().find(|sighting| sighting.id == *id))
    }
    /// Ends its processes and keeps its files for whoever claims them.
    async fn keep_aside(&self, id: &SandboxId, aside: &Aside) -> Result<(), ProviderError> {
        let _nothing_to_note = aside;
        self.stop(id, Duration::ZERO).await
    }
    /// Somebody owns it again: its files are no longer kept aside.
    async fn take_back(&self, id: &SandboxId) -> Result<(), ProviderError> {
        let _nothing_was_noted = id;
        Ok(())
    }
    /// What a sandbox was last started with, where the provider knows.
    async fn last_spec(&self, id: &SandboxId) -> Result<Option<Spec>, ProviderError> {
        let _unknown = id;
        Ok(None)
    }
    /// Whether it has written nothing that would be missed.
    async fn is_blank(&self, id: &SandboxId) -> Result<bool, ProviderError> {
        let _unknown = id;
        Ok(false)
    }
    /// Whether its machine was started anew since a server last began on it.
    fn is_after_a_restart(&self) -> bool {
        false
    }
    /// How the storage of its sandboxes is at this moment; `None` where that is nobody's business here.
    fn storage(&self) -> Option<Health> {
        None
    }
    /// Removes everything that belongs to none of these sandboxes; returns how many. Called before a server serves.
    async fn sweep(&self, keep: std::collections::HashSet<SandboxId>) -> Result<usize, ProviderError> {
        let _nothing_to_sweep = keep;
        Ok(0)
    }
    /// Waits for the next sandbox that ends without a request; one caller at a time.
    async fn departure(&self) -> Departure;

    /// Connects to the daemon inside.
    fn guest(&self, id: &SandboxId) -> Guest;

    /// Packs everything that a stopped sandbox has written as a tar archive.
    async fn export(
        &self,
        id: &SandboxId,
        to: &mut (dyn tokio::io::AsyncWrite + Send + Unpin),
    ) -> Result<(), ProviderError>;
    /// The reverse: unpacks a stopped sandbox's files.
    async fn import(
        &self,
        spec: &Spec,
        from: &mut (dyn tokio::io::AsyncRead + Send + Unpin),
    ) -> Result<(), ProviderError>;
}
