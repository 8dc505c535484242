//! What can go wrong where a sandbox's files are kept.

use std::io;
use std::path::{Path, PathBuf};

use crate::spec::{LayerId, SandboxId, VolumeId};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the files of sandbox {0} exist already")]
    Exists(SandboxId),
    #[error("there are no files of sandbox {0}")]
    NotFound(SandboxId),
    #[error("there is no layer {0} on this machine")]
    LayerMissing(LayerId),
    #[error("there is no volume {0} on this machine")]
    VolumeMissing(VolumeId),
    #[error("volume {0} exists already")]
    VolumeExists(VolumeId),
    /// What was put into a draft does not make a layer.
    #[error("this is no layer: {why}")]
    Draft { why: String },
    /// Nothing on this host holds a limit on disk.
    #[error(
        "a disk limit of {limit} bytes cannot be held on this host ({why}); \
         remedy: allow unlimited disks, keep the sandbox's files in memory, or see `cove doctor` for storage"
    )]
    NoLimits { limit: u64, why: String },
    #[error("the disk limit of {limit} bytes for {of} is below the {used} bytes in use")]
    InUse { of: String, limit: u64, used: u64 },
    /// What a clone has of others counts for nobody else once they are gone.
    #[error(
        "sandbox {id} would begin with {has} bytes of files, which leaves it no room: with what it writes they are at \
         most twice its disk limit of {limit} bytes; remedy: remove files first, or raise the limit"
    )]
    Heritage { id: SandboxId, has: u64, limit: u64 },
    #[error("{step} {}: {source}", path.display())]
    File { step: &'static str, path: PathBuf, source: io::Error },
    #[error("archive entry {entry:?}: {why}")]
    Archive { entry: String, why: String },
    /// Files that no manifest can hold, or a manifest that is not what was written.
    #[error("{what}: {why}")]
    Manifest { what: String, why: String },
    #[error("given up, because the server ends")]
    Interrupted,
    /// The pool's filesystem turned read-only, or cannot be mounted while sandboxes hold what is left of it.
    #[error("the pool {} has failed: {reason}", path.display())]
    Broken { path: PathBuf, reason: String },
    #[error("{program} failed for {}: {output}", path.display())]
    Program { program: &'static str, path: PathBuf, output: String },
}

impl Error {
    /// For `map_err`: names the step and the file.
    pub(super) fn at<E: Into<io::Error>>(step: &'static str, path: &Path) -> impl FnOnce(E) -> Error {
        let path = path.to_owned();
        move |source| Error::File { step, path, source: source.into() }
    }

    pub fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            Error::File { source, .. } => Some(source.kind()),
            _ => None,
        }
    }
}
