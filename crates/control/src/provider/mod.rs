//! Where sandboxes run.
//!
//! A provider makes and keeps isolated computers; the control plane decides when. What is asked of it and what it reports
//! are nouns of the control plane: every provider translates them in its own file, which is also the only one that knows
//! its name. A server has as many providers as it has `[providers.NAME]` sections.
//!
//! * [`order`]: what a provider is asked to make, and the handle of what it made; [`image`]: what it starts from
//! * [`outcome`]: what it reports; [`capability`]: what it can do, and the sentence where it cannot
//! * [`images`]: layers and volumes; [`stop`]: ends work on them that nobody waits for
//! * [`manifest`]: what files a sandbox had, to be proven later
//! * [`kind`]: the kinds that there are, with the keys of their sections
//! * [`route`]: which of several a new sandbox goes to; [`health`]: how each does
//! * [`docker`]: containers of a Docker daemon
//! * [`e2b`], [`daytona`], [`vercel`], [`codesandbox`]: services elsewhere; [`remote`]: what these have in common
//! * [`local`]: our engine, on this machine; `fake`: for tests, with the feature of that name and not in the program that
//!   people install
//!
//! All calls are idempotent: a crash between a call and the note of its success is repaired by calling again.

pub mod capability;
pub mod codesandbox;
pub mod daytona;
pub mod docker;
pub mod e2b;
#[cfg(feature = "fake")]
pub mod fake;
pub mod health;
pub mod image;
pub mod images;
pub mod kind;
pub mod local;
pub mod manifest;
pub mod order;
pub mod outcome;
pub mod remote;
pub mod route;
pub mod stop;
pub mod vercel;

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
pub use cove_policy::{Egress, Network};
pub use cove_protocol::{LayerId, SandboxId, VolumeId};

pub use self::capability::{Ability, Can, Capabilities, Isolation};
pub use self::image::{Image, Root, Supply, Under};
pub use self::kind::{Kind, configured};
pub use self::order::{Access, Durability, Handle, Limit, Limits, Order, Unheld, VolumeMount};
pub use self::outcome::{Aside, Departure, Ended, Health, LargestProcess, Seen, Sighting, Space, Trouble, Usage};
use crate::guest::Guest;

#[derive(Debug, Clone, thiserror::Error)]
pub enum ProviderError {
    #[error("sandbox {0} is not known to the provider")]
    NotFound(Handle),
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
    /// Its machine cannot run sandboxes until somebody changes the machine.
    #[error("{0}")]
    Unfit(String),
    #[error("{0}")]
    Failed(String),
}

#[async_trait]
pub trait Provider: Send + Sync {
    /// The name that it has on this server.
    fn name(&self) -> &str;
    /// The kind of its section.
    fn kind(&self) -> &'static Kind;
    fn capabilities(&self) -> Capabilities;

    /// Whether its sandboxes are on this machine: then no other server can act on them.
    fn is_bound_to_host(&self) -> bool;
    /// Whether everything that it has was made by this installation: then what the store does not know is an orphan.
    fn is_exclusive(&self) -> bool {
        self.is_bound_to_host()
    }

    /// Whether it may be away while this server is well: then its sandboxes stay as they were noted until it is back.
    fn may_be_away(&self) -> bool {
        !self.is_exclusive()
    }

    /// How it gets what sandboxes start from.
    fn supply(&self) -> Supply {
        Supply::Layers
    }

    /// Whether it answers: the cheapest call that reaches what makes sandboxes there.
    async fn answers(&self) -> Result<(), ProviderError> {
        self.sightings().await.map(drop)
    }

    /// Trees of files that roots are made of.
    fn layers(&self) -> &dyn images::Layers {
        &images::Nowhere
    }

    /// Storage that outlives sandboxes.
    fn volumes(&self) -> &dyn images::Volumes {
        &images::Nowhere
    }

    /// What files sandboxes had when they were last written out.
    fn manifests(&self) -> &dyn manifest::Manifests {
        &manifest::Nowhere
    }

    /// Whether a sandbox can be without any network, also where no rules are held.
    fn closes_networks(&self) -> bool {
        self.capabilities().network_policy.is_yes()
    }

    /// Limits that are not enforced here.
    fn unheld(&self) -> Vec<Unheld> {
        Vec::new()
    }

    /// Why the size of a volume is not enforced here; `None` where it is.
    fn unheld_volumes(&self) -> Option<Unheld> {
        self.unheld().into_iter().find(|unheld| unheld.limit == Limit::Disk)
    }

    /// Makes the sandbox and starts it; if it has files from an earlier life, it is a start. Returns when the guest
    /// answers, with the name that later calls use.
    async fn launch(&self, order: &Order) -> Result<Handle, ProviderError>;
    /// Ends all processes and keeps the files. Already stopped: nothing to do.
    async fn stop(&self, handle: &Handle, grace: Duration) -> Result<(), ProviderError>;
    async fn pause(&self, handle: &Handle) -> Result<(), ProviderError>;
    async fn resume(&self, handle: &Handle) -> Result<(), ProviderError>;
    /// Ends its processes at once and touches no files: what can be done ahead of [`Provider::destroy`]. Already gone, or
    /// impossible without the files: nothing to do.
    async fn end(&self, _handle: &Handle) -> Result<(), ProviderError> {
        Ok(())
    }
    /// Removes everything. Already gone: nothing to do.
    async fn destroy(&self, handle: &Handle) -> Result<(), ProviderError>;
    async fn resize(&self, handle: &Handle, limits: &Limits) -> Result<(), ProviderError>;
    async fn set_network(&self, handle: &Handle, network: &Network) -> Result<(), ProviderError>;
    async fn usage(&self, handle: &Handle) -> Result<Usage, ProviderError>;
    /// The last time that memory ran out in it, as the host saw it; `None` where it did not, or where that is unknown.
    async fn shortage(&self, _handle: &Handle) -> Option<Ended> {
        None
    }

    /// Bytes of memory that its machine has left; `None` where that is unknown.
    fn free_memory(&self) -> Option<u64> {
        None
    }

    /// Every sandbox that the provider has, for reconcile.
    async fn sightings(&self) -> Result<Vec<Sighting>, ProviderError>;
    /// What it has of one; `None` where it has nothing.
    async fn sighting(&self, handle: &Handle) -> Result<Option<Sighting>, ProviderError> {
        let is_it = |sighting: &Sighting| sighting.handle == *handle || sighting.id.as_str() == handle.as_str();
        Ok(self.sightings().await?.into_iter().find(is_it))
    }
    /// Ends its processes and keeps its files for whoever claims them.
    async fn keep_aside(&self, handle: &Handle, aside: &Aside) -> Result<(), ProviderError> {
        let _nothing_to_note = aside;
        self.stop(handle, Duration::ZERO).await
    }
    /// Somebody owns it again: its files are no longer kept aside.
    async fn take_back(&self, handle: &Handle) -> Result<(), ProviderError> {
        let _nothing_was_noted = handle;
        Ok(())
    }
    /// What a sandbox was last started with, where the provider knows.
    async fn last_order(&self, handle: &Handle) -> Result<Option<Order>, ProviderError> {
        let _unknown = handle;
        Ok(None)
    }
    /// Whether it has written nothing that would be missed.
    async fn is_blank(&self, handle: &Handle) -> Result<bool, ProviderError> {
        let _unknown = handle;
        Ok(false)
    }
    /// Whether its machine was started anew since a server last began on it.
    fn is_after_a_restart(&self) -> bool {
        false
    }
    /// How the storage of its sandboxes is at this moment, where so many bytes shall stay free; `None` where that is
    /// nobody's business here.
    fn storage(&self, kept: u64) -> Option<Health> {
        let _unknown = kept;
        None
    }
    /// Removes everything that belongs to none of these sandboxes; returns how many. Called before a server serves.
    async fn sweep(&self, keep: HashSet<SandboxId>) -> Result<usize, ProviderError> {
        let _nothing_to_sweep = keep;
        Ok(0)
    }
    /// Waits for the next sandbox that ends without a request; one caller at a time.
    async fn departure(&self) -> Departure;

    /// Connects to the daemon inside.
    fn guest(&self, handle: &Handle) -> Guest;

    /// Packs everything that a stopped sandbox has written as a tar archive.
    async fn export(
        &self,
        handle: &Handle,
        to: &mut (dyn tokio::io::AsyncWrite + Send + Unpin),
    ) -> Result<(), ProviderError>;
    /// The reverse: unpacks a stopped sandbox's files.
    async fn import(
        &self,
        order: &Order,
        from: &mut (dyn tokio::io::AsyncRead + Send + Unpin),
    ) -> Result<Handle, ProviderError>;
}
