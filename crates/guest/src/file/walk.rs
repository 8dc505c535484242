//! Going through a tree, never out of it.
//!
//! Every directory is opened by its name in the one above, never following a symlink, and held open while it is walked.
//! Names are taken in portions and sorted within them, so a directory of a million files costs no more than a small
//! one. Trees are followed down to [`DEEPEST`].

use std::ffi::{CStr, CString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::vec::IntoIter;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;

use super::place::is_proc;

/// Levels held open at a time.
const DEEPEST: usize = 256;

/// Names taken from a directory at a time.
const PORTION: usize = 4096;

pub struct Walk {
    levels: Vec<Level>,
    /// The directory found last, to be entered next.
    ahead: Option<CString>,
    depth: usize,
    cut_short: bool,
}

struct Level {
    directory: Dir,
    /// Relative to where the walk began, with a slash at the end unless empty.
    prefix: Vec<u8>,
    portion: IntoIter<(CString, FileType)>,
}

pub struct Found {
    pub name: CString,
    pub kind: FileType,
    /// Relative to where the walk began.
    path: Vec<u8>,
}

impl Found {
    pub fn path(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }

    pub fn path_bytes(&self) -> &[u8] {
        &self.path
    }
}

impl Walk {
    /// Begins in a directory that is open; `depth` 1 stays in it.
    pub fn begin(directory: &OwnedFd, depth: u32) -> Result<Walk, Errno> {
        let directory = open_level(directory, c".")?;
        let level = Level { directory, prefix: Vec::new(), portion: Vec::new().into_iter() };
        let depth = usize::try_from(depth).unwrap_or(DEEPEST).clamp(1, DEEPEST);
        Ok(Walk { levels: vec![level], ahead: None, depth, cut_short: false })
    }

    /// The next file. Files that cannot be opened or read are ignored.
    pub fn advance(&mut self) -> Option<Found> {
        self.enter();
        loop {
            let depth = self.levels.len();
            let level = self.levels.last_mut()?;
            let Some((name, kind)) = level.next() else {
                self.levels.pop();
                continue;
            };
            if kind == FileType::Directory && depth < self.depth {
                self.ahead = Some(name.clone());
            }
            self.cut_short |= kind == FileType::Directory && depth == DEEPEST;
            let path = [level.prefix.as_slice(), name.to_bytes()].concat();
            return Some(Found { name, kind, path });
        }
    }

    /// Whether there were directories too deep to enter: for callers that need everything.
    pub fn is_cut_short(&self) -> bool {
        self.cut_short
    }

    /// The directory that holds what was found last.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.levels.last().and_then(|level| level.directory.fd().ok()).unwrap_or(CWD)
    }

    fn enter(&mut self) {
        let Some(name) = self.ahead.take() else { return };
        let Some(above) = self.levels.last() else { return };
        let Ok(directory) = above.directory.fd().and_then(|above| open_level(above, &name)) else { return };
        // The kernel's tables below a walk are not files of the sandbox, and reading them all may never end.
        if directory.fd().is_ok_and(is_proc) {
            return;
        }
        let mut prefix = above.prefix.clone();
        prefix.extend_from_slice(name.to_bytes());
        prefix.push(b'/');
        self.levels.push(Level { directory, prefix, portion: Vec::new().into_iter() });
    }
}

impl Level {
    fn next(&mut self) -> Option<(CString, FileType)> {
        if let Some(entry) = self.portion.next() {
            return Some(entry);
        }
        let mut portion = Vec::new();
        while portion.len() < PORTION {
            // An error half-way ends the directory: reading on would give it again for ever.
            let Some(Ok(entry)) = self.directory.read() else { break };
            let name = entry.file_name();
            if name.to_bytes() == b"." || name.to_bytes() == b".." {
                continue;
            }
            let mut kind = entry.file_type();
            if kind == FileType::Unknown
                && let Ok(directory) = self.directory.fd()
                && let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
            {
                kind = FileType::from_raw_mode(stat.st_mode);
            }
            portion.push((name.to_owned(), kind));
        }
        portion.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        self.portion = portion.into_iter();
        self.portion.next()
    }
}

fn open_level(above: impl std::os::fd::AsFd, name: &CStr) -> Result<Dir, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Dir::new(openat(above, name, flags, Mode::empty())?)
}
