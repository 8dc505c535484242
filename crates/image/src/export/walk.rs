//! A layer's directories, walked by descriptor in the order of their names: the same files always make the same tar.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, fgetxattr, flistxattr, fstat, openat, readlinkat, statat,
};
use rustix::io::Errno;

use super::{Error, Limits, Part, Skipped};
use crate::tar::{Entry, Kind, Time, Writer};

/// What becomes of deletions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whiteouts {
    /// They are written down.
    Keep,
    /// What they delete is left out, and so are they.
    Apply,
}

/// How overlayfs marks directories: with `userxattr`, and without.
const MARKS: [&str; 2] = ["user.overlay.", "trusted.overlay."];

pub(super) struct Walk<W: Write> {
    writer: Writer<W>,
    limits: Limits,
    whiteouts: Whiteouts,
    entries: u64,
    bytes: u64,
    /// The first name of each file that has several.
    linked: HashMap<(u64, u64), Vec<u8>>,
    skipped: Skipped,
}

/// What went wrong at a path.
enum Failed {
    Refused(String),
    Errno(Errno),
    Write(io::Error),
    /// Already told.
    Whole(Error),
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Failed::Errno(errno)
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Failed::Write(error)
    }
}

impl Failed {
    fn at(self, path: &[u8]) -> Error {
        let path = format!("/{}", String::from_utf8_lossy(path).chars().take(256).collect::<String>());
        match self {
            Failed::Refused(why) => Error::Refused { path, why },
            Failed::Errno(errno) => Error::Read { path, errno },
            Failed::Write(error) => Error::Write(error),
            Failed::Whole(error) => error,
        }
    }
}

impl<W: Write> Walk<W> {
    pub fn new(writer: Writer<W>, limits: Limits, whiteouts: Whiteouts) -> Self {
        let (linked, skipped) = (HashMap::new(), Skipped::default());
        Walk { writer, limits, whiteouts, entries: 0, bytes: 0, linked, skipped }
    }

    pub fn finish(self) -> (Writer<W>, u64, Skipped) {
        (self.writer, self.entries, self.skipped)
    }

    /// Directories that lie upon each other, the uppermost first.
    pub fn part(&mut self, stack: &[&Part]) -> Result<(), Error> {
        let Some(prefix) = stack.first().map(|part| part.prefix.trim_matches('/').as_bytes().to_vec()) else {
            return Ok(());
        };
        let opened = || -> Result<Vec<OwnedFd>, Errno> {
            let mut all = Vec::new();
            for part in stack {
                let fd = open(&part.directory, c".")?;
                let is_last = is_opaque(fd.as_fd())?;
                all.push(fd);
                if is_last {
                    break;
                }
            }
            Ok(all)
        };
        let stack = opened().map_err(|errno| Failed::from(errno).at(&prefix))?;
        self.directory(&stack, &prefix, 0).map_err(|failed| failed.at(&prefix))
    }

    fn directory(&mut self, stack: &[OwnedFd], path: &[u8], depth: usize) -> Result<(), Failed> {
        if depth > self.limits.depth {
            return Err(Failed::Refused(format!("folders lie within each other more than {} deep", self.limits.depth)));
        }
        let Some(top) = stack.first() else { return Ok(()) };
        let name = if path.is_empty() { b"./".to_vec() } else { [path, b"/"].concat() };
        let entry = entry(name.clone(), Kind::Directory, &fstat(top)?);
        self.append(Entry { attributes: attributes(top.as_fd())?, ..entry }, io::empty())?;
        if self.whiteouts == Whiteouts::Keep && depth > 0 && is_opaque(top.as_fd())? {
            self.mark([name.as_slice(), b".wh..wh..opq"].concat())?;
        }
        for (name, number) in self.names(stack)? {
            let inner = if path.is_empty() { name.to_bytes().to_vec() } else { [path, b"/", name.to_bytes()].concat() };
            let below = stack.get(number..).unwrap_or_default();
            self.name(below, &name, &inner, depth).map_err(|failed| match failed {
                Failed::Whole(error) => Failed::Whole(error),
                other => Failed::Whole(other.at(&inner)),
            })?;
        }
        Ok(())
    }

    /// All names of the directories, each with the uppermost that has it.
    fn names(&self, stack: &[OwnedFd]) -> Result<BTreeMap<CString, usize>, Failed> {
        let mut names = BTreeMap::new();
        for (number, folder) in stack.iter().enumerate() {
            let mut entries = Dir::read_from(folder)?;
            while let Some(entry) = entries.read() {
                let entry = entry?;
                let name = entry.file_name();
                if name != c"." && name != c".." {
                    names.entry(name.to_owned()).or_insert(number);
                }
                if names.len() as u64 > self.limits.entries {
                    return Err(Failed::Refused(format!("there are more than {} files", self.limits.entries)));
                }
            }
        }
        Ok(names)
    }

    fn name(&mut self, stack: &[OwnedFd], name: &CStr, path: &[u8], depth: usize) -> Result<(), Failed> {
        let Some(folder) = stack.first() else { return Ok(()) };
        let told = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(told.st_mode);
        if kind == FileType::CharacterDevice && told.st_rdev == 0 {
            return match self.whiteouts {
                Whiteouts::Apply => Ok(()),
                Whiteouts::Keep => {
                    let end = path.len() - name.to_bytes().len();
                    self.mark([path.get(..end).unwrap_or_default(), b".wh.", name.to_bytes()].concat())
                }
            };
        }
        if name.to_bytes().starts_with(b".wh.") {
            self.skipped.names += 1;
            return Ok(());
        }
        match kind {
            FileType::Directory => {
                let inner = self.inner(stack, name)?;
                self.directory(&inner, path, depth + 1)
            }
            FileType::RegularFile | FileType::Symlink | FileType::Fifo => {
                self.content(folder.as_fd(), name, path, &told, kind)
            }
            _ => {
                self.skipped.specials += 1;
                Ok(())
            }
        }
    }

    /// The directory of this name in all layers that show through.
    fn inner(&self, stack: &[OwnedFd], name: &CStr) -> Result<Vec<OwnedFd>, Failed> {
        let mut inner: Vec<OwnedFd> = Vec::new();
        for folder in stack {
            let fd = match open(folder, name) {
                Err(Errno::NOENT) => continue,
                // Something else in between hides what is below it.
                Err(Errno::NOTDIR | Errno::LOOP) => break,
                other => other?,
            };
            let is_last = is_opaque(fd.as_fd())?;
            inner.push(fd);
            if is_last || self.whiteouts == Whiteouts::Keep {
                break;
            }
        }
        Ok(inner)
    }

    fn content(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &CStr,
        path: &[u8],
        told: &Stat,
        kind: FileType,
    ) -> Result<(), Failed> {
        if told.st_nlink > 1 {
            let identity = (told.st_dev, told.st_ino);
            if let Some(first) = self.linked.get(&identity) {
                let link = Entry { link: first.clone(), ..entry(path.to_vec(), Kind::HardLink, told) };
                return self.append(link, io::empty());
            }
            self.linked.insert(identity, path.to_vec());
        }
        match kind {
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = File::from(openat(folder, name, flags, Mode::empty())?);
                let told = fstat(&file)?;
                let attributes = attributes(file.as_fd())?;
                let entry = Entry { attributes, ..entry(path.to_vec(), Kind::File, &told) };
                self.bytes = self.bytes.saturating_add(entry.size);
                if self.bytes > self.limits.bytes {
                    return Err(Failed::Refused(format!(
                        "the files are larger than {} bytes together",
                        self.limits.bytes
                    )));
                }
                self.append(entry, file)
            }
            FileType::Symlink => {
                let link = readlinkat(folder, name, Vec::new())?.into_bytes();
                self.append(Entry { link, ..entry(path.to_vec(), Kind::Symlink, told) }, io::empty())
            }
            _ => self.append(entry(path.to_vec(), Kind::Fifo, told), io::empty()),
        }
    }

    /// An empty file that stands for a deletion.
    fn mark(&mut self, path: Vec<u8>) -> Result<(), Failed> {
        let mark = Entry {
            path,
            link: Vec::new(),
            kind: Kind::File,
            mode: 0o644,
            user: 0,
            group: 0,
            size: 0,
            modified: Time::default(),
            attributes: Vec::new(),
            parts: None,
        };
        self.append(mark, io::empty())
    }

    fn append(&mut self, entry: Entry, data: impl io::Read) -> Result<(), Failed> {
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(Failed::Refused(format!("there are more than {} files", self.limits.entries)));
        }
        Ok(self.writer.append(&entry, data)?)
    }
}

fn entry(path: Vec<u8>, kind: Kind, told: &Stat) -> Entry {
    let size = if kind == Kind::File { u64::try_from(told.st_size).unwrap_or(0) } else { 0 };
    Entry {
        path,
        link: Vec::new(),
        kind,
        mode: told.st_mode & 0o7777,
        user: told.st_uid.into(),
        group: told.st_gid.into(),
        size,
        modified: Time { seconds: told.st_mtime, nanoseconds: u32::try_from(told.st_mtime_nsec).unwrap_or(0) },
        attributes: Vec::new(),
        parts: None,
    }
}

/// The image's own attributes. A directory that was renamed, or a file without its data, cannot be written down.
fn attributes(fd: BorrowedFd<'_>) -> Result<Vec<(String, Vec<u8>)>, Failed> {
    let mut kept = Vec::new();
    for name in list(fd)? {
        if let Some(mark) = MARKS.iter().find_map(|prefix| name.strip_prefix(prefix)) {
            if matches!(mark, "redirect" | "metacopy") {
                return Err(Failed::Refused(format!("it is only a reference to another layer (overlay {mark})")));
            }
            continue;
        }
        if !name.starts_with("user.") && name != "security.capability" {
            continue;
        }
        if let Some(value) = value(fd, &name)? {
            kept.push((name, value));
        }
    }
    kept.sort();
    Ok(kept)
}

fn is_opaque(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    for prefix in MARKS {
        if value(fd, &format!("{prefix}opaque"))?.as_deref() == Some(b"y") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// xattr(7): a list has at most 64 KiB.
fn list(fd: BorrowedFd<'_>) -> Result<Vec<String>, Errno> {
    let mut buffer = vec![0; 65_536];
    let length = match flistxattr(fd, &mut buffer[..]) {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        other => other?,
    };
    let names = buffer.get(..length).unwrap_or_default().split(|byte| *byte == 0);
    Ok(names
        .filter_map(|name| std::str::from_utf8(name).ok())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect())
}

fn value(fd: BorrowedFd<'_>, name: &str) -> Result<Option<Vec<u8>>, Errno> {
    let mut buffer = vec![0; 65_536];
    match fgetxattr(fd, name, &mut buffer[..]) {
        // `trusted.*` does not exist for anybody but root.
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => Ok(None),
        other => {
            buffer.truncate(other?);
            Ok(Some(buffer))
        }
    }
}

fn open(parent: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}
