//! Where files are on this machine.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use cove_engine::kernel;

pub use cove_terminal::program;

/// In the data directory: the URL of its server.
const ADDRESS: &str = "address";

/// The data directory: the given one, or the usual place for this user.
#[derive(Debug, Clone)]
pub struct Place {
    asked: Option<PathBuf>,
}

impl Place {
    pub fn new(asked: Option<PathBuf>) -> Place {
        let from_environment = || std::env::var_os("COVE_DATA").filter(|value| !value.is_empty()).map(PathBuf::from);
        let asked = asked.or_else(from_environment);
        // Made absolute now, before the working directory changes.
        Place { asked: asked.map(|path| std::path::absolute(&path).unwrap_or(path)) }
    }

    /// The default.
    pub fn usual() -> Place {
        Place { asked: None }
    }

    /// The server's directory: sandboxes, templates, the database, the first key.
    pub fn data(&self) -> PathBuf {
        self.asked.clone().unwrap_or_else(|| {
            if is_root() {
                PathBuf::from("/var/lib/cove")
            } else {
                variable("XDG_DATA_HOME").unwrap_or_else(|| home().join(".local/share")).join("cove")
            }
        })
    }

    /// Where the server of this directory listens, or last did; `None` where none has started yet.
    pub fn server(&self) -> Option<String> {
        let text = fs::read_to_string(self.data().join(ADDRESS)).ok()?;
        Some(text.trim().to_owned()).filter(|url| url.starts_with("http://"))
    }

    /// The directory of `cove run`. It is not the server's, because the server removes what it does not know. Nothing
    /// in it outlives its command, so a reboot may empty it, unless files must be on disk.
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
            // Separate: a run in memory then never touches or mounts the pool on disk.
            (None, Files::OnDisk) => self.data().join("run-on-disk"),
        }
    }
}

/// Notes where the server of a data directory listens, for the verbs on the same machine.
pub fn note_server(data: &Path, address: SocketAddr) -> io::Result<()> {
    let address = match address.ip() {
        IpAddr::V4(any) if any.is_unspecified() => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port()),
        IpAddr::V6(any) if any.is_unspecified() => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), address.port()),
        _ => address,
    };
    cove_sys::replacement::replace(&data.join(ADDRESS), format!("http://{address}\n").as_bytes(), 0o644)
}

/// Root's directory for what a reboot may remove. On most hosts `/run` is in memory; where it is on a disk, every run
/// would wait for other writers. The base layer is there too, so it cannot be in memory where the kernel has no
/// id-mapped tmpfs.
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

/// Anybody may make directories there, so an existing one must belong to root alone.
fn is_roots_alone(folder: &Path) -> bool {
    // It exists already, or cannot be made: the check below finds out.
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

/// Root of the host: an ordinary user's engine is root of its own user namespace only.
pub fn is_root() -> bool {
    cove_engine::privilege::is_host_root()
}

fn home() -> PathBuf {
    variable("HOME").unwrap_or_else(|| Path::new("/").to_owned())
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}
