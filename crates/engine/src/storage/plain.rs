//! The last rung: ordinary directories. Nothing holds a limit here, so a limit is refused.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, openat, openat2, statat};

use super::{Backing, Error, Kind, Used, copy, make_directory, trash};
use crate::spec::Limits;

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
/// for a link meanwhile, so no link is followed.
pub(super) fn count(path: &Path) -> Result<Used, Error> {
    let mut counted = Used { bytes: 0, inodes: Some(0) };
    walk(path, &mut counted, &|| false)?;
    Ok(counted)
}

/// The same; `None` where it takes longer.
pub(super) fn count_within(path: &Path, patience: Duration) -> Result<Option<Used>, Error> {
    let mut counted = Used { bytes: 0, inodes: Some(0) };
    let end = Instant::now() + patience;
    Ok(walk(path, &mut counted, &|| Instant::now() > end)?.then_some(counted))
}

/// Whether it came to the end before `is_over`.
fn walk(path: &Path, counted: &mut Used, is_over: &dyn Fn() -> bool) -> Result<bool, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = openat(CWD, path, flags, Mode::empty()).map_err(Error::at("open", path))?;
    let mut pending = vec![PathBuf::from(".")];
    while let Some(directory) = pending.pop() {
        if is_over() {
            return Ok(false);
        }
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        // Entries come and go while we look.
        let Ok(opened) = openat2(&top, &directory, flags, Mode::empty(), beneath) else { continue };
        let Ok(entries) = Dir::read_from(&opened) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Ok(told) = statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if name == c"." || name == c".." {
                continue;
            }
            let is_directory = FileType::from_raw_mode(told.st_mode) == FileType::Directory;
            // Each of several names has its part of a file.
            let names = if is_directory { 1 } else { told.st_nlink.max(1) };
            counted.bytes += told.st_blocks as u64 * 512 / names;
            counted.inodes = counted.inodes.map(|inodes| inodes + 1);
            if is_directory {
                pending.push(directory.join(OsStr::from_bytes(name.to_bytes())));
            }
        }
    }
    Ok(true)
}
