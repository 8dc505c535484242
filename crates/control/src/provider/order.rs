//! What a provider is asked to make.
//!
//! An [`Order`] is complete: a provider needs no other word of the control plane to make the sandbox, and translates it
//! in its own file. What it made is known by its [`Handle`] from then on.

use std::collections::BTreeMap;
use std::fmt;

pub use cove_policy::{Egress, Network};
use cove_protocol::{SandboxId, VolumeId};
use serde::{Deserialize, Serialize};

use super::Image;

/// A sandbox to be made or started.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    pub id: SandboxId,
    /// What an earlier launch returned, if there was one: its files are to be used again.
    pub earlier: Option<Handle>,
    pub image: Image,
    pub durability: Durability,
    pub limits: Limits,
    pub network: Network,
    pub volumes: Vec<VolumeMount>,
    /// What `hostname` says inside.
    pub hostname: String,
    /// What every process inherits.
    pub env: BTreeMap<String, String>,
    /// The user of commands that name none.
    pub user: String,
    /// The directory of commands that name none; the user's home where absent.
    pub cwd: Option<String>,
}

/// How a provider knows a sandbox: a name of the provider's own, which is stored with the sandbox.
///
/// A launch that was never noted, because the server died at it, leaves a sandbox without one. So every provider also
/// takes the sandbox's id for a handle, and finds by it what it made for that id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Handle(String);

impl Handle {
    pub fn new(text: impl Into<String>) -> Handle {
        Handle(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&SandboxId> for Handle {
    fn from(id: &SandboxId) -> Handle {
        Handle(id.to_string())
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a crash of the machine may lose. A crash of a server loses nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// What was synced inside survives.
    #[default]
    Durable,
    /// Nothing needs to: its files are gone with the sandbox anyway.
    Volatile,
}

/// How much of a machine a sandbox may use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Processors; 0.5 is half of one.
    pub cpus: f64,
    /// Bytes of memory, swap included.
    pub memory: u64,
    pub pids: u32,
    /// Bytes it may write; `None` is no limit.
    pub disk: Option<u64>,
    /// Files it may make, where the provider can count them.
    #[serde(default)]
    pub inodes: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { cpus: 1.0, memory: 1 << 30, pids: 512, disk: Some(3 << 30), inodes: None }
    }
}

/// One of [`Limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    Cpus,
    Memory,
    Pids,
    Disk,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Cpus => "cpus",
            Limit::Memory => "memory",
            Limit::Pids => "pids",
            Limit::Disk => "disk",
        })
    }
}

/// A limit that a provider does not enforce.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Unheld {
    pub limit: Limit,
    pub why: String,
    pub remedy: String,
}

/// A volume shown inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    pub volume: VolumeId,
    /// A directory of the volume; all of it where absent.
    #[serde(default)]
    pub subpath: Option<String>,
    /// An absolute path inside.
    pub target: String,
    #[serde(default)]
    pub access: Access,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    ReadOnly,
    #[default]
    ReadWrite,
}
