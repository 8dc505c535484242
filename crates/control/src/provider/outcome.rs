//! What a provider reports: how a sandbox ended, what it uses, what was seen of it, how the storage is.

use cove_protocol::SandboxId;
use serde::{Deserialize, Serialize};

use super::Handle;

/// How a sandbox's processes came to their end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "cause")]
pub enum Ended {
    /// As asked: every process had gone within the grace, or was killed after it.
    Stopped,
    /// Memory ran out and the daemon inside was ended for it.
    OutOfMemory { limit: u64, peak: u64, largest: Option<LargestProcess> },
    /// The daemon inside was ended by a signal from outside.
    Killed { signal: i32 },
    /// The daemon inside ended by itself.
    GuestExited { code: i32 },
    /// Its processes were those of an earlier boot of its machine.
    HostRestarted,
    /// The filesystem that its files are on had failed and was begun anew.
    StorageFailed,
    /// Its processes were gone, on the same boot: somebody ended them.
    Vanished,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LargestProcess {
    pub name: String,
    pub memory: u64,
}

/// What a sandbox uses: its machine's account, not the sandbox's own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    pub cpu_ns: u64,
    /// Bytes in use, without reclaimable cache.
    pub memory: u64,
    pub memory_cache: u64,
    pub memory_peak: u64,
    pub memory_limit: u64,
    /// Processes that were ended for want of memory so far.
    pub memory_kills: u64,
    pub pids: u64,
    pub disk: u64,
    pub disk_limit: Option<u64>,
    pub network_received: u64,
    pub network_sent: u64,
}

/// What a provider knows about one of its sandboxes.
#[derive(Debug, Clone, PartialEq)]
pub struct Sighting {
    pub id: SandboxId,
    pub handle: Handle,
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

/// Files that are kept although nobody is known to own them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aside {
    /// Milliseconds since 1970.
    pub since: i64,
    /// A sentence.
    pub reason: String,
}

/// A sandbox's processes ended without a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    pub id: SandboxId,
    pub ended: Ended,
}

/// Where sandboxes' files are kept, as it is at this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// The disk below everything.
    pub disk: Space,
    /// The filesystem of sandboxes' files, where that is one of its own.
    pub pool: Option<Space>,
    /// Why nothing may be added, where that is so.
    pub trouble: Option<Trouble>,
}

/// Bytes of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    pub free: u64,
    pub total: u64,
}

/// The sentence that whoever wants to add something reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// Waits for somebody to make room.
    Full(String),
    /// It does not work, and may be back in seconds.
    Failed(String),
}

impl Trouble {
    pub fn sentence(&self) -> &str {
        let (Trouble::Full(sentence) | Trouble::Failed(sentence)) = self;
        sentence
    }
}
