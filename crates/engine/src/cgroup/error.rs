//! What can go wrong with a control group, each with the file it happened at.

use std::io;
use std::path::{Path, PathBuf};

/// Why this host has no limits, and what would change that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; {remedy}")]
pub struct Absent {
    pub reason: String,
    pub remedy: String,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no control groups for sandboxes: {0}")]
    Absent(#[from] Absent),
    #[error("control group name {0:?}: 1 to 64 lower-case letters, digits and dashes are allowed")]
    Name(String),
    #[error("control group {0} exists already")]
    Exists(String),
    #[error("limit {limit} cannot be enforced: the kernel offers no {controller} controller here; {remedy}")]
    Missing { limit: &'static str, controller: &'static str, remedy: &'static str },
    #[error("memory limit of {limit} bytes for control group {name}: {usage} bytes are in use and cannot be reclaimed")]
    InUse { name: String, limit: u64, usage: u64 },
    #[error("freeze control group {0}: its processes did not come to rest in time")]
    NotFrozen(String),
    #[error("remove control group {name}: {pids} processes are still in it")]
    Busy { name: String, pids: usize },
    #[error("{step} {}: {source}", path.display())]
    File { step: &'static str, path: PathBuf, source: io::Error },
}

impl Error {
    /// For `map_err`: names the step and the file.
    pub(super) fn at(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { step, path, source }
    }

    /// The errno behind it, where there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::File { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Whether the group was removed meanwhile: the kernel returns ENODEV for an open file, ENOENT otherwise.
    pub fn is_gone(&self) -> bool {
        let gone = [rustix::io::Errno::NODEV, rustix::io::Errno::NOENT];
        self.errno().is_some_and(|errno| gone.iter().any(|gone| gone.raw_os_error() == errno))
    }
}
