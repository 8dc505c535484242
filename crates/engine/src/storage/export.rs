//! A stopped sandbox's files as a tar stream.
//!
//! The archive has two folders, `root` and `usr`: the uppers as they lie on disk, with whiteouts as character devices 0/0,
//! opaque marks and other extended attributes as pax records, 0-based owners, hard links, holes. What overlayfs keeps
//! for itself (file handles, its work directories) is worth nothing elsewhere and stays behind.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fgetxattr, fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};

use super::{Error, NAMES, copy};

/// One descriptor is held per level.
const DEEPEST: usize = 256;
/// The folders of an archive.
pub(super) const FOLDERS: [&str; 2] = [NAMES[0], NAMES[2]];
/// Plain values; ours are read back by their length, and by their line in other programs.
pub(super) const PLAIN: &str = "SCHILY.xattr.";
/// Values with a line break in them, in base64.
pub(super) const ENCODED: &str = "LIBARCHIVE.xattr.";

/// Attributes that mean the same on another machine.
pub(super) fn is_portable(name: &str) -> bool {
    match name.split_once(".overlay.") {
        Some(("user" | "trusted", mark)) => matches!(mark, "opaque" | "whiteout"),
        _ => name.starts_with("user."),
    }
}

pub(super) fn write<W: Write>(upper: &Path, writer: W) -> Result<W, Error> {
    let mut export = Export { builder: Builder::new(writer), links: HashMap::new() };
    for folder in FOLDERS {
        let path = upper.join(folder);
        let directory = open(rustix::fs::CWD, &path).map_err(Error::at("open", &path))?;
        export.directory(directory.as_fd(), Path::new(folder), 0).map_err(Error::at("export", &path))?;
    }
    export.builder.into_inner().map_err(Error::at("export", upper))
}

struct Export<W: Write> {
    builder: Builder<W>,
    /// Where the first of several hard links is in the archive, by device and inode.
    links: HashMap<(u64, u64), PathBuf>,
}

impl<W: Write> Export<W> {
    fn directory(&mut self, directory: BorrowedFd<'_>, path: &Path, depth: usize) -> io::Result<()> {
        if depth > DEEPEST {
            return Err(Errno::NAMETOOLONG.into());
        }
        self.attributes(directory)?;
        let mut header = header(&fstat(directory)?, EntryType::Directory);
        self.builder.append_data(&mut header, path, io::empty())?;
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

    fn entry(&mut self, parent: BorrowedFd<'_>, name: &CStr, path: &Path, depth: usize) -> io::Result<()> {
        let told = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(told.st_mode);
        // A socket is nothing without its listener, and a second name for one leads to nothing.
        if kind == FileType::Socket {
            return Ok(());
        }
        if kind != FileType::Directory && told.st_nlink > 1 {
            if let Some(first) = self.links.get(&(told.st_dev, told.st_ino)) {
                return self.builder.append_link(&mut header(&told, EntryType::Link), path, first);
            }
            self.links.insert((told.st_dev, told.st_ino), path.to_owned());
        }
        match kind {
            FileType::Directory => self.directory(open(parent, name)?.as_fd(), path, depth + 1),
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let mut file = File::from(openat(parent, name, flags, Mode::empty())?);
                self.attributes(file.as_fd())?;
                self.builder.append_file(path, &mut file)
            }
            FileType::Symlink => {
                let target = readlinkat(parent, name, Vec::new())?;
                let target = OsStr::from_bytes(target.as_bytes());
                self.builder.append_link(&mut header(&told, EntryType::Symlink), path, target)
            }
            FileType::Fifo => self.builder.append_data(&mut header(&told, EntryType::Fifo), path, io::empty()),
            FileType::CharacterDevice if told.st_rdev == 0 => {
                let mut header = header(&told, EntryType::Char);
                header.set_device_major(0)?;
                header.set_device_minor(0)?;
                self.builder.append_data(&mut header, path, io::empty())
            }
            // A sandbox has no other devices.
            _ => Ok(()),
        }
    }

    /// Written before the entry they belong to.
    fn attributes(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        let mut records = Vec::new();
        for name in copy::names(file)?.into_iter().filter(|name| is_portable(name)) {
            let mut value = vec![0; 65_536];
            match fgetxattr(file, &name, &mut value[..]) {
                Err(Errno::NODATA) => continue,
                other => value.truncate(other?),
            }
            if value.contains(&b'\n') {
                records.push((format!("{ENCODED}{name}"), STANDARD.encode(&value).into_bytes()));
            } else {
                records.push((format!("{PLAIN}{name}"), value));
            }
        }
        self.builder.append_pax_extensions(records.iter().map(|(name, value)| (name.as_str(), value.as_slice())))
    }
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
