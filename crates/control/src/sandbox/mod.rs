//! The noun at the centre: an isolated computer with files, processes, network and limits.
//!
//! * [`state`]: its life as a pure machine; [`timers`]: when it is put away by itself; [`work`]: whether it works unasked; [`cause`]: why it is as it is
//! * `housing`: which provider a new one goes to, and the next where that one is ill
//! * [`create`], [`lifecycle`], [`change`], [`find`], [`reach`]: what can be done with it, one verb a file; [`copies`]: the first launch
//!   of several at once
//! * [`seal`]: pauses and stops that end with a manifest of the files
//! * [`reconcile`]: what a server does that comes back; [`repair`]: what was left in the middle while it runs; [`orphan`]: files that
//!   nobody is known to own

mod able;
mod attempts;
pub mod cause;
pub mod change;
mod copies;
pub mod create;
pub mod exec;
pub mod explain;
pub mod find;
mod hold;
mod housing;
pub mod lifecycle;
pub mod metrics;
pub mod network;
pub mod orphan;
pub mod reach;
pub mod reconcile;
pub mod repair;
pub mod seal;
pub mod state;
pub mod timers;
pub mod work;

use std::collections::BTreeMap;

pub use cause::Cause;
use cove_protocol::SandboxId;
pub use network::NetworkPolicy;
pub use seal::{Durable, Manifest};
use serde::{Deserialize, Serialize};
pub use state::State;
pub use timers::{Expiry, IdleMeasure, Timers, TimersChange};

use crate::Error;
use crate::clock::Timestamp;
use crate::provider::{self, Durability, Handle, Image, Limits, VolumeMount};

/// A sandbox as the control plane knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sandbox {
    pub id: SandboxId,
    pub organisation: String,
    /// Unique in its organisation while the sandbox is there.
    pub name: Option<String>,
    /// The template's name.
    pub template: String,
    /// What it starts from. Rows from before images have its root here.
    #[serde(alias = "root")]
    pub image: Image,
    /// The build that it started from.
    #[serde(default)]
    pub build: Option<String>,
    /// The sandbox that it is a copy of.
    #[serde(default)]
    pub parent: Option<SandboxId>,
    /// How the provider knows that one: what the first launch copies.
    #[serde(default)]
    pub clone_of: Option<Handle>,
    /// The name of its provider.
    pub provider: String,
    /// How the provider knows it, from its first launch on.
    #[serde(default)]
    pub handle: Option<Handle>,
    /// The server whose machine it is on.
    pub server: String,
    pub labels: BTreeMap<String, String>,
    pub env: BTreeMap<String, String>,
    pub limits: Limits,
    pub network: NetworkPolicy,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeMount>,
    /// Whether its files are captured before each command.
    #[serde(default)]
    pub checkpoints: Option<crate::snapshot::Rule>,
    pub timers: Timers,
    /// Whom the organisation bills it to: any word of its own.
    pub owner: Option<String>,
    /// The user of commands that name none.
    pub user: String,
    pub cwd: Option<String>,
    /// Previews need no token.
    pub public: bool,

    pub state: State,
    pub cause: Cause,
    pub state_since: Timestamp,
    pub created_at: Timestamp,
    /// The latest start.
    pub started_at: Option<Timestamp>,
    pub last_activity_at: Timestamp,
    /// The latest change of labels, limits, timers, network, name or visibility.
    #[serde(default)]
    pub updated_at: Option<Timestamp>,
    /// From when on the present rate of use is not yet in the account.
    pub metered_from: Timestamp,

    /// Opens this sandbox alone: file URLs, processes.
    pub access_token: String,
    /// Opens its ports alone.
    pub traffic_token: String,
    /// What a door remembers of its own.
    #[serde(default)]
    pub door: serde_json::Value,
    /// The warm pool it waits in; nobody's until it is handed out.
    #[serde(default)]
    pub pool: Option<String>,
    /// Whether the object store may have files of it: from the first attempt to archive it on.
    #[serde(default = "may_have")]
    pub has_archive: bool,
    /// What proves its files, as long as no process has moved since they were written out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Manifest>,
    /// Whether the change under way ends with a manifest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sealing: bool,
    /// Rises with every write: who writes with an old number has been overtaken.
    #[serde(default)]
    pub generation: i64,
}

/// Of sandboxes that were written down before it was noted.
fn may_have() -> bool {
    true
}

impl Sandbox {
    /// What the provider is asked to make.
    pub fn order(&self) -> Result<provider::Order, Error> {
        Ok(provider::Order {
            id: self.id.clone(),
            earlier: self.handle.clone(),
            image: self.image.clone(),
            durability: self.durability(),
            limits: self.limits,
            network: self.network.to_network()?,
            volumes: self.volumes.clone(),
            hostname: self.hostname(),
            env: self.env.clone(),
            user: self.user.clone(),
            cwd: self.cwd.clone(),
        })
    }

    /// How the provider knows it: by what its launch returned, or by its id where that was never noted.
    pub fn handle(&self) -> Handle {
        self.handle.clone().unwrap_or_else(|| Handle::from(&self.id))
    }

    /// What is gone with its processes need not outlive the host.
    fn durability(&self) -> Durability {
        if self.timers.ephemeral { Durability::Volatile } else { Durability::Durable }
    }

    fn hostname(&self) -> String {
        let name = self.name.as_deref().unwrap_or_default();
        let fits = !name.is_empty()
            && name.len() <= 63
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !name.starts_with('-')
            && !name.ends_with('-');
        if fits { name.to_owned() } else { self.id.to_string() }
    }
}

/// What a caller wants made. Everything has a default.
#[derive(Debug, Clone, Default)]
pub struct NewSandbox {
    /// Its id, where that was told before it is made; a new one where absent.
    pub id: Option<SandboxId>,
    pub name: Option<String>,
    /// What it starts from: this, or `environment`, or `image`.
    pub template: Option<String>,
    /// A template, a name that people know such as `Python3`, or an image.
    pub environment: Option<String>,
    /// An image of a registry.
    pub image: Option<String>,
    /// Cloned into it before its maker is told of it.
    pub repository: Option<Repository>,
    pub labels: BTreeMap<String, String>,
    pub env: BTreeMap<String, String>,
    /// The variable in which processes find the sandbox's id, unless `env` has it.
    pub id_variable: Option<String>,
    pub limits: LimitsChange,
    pub network: NetworkPolicy,
    pub timers: TimersChange,
    pub provider: Option<String>,
    pub owner: Option<String>,
    pub user: Option<String>,
    pub cwd: Option<String>,
    pub public: bool,
    /// The same key with the same request gives the same sandbox.
    pub idempotency_key: Option<String>,
    pub door: serde_json::Value,
    pub if_exists: IfExists,
    pub volumes: Vec<crate::volume::Mount>,
    /// Whether its files are captured before each command.
    pub checkpoints: Option<crate::snapshot::Rule>,
}

impl NewSandbox {
    /// The same for the same request, to tell a repeated one from another with the same idempotency key; empty where there
    /// is no such key.
    pub fn fingerprint(&self) -> String {
        use sha2::Digest as _;
        if self.idempotency_key.is_none() {
            return String::new();
        }
        // Every field by name: one that is added must be thought of.
        let NewSandbox {
            id,
            name,
            template,
            environment,
            image,
            repository,
            labels,
            env,
            id_variable,
            limits,
            network,
            timers,
            provider,
            owner,
            user,
            cwd,
            public,
            idempotency_key: _,
            door,
            if_exists,
            volumes,
            checkpoints,
        } = self;
        let text = serde_json::json!([
            id,
            [name, template, provider, owner, user, cwd, id_variable],
            [labels, env],
            limits,
            network,
            format!("{timers:?}"),
            public,
            door,
            format!("{if_exists:?}"),
            format!("{volumes:?} {checkpoints:?}"),
            [environment, image],
            repository.as_ref().map(|one| [Some(&one.url), one.branch.as_ref(), one.path.as_ref()]),
        ]);
        hex::encode(sha2::Sha256::digest(text.to_string()))
    }
}

/// A repository of git that a new sandbox has from its first moment on.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Repository {
    /// A name and password in it go to git alone.
    pub url: String,
    pub branch: Option<String>,
    /// Where to; its own name in the directory where commands start, where absent.
    pub path: Option<String>,
}

impl std::fmt::Debug for Repository {
    /// Without the URL, which may have a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Repository(branch {:?}, path {:?})", self.branch, self.path)
    }
}

/// What to do where the name is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IfExists {
    #[default]
    Refuse,
    /// Give the one that is there.
    Return,
    /// Give the one that is there, started if it does not run.
    EnsureRunning,
}

/// Parts of [`Limits`] to set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsChange {
    /// Processors; 0.5 is half of one.
    #[schema(exclusive_minimum = 0.0)]
    pub cpus: Option<f64>,
    /// Bytes.
    pub memory: Option<u64>,
    /// Bytes.
    pub disk: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u32>,
}

impl LimitsChange {
    pub fn apply(&self, limits: Limits) -> Limits {
        Limits {
            cpus: self.cpus.unwrap_or(limits.cpus),
            memory: self.memory.unwrap_or(limits.memory),
            disk: self.disk.or(limits.disk),
            pids: self.pids.unwrap_or(limits.pids),
            inodes: limits.inodes,
        }
    }

    pub fn is_empty(&self) -> bool {
        *self == LimitsChange::default()
    }
}

/// Which sandboxes a list is of. Absent parts match all; warm and destroyed ones are only there when asked for.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// All pairs must match.
    pub labels: BTreeMap<String, String>,
    /// Any of them; empty = all but destroyed.
    pub states: Vec<State>,
    pub template: Option<String>,
    /// The beginning of the name, in any case.
    pub name_prefix: Option<String>,
    pub owner: Option<String>,
    pub created_after: Option<Timestamp>,
    pub created_before: Option<Timestamp>,
}

#[derive(Debug, Clone)]
pub struct Page {
    pub limit: u32,
    /// From the page before.
    pub cursor: Option<String>,
    pub order: Order,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    #[default]
    NewestFirst,
    OldestFirst,
}

impl Default for Page {
    fn default() -> Self {
        Page { limit: 100, cursor: None, order: Order::NewestFirst }
    }
}

/// A piece of a longer list.
#[derive(Debug, Clone)]
pub struct Listed<T> {
    pub items: Vec<T>,
    /// For the page after; `None` on the last.
    pub next: Option<String>,
}
