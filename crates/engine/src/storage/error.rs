//! What can go wrong where a sandbox's files are kept.

use std::io;
use std::path::{Path, PathBuf};

use crate::spec::SandboxId;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the files of sandbox {0} exist already")]
    Exists(SandboxId),
    #[error("there are no files of sandbox {0}")]
    NotFound(SandboxId),
    /// Nothing on this host holds a limit on disk.
    #[error(
        "a disk limit of {limit} bytes cannot be held on this host ({why}); \
         remedy: allow unlimited disks, keep the sandbox's files in memory, or see `cove doctor` for storage"
    )]
    NoLimits { limit: u64, why: String },
    #[error("the disk limit of {limit} bytes for sandbox {id} is below the {used} bytes in use")]
    InUse { id: SandboxId, limit: u64, used: u64 },
    #[error("{step} {}: {source}", path.display())]
    File { step: &'static str, path: PathBuf, source: io::Error },
    #[error("archive entry {entry:?}: {why}")]
    Archive { entry: String, why: String },
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
