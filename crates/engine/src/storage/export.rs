//! A stopped sandbox's files as a tar stream.
//!
//! The archive has the folders `root` and `usr`: the uppers as they are on disk, with whiteouts as character devices
//! 0/0, opaque marks and other extended attributes as pax records, 0-based owners. Overlayfs's own data (file handles,
//! work directories) is useless elsewhere and left out.
//!
//! * Holes: GNU tar's pax records (`GNU.sparse.map`), so that the archive has what is written and nothing else.
//! * Hard links: what has several names is in the folder `links` under a number, and every name is a link to that. So nobody has to remember where the first name was, which could be 64 KiB long.
//! * Copies that share their blocks (`cp --reflink`): what they share is in `links` once, and each is an empty entry with a
//!   record that says which.
//!
//! A layer travels to another server in the same form ([`write_layer`]), with file capabilities.
//!
//! What import would refuse is refused here, while the files are still there: an archive that was written to its end can
//! be read again within the sandbox's own limits.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cove_sys::extents;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fgetxattr, fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::import::{BYTES, ENTRIES, IDS, METADATA};
use super::{Error, NAMES, copy, sparse};

/// One descriptor is held per level.
const DEEPEST: usize = 256;
/// The folders of an archive.
pub(super) const FOLDERS: [&str; 2] = [NAMES[0], NAMES[2]];
/// What several names of an archive mean.
pub(super) const LINKS: &str = "links";
/// Plain values; ours are read back by their length, and by their line in other programs.
pub(super) const PLAIN: &str = "SCHILY.xattr.";
/// Values with a line break in them, in base64, and names that a record cannot have as they are ([`escape`]).
pub(super) const ENCODED: &str = "LIBARCHIVE.xattr.";
/// How large a file with holes is, and where its parts lie: GNU tar's pax format 0.1.
pub(super) const SPARSE_SIZE: &str = "GNU.sparse.size";
pub(super) const SPARSE_COUNT: &str = "GNU.sparse.numblocks";
pub(super) const SPARSE_MAP: &str = "GNU.sparse.map";
/// The content is that of another entry.
pub(super) const CLONE: &str = "COVE.clone";

/// Below this a copy costs no more than the record that spares it.
const WORTH_SHARING: u64 = 16 << 10;
/// Pieces of a file whose places are compared.
const PIECES: usize = 1 << 16;

/// Which attributes go along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attributes {
    /// Those that mean the same everywhere: for archives that leave the installation.
    Portable,
    /// File capabilities too: a layer on another server of the same installation is the same layer.
    OfLayer,
}

/// Taken away by a change of owner: import sets it last.
pub(super) const CAPABILITY: &str = "security.capability";

impl Attributes {
    pub(super) fn take(self, name: &str) -> bool {
        is_portable(name) || self == Attributes::OfLayer && name == CAPABILITY
    }
}

/// Attributes that mean the same on another machine.
fn is_portable(name: &str) -> bool {
    match name.split_once(".overlay.") {
        Some(("user" | "trusted", mark)) => matches!(mark, "opaque" | "whiteout"),
        _ => name.starts_with("user."),
    }
}

/// `room` is how many bytes of content the archive may have.
pub(super) fn write<W: Write>(upper: &Path, room: Option<u64>, writer: W) -> Result<W, Error> {
    write_folders(upper, &FOLDERS, room, Attributes::Portable, writer)
}

/// A layer, which need not have both folders, as it is.
pub(super) fn write_layer<W: Write>(layer: &Path, writer: W) -> Result<W, Error> {
    let there: Vec<&str> = FOLDERS.into_iter().filter(|folder| layer.join(folder).is_dir()).collect();
    write_folders(layer, &there, None, Attributes::OfLayer, writer)
}

fn write_folders<W: Write>(
    top: &Path,
    folders: &[&str],
    room: Option<u64>,
    attributes: Attributes,
    writer: W,
) -> Result<W, Error> {
    let room = room.unwrap_or(BYTES).min(BYTES);
    let (linked, shared) = (HashMap::new(), HashMap::new());
    let mut export = Export { builder: Builder::new(writer), attributes, linked, shared, entries: 0, bytes: 0, room };
    for folder in folders {
        let path = top.join(folder);
        let directory = open(rustix::fs::CWD, &path).map_err(Error::at("open", &path))?;
        export.directory(directory.as_fd(), Path::new(folder), 0).map_err(|failed| failed.at(&path))?;
    }
    export.builder.into_inner().map_err(Error::at("export", top))
}

/// Why a tree cannot be written.
enum Failed {
    File(io::Error),
    /// Import would refuse it.
    Refused(Error),
}

impl Failed {
    fn at(self, path: &Path) -> Error {
        match self {
            Failed::File(error) => Error::at("export", path)(error),
            Failed::Refused(error) => error,
        }
    }
}

impl<E: Into<io::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Failed::File(error.into())
    }
}

fn refuse(path: &Path, why: impl Into<String>) -> Failed {
    let entry = path.to_string_lossy().chars().take(256).collect();
    Failed::Refused(Error::Archive { entry, why: why.into() })
}

struct Export<W: Write> {
    builder: Builder<W>,
    attributes: Attributes,
    /// Inodes with several names that are in the archive, and the number of each.
    linked: HashMap<u64, u32>,
    /// Contents with several owners that are in the archive, by where they lie, and the number of each.
    shared: HashMap<[u8; 16], u32>,
    entries: u64,
    bytes: u64,
    room: u64,
}

type Records = Vec<(String, Vec<u8>)>;

impl<W: Write> Export<W> {
    fn directory(&mut self, directory: BorrowedFd<'_>, path: &Path, depth: usize) -> Result<(), Failed> {
        if depth > DEEPEST {
            return Err(refuse(path, format!("it lies deeper than {DEEPEST} folders")));
        }
        let records = attributes(directory, self.attributes)?;
        self.append(path, header(&fstat(directory)?, EntryType::Directory), records, io::empty())?;
        let mut entries = Dir::read_from(directory)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name();
            if name != c"." && name != c".." {
                self.entry(directory, name, &path.join(OsStr::from_bytes(name.to_bytes())), depth)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, parent: BorrowedFd<'_>, name: &CStr, path: &Path, depth: usize) -> Result<(), Failed> {
        let told = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(told.st_mode);
        match kind {
            FileType::Directory => return self.directory(open(parent, name)?.as_fd(), path, depth + 1),
            // A socket is nothing without its listener, and a second name for one leads to nothing. A sandbox has no other
            // devices.
            FileType::Socket | FileType::BlockDevice | FileType::Unknown => return Ok(()),
            FileType::CharacterDevice if told.st_rdev != 0 => return Ok(()),
            _ => {}
        }
        if told.st_nlink < 2 {
            return self.content(parent, name, path, &told, kind);
        }
        let next = self.linked.len() as u32;
        let number = *self.linked.entry(told.st_ino).or_insert(next);
        let first = Path::new(LINKS).join(format!("i{number}"));
        if number == next {
            self.content(parent, name, &first, &told, kind)?;
        }
        self.count(path)?;
        Ok(self.builder.append_link(&mut header(&told, EntryType::Link), path, first)?)
    }

    fn content(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        path: &Path,
        told: &Stat,
        kind: FileType,
    ) -> Result<(), Failed> {
        match kind {
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = File::from(openat(parent, name, flags, Mode::empty())?);
                let records = attributes(file.as_fd(), self.attributes)?;
                match place(&file, told)? {
                    None => self.file(&file, told, path, records),
                    Some(key) => self.copy(&file, told, path, records, key),
                }
            }
            FileType::Symlink => {
                let target = readlinkat(parent, name, Vec::new())?;
                self.count(path)?;
                let target = OsStr::from_bytes(target.as_bytes());
                Ok(self.builder.append_link(&mut header(told, EntryType::Symlink), path, target)?)
            }
            FileType::Fifo => self.append(path, header(told, EntryType::Fifo), Records::new(), io::empty()),
            _ => {
                let mut header = header(told, EntryType::Char);
                header.set_device_major(0)?;
                header.set_device_minor(0)?;
                self.append(path, header, Records::new(), io::empty())
            }
        }
    }

    /// What is written of a file, without its holes.
    fn file(&mut self, file: &File, told: &Stat, path: &Path, mut records: Records) -> Result<(), Failed> {
        let size = u64::try_from(told.st_size).unwrap_or(0);
        let parts = sparse::parts(file, size)?;
        let total = sparse::total(&parts);
        if total < size {
            records.push((SPARSE_SIZE.into(), size.to_string().into()));
            records.push((SPARSE_COUNT.into(), parts.len().to_string().into()));
            records.push((SPARSE_MAP.into(), sparse::to_text(&parts).into()));
        }
        self.bytes = self.bytes.saturating_add(total);
        if self.bytes > self.room {
            let room = self.room >> 20;
            return Err(refuse(path, format!("the files have more than {room} MiB, which could not be restored")));
        }
        let mut header = header(told, EntryType::Regular);
        header.set_size(total);
        self.append(path, header, records, sparse::Reader::new(file, &parts))
    }

    /// A file that shares its blocks: they are in the archive once.
    fn copy(
        &mut self,
        file: &File,
        told: &Stat,
        path: &Path,
        mut records: Records,
        key: [u8; 16],
    ) -> Result<(), Failed> {
        let next = self.shared.len() as u32;
        let number = *self.shared.entry(key).or_insert(next);
        let first = format!("{LINKS}/c{number}");
        if number == next {
            self.file(file, told, Path::new(&first), Records::new())?;
        }
        records.push((CLONE.into(), first.into_bytes()));
        self.append(path, header(told, EntryType::Regular), records, io::empty())
    }

    fn append(&mut self, path: &Path, mut header: Header, records: Records, data: impl io::Read) -> Result<(), Failed> {
        self.count(path)?;
        if header.uid()? >= IDS || header.gid()? >= IDS {
            return Err(refuse(path, "its owner is not within a sandbox's 65536 ids"));
        }
        let weight: usize = records.iter().map(|(name, value)| name.len() + value.len() + 16).sum();
        // The path stands beside them, in the archive's own blocks.
        if weight as u64 + 2 * path.as_os_str().len() as u64 + 8192 > METADATA {
            return Err(refuse(path, "its name and attributes are larger than 16 MiB"));
        }
        self.builder.append_pax_extensions(records.iter().map(|(name, value)| (name.as_str(), value.as_slice())))?;
        Ok(self.builder.append_data(&mut header, path, data)?)
    }

    fn count(&mut self, path: &Path) -> Result<(), Failed> {
        self.entries += 1;
        if self.entries >= ENTRIES {
            return Err(refuse(path, format!("there are more than {ENTRIES} files")));
        }
        Ok(())
    }
}

/// Written before the entry they belong to.
fn attributes(file: BorrowedFd<'_>, which: Attributes) -> io::Result<Records> {
    let mut records = Records::new();
    for name in copy::names(file)?.into_iter().filter(|name| which.take(name)) {
        let mut value = vec![0; 65_536];
        match fgetxattr(file, &name, &mut value[..]) {
            Err(Errno::NODATA) => continue,
            other => value.truncate(other?),
        }
        if value.contains(&b'\n') || name.bytes().any(is_escaped) {
            records.push((format!("{ENCODED}{}", escape(&name)), STANDARD.encode(&value).into_bytes()));
        } else {
            records.push((format!("{PLAIN}{name}"), value));
        }
    }
    Ok(records)
}

/// Ends a name, or a record; or is what an escape begins with.
fn is_escaped(byte: u8) -> bool {
    byte <= b' ' || byte >= 0x7f || byte == b'=' || byte == b'%'
}

/// As libarchive writes it: `%` and two hexadecimal digits.
fn escape(name: &str) -> String {
    let one = |byte: u8| if is_escaped(byte) { format!("%{byte:02X}") } else { char::from(byte).to_string() };
    name.bytes().map(one).collect()
}

/// The way back. What is no escape means itself.
pub(super) fn unescape(name: &str) -> String {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let [first, after @ ..] = rest {
        let digit = |at: usize| after.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((16 * high + low) as u8);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| name.to_owned())
}

/// What tells the content of a file that shares blocks from every other: where it lies. `None` for one that has its own.
fn place(file: &File, told: &Stat) -> io::Result<Option<[u8; 16]>> {
    if u64::try_from(told.st_size).unwrap_or(0) < WORTH_SHARING {
        return Ok(None);
    }
    let Some(pieces) = extents::shared(file, PIECES)? else { return Ok(None) };
    let mut digest = Sha256::new();
    digest.update(told.st_size.to_le_bytes());
    for piece in pieces {
        for number in [piece.logical, piece.physical, piece.length] {
            digest.update(number.to_le_bytes());
        }
    }
    let mut key = [0; 16];
    key.copy_from_slice(&digest.finalize()[..16]);
    Ok(Some(key))
}

fn header(told: &Stat, kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(told.st_mode & 0o7777);
    header.set_uid(told.st_uid.into());
    header.set_gid(told.st_gid.into());
    header.set_mtime(u64::try_from(told.st_mtime).unwrap_or(0));
    header.set_size(0);
    header
}

fn open(parent: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}
