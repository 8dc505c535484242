//! Writes the manifest of a tree: one pass, in the order in which the filesystem lists names.

use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, statat};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::entry::{Entry, Kind, Looked, look};
use super::{DRAFT, Digest, Sealed, Watch, form, shown};
use crate::process;
use crate::spec::LayerId;
use crate::storage::import::ENTRIES;
use crate::storage::layers::PARTS;
use crate::storage::{Error, open_directory, sparse};

/// Two descriptors are held per level.
pub(super) const DEEPEST: usize = 256;
/// Read at one time.
pub(super) const PIECE: usize = 256 << 10;

/// A manifest that is on the disk and has no name yet. Dropping it removes what has none.
pub(super) struct Draft {
    pub path: PathBuf,
    pub sealed: Sealed,
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Named: it is there under another name. What cannot be removed now is swept when this process is gone.
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes the manifest of what is in the folders of an upper or a layer.
pub(super) fn draft(
    tree: &Path,
    layers: &[(LayerId, Digest)],
    folder: &Path,
    watch: Watch<'_>,
) -> Result<Draft, Error> {
    let path = folder.join(format!("{DRAFT}{}", process::mark()));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let file = file.map_err(Error::at("make", &path))?;
    let mut draft = Draft { path, sealed: Sealed { digest: Digest::new([0; 32]), files: 0, bytes: 0 } };
    let mut walk = Walk {
        to: BufWriter::with_capacity(PIECE, file),
        draft: &draft.path,
        digest: Sha256::new(),
        record: Vec::new(),
        buffer: vec![0; PIECE],
        path: Vec::new(),
        files: 0,
        bytes: 0,
        watch,
    };
    form::put_header(&mut walk.record, layers);
    walk.put()?;
    let top = open_directory(CWD, tree).map_err(Error::at("open", tree))?;
    for part in PARTS {
        walk.part(top.as_fd(), part)?;
    }
    draft.sealed = walk.end()?;
    Ok(draft)
}

struct Walk<'a> {
    to: BufWriter<File>,
    /// Where it goes, for errors.
    draft: &'a Path,
    /// Of all that was written.
    digest: Sha256,
    /// The next record.
    record: Vec<u8>,
    buffer: Vec<u8>,
    /// Where we are, as the sandbox sees it.
    path: Vec<u8>,
    files: u64,
    bytes: u64,
    watch: Watch<'a>,
}

impl Walk<'_> {
    /// One folder of the tree; some have only one of them.
    fn part(&mut self, top: BorrowedFd<'_>, part: &str) -> Result<(), Error> {
        let name = CString::new(part).unwrap_or_default();
        self.path = place_of(part.as_bytes());
        match statat(top, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(()),
            _ => self.name(top, &name, 0),
        }
    }

    fn directory(&mut self, directory: BorrowedFd<'_>, depth: usize) -> Result<(), Error> {
        if depth > DEEPEST {
            return Err(self.refuse(format!("it lies deeper than {DEEPEST} folders, which no manifest can hold")));
        }
        let mut names = Dir::read_from(directory).map_err(|errno| self.unreadable(errno))?;
        while let Some(name) = names.read() {
            let name = name.map_err(|errno| self.unreadable(errno))?;
            let name = name.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let here = self.path.len();
            self.path.push(b'/');
            self.path.extend_from_slice(name.to_bytes());
            self.name(directory, name, depth)?;
            self.path.truncate(here);
        }
        Ok(())
    }

    /// One name with all below it.
    fn name(&mut self, parent: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<(), Error> {
        let told = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| self.unreadable(errno))?;
        let Looked { mut entry, opened } = look(parent, name, &told).map_err(|errno| self.unreadable(errno))?;
        self.files += 1;
        if self.files > ENTRIES {
            return Err(self.refuse(format!("there are more than {ENTRIES} files, which no manifest can hold")));
        }
        if (self.watch)(1, 0).is_break() {
            return Err(Error::Interrupted);
        }
        match opened {
            Some(opened) if entry.kind == Kind::Directory => {
                form::put_entry(&mut self.record, &entry);
                self.put()?;
                self.directory(opened.as_fd(), depth + 1)?;
                form::put_leave(&mut self.record);
            }
            Some(opened) => {
                self.data(&mut entry, &File::from(opened))?;
                form::put_entry(&mut self.record, &entry);
            }
            None => form::put_entry(&mut self.record, &entry),
        }
        self.put()
    }

    /// Where the data of a file lies, and its digest.
    fn data(&mut self, entry: &mut Entry, file: &File) -> Result<(), Error> {
        let Kind::File { size, parts, digest, .. } = &mut entry.kind else { return Ok(()) };
        let found = sparse::parts(file, *size).map_err(|error| self.unreadable(error))?;
        let total = sparse::total(&found);
        *digest = sum(file, &found, &mut self.buffer, self.watch).map_err(|failed| match failed {
            Failed::Read(error) => self.unreadable(error),
            Failed::Interrupted => Error::Interrupted,
        })?;
        self.bytes += total;
        *parts = (total < *size).then_some(found);
        Ok(())
    }

    fn put(&mut self) -> Result<(), Error> {
        self.digest.update(&self.record);
        let put = self.to.write_all(&self.record);
        self.record.clear();
        put.map_err(Error::at("write", self.draft))
    }

    /// On the disk when it returns.
    fn end(mut self) -> Result<Sealed, Error> {
        form::put_end(&mut self.record, self.files, self.bytes);
        self.put()?;
        let digest: [u8; 32] = self.digest.finalize().into();
        let written = self.to.write_all(&digest);
        let written = written.and_then(|()| self.to.into_inner().map_err(io::IntoInnerError::into_error));
        written.and_then(|file| file.sync_all()).map_err(Error::at("write", self.draft))?;
        Ok(Sealed { digest: Digest::new(digest), files: self.files, bytes: self.bytes })
    }

    fn refuse(&self, why: String) -> Error {
        Error::Manifest { what: shown(&self.path), why }
    }

    fn unreadable(&self, error: impl Into<io::Error>) -> Error {
        let error: io::Error = error.into();
        self.refuse(format!("it cannot be read: {error}"))
    }
}

/// Where a folder of a tree is in a sandbox.
pub(super) fn place_of(part: &[u8]) -> Vec<u8> {
    if part == PARTS[0].as_bytes() { Vec::new() } else { [&b"/"[..], part].concat() }
}

/// Why data was not read to its end.
pub(super) enum Failed {
    Read(io::Error),
    Interrupted,
}

/// The digest of these parts of a file. What a file that became shorter lacks reads as zeros.
pub(super) fn sum(file: &File, parts: &[(u64, u64)], buffer: &mut [u8], watch: Watch<'_>) -> Result<[u8; 32], Failed> {
    let mut digest = Sha256::new();
    pieces(file, parts, buffer, watch, |piece| {
        digest.update(piece);
        ControlFlow::Continue(())
    })?;
    Ok(digest.finalize().into())
}

/// Reads these parts of a file, piece by piece, until `each` has had enough.
pub(super) fn pieces(
    file: &File,
    parts: &[(u64, u64)],
    buffer: &mut [u8],
    watch: Watch<'_>,
    mut each: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<(), Failed> {
    for (offset, length) in parts {
        let (mut at, end) = (*offset, offset + length);
        while at < end {
            let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
            let count = match file.read_at(&mut buffer[..most], at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Failed::Read(error)),
                Ok(0) => {
                    buffer[..most].fill(0);
                    most
                }
                Ok(count) => count,
            };
            at += count as u64;
            if watch(0, count as u64).is_break() {
                return Err(Failed::Interrupted);
            }
            if each(&buffer[..count]).is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}
