//! Volumes: named storage of an organisation that outlives sandboxes and that many of them can have at once.
//!
//! A volume is a directory with a limit, on one server. Every sandbox that mounts it sees the same files through one page
//! cache: rename, locks and mmap work as on a disk, across sandboxes too. A volume is no part of a snapshot.
//!
//! Mounts are counted in the store, in the transaction of the sandbox that has them: a volume that a
//! sandbox has, running or not, cannot be deleted. [`files`] is for those who have no sandbox.

mod files;
mod manage;
mod mount;

use serde::{Deserialize, Serialize};

pub(crate) use self::files::turns;
pub use self::files::{Entry, EntryKind, Files, Owner, WriteFile};
pub use self::manage::{NewVolume, VolumeFilter};
pub use self::mount::Mount;
use crate::clock::Timestamp;
use crate::provider::VolumeId;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = VolumeState)]
pub enum State {
    Creating,
    Ready,
    Deleting,
    /// Gone; kept for the record.
    Deleted,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            State::Creating => "creating",
            State::Ready => "ready",
            State::Deleting => "deleting",
            State::Deleted => "deleted",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Volume {
    pub id: VolumeId,
    pub organisation: String,
    pub name: String,
    pub state: State,
    /// The server that has its files.
    pub server: String,
    pub provider: String,
    /// Bytes that it may hold.
    pub size_limit: u64,
    /// Opens its files alone.
    pub token: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// When a sandbox last got it.
    #[serde(default)]
    pub last_used_at: Option<Timestamp>,
    #[serde(default)]
    pub deleted_at: Option<Timestamp>,
}
