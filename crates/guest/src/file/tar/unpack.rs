//! An archive unpacked below a directory, and never outside it.
//!
//! Names with `..` are refused; every directory on the way to a name is resolved by the kernel beneath the top
//! ([`crate::file::beneath`]); a file is made new at its name and never written through a symlink that an earlier entry
//! put there. Sizes are believed only as far as bytes come.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::OwnedFd;

use cove_protocol::{Failure, FailureKind, Reply};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid, chownat, fchmod, fchown,
    ftruncate, futimens, linkat, mkdirat, mknodat, openat, symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, pwrite};

use super::BLOCK;
use super::header::{Header, Type, parse, records, text};
use crate::connection::Connection;
use crate::failure::{During, Result, from_errno, invalid};
use crate::file::actor::Actor;
use crate::file::beneath;
use crate::file::make_directory::make;
use crate::file::place::open_directory;
use crate::guest::Guest;

/// Names and records that precede an entry.
const LONGEST_NAME: u64 = 64 << 10;

pub fn unpack(guest: &Guest, connection: &mut Connection, path: &str, user: Option<&str>) -> Result<()> {
    let actor = Actor::become_user(guest, user)?;
    let path = actor.absolute(path)?;
    make(&path, 0o755)?;
    let top = open_directory(CWD, &path).during(format!("unpack into {path}"))?;
    let owners = if actor.user.uid == 0 { Owners::OfTheArchive } else { Owners::TheUser };
    let mut unpacking = Unpacking { source: Source::new(connection), top, owners, directories: BTreeMap::new() };
    while let Some(header) = unpacking.source.header()? {
        unpacking.entry(&header)?;
    }
    unpacking.settle_directories();
    unpacking.source.finish()?;
    connection.reply(&Reply::Done)
}

/// The owner of the files: root keeps the archive's ids, as tar(1) does; other users own what they unpack.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owners {
    OfTheArchive,
    TheUser,
}

struct Unpacking<'a> {
    source: Source<'a>,
    top: OwnedFd,
    owners: Owners,
    /// Modes and times of directories, set last: filling one needs rights and changes its time.
    directories: BTreeMap<Vec<u8>, (u32, i64)>,
}

impl Unpacking<'_> {
    fn entry(&mut self, header: &Header) -> Result<()> {
        let told = String::from_utf8_lossy(&header.path).into_owned();
        let Some(path) = beneath::plain(&header.path) else {
            return Err(invalid(format!("unpack {told:?}: the name leads outside of the directory")));
        };
        let step = format!("unpack {told}");
        if path.is_empty() {
            // The top itself, which is there.
            return self.source.skip(header.size);
        }
        if let Type::Other(kind) = header.kind {
            let kind = char::from(kind);
            return Err(Failure::new(
                FailureKind::Unsupported,
                format!("{step}: entries of type {kind:?} are not taken"),
            ));
        }
        let (parent, name) = beneath::open_parent(&self.top, &path).during(&step)?;
        match header.kind {
            Type::Directory => {
                self.make_directory(&parent, &name, header).during(&step)?;
                self.directories.insert(path, (header.mode, header.modified));
                self.source.skip(header.size)
            }
            Type::File => self.file(&parent, &name, header, &step),
            Type::Symlink => {
                clear(&parent, &name).during(&step)?;
                let target = CString::new(header.link.clone()).map_err(|_| invalid(format!("{step}: bad target")))?;
                symlinkat(&target, &parent, &name).during(&step)?;
                if self.owners == Owners::OfTheArchive {
                    let (uid, gid) = owner(header);
                    chownat(&parent, &name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).during(&step)?;
                }
                utimensat(&parent, &name, &times(header.modified), AtFlags::SYMLINK_NOFOLLOW).during(&step)?;
                self.source.skip(header.size)
            }
            Type::HardLink => {
                let Some(target) = beneath::plain(&header.link).filter(|target| !target.is_empty()) else {
                    let target = String::from_utf8_lossy(&header.link);
                    return Err(invalid(format!("{step}: its link {target:?} leads outside of the directory")));
                };
                if target != path {
                    let (from, old) = beneath::open_parent(&self.top, &target).during(&step)?;
                    clear(&parent, &name).during(&step)?;
                    linkat(&from, &old, &parent, &name, AtFlags::empty()).during(&step)?;
                }
                self.source.skip(header.size)
            }
            Type::Fifo => {
                clear(&parent, &name).during(&step)?;
                mknodat(&parent, &name, FileType::Fifo, Mode::from_raw_mode(header.mode), 0).during(&step)?;
                utimensat(&parent, &name, &times(header.modified), AtFlags::SYMLINK_NOFOLLOW).during(&step)?;
                self.source.skip(header.size)
            }
            Type::Extended | Type::Global | Type::LongName | Type::LongLink | Type::Other(_) => {
                self.source.skip(header.size)
            }
        }
    }

    fn make_directory(&self, parent: &OwnedFd, name: &CString, header: &Header) -> std::result::Result<(), Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let usable = Mode::from_raw_mode(header.mode | 0o700);
        let mut was_there = false;
        match mkdirat(parent, name, usable) {
            Err(Errno::EXIST) => match openat(parent, name, flags, Mode::empty()) {
                Ok(_) => was_there = true,
                // A file or link of that name makes room.
                Err(_) => {
                    unlinkat(parent, name, AtFlags::empty())?;
                    mkdirat(parent, name, usable)?;
                }
            },
            other => other?,
        }
        if self.owners == Owners::OfTheArchive {
            let (uid, gid) = owner(header);
            match chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW) {
                // /dev, /proc and /sys of a running sandbox: they are there, and the archive of a whole root names them.
                Err(Errno::ROFS | Errno::PERM) if was_there => {}
                other => other?,
            }
        }
        Ok(())
    }

    fn file(&mut self, parent: &OwnedFd, name: &CString, header: &Header, step: &str) -> Result<()> {
        clear(parent, name).during(step)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(parent, name, flags, Mode::RUSR | Mode::WUSR).during(step)?;
        let mut offset = 0;
        let mut left = header.size;
        while left > 0 {
            let bytes = self.source.some(left)?;
            write_sparse(&file, bytes, offset).during(step)?;
            offset += bytes.len() as u64;
            left -= bytes.len() as u64;
            let taken = bytes.len();
            self.source.take(taken);
        }
        ftruncate(&file, offset).during(step)?;
        self.source.skip_padding(header.size)?;
        if self.owners == Owners::OfTheArchive {
            let (uid, gid) = owner(header);
            fchown(&file, uid, gid).during(step)?;
        }
        fchmod(&file, Mode::from_raw_mode(header.mode & 0o7777)).during(step)?;
        futimens(&file, &times(header.modified)).during(step)
    }

    fn settle_directories(&self) {
        // Deepest first. A directory that the archive itself replaced later by something else is passed over.
        for (path, (mode, modified)) in self.directories.iter().rev() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let Ok((parent, name)) = beneath::open_parent(&self.top, path) else { continue };
            let Ok(directory) = openat(&parent, &name, flags, Mode::empty()) else { continue };
            let _ = fchmod(&directory, Mode::from_raw_mode(*mode & 0o7777));
            let _ = futimens(&directory, &times(*modified));
        }
    }
}

/// Makes room for a new file; an existing directory is not removed for it.
fn clear(parent: &OwnedFd, name: &CString) -> std::result::Result<(), Errno> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

fn write_sparse(file: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> std::result::Result<(), Errno> {
    if bytes.len() >= 4096 && bytes.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    while !bytes.is_empty() {
        match pwrite(file, bytes, offset) {
            Ok(count) => {
                offset += count as u64;
                bytes = bytes.get(count..).unwrap_or_default();
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn owner(header: &Header) -> (Option<Uid>, Option<Gid>) {
    // A number that no sandbox has leaves the owner as it is.
    let number = |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX);
    (number(header.uid).map(Uid::from_raw), number(header.gid).map(Gid::from_raw))
}

fn times(modified: i64) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: modified, tv_nsec: 0 },
    }
}

/// The archive's bytes as they come.
struct Source<'a> {
    connection: &'a mut Connection,
    current: Vec<u8>,
    taken: usize,
    /// The host has said End.
    ended: bool,
}

impl<'a> Source<'a> {
    fn new(connection: &'a mut Connection) -> Self {
        Source { connection, current: Vec::new(), taken: 0, ended: false }
    }

    /// The next entry, with the names and records that went before it; `None` at the archive's end.
    fn header(&mut self) -> Result<Option<Header>> {
        let (mut path, mut link, mut size, mut modified) = (None, None, None, None);
        loop {
            let Some(block) = self.block()? else { return Ok(None) };
            if block.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            let mut header = parse(&block).map_err(|reason| invalid(format!("unpack: the archive has {reason}")))?;
            match header.kind {
                Type::LongName => path = Some(text(&self.read(header.size)?).to_vec()),
                Type::LongLink => link = Some(text(&self.read(header.size)?).to_vec()),
                Type::Global => self.skip(header.size)?,
                Type::Extended => {
                    let bytes = self.read(header.size)?;
                    let bad = || invalid("unpack: the archive has malformed pax records");
                    let number = |value: &[u8]| std::str::from_utf8(value).ok()?.split('.').next()?.parse::<i64>().ok();
                    for (key, value) in records(&bytes).ok_or_else(bad)? {
                        match key {
                            b"path" => path = Some(value.to_vec()),
                            b"linkpath" => link = Some(value.to_vec()),
                            b"size" => size = Some(number(value).and_then(|n| u64::try_from(n).ok()).ok_or_else(bad)?),
                            b"mtime" => modified = Some(number(value).ok_or_else(bad)?),
                            key if key.starts_with(b"GNU.sparse") => {
                                let message = "unpack: sparse entries are not taken: make the archive without --sparse";
                                return Err(Failure::new(FailureKind::Unsupported, message));
                            }
                            _ => {}
                        }
                    }
                }
                _ => {
                    header.path = path.unwrap_or(header.path);
                    header.link = link.unwrap_or(header.link);
                    header.size = size.unwrap_or(header.size);
                    header.modified = modified.unwrap_or(header.modified);
                    return Ok(Some(header));
                }
            }
        }
    }

    fn block(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            if !self.fill()? {
                return if filled == 0 { Ok(None) } else { Err(cut_off()) };
            }
            let rest = self.current.get(self.taken..).unwrap_or_default();
            let count = rest.len().min(BLOCK - filled);
            if let (Some(place), Some(bytes)) = (block.get_mut(filled..filled + count), rest.get(..count)) {
                place.copy_from_slice(bytes);
            }
            filled += count;
            self.taken += count;
        }
        Ok(Some(block))
    }

    /// A short entry's contents, whole.
    fn read(&mut self, size: u64) -> Result<Vec<u8>> {
        if size > LONGEST_NAME {
            return Err(invalid(format!("unpack: the archive has a name of {size} bytes")));
        }
        let mut contents = Vec::new();
        let mut left = size;
        while left > 0 {
            let bytes = self.some(left)?;
            contents.extend_from_slice(bytes);
            let taken = bytes.len();
            left -= taken as u64;
            self.take(taken);
        }
        self.skip_padding(size)?;
        Ok(contents)
    }

    /// At least one and at most `most` bytes, to be taken with [`Source::take`].
    fn some(&mut self, most: u64) -> Result<&[u8]> {
        if !self.fill()? {
            return Err(cut_off());
        }
        let rest = self.current.get(self.taken..).unwrap_or_default();
        Ok(rest.get(..usize::try_from(most).unwrap_or(usize::MAX)).unwrap_or(rest))
    }

    fn take(&mut self, count: usize) {
        self.taken += count;
    }

    fn skip(&mut self, size: u64) -> Result<()> {
        let mut left = size;
        while left > 0 {
            let count = self.some(left)?.len();
            self.take(count);
            left -= count as u64;
        }
        self.skip_padding(size)
    }

    fn skip_padding(&mut self, size: u64) -> Result<()> {
        let mut left = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
        while left > 0 {
            let count = self.some(left)?.len();
            self.take(count);
            left -= count as u64;
        }
        Ok(())
    }

    /// Makes sure that there is a byte; false at the end.
    fn fill(&mut self) -> Result<bool> {
        while self.taken >= self.current.len() {
            if self.ended {
                return Ok(false);
            }
            match self.connection.data()? {
                Some(bytes) => {
                    self.current.clear();
                    self.current.extend_from_slice(bytes);
                    self.taken = 0;
                }
                None => self.ended = true,
            }
        }
        Ok(true)
    }

    /// Bytes after the archive's end are read and ignored.
    fn finish(&mut self) -> Result<()> {
        while self.fill()? {
            self.taken = self.current.len();
        }
        Ok(())
    }
}

fn cut_off() -> Failure {
    from_errno(Errno::INVAL, "unpack: the archive ends in the middle of an entry")
}
