//! What can go wrong, each with the thing it happened to.

use std::io;
use std::path::PathBuf;

use crate::refused::Refused;
use crate::spec::{LayerId, SandboxId, VolumeId};
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
    /// A process of it is in the middle of something that the kernel does not interrupt.
    #[error("sandbox {0} is busy: its processes did not come to rest in time; try again")]
    Busy(SandboxId),
    #[error("sandbox {0} is being ended")]
    Ending(SandboxId),
    #[error("there is no layer {0} on this machine")]
    LayerMissing(LayerId),
    #[error("layer {0} is in use")]
    LayerInUse(LayerId),
    #[error("there is no volume {0} on this machine")]
    VolumeMissing(VolumeId),
    #[error("volume {0} exists already")]
    VolumeExists(VolumeId),
    #[error("volume {0} is in use by a sandbox that runs")]
    VolumeInUse(VolumeId),
    #[error("sandbox {0} did not end although it was killed")]
    Unkillable(SandboxId),
    #[error("{} limit cannot be held: {}", .0.limit, .0.why)]
    Unheld(crate::hold::Unheld),
    /// Root's sandboxes have ids of their own over shared files, which this filesystem cannot show.
    #[error(
        "{} is on a filesystem without id-mapped mounts, which root's sandboxes need: \
         ext4, xfs and btrfs have them, tmpfs since Linux 6.3, overlayfs and NFS do not", .0.display()
    )]
    NoIdMaps(PathBuf),
    #[error("all {0} ranges of user ids are in use")]
    NoRange(u32),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("{step} {}: {source}", path.display())]
    File { step: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Cgroup(#[from] cgroup::Error),
    #[error(transparent)]
    Storage(storage::Error),
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

    /// The same for another who it happened to as well.
    pub(crate) fn again(&self) -> Error {
        match self {
            Error::NotFound(id) => Error::NotFound(id.clone()),
            Error::NotRunning(id) => Error::NotRunning(id.clone()),
            Error::Busy(id) => Error::Busy(id.clone()),
            Error::Ending(id) => Error::Ending(id.clone()),
            Error::Refused(refused) => Error::Refused(refused.clone()),
            Error::File { step, path, source } => {
                Error::File { step, path: path.clone(), source: io::Error::from(source.kind()) }
            }
            Error::Storage(storage::Error::File { step, path, source }) => {
                Error::File { step, path: path.clone(), source: io::Error::from(source.kind()) }
            }
            other => Error::Invalid(other.to_string()),
        }
    }

    /// For `map_err`: says what was done with which file.
    pub fn file(step: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { step, path, source }
    }
}

impl From<storage::Error> for Error {
    fn from(error: storage::Error) -> Error {
        match error {
            storage::Error::NotFound(id) => Error::NotFound(id),
            storage::Error::LayerMissing(id) => Error::LayerMissing(id),
            storage::Error::VolumeMissing(id) => Error::VolumeMissing(id),
            storage::Error::VolumeExists(id) => Error::VolumeExists(id),
            error => Error::Storage(error),
        }
    }
}
