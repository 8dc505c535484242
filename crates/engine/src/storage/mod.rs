//! Where what a sandbox writes is kept, with disk limits that hold.
//!
//! ```text
//! Store::open(data) ── the best this host has, top to bottom ──────────────────────────────┐
//!   btrfs      the data directory is on btrfs with quotas on: a subvolume per sandbox        │ chosen when the first
//!   projects   ext4 or xfs mounted with project quotas: a project number per sandbox        │ sandbox needs a disk;
//!   pool       root with loop devices and mkfs.btrfs: one sparse btrfs image, subvolumes    │ a tmpfs needs none of
//!   plain      directories; nothing holds a limit, so a limit is refused                    │ them
//! ```
//! Every rung has the same shape on disk: `uppers/<id>/{root,root-work,usr,usr-work}` and `trash/`. Removal is a rename
//! into the trash, at once; deletion happens later and elsewhere ([`Store::empty_trash`]). Nothing is remembered
//! but what is on disk, so a server that comes back finds all of it.

mod error;
mod plain;
mod tmpfs;
mod trash;

use std::fmt::Debug;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub use error::Error;
pub use tmpfs::Tmpfs;

use crate::spec::{Limits, SandboxId, Storage};

/// The directories of an upper: what lies over the root, over `/usr`, and overlayfs's work beside each.
const NAMES: [&str; 4] = ["root", "root-work", "usr", "usr-work"];

/// What a sandbox's overlay writes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upper {
    /// In the data directory.
    Directories(Directories),
    /// To be mounted by the launcher; the same four directories, named by [`Directories::below`], are in it.
    Memory(Tmpfs),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directories {
    pub root_upper: PathBuf,
    pub root_work: PathBuf,
    pub usr_upper: PathBuf,
    pub usr_work: PathBuf,
}

impl Directories {
    pub fn below(path: &Path) -> Directories {
        let [root_upper, root_work, usr_upper, usr_work] = NAMES.map(|name| path.join(name));
        Directories { root_upper, root_work, usr_upper, usr_work }
    }
}

/// What a sandbox has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    pub bytes: u64,
    /// Where the backing counts them.
    pub inodes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Btrfs,
    Projects,
    Pool,
    Plain,
}

/// One rung of the ladder.
trait Backing: Debug + Send + Sync {
    fn kind(&self) -> Kind;
    /// For the log and the doctor.
    fn detail(&self) -> String;
    /// Makes the empty directory `path` with its limit.
    fn make(&self, path: &Path, limits: &Limits) -> Result<(), Error>;
    fn set_limit(&self, path: &Path, limits: &Limits) -> Result<(), Error>;
    fn used(&self, path: &Path) -> Result<Used, Error>;
    /// Deletes what `make` made, from the trash.
    fn erase(&self, path: &Path) -> Result<(), Error>;
}

/// The uppers of one data directory.
#[derive(Debug)]
pub struct Store {
    data: PathBuf,
    backing: OnceLock<(PathBuf, Box<dyn Backing>)>,
    removed: AtomicU64,
}

impl Store {
    /// Cheap: which rung is used is found out when the first sandbox needs a disk.
    pub fn open(data: &Path) -> Result<Store, Error> {
        make_private(data)?;
        Ok(Store { data: data.to_owned(), backing: OnceLock::new(), removed: AtomicU64::new(0) })
    }

    pub fn kind(&self) -> Result<Kind, Error> {
        Ok(self.backing()?.1.kind())
    }

    /// What was chosen and why, for people.
    pub fn detail(&self) -> Result<String, Error> {
        Ok(self.backing()?.1.detail())
    }

    pub fn create(&self, id: &SandboxId, storage: Storage, limits: &Limits) -> Result<Upper, Error> {
        if storage == Storage::Memory {
            return Ok(Upper::Memory(Tmpfs::sized(limits)));
        }
        let (top, backing) = self.backing()?;
        let path = uppers(top).join(id.as_str());
        match backing.make(&path, limits) {
            Err(error) if error.kind() == Some(ErrorKind::AlreadyExists) => return Err(Error::Exists(id.clone())),
            other => other?,
        }
        let directories = make_upper(&path);
        if directories.is_err() {
            // The first error is the one to tell; what stays is found by the sweep.
            let _ = self.remove(id);
        }
        directories.map(Upper::Directories)
    }

    /// The files of an earlier life.
    pub fn find(&self, id: &SandboxId) -> Result<Option<Upper>, Error> {
        let path = self.path(id)?;
        Ok(path.exists().then(|| Upper::Directories(Directories::below(&path))))
    }

    pub fn used(&self, id: &SandboxId) -> Result<Used, Error> {
        let path = self.existing(id)?;
        self.backing()?.1.used(&path)
    }

    /// Another limit, also while the sandbox runs.
    pub fn resize(&self, id: &SandboxId, limits: &Limits) -> Result<(), Error> {
        let path = self.existing(id)?;
        let backing = &self.backing()?.1;
        if let Some(limit) = limits.disk {
            let used = backing.used(&path)?.bytes;
            if used > limit {
                return Err(Error::InUse { id: id.clone(), limit, used });
            }
        }
        backing.set_limit(&path, limits)
    }

    /// At once, whatever its size: a rename. Fine to call for what is gone.
    pub fn remove(&self, id: &SandboxId) -> Result<(), Error> {
        let (top, _) = self.backing()?;
        let path = uppers(top).join(id.as_str());
        loop {
            let number = self.removed.fetch_add(1, Ordering::Relaxed);
            let target = trash_of(top).join(format!("{id}.{}.{number}", std::process::id()));
            match fs::rename(&path, &target) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                // A process with our number left it there before a restart.
                Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty) => {}
                other => return other.map_err(Error::at("move to the trash", &path)),
            }
        }
    }

    /// Deletes what was removed; for a thread of the background. Answers how many were deleted. One that cannot be
    /// deleted does not keep the others.
    pub fn empty_trash(&self) -> Result<usize, Error> {
        let (top, backing) = self.backing()?;
        let (mut deleted, mut failed) = (0, None);
        for name in list(&trash_of(top))? {
            match backing.erase(&trash_of(top).join(name)) {
                Ok(()) => deleted += 1,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(deleted), Err)
    }

    /// Every sandbox that has files here.
    pub fn names(&self) -> Result<Vec<SandboxId>, Error> {
        let (top, _) = self.backing()?;
        Ok(list(&uppers(top))?.into_iter().filter_map(|name| name.parse().ok()).collect())
    }

    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.names()?.is_empty())
    }

    fn path(&self, id: &SandboxId) -> Result<PathBuf, Error> {
        Ok(uppers(&self.backing()?.0).join(id.as_str()))
    }

    fn existing(&self, id: &SandboxId) -> Result<PathBuf, Error> {
        let path = self.path(id)?;
        if path.exists() { Ok(path) } else { Err(Error::NotFound(id.clone())) }
    }

    fn backing(&self) -> Result<&(PathBuf, Box<dyn Backing>), Error> {
        if let Some(backing) = self.backing.get() {
            return Ok(backing);
        }
        let (top, backing) = choose(&self.data)?;
        for path in [top.clone(), uppers(&top), trash_of(&top)] {
            make_private(&path)?;
        }
        Ok(self.backing.get_or_init(|| (top, backing)))
    }
}

fn choose(data: &Path) -> Result<(PathBuf, Box<dyn Backing>), Error> {
    let why = "the data directory's filesystem has no quotas that cove can use".to_owned();
    Ok((data.join("storage"), Box::new(plain::Plain { why })))
}

fn uppers(top: &Path) -> PathBuf {
    top.join("uppers")
}

fn trash_of(top: &Path) -> PathBuf {
    top.join("trash")
}

fn make_upper(path: &Path) -> Result<Directories, Error> {
    for name in NAMES {
        make_directory(&path.join(name))?;
    }
    Ok(Directories::below(path))
}

/// What the sandbox sees as a directory of its own: readable as `/` and `/usr` are.
fn make_directory(path: &Path) -> Result<(), Error> {
    fs::DirBuilder::new().mode(0o755).create(path).map_err(Error::at("make", path))
}

/// No other user of the host may look at sandboxes' files.
fn make_private(path: &Path) -> Result<(), Error> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Error::at("make", path)(error)),
        _ => Ok(()),
    }
}

fn list(path: &Path) -> Result<Vec<String>, Error> {
    let entries = fs::read_dir(path).map_err(Error::at("list", path))?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}
