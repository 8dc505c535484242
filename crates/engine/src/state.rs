//! What the engine reports about a sandbox: that it runs, what it uses, how it ended.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::spec::SandboxId;

/// A sandbox whose guest has answered. Enough to find it again after the server died: a pid may be reused by then, so
/// its start time is kept with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    pub id: SandboxId,
    /// The guest, as the host numbers it.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`, in clock ticks since boot.
    pub start_time: u64,
    /// Where the guest listens.
    pub socket: PathBuf,
}

/// A sandbox found on disk.
#[derive(Debug, Clone)]
pub struct Found {
    pub id: SandboxId,
    /// Absent where its processes are gone.
    pub running: Option<Running>,
    pub paused: bool,
    /// How its last life ended, where that happened while no engine looked.
    pub ended: Option<Ended>,
    /// Since when and why it is kept for nobody.
    pub aside: Option<Aside>,
}

/// Files that are kept although nobody is known to own them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aside {
    /// Milliseconds since 1970.
    pub since: i64,
    /// A sentence.
    pub reason: String,
}

/// How a sandbox's processes came to their end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "cause")]
pub enum Ended {
    /// As asked: every process had gone within the grace, or was killed after it.
    Stopped,
    /// The out-of-memory killer ended the guest ([`Usage::memory_kills`] and the process's own exit report other
    /// processes).
    OutOfMemory { limit: u64, peak: u64, largest: Option<LargestProcess> },
    /// The guest was ended by a signal from outside.
    Killed { signal: i32 },
    /// The guest ended by itself.
    GuestExited { code: i32 },
    /// Its processes were those of an earlier boot of the host.
    HostRestarted,
    /// The filesystem that its files are on had failed and was begun anew, which no process of it could outlive.
    StorageFailed,
    /// Its processes were gone, on the same boot: somebody ended them.
    Vanished,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LargestProcess {
    pub name: String,
    pub memory: u64,
}

/// What a sandbox uses, from its cgroups: the host's account, not the sandbox's own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    pub cpu_ns: u64,
    /// Bytes in use, without reclaimable cache.
    pub memory: u64,
    pub memory_cache: u64,
    pub memory_peak: u64,
    pub memory_limit: u64,
    /// Processes that the out-of-memory killer has ended so far.
    pub memory_kills: u64,
    pub pids: u64,
    pub disk: u64,
    pub disk_limit: Option<u64>,
    pub network_received: u64,
    pub network_sent: u64,
}
