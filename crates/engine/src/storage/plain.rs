//! The last rung: ordinary directories. Nothing holds a limit here, so a limit is refused.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, lgetxattr_query, llistxattr, llistxattr_query, openat, statat,
};
use rustix::io::Errno;

use super::{Backing, Error, Kind, Used, copy, make_directory, trash};
use crate::spec::Limits;

/// Two descriptors are held per level.
pub(super) const DEEPEST: usize = 256;

/// What a filesystem writes for an entry besides its name, about.
const ENTRY: u64 = 512;

const NOTHING: Used = Used { bytes: 0, inodes: Some(0) };

#[derive(Debug)]
pub(super) struct Plain {
    /// Why nothing better works here.
    pub(super) why: String,
}

impl Plain {
    fn refuse_limit(&self, limits: &Limits) -> Result<(), Error> {
        match limits.disk {
            Some(limit) => Err(Error::NoLimits { limit, why: self.why.clone() }),
            None => Ok(()),
        }
    }
}

impl Backing for Plain {
    fn kind(&self) -> Kind {
        Kind::Plain
    }

    fn detail(&self) -> String {
        format!("plain directories without disk limits: {}", self.why)
    }

    fn make_bare(&self, path: &Path, limits: &Limits) -> Result<(), Error> {
        self.refuse_limit(limits)?;
        make_directory(path)
    }

    fn set_limit(&self, _path: &Path, limits: &Limits) -> Result<(), Error> {
        self.refuse_limit(limits)
    }

    fn used(&self, path: &Path) -> Result<Used, Error> {
        count(path)
    }

    fn erase(&self, path: &Path) -> Result<(), Error> {
        trash::delete(path)
    }

    fn duplicate(&self, from: &Path, to: &Path, limits: &Limits) -> Result<(), Error> {
        self.refuse_limit(limits)?;
        make_directory(to)?;
        copy::tree(from, to)
    }
}

/// Counted file by file: the time it takes grows with their number. The sandbox may be running and swap a directory
/// for a link meanwhile, so no link is followed. What lies deeper than [`DEEPEST`] is left out.
pub(super) fn count(path: &Path) -> Result<Used, Error> {
    let mut count = Count { counted: NOTHING, with_metadata: false, end: None };
    count.tree(path).map(|_| count.counted)
}

/// The same of files that nobody changes meanwhile; `None` where some lie too deep.
pub(super) fn count_all(path: &Path) -> Result<Option<Used>, Error> {
    let mut count = Count { counted: NOTHING, with_metadata: false, end: None };
    Ok(count.tree(path)?.then_some(count.counted))
}

/// The same with what names and attributes take, about: no file shows that as blocks of its own, and attributes can be many times
/// as large as it. `None` also where it takes longer, or a file has more attributes than can be listed.
pub(super) fn count_within(path: &Path, patience: Duration) -> Result<Option<Used>, Error> {
    let mut count = Count { counted: NOTHING, with_metadata: true, end: Some(Instant::now() + patience) };
    Ok(count.tree(path)?.then_some(count.counted))
}

/// A pass over a tree. It has two descriptors for each level and remembers no name: hostile code chooses how many there are,
/// and how long.
struct Count {
    counted: Used,
    with_metadata: bool,
    /// When it is given up.
    end: Option<Instant>,
}

impl Count {
    /// Whether all was counted.
    fn tree(&mut self, path: &Path) -> Result<bool, Error> {
        let top = open(CWD, path).map_err(Error::at("open", path))?;
        self.directory(&top, 0).map_err(Error::at("count", path))
    }

    fn directory(&mut self, directory: &OwnedFd, depth: usize) -> Result<bool, Errno> {
        let mut whole = true;
        let mut entries = match Dir::read_from(directory) {
            // Deleted meanwhile.
            Err(Errno::NOENT) => return Ok(true),
            opened => opened?,
        };
        while let Some(entry) = entries.read() {
            if self.end.is_some_and(|end| Instant::now() >= end) {
                return Ok(false);
            }
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            // Entries come and go while we look.
            let Ok(told) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let is_directory = FileType::from_raw_mode(told.st_mode) == FileType::Directory;
            // Each of several names has its part of a file.
            let names = if is_directory { 1 } else { told.st_nlink.max(1) };
            self.counted.bytes += told.st_blocks as u64 * 512 / names;
            self.counted.inodes = self.counted.inodes.map(|inodes| inodes + 1);
            if self.with_metadata {
                let known = metadata(directory, name);
                whole &= known.is_some();
                self.counted.bytes += known.unwrap_or(0);
            }
            if !is_directory {
                continue;
            }
            if depth >= DEEPEST {
                whole = false;
                continue;
            }
            whole &= match open(directory, name) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => true,
                Err(Errno::ACCESS) => false,
                opened => self.directory(&opened?, depth + 1)?,
            };
        }
        Ok(whole)
    }
}

/// What a name and the attributes behind it take, about; `None` where the attributes cannot be listed.
fn metadata(directory: &OwnedFd, name: &CStr) -> Option<u64> {
    // By name: a fifo, or a device, is not opened.
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend(name.to_bytes());
    let mut bytes = ENTRY + 4 * name.count_bytes() as u64;
    let length = match llistxattr_query(&path[..]) {
        Err(Errno::NOENT | Errno::OPNOTSUPP) | Ok(0) => return Some(bytes),
        other => other.ok()?,
    };
    let mut list = vec![0; length];
    let length = llistxattr(&path[..], &mut list[..]).ok()?;
    for attribute in list[..length].split(|byte| *byte == 0).filter(|attribute| !attribute.is_empty()) {
        let size = lgetxattr_query(&path[..], attribute).ok()?;
        bytes += ENTRY + (attribute.len() + size) as u64;
    }
    Some(bytes)
}

fn open(parent: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::mkdirat;

    const LONG: Duration = Duration::from_secs(60);

    /// `depth` folders, each in the one before, with names of 200 characters, and a file of 1 MiB in the last.
    fn deep(depth: usize) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let name = "d".repeat(200);
        let mut at = open(CWD, folder.path()).unwrap();
        for _ in 0..depth {
            mkdirat(&at, name.as_str(), Mode::RWXU).unwrap();
            at = open(&at, name.as_str()).unwrap();
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let mut file = std::fs::File::from(openat(&at, "file", flags, Mode::RWXU).unwrap());
        std::io::Write::write_all(&mut file, &[7; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        folder
    }

    #[test]
    fn what_lies_beyond_the_longest_path_is_counted() {
        let folder = deep(100);
        let counted = count_within(folder.path(), LONG).unwrap().expect("all was counted");
        assert!(counted.bytes >= 1 << 20, "{counted:?}");
        assert_eq!(counted.inodes, Some(101));
        let plainly = count(folder.path()).unwrap();
        assert!(plainly.bytes >= 1 << 20 && plainly.bytes < counted.bytes, "{plainly:?} {counted:?}");
        assert_eq!(count_all(folder.path()).unwrap(), Some(plainly));
    }

    #[test]
    fn attributes_are_counted_where_metadata_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("empty");
        std::fs::write(&file, "").unwrap();
        let before = count_within(folder.path(), LONG).unwrap().expect("all was counted");
        for number in 0..3 {
            let name = format!("user.number{number}");
            rustix::fs::lsetxattr(&file, name.as_str(), &[7; 1000], rustix::fs::XattrFlags::empty()).unwrap();
        }
        let after = count_within(folder.path(), LONG).unwrap().expect("all was counted");
        assert!(after.bytes >= before.bytes + 3000, "{before:?} {after:?}");
    }

    #[test]
    fn what_lies_too_deep_or_takes_too_long_is_no_count() {
        let folder = deep(DEEPEST + 2);
        assert_eq!(count_within(folder.path(), LONG).unwrap(), None);
        assert_eq!(count(folder.path()).unwrap().inodes, Some(DEEPEST as u64 + 1));
        assert_eq!(count_within(deep(1).path(), Duration::ZERO).unwrap(), None);
    }
}
