//! Where things lie on this machine.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use cove_engine::kernel;

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
            Files::InMemory if is_root() => in_memory(),
            Files::InMemory => variable("XDG_RUNTIME_DIR").map(|folder| folder.join("cove")),
        };
        match (usual, files) {
            (Some(usual), _) => usual,
            (None, Files::InMemory) => self.data().join("run"),
            // Apart: a run in memory then never touches the disk's backing, let alone has to mount it.
            (None, Files::OnDisk) => self.data().join("run-on-disk"),
        }
    }
}

/// Root's place for what a reboot may take. On most hosts `/run` is in memory; where it lies on a disk, every run would wait
/// for that disk whenever somebody else writes. The base layer lies there too: where the kernel shows no tmpfs with a sandbox's
/// ids, it is no place in memory.
fn in_memory() -> Option<PathBuf> {
    let (run, shared, own) = (Path::new("/run"), Path::new("/dev/shm"), Path::new("/dev/shm/cove-run"));
    if !is_tmpfs(run) && !is_tmpfs(shared) {
        return Some(run.join("cove"));
    }
    if !kernel::has(kernel::TMPFS_ID_MAPS) {
        return None;
    }
    Some(if is_tmpfs(run) || !is_roots_alone(own) { run.join("cove") } else { own.to_owned() })
}

/// Anybody may make directories there, so one that was there before must be root's and nobody else's.
fn is_roots_alone(folder: &Path) -> bool {
    // There already, or it cannot be: the look tells.
    let _ = fs::DirBuilder::new().mode(0o700).create(folder);
    folder.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == 0 && found.mode() & 0o077 == 0)
}

fn is_tmpfs(folder: &Path) -> bool {
    // TMPFS_MAGIC, statfs(2).
    rustix::fs::statfs(folder).is_ok_and(|found| found.f_type == 0x0102_1994)
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
