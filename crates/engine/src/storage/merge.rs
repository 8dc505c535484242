//! One layer out of two: what a stack of both would show, in one tree.
//!
//! The upper layer is laid into a copy of the lower one as overlayfs reads it: a whiteout (character device 0/0) takes a name
//! away, a directory marked opaque hides what was in the one below, directories join, anything else replaces. The
//! marks stay, because there may be more below; a tree that lies on nothing loses them at the end ([`drop_marks`]). Both
//! trees were written by sandboxes: no link in them is followed.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, Stat, XattrFlags, fgetxattr, fremovexattr, fsetxattr, fstat, mkdirat, statat,
};
use rustix::io::Errno;

use super::copy::{Copier, directory_facts};
use super::layers::{HeldLayer, PARTS};
use super::{Error, open_directory, trash};

/// Overlays of sandboxes are mounted with `userxattr`.
const OPAQUE: &str = "user.overlay.opaque";

/// Two descriptors are held per level.
const DEEPEST: usize = 256;

/// Lays a layer over what is in the directory `lower`, which becomes both.
pub(super) fn apply(upper: &HeldLayer, lower: &Path) -> Result<(), Error> {
    Copier::into(lower, |copier, target| {
        for name in PARTS {
            let Some(part) = upper.part(name)? else { continue };
            match mkdirat(target, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(Error::at("make", &lower.join(name))(errno)),
            }
            let below = open_directory(target, name).map_err(Error::at("open", &lower.join(name)))?;
            let merged = || -> Result<(), Errno> {
                directory(copier, part.as_fd(), below.as_fd(), 0)?;
                let name = CString::new(name).map_err(|_| Errno::INVAL)?;
                directory_facts(upper.directory(), target, &name, &fstat(&part)?)
            };
            merged().map_err(Error::at("merge into", &lower.join(name)))?;
        }
        Ok(())
    })
}

fn directory(copier: &Copier, from: BorrowedFd<'_>, to: BorrowedFd<'_>, depth: usize) -> Result<(), Errno> {
    if depth > DEEPEST {
        return Err(Errno::NAMETOOLONG);
    }
    for name in names(from)? {
        let told = statat(from, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        let there = match statat(to, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => None,
            other => Some(other?),
        };
        let is = |told: &Stat, kind| FileType::from_raw_mode(told.st_mode) == kind;
        let both = is(&told, FileType::Directory) && there.as_ref().is_some_and(|there| is(there, FileType::Directory));
        if !both {
            trash::delete_at(to, &name)?;
            copier.entry(from, to, &name, depth)?;
            // It hid what lies further below; a directory in its place must too.
            if there.is_some() && is(&told, FileType::Directory) {
                make_opaque(open_directory(to, name.as_c_str())?.as_fd())?;
            }
            continue;
        }
        let (above, below) = (open_directory(from, name.as_c_str())?, open_directory(to, name.as_c_str())?);
        if is_opaque(above.as_fd())? {
            trash::clear(below.as_fd())?;
        }
        directory(copier, above.as_fd(), below.as_fd(), depth + 1)?;
        // Last: what is put into a directory changes its time.
        directory_facts(from, to, &name, &told)?;
    }
    Ok(())
}

/// A tree with nothing below it: whiteouts and opaque marks mean nothing and would only be seen.
pub(super) fn drop_marks(tree: &Path) -> Result<(), Error> {
    for name in PARTS.map(|name| tree.join(name)) {
        match open_directory(CWD, &name) {
            Err(Errno::NOENT) => {}
            opened => opened.and_then(|part| unmark(&part, 0)).map_err(Error::at("settle", &name))?,
        }
    }
    Ok(())
}

fn unmark(opened: &OwnedFd, depth: usize) -> Result<(), Errno> {
    if depth > DEEPEST {
        return Err(Errno::NAMETOOLONG);
    }
    match fremovexattr(opened, OPAQUE) {
        Ok(()) | Err(Errno::NODATA) => {}
        Err(errno) => return Err(errno),
    }
    for name in names(opened.as_fd())? {
        let told = statat(opened, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(told.st_mode) {
            FileType::CharacterDevice if told.st_rdev == 0 => trash::delete_at(opened.as_fd(), &name)?,
            FileType::Directory => unmark(&open_directory(opened, name.as_c_str())?, depth + 1)?,
            _ => {}
        }
    }
    Ok(())
}

/// Read first: the directory changes meanwhile.
fn names(directory: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    let mut entries = Dir::read_from(directory)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

fn is_opaque(directory: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut value = [0; 2];
    match fgetxattr(directory, OPAQUE, &mut value[..]) {
        Ok(length) => Ok(&value[..length] == b"y"),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn make_opaque(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    fsetxattr(directory, OPAQUE, b"y", XattrFlags::empty())
}
