//! What a layer takes away: replaced names, whiteouts, opaque folders.
//!
//! A whiteout is about the layers below. What the layer itself wrote stays, in whatever order its entries come: so the
//! names it wrote are remembered, each as a keyed hash of its folder and itself. Folders that were cleared once are
//! remembered too, so that a layer with a million marks costs no more than its files.
//!
//! The tree is never deeper than the limit, so one descriptor per level is affordable.

use std::collections::HashSet;
use std::ffi::CStr;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

use super::Limit;
use super::budget::Budget;

/// Why something could not be removed.
pub(super) enum Stuck {
    Host(Errno),
    Limit(Limit),
}

impl From<Errno> for Stuck {
    fn from(errno: Errno) -> Self {
        Stuck::Host(errno)
    }
}

pub(super) struct Written<'a> {
    budget: &'a Budget,
    hasher: RandomState,
    names: HashSet<u64>,
    cleared: HashSet<u64>,
}

impl<'a> Written<'a> {
    pub fn new(budget: &'a Budget) -> Self {
        Written { budget, hasher: RandomState::new(), names: HashSet::new(), cleared: HashSet::new() }
    }

    /// This layer has an entry of this name in the folder.
    pub fn note(&mut self, folder: u64, name: &[u8]) {
        self.names.insert(self.hasher.hash_one((folder, name)));
    }

    fn has(&self, folder: u64, name: &[u8]) -> bool {
        self.names.contains(&self.hasher.hash_one((folder, name)))
    }

    /// Removes what lower layers have under this name.
    pub fn white_out(&mut self, folder: BorrowedFd<'_>, inode: u64, name: &CStr) -> Result<(), Stuck> {
        let told = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            other => other?,
        };
        let is_ours = self.has(inode, name.to_bytes());
        if FileType::from_raw_mode(told.st_mode) != FileType::Directory {
            return if is_ours { Ok(()) } else { Ok(unlinkat(folder, name, AtFlags::empty())?) };
        }
        self.clear(open(folder, name)?)?;
        if !is_ours {
            remove_empty(folder, name)?;
        }
        Ok(())
    }

    /// Removes what lower layers have in this folder, at every depth.
    pub fn clear(&mut self, folder: OwnedFd) -> Result<(), Stuck> {
        let inode = fstat(&folder)?.st_ino;
        if !self.cleared.insert(inode) {
            return Ok(());
        }
        let mut entries = Dir::read_from(&folder)?;
        while let Some(entry) = entries.read() {
            self.budget.look().map_err(Stuck::Limit)?;
            let entry = entry?;
            let name = entry.file_name();
            if name != c"." && name != c".." {
                self.white_out(folder.as_fd(), inode, name)?;
            }
        }
        Ok(())
    }

    /// Removes a directory with everything in it, whoever wrote it.
    pub fn remove_tree(&self, parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Stuck> {
        let folder = open(parent, name)?;
        let mut entries = Dir::read_from(&folder)?;
        while let Some(entry) = entries.read() {
            self.budget.look().map_err(Stuck::Limit)?;
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            match unlinkat(&folder, name, AtFlags::empty()) {
                Err(Errno::ISDIR) => self.remove_tree(folder.as_fd(), name)?,
                other => other?,
            }
        }
        Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?)
    }
}

fn remove_empty(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        // Something of this layer is in it.
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        other => other,
    }
}

fn open(parent: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}
