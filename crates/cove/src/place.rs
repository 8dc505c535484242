//! Where things lie on this machine.

use std::path::{Path, PathBuf};

/// The data directory: what was asked for, else the usual place for this user.
#[derive(Debug, Clone)]
pub struct Place {
    asked: Option<PathBuf>,
}

impl Place {
    pub fn new(asked: Option<PathBuf>) -> Place {
        let from_environment = || std::env::var_os("COVE_DATA").filter(|value| !value.is_empty()).map(PathBuf::from);
        let asked = asked.or_else(from_environment);
        // Relative to where the person stands, whatever becomes of the working directory later.
        Place { asked: asked.map(|path| std::path::absolute(&path).unwrap_or(path)) }
    }

    /// Where nobody asked for another.
    pub fn usual() -> Place {
        Place { asked: None }
    }

    /// Of the server: sandboxes, templates, the database, the first key.
    pub fn data(&self) -> PathBuf {
        self.asked.clone().unwrap_or_else(|| {
            if is_root() {
                PathBuf::from("/var/lib/cove")
            } else {
                variable("XDG_DATA_HOME").unwrap_or_else(|| home().join(".local/share")).join("cove")
            }
        })
    }

    /// Of `cove run`, apart from the server's, which sweeps its own of what it does not know. Nothing in it outlives its
    /// command, so a directory that a reboot empties is the right one, unless files shall lie on disk.
    pub fn ephemeral(&self, files: Files) -> PathBuf {
        let usual = match files {
            _ if self.asked.is_some() => None,
            Files::OnDisk => None,
            Files::InMemory if is_root() => Some(PathBuf::from("/run")),
            Files::InMemory => variable("XDG_RUNTIME_DIR"),
        };
        match (usual, files) {
            (Some(usual), _) => usual.join("cove"),
            (None, Files::InMemory) => self.data().join("run"),
            // Apart: a run in memory then never touches the disk's backing, let alone has to mount it.
            (None, Files::OnDisk) => self.data().join("run-on-disk"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    InMemory,
    OnDisk,
}

/// Of the host: an ordinary user's engine is root of its own user namespace only.
pub fn is_root() -> bool {
    cove_engine::privilege::is_host_root()
}

fn home() -> PathBuf {
    variable("HOME").unwrap_or_else(|| Path::new("/").to_owned())
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}
