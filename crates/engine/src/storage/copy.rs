//! A copy of an upper, file by file, where the filesystem has no snapshots.
//!
//! Everything that overlayfs needs comes along: whiteouts (character devices 0/0), opaque marks and other extended
//! attributes, owners, modes, times, hard links, holes. Data is shared where the filesystem can (`FICLONE`). The
//! source was written by hostile code, so nothing in it is ever followed. What has several names gets one more in a folder of
//! its own for as long as the copy takes, so that nobody has to remember where the first was.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, XattrFlags, chmodat,
    chownat, copy_file_range, fgetxattr, flistxattr, fremovexattr, fsetxattr, ftruncate, ioctl_ficlone, linkat,
    mkdirat, mknodat, openat, readlinkat, seek, statat, symlinkat, utimensat,
};
use rustix::io::{Errno, pread, pwrite};

use super::{Error, trash};

/// Two descriptors are held per level.
const DEEPEST: usize = 256;

/// Where what has several names is kept while they are made.
const LINKS: &str = ".links-of-a-copy";

/// Copies what is in the directory `from` into the directory `to`, which exists; existing names are kept.
pub(super) fn tree(from: &Path, to: &Path) -> Result<(), Error> {
    let source = open(CWD, from).map_err(Error::at("open", from))?;
    Copier::into(to, |copier, target| copier.directory(source.as_fd(), target, 0).map_err(Error::at("copy", from)))
}

/// Copies these directories of `from`, where it has them, into the directory `to`; existing ones are filled.
pub(super) fn parts(from: BorrowedFd<'_>, to: &Path, names: &[&str]) -> Result<(), Error> {
    Copier::into(to, |copier, target| {
        names.iter().try_for_each(|name| {
            let name = CString::new(*name).map_err(|_| Errno::INVAL).map_err(Error::at("copy to", to))?;
            match statat(from, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => Ok(()),
                _ => copier.entry(from, target, &name, 0).map_err(Error::at("copy to", to)),
            }
        })
    })
}

/// Copies files of one tree into another and knows which of them are one.
pub(super) struct Copier {
    /// By device and inode of the source.
    links: OwnedFd,
}

impl Copier {
    /// Has a folder of its own in the target meanwhile.
    pub(super) fn into(to: &Path, act: impl FnOnce(&Copier, BorrowedFd<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let links = to.join(LINKS);
        trash::delete(&links)?;
        mkdirat(CWD, &links, Mode::RWXU).map_err(Error::at("make", &links))?;
        let copied = || -> Result<(), Error> {
            let copier = Copier { links: open(CWD, &links).map_err(Error::at("open", &links))? };
            let target = open(CWD, to).map_err(Error::at("open", to))?;
            act(&copier, target.as_fd())
        };
        let copied = copied();
        copied.and(trash::delete(&links))
    }

    fn directory(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, depth: usize) -> Result<(), Errno> {
        if depth > DEEPEST {
            return Err(Errno::NAMETOOLONG);
        }
        let mut entries = Dir::read_from(from)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name();
            if name != c"." && name != c".." {
                self.entry(from, to, name, depth)?;
            }
        }
        Ok(())
    }

    /// One name with all below it.
    pub(super) fn entry(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
        depth: usize,
    ) -> Result<(), Errno> {
        let told = statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(told.st_mode);
        // A socket is nothing without its listener, and a second name for one leads to nothing.
        if kind == FileType::Socket {
            return Ok(());
        }
        let several = kind != FileType::Directory && told.st_nlink > 1;
        let first = format!("{:x}-{:x}", told.st_dev, told.st_ino);
        if several {
            match linkat(&self.links, &first, to, name, AtFlags::empty()) {
                Err(Errno::NOENT) => {}
                other => return other,
            }
        }
        let owned = || own(to, name, &told);
        match kind {
            FileType::Directory => {
                match mkdirat(to, name, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
                let (source, target) = (open(from, name)?, open(to, name)?);
                owned()?;
                attributes(source.as_fd(), target.as_fd())?;
                self.directory(source.as_fd(), target.as_fd(), depth + 1)?;
            }
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let source = openat(from, name, flags, Mode::empty())?;
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let target = openat(to, name, flags, Mode::RWXU)?;
                data(source.as_fd(), target.as_fd(), told.st_size as u64)?;
                owned()?;
                attributes(source.as_fd(), target.as_fd())?;
            }
            FileType::Symlink => {
                symlinkat(readlinkat(from, name, Vec::new())?, to, name)?;
                owned()?;
            }
            // Fifos and whiteouts.
            _ => {
                mknodat(to, name, kind, Mode::RWXU, told.st_rdev)?;
                owned()?;
            }
        }
        finish(to, name, &told)?;
        if several {
            linkat(to, name, &self.links, &first, AtFlags::empty())?;
        }
        Ok(())
    }
}

/// Before attributes and mode: a change of owner, and a write, take file capabilities and set-user-id away.
fn own(to: BorrowedFd<'_>, name: &CStr, told: &Stat) -> Result<(), Errno> {
    let (owner, group) = (Uid::from_raw(told.st_uid), Gid::from_raw(told.st_gid));
    chownat(to, name, Some(owner), Some(group), AtFlags::SYMLINK_NOFOLLOW)
}

/// Mode and times, of a directory after all that is in it.
fn finish(to: BorrowedFd<'_>, name: &CStr, told: &Stat) -> Result<(), Errno> {
    if FileType::from_raw_mode(told.st_mode) != FileType::Symlink {
        chmodat(to, name, Mode::from_raw_mode(told.st_mode), AtFlags::empty())?;
    }
    let time = |seconds: i64, nanoseconds: u64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as i64 };
    let times = Timestamps {
        last_access: time(told.st_atime, told.st_atime_nsec),
        last_modification: time(told.st_mtime, told.st_mtime_nsec),
    };
    utimensat(to, name, &times, AtFlags::SYMLINK_NOFOLLOW)
}

/// Owner, attributes, mode and times of a directory that exists on both sides.
pub(super) fn directory_facts(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr, told: &Stat) -> Result<(), Errno> {
    let (source, target) = (open(from, name)?, open(to, name)?);
    own(to, name, told)?;
    for stale in names(target.as_fd())?.into_iter().filter(|name| !name.contains(".overlay.")) {
        match fremovexattr(&target, &stale) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    attributes(source.as_fd(), target.as_fd())?;
    finish(to, name, told)
}

/// Shares the data, or copies it without its holes.
pub(super) fn data(from: BorrowedFd<'_>, to: BorrowedFd<'_>, size: u64) -> Result<(), Errno> {
    if size == 0 || ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    ftruncate(to, size)?;
    let mut at = 0;
    while at < size {
        let begin = match seek(from, SeekFrom::Data(at)) {
            // Only a hole is left.
            Err(Errno::NXIO) => return Ok(()),
            other => other?,
        };
        let end = seek(from, SeekFrom::Hole(begin))?.min(size);
        let (mut read, mut write) = (begin, begin);
        while read < end {
            let length = usize::try_from(end - read).unwrap_or(usize::MAX).min(1 << 30);
            match copy_file_range(from, Some(&mut read), to, Some(&mut write), length) {
                Ok(0) => break,
                Ok(_) => {}
                // Not between filesystems of two kinds.
                Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    pour(from, to, read, end)?;
                    break;
                }
                Err(errno) => return Err(errno),
            }
        }
        at = end.max(begin + 1);
    }
    Ok(())
}

/// Copies a range through memory.
fn pour(from: BorrowedFd<'_>, to: BorrowedFd<'_>, mut at: u64, end: u64) -> Result<(), Errno> {
    let mut buffer = vec![0; 1 << 20];
    while at < end {
        let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        let count = rustix::io::retry_on_intr(|| pread(from, &mut buffer[..most], at))?;
        if count == 0 {
            break;
        }
        let mut written = 0;
        while written < count {
            let place = at + written as u64;
            written += rustix::io::retry_on_intr(|| pwrite(to, &buffer[written..count], place))?;
        }
        at += count as u64;
    }
    Ok(())
}

/// Those that a filesystem does not take (an ACL, a label) stay behind; the overlay's own must come along.
pub(super) fn attributes(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), Errno> {
    for name in names(from)? {
        let mut value = vec![0; 65_536];
        let length = match fgetxattr(from, &name, &mut value[..]) {
            Err(Errno::NODATA) => continue,
            other => other?,
        };
        match fsetxattr(to, &name, &value[..length], XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP | Errno::PERM) if !name.contains(".overlay.") => {}
            other => other?,
        }
    }
    Ok(())
}

/// The names of a file's extended attributes, those that are text.
pub(super) fn names(file: BorrowedFd<'_>) -> Result<Vec<String>, Errno> {
    let mut list = vec![0; 65_536];
    let length = match flistxattr(file, &mut list[..]) {
        Err(Errno::OPNOTSUPP) => 0,
        other => other?,
    };
    let names = list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.filter_map(|name| String::from_utf8(name.to_vec()).ok()).collect())
}

fn open(parent: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn a_copy_to_another_filesystem_has_all_bytes_and_holes() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
        let mut bytes = vec![0; 5 << 20];
        bytes[3..4000].fill(7);
        bytes[(3 << 20)..(3 << 20) + 1_500_000].fill(9);
        let file = fs::File::create(from.path().join("file")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes[..4096], 0).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes[3 << 20..], 3 << 20).unwrap();
        tree(from.path(), to.path()).unwrap();
        let copy = to.path().join("file");
        assert_eq!(fs::read(&copy).unwrap(), bytes);
        assert!(fs::metadata(&copy).unwrap().blocks() * 512 < 4 << 20, "holes stay holes");
    }

    #[test]
    fn a_copy_has_everything_the_overlay_needs() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("opaque")).unwrap();
        fs::create_dir(&to).unwrap();
        fs::write(from.join("opaque/program"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(from.join("opaque/program"), fs::Permissions::from_mode(0o4755)).unwrap();
        fs::hard_link(from.join("opaque/program"), from.join("link")).unwrap();
        symlink("/etc/shadow", from.join("symbolic")).unwrap();
        drop(std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap());
        fs::hard_link(from.join("socket"), from.join("socket too")).unwrap();
        let sparse = fs::File::create(from.join("sparse")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", 50 << 20).unwrap();
        let opaque = fs::File::open(from.join("opaque")).unwrap();
        fsetxattr(&opaque, "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
        let root = cove_testkit::need::root();
        if root {
            let mode = Mode::from_raw_mode(0o000);
            mknodat(CWD, from.join("whiteout"), FileType::CharacterDevice, mode, 0).unwrap();
            std::os::unix::fs::chown(from.join("opaque/program"), Some(1000), Some(1000)).unwrap();
            fs::set_permissions(from.join("opaque/program"), fs::Permissions::from_mode(0o4755)).unwrap();
        }

        tree(&from, &to).unwrap();

        let program = fs::metadata(to.join("opaque/program")).unwrap();
        assert_eq!(program.mode() & 0o7777, 0o4755);
        assert_eq!(program.nlink(), 2);
        assert_eq!(program.ino(), fs::metadata(to.join("link")).unwrap().ino());
        assert_eq!(fs::read_link(to.join("symbolic")).unwrap(), Path::new("/etc/shadow"));
        assert!(!to.join("socket").exists() && !to.join("socket too").exists());
        let sparse = fs::metadata(to.join("sparse")).unwrap();
        assert_eq!(sparse.len(), (50 << 20) + 3);
        assert!(sparse.blocks() * 512 < 1 << 20, "holes stay holes");
        let opaque = fs::File::open(to.join("opaque")).unwrap();
        let mut value = [0; 4];
        assert_eq!(fgetxattr(&opaque, "user.overlay.opaque", &mut value[..]).unwrap(), 1);
        if root {
            assert_eq!(program.uid(), 1000);
            let whiteout = fs::symlink_metadata(to.join("whiteout")).unwrap();
            assert_eq!((whiteout.mode() & 0o170_000, whiteout.rdev()), (0o020_000, 0));
        }
    }
}
