//! What can go wrong, each with the thing it happened to.

use std::io;
use std::path::PathBuf;

use crate::refused::Refused;
use crate::spec::SandboxId;
use crate::{cgroup, network, storage};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("sandbox {0} does not exist")]
    NotFound(SandboxId),
    #[error("sandbox {0} runs already")]
    AlreadyRunning(SandboxId),
    #[error("sandbox {0} does not run")]
    NotRunning(SandboxId),
    #[error("{0}")]
    Invalid(String),
    #[error("{source} (sandbox {id})")]
    Launch { id: SandboxId, source: Refused },
    #[error("the guest of sandbox {id} did not answer: {reason}")]
    Guest { id: SandboxId, reason: String },
    #[error("sandbox {0} did not end although it was killed")]
    Unkillable(SandboxId),
    #[error("{} limit cannot be held: {}", .0.limit, .0.why)]
    Unheld(crate::hold::Unheld),
    #[error("all {0} ranges of user ids are in use")]
    NoRange(u32),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("{step} {}: {source}", path.display())]
    File { step: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Cgroup(#[from] cgroup::Error),
    #[error(transparent)]
    Storage(#[from] storage::Error),
    #[error(transparent)]
    Network(#[from] network::Error),
}

impl Error {
    /// Whether a disk had no room.
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        match self {
            Error::File { source, .. } => matches!(source.kind(), StorageFull | QuotaExceeded),
            Error::Storage(error) => matches!(error.kind(), Some(StorageFull | QuotaExceeded)),
            _ => false,
        }
    }

    /// For `map_err`: says what was done with which file.
    pub fn file(step: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { step, path, source }
    }
}
