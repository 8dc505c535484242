//! Where in a tar file what is, and pieces of files.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::Error;
use crate::tar::{Kind, Reader};
use crate::unpack::Limits;

/// An archive of images has a few names per layer. One with more is the tar of a root.
const NAMES: usize = 65_536;
const NAME_BYTES: usize = 16 << 20;
/// How many links may lead to each other.
const HOPS: usize = 8;
/// Zeros that end a tar.
const MARK: usize = 1024;
/// Nothing else says that a tar of a root is whole: it has no digest. A program that fails before it writes sends nothing.
const CUT_OFF: &str = "it has no end: it was cut off, or whatever wrote it failed";

#[derive(Debug)]
pub(super) struct Index {
    names: HashMap<Vec<u8>, Found>,
    has_all: bool,
}

#[derive(Debug)]
enum Found {
    At {
        offset: u64,
        length: u64,
    },
    /// To this name, already made plain.
    Link(Vec<u8>),
}

impl Index {
    /// Reads all headers, up to the bounds.
    pub fn of(file: &mut File, limits: &Limits) -> Result<Self, Error> {
        file.seek(SeekFrom::Start(0))?;
        let mut reader = Reader::over_file(file.try_clone()?, limits.metadata);
        let mut index = Index { names: HashMap::new(), has_all: true };
        let mut bytes = 0;
        while let Some(entry) = reader.next_entry().map_err(|error| Error::Broken(error.to_string()))? {
            limits.look().map_err(io::Error::other)?;
            let Some(name) = plain(b"", &entry.path) else { continue };
            let found = match entry.kind {
                // A file with holes is no blob.
                Kind::File if entry.parts.is_none() => Found::At { offset: reader.position(), length: entry.size },
                Kind::Symlink => match plain(folder_of(&name), &entry.link) {
                    Some(target) => Found::Link(target),
                    None => continue,
                },
                Kind::HardLink => match plain(b"", &entry.link) {
                    Some(target) => Found::Link(target),
                    None => continue,
                },
                _ => continue,
            };
            bytes += name.len();
            index.names.insert(name, found);
            if index.names.len() > NAMES || bytes > NAME_BYTES {
                let has_mark = ends_with_zeros(file)?;
                return has_mark.then_some(Index { names: HashMap::new(), has_all: false }).ok_or_else(cut_off);
            }
        }
        reader.has_mark().then_some(index).ok_or_else(cut_off)
    }

    /// Whether all names are in it: else it is no archive of images.
    pub fn has_all(&self) -> bool {
        self.has_all
    }

    pub fn find(&self, file: &Arc<File>, path: &[u8]) -> Option<Section> {
        let mut name = plain(b"", path)?;
        for _ in 0..HOPS {
            match self.names.get(&name)? {
                Found::At { offset, length } => return Some(Section::new(Arc::clone(file), *offset, *length)),
                Found::Link(target) => name.clone_from(target),
            }
        }
        None
    }
}

fn cut_off() -> Error {
    Error::Broken(CUT_OFF.into())
}

fn ends_with_zeros(file: &File) -> io::Result<bool> {
    let Some(start) = file.metadata()?.len().checked_sub(MARK as u64) else { return Ok(false) };
    let mut end = [1; MARK];
    file.read_exact_at(&mut end, start)?;
    Ok(end.iter().all(|byte| *byte == 0))
}

fn folder_of(name: &[u8]) -> &[u8] {
    let end = name.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    name.get(..end).unwrap_or_default()
}

/// A name seen from a folder, without `.` and `..`; `None` if it leads out of the archive.
fn plain(folder: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let mut parts: Vec<&[u8]> = Vec::new();
    let from = if name.starts_with(b"/") { &b""[..] } else { folder };
    for part in from.split(|byte| *byte == b'/').chain(name.split(|byte| *byte == b'/')) {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join(&b'/'))
}

/// A file of a layout's directory. No link is followed.
pub(super) fn find_in(directory: &OwnedFd, path: &[u8]) -> Result<Option<Section>, Error> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let fd = match openat2(directory, path, flags, Mode::empty(), resolve) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(Errno::LOOP) => return Err(Error::Broken("a file of the layout is a link".into())),
        other => other.map_err(io::Error::from)?,
    };
    let told = rustix::fs::fstat(&fd).map_err(io::Error::from)?;
    if FileType::from_raw_mode(told.st_mode) != FileType::RegularFile {
        return Err(Error::Broken("a file of the layout is none".into()));
    }
    let length = u64::try_from(told.st_size).unwrap_or(0);
    Ok(Some(Section::new(Arc::new(File::from(fd)), 0, length)))
}

/// A piece of a file, with a position of its own.
#[derive(Debug, Clone)]
pub(super) struct Section {
    file: Arc<File>,
    at: u64,
    left: u64,
}

impl Section {
    pub fn new(file: Arc<File>, at: u64, length: u64) -> Self {
        Section { file, at, left: length }
    }

    pub fn length(&self) -> u64 {
        self.left
    }

    pub fn whole(mut self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let Some(buffer) = buffer.get_mut(..most).filter(|buffer| !buffer.is_empty()) else { return Ok(0) };
        let count = self.file.read_at(buffer, self.at)?;
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the archive became shorter"));
        }
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_within_the_archive() {
        let name = |folder: &str, name: &str| {
            plain(folder.as_bytes(), name.as_bytes()).map(|name| String::from_utf8(name).unwrap())
        };
        assert_eq!(name("", "./a/./b").as_deref(), Some("a/b"));
        assert_eq!(name("x", "../y/layer.tar").as_deref(), Some("y/layer.tar"));
        assert_eq!(name("x", "/y").as_deref(), Some("y"));
        assert_eq!(name("x", "../../y"), None);
        assert_eq!(name("", "../y"), None);
    }
}
