//! Looks at everything in a tree that there is no manifest of: whether it can be read.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Advice, AtFlags, Dir, fadvise, statat};
use rustix::io::Errno;

use super::entry::{Kind, look};
use super::write::{DEEPEST, Failed, PIECE, pieces, place_of};
use super::{Checked, How, ProblemKind, Watch};
use crate::storage::layers::PARTS;
use crate::storage::{Error, sparse};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// Names and data.
    Everything,
    /// Names alone.
    Names,
}

pub(super) struct Through<'a> {
    reading: Reading,
    watch: Watch<'a>,
    checked: Checked,
    buffer: Vec<u8>,
    /// Where we are, as a sandbox sees it.
    path: Vec<u8>,
}

impl<'a> Through<'a> {
    pub(super) fn of(how: How, reading: Reading, watch: Watch<'a>) -> Through<'a> {
        Through { reading, watch, checked: Checked::begin(how), buffer: vec![0; PIECE], path: Vec::new() }
    }

    /// The folders of an upper or a layer.
    pub(super) fn parts(mut self, tree: BorrowedFd<'_>) -> Result<Checked, Error> {
        for part in PARTS {
            self.path = place_of(part.as_bytes());
            let name = CString::new(part).unwrap_or_default();
            if !matches!(statat(tree, &name, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT)) {
                self.name(tree, &name, 0)?;
            }
        }
        Ok(self.checked)
    }

    /// All that is in a directory.
    pub(super) fn all(mut self, directory: BorrowedFd<'_>) -> Result<Checked, Error> {
        self.directory(directory, 0)?;
        Ok(self.checked)
    }

    fn directory(&mut self, directory: BorrowedFd<'_>, depth: usize) -> Result<(), Error> {
        if depth > DEEPEST {
            self.unreadable(io::Error::other(format!("it lies deeper than {DEEPEST} folders, and was not looked at")));
            return Ok(());
        }
        let mut names = match Dir::read_from(directory) {
            Ok(names) => names,
            Err(errno) => {
                self.unreadable(errno);
                return Ok(());
            }
        };
        while let Some(name) = names.read() {
            let name = match name {
                Ok(name) => name,
                Err(errno) => {
                    self.unreadable(errno);
                    break;
                }
            };
            let name = name.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let before = self.path.len();
            self.path.push(b'/');
            self.path.extend_from_slice(name.to_bytes());
            self.name(directory, name, depth)?;
            self.path.truncate(before);
        }
        Ok(())
    }

    fn name(&mut self, parent: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<(), Error> {
        self.checked.files += 1;
        if (self.watch)(1, 0).is_break() {
            return Err(Error::Interrupted);
        }
        let looked = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).and_then(|told| look(parent, name, &told));
        let looked = match looked {
            // A volume may change while we look.
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => {
                self.unreadable(errno);
                return Ok(());
            }
            Ok(looked) => looked,
        };
        match (&looked.entry.kind, looked.opened) {
            (Kind::Directory, Some(opened)) => self.directory(opened.as_fd(), depth + 1),
            (Kind::File { size, .. }, Some(opened)) if self.reading == Reading::Everything => {
                match self.data(&File::from(opened), *size) {
                    Err(Failed::Interrupted) => return Err(Error::Interrupted),
                    Err(Failed::Read(error)) => self.unreadable(error),
                    Ok(()) => {}
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn data(&mut self, file: &File, size: u64) -> Result<(), Failed> {
        // From the disk, not from memory, where the kernel does as it is asked.
        let _ = fadvise(file, 0, None, Advice::DontNeed);
        let parts = sparse::parts(file, size).map_err(Failed::Read)?;
        pieces(file, &parts, &mut self.buffer, self.watch, |_| ControlFlow::Continue(()))?;
        self.checked.bytes += sparse::total(&parts);
        Ok(())
    }

    fn unreadable(&mut self, error: impl Into<io::Error>) {
        let error: io::Error = error.into();
        self.checked.add(ProblemKind::Unreadable, &self.path, error.to_string());
    }
}
