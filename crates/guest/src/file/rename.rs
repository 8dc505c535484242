//! Moving, and symlinks, which are names too.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, chownat, copy_file_range, fchmod, fchown,
    fstat, ftruncate, futimens, mkdirat, mknodat, openat, readlinkat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::{Errno, pread, pwrite};

use super::actor::Actor;
use super::place::Place;
use super::remove::remove_tree;
use super::walk::Walk;
use super::write::random;
use super::{beneath, entry};
use crate::connection::Connection;
use crate::failure::{During, Result};
use crate::guest::Guest;

pub fn rename(guest: &Guest, connection: &mut Connection, from: &str, to: &str, user: Option<&str>) -> Result<()> {
    let actor = Actor::become_user(guest, user)?;
    let from = Place::find(&actor, from)?;
    let to = Place::find(&actor, to)?;
    let step = format!("move {} to {}", from.path, to.path);
    let (old, new) = (from.proper_name("move")?, to.proper_name("move")?);
    match renameat(&from.directory, old, &to.directory, new) {
        // Between filesystems, and for a directory of an overlay's lower layers, which overlayfs leaves to be copied.
        Err(Errno::XDEV) => move_by_copy(&from, &to).during(&step)?,
        other => other.during(&step)?,
    }
    entry::reply(connection, &actor, &to, "stat")
}

pub fn symlink(guest: &Guest, connection: &mut Connection, path: &str, target: &str, user: Option<&str>) -> Result<()> {
    let actor = Actor::become_user(guest, user)?;
    let place = Place::find(&actor, path)?;
    let name = place.proper_name("link")?;
    symlinkat(target, &place.directory, name).during(format!("link {} to {target}", place.path))?;
    entry::reply(connection, &actor, &place, "stat")
}

/// A whole copy first, which then takes the new name; only then the old one goes.
fn move_by_copy(from: &Place, to: &Place) -> std::result::Result<(), Errno> {
    let aside = CString::new(format!(".cove-moving-{:016x}", random())).map_err(|_| Errno::INVAL)?;
    let is_directory =
        |place: &Place| place.stat().map(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
    let moved = copy(&from.directory, &from.name, &to.directory, &aside)
        .and_then(|()| renameat(&to.directory, &aside, &to.directory, &to.name));
    if let Err(errno) = moved {
        if remove_tree(&to.directory, &aside).is_err() {
            let _ = unlinkat(&to.directory, &aside, AtFlags::empty());
        }
        return Err(errno);
    }
    if is_directory(from)? {
        remove_tree(&from.directory, &from.name)
    } else {
        unlinkat(&from.directory, &from.name, AtFlags::empty())
    }
}

/// Copies a file or a tree to a name that is not there yet.
fn copy(from: &OwnedFd, old: &CStr, to: &OwnedFd, new: &CStr) -> std::result::Result<(), Errno> {
    let stat = statat(from, old, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return copy_one(from, old, to, new, &stat);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let source = openat(from, old, flags, Mode::empty())?;
    mkdirat(to, new, Mode::RWXU)?;
    let target = openat(to, new, flags, Mode::empty())?;
    let mut walk = Walk::begin(&source, u32::MAX)?;
    let mut directories = vec![(b".".to_vec(), stat)];
    while let Some(found) = walk.advance() {
        let path = found.path_bytes().to_vec();
        let stat = statat(walk.directory(), &found.name, AtFlags::SYMLINK_NOFOLLOW)?;
        let (parent, _) = beneath::open_parent(&target, &path)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            mkdirat(&parent, &found.name, Mode::RWXU)?;
            directories.push((path, stat));
        } else {
            copy_one(walk.directory(), &found.name, &parent, &found.name, &stat)?;
        }
    }
    // The original goes when this is done: a part must not pass for the whole.
    if walk.is_cut_short() {
        return Err(Errno::NAMETOOLONG);
    }
    // Modes and times last, the deepest first: filling a directory needs rights and changes its time.
    for (path, stat) in directories.iter().rev() {
        let directory = openat(&target, path.as_slice(), flags, Mode::empty())?;
        settle(&directory, stat)?;
    }
    Ok(())
}

fn copy_one(from: impl AsFd, old: &CStr, to: impl AsFd, new: &CStr, stat: &Stat) -> std::result::Result<(), Errno> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => {
            symlinkat(&readlinkat(&from, old, Vec::new())?, &to, new)?;
            keep_owner(chownat(&to, new, owner(stat), group(stat), AtFlags::SYMLINK_NOFOLLOW))
        }
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let source = openat(&from, old, flags, Mode::empty())?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let target = openat(&to, new, flags, Mode::RUSR | Mode::WUSR)?;
            copy_bytes(&source, &target)?;
            settle(&target, stat)
        }
        FileType::Fifo => mknodat(&to, new, FileType::Fifo, Mode::from_raw_mode(stat.st_mode & 0o7777), 0),
        _ => Err(Errno::NOTSUP),
    }
}

fn copy_bytes(from: &OwnedFd, to: &OwnedFd) -> std::result::Result<(), Errno> {
    loop {
        match copy_file_range(from, None, to, None, 1 << 30) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            // Filesystems that cannot; nothing has been copied then.
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::NOTSUP | Errno::PERM) => break,
            Err(errno) => return Err(errno),
        }
    }
    let mut buffer = vec![0; 64 << 10];
    let mut offset = 0;
    loop {
        let count = match pread(from, buffer.as_mut_slice(), offset) {
            Ok(0) => break,
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        let mut bytes = buffer.get(..count).unwrap_or_default();
        if bytes.iter().all(|byte| *byte == 0) {
            bytes = &[];
        }
        let mut at = offset;
        while !bytes.is_empty() {
            let written = pwrite(to, bytes, at)?;
            bytes = bytes.get(written..).unwrap_or_default();
            at += written as u64;
        }
        offset += count as u64;
    }
    ftruncate(to, offset)
}

/// Owner, mode and times, in the order in which they do not undo each other.
fn settle(file: &OwnedFd, stat: &Stat) -> std::result::Result<(), Errno> {
    let now = fstat(file)?;
    if (now.st_uid, now.st_gid) != (stat.st_uid, stat.st_gid) {
        keep_owner(fchown(file, owner(stat), group(stat)))?;
    }
    fchmod(file, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    let time =
        |seconds, nanoseconds: u64| Timespec { tv_sec: seconds, tv_nsec: i64::try_from(nanoseconds).unwrap_or(0) };
    futimens(
        file,
        &Timestamps {
            last_access: time(stat.st_atime, stat.st_atime_nsec),
            last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
        },
    )
}

/// A user who may not change owners keeps the files, as with mv(1).
fn keep_owner(outcome: std::result::Result<(), Errno>) -> std::result::Result<(), Errno> {
    if outcome == Err(Errno::PERM) { Ok(()) } else { outcome }
}

fn owner(stat: &Stat) -> Option<Uid> {
    Some(Uid::from_raw(stat.st_uid))
}

fn group(stat: &Stat) -> Option<Gid> {
    Some(Gid::from_raw(stat.st_gid))
}
