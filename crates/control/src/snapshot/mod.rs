//! Snapshots: a sandbox's files, frozen in time.
//!
//! A snapshot is a template's build that was captured of a sandbox: it is started from like any other, it outlives its
//! sandbox, and sandboxes and snapshots form a tree. Processes and memory are no part of it, and neither are volumes.
//!
//! * [`create`]: snapshots that a caller asks for
//! * [`checkpoint`]: those that a sandbox's rule asks for, before each command
//! * [`rollback`]: back to one of them, and back again
//! * [`fork`]: copies of a sandbox that run at once
//! * [`lineage`]: who came from whom

mod checkpoint;
mod create;
mod fork;
mod lineage;
mod rollback;

use serde::{Deserialize, Serialize};

pub use self::create::NewSnapshot;
pub use self::fork::NewFork;
pub use self::lineage::Forks;
use crate::Error;

/// A capture that was begun this long ago is never finished: the database was away when it ended.
pub(crate) const NEVER_FINISHED_MS: i64 = 3600 * 1000;

/// When checkpoints are made by themselves, and how many are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CheckpointRule)]
pub struct Rule {
    /// The newest so many are kept.
    #[schema(minimum = 1, maximum = 1000)]
    pub keep: u32,
    /// Seconds that one is kept at most.
    #[serde(default)]
    #[schema(maximum = 315_360_000)]
    pub keep_seconds: Option<u64>,
}

/// Ten years.
const KEEP_SECONDS_MAX: u64 = 315_360_000;

impl Rule {
    pub fn check(&self) -> Result<(), Error> {
        if !(1..=1000).contains(&self.keep) {
            return Err(Error::invalid("checkpoints.keep", "1 to 1000"));
        }
        if self.keep_seconds.is_some_and(|seconds| seconds > KEEP_SECONDS_MAX) {
            return Err(Error::invalid("checkpoints.keep_seconds", format!("at most {KEEP_SECONDS_MAX} (ten years)")));
        }
        Ok(())
    }
}
