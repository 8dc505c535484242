//! Removing files and trees.
//!
//! A tree is emptied directory by directory, each opened in the one above without following symlinks, so a link
//! exchanged for a directory meanwhile is removed as a link. A tree may be deeper than there are descriptors:
//! directories that are too deep are moved to the top first.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd};

use cove_protocol::Reply;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

use super::actor::Actor;
use super::place::Place;
use super::write::random;
use crate::connection::Connection;
use crate::failure::{During, Result};
use crate::guest::Guest;

/// Levels held open at a time.
const DEEPEST: usize = 128;

/// How often a directory that others keep filling is emptied again.
const PATIENCE: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// A file, or a directory that is empty.
    One,
    Tree,
}

impl Extent {
    pub fn of(recursive: bool) -> Self {
        if recursive { Extent::Tree } else { Extent::One }
    }
}

pub fn remove(
    guest: &Guest,
    connection: &mut Connection,
    path: &str,
    user: Option<&str>,
    extent: Extent,
) -> Result<()> {
    let actor = Actor::become_user(guest, user)?;
    let place = Place::find(&actor, path)?;
    let name = place.proper_name("remove")?;
    let step = format!("remove {}", place.path);
    let stat = place.stat().during(&step)?;
    match (FileType::from_raw_mode(stat.st_mode), extent) {
        (FileType::Directory, Extent::One) => unlinkat(&place.directory, name, AtFlags::REMOVEDIR).during(&step)?,
        (FileType::Directory, Extent::Tree) => remove_tree(&place.directory, name).during(&step)?,
        _ => unlinkat(&place.directory, name, AtFlags::empty()).during(&step)?,
    }
    connection.reply(&Reply::Done)
}

struct Level {
    directory: Dir,
    name: CString,
    turns: usize,
}

/// Removes a directory with everything in it. It is no error if the directory is already gone.
pub fn remove_tree(above: impl AsFd, name: &CStr) -> std::result::Result<(), Errno> {
    let above = above.as_fd();
    let top = match open_level(above, name) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let mut levels = vec![Level { directory: top, name: name.to_owned(), turns: 0 }];
    // Directories that were moved up to the top count as progress, however many.
    let mut moved_up = false;
    while let Some(level) = levels.last_mut() {
        let entry = level.directory.read().transpose()?;
        let Some(entry) = entry else {
            let Some(mut emptied) = levels.pop() else { break };
            let parent = levels.last().map_or(Ok(above), |level| level.directory.fd())?;
            match unlinkat(parent, &emptied.name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::NOTEMPTY) if emptied.turns < PATIENCE || (levels.is_empty() && moved_up) => {
                    emptied.turns += 1;
                    moved_up &= !levels.is_empty();
                    emptied.directory = open_level(parent, &emptied.name)?;
                    levels.push(emptied);
                }
                Err(errno) => return Err(errno),
            }
            continue;
        };
        let name = entry.file_name();
        if name.to_bytes() == b"." || name.to_bytes() == b".." {
            continue;
        }
        let Some(level) = levels.last() else { break };
        let directory = level.directory.fd()?;
        if kind(directory, name, entry.file_type()) != FileType::Directory {
            forgive(unlinkat(directory, name, AtFlags::empty()))?;
            continue;
        }
        if levels.len() < DEEPEST {
            let child = match open_level(directory, name) {
                Ok(child) => child,
                Err(Errno::NOENT) => continue,
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    // Became something else since.
                    forgive(unlinkat(directory, name, AtFlags::empty()))?;
                    continue;
                }
                Err(errno) => {
                    // One that cannot be read may still be empty.
                    unlinkat(directory, name, AtFlags::REMOVEDIR).map_err(|_| errno)?;
                    continue;
                }
            };
            levels.push(Level { directory: child, name: name.to_owned(), turns: 0 });
        } else {
            let top = levels.first().map_or(Ok(above), |level| level.directory.fd())?;
            let unused = CString::new(format!(".cove-deep-{:016x}", random())).map_err(|_| Errno::INVAL)?;
            forgive(renameat(directory, name, top, &unused))?;
            moved_up = true;
        }
    }
    Ok(())
}

fn kind(directory: BorrowedFd<'_>, name: &CStr, told: FileType) -> FileType {
    if told != FileType::Unknown {
        return told;
    }
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_or(told, |stat| FileType::from_raw_mode(stat.st_mode))
}

/// Already removed by somebody else: nothing to do.
fn forgive(outcome: std::result::Result<(), Errno>) -> std::result::Result<(), Errno> {
    if outcome == Err(Errno::NOENT) { Ok(()) } else { outcome }
}

fn open_level(above: impl AsFd, name: &CStr) -> std::result::Result<Dir, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Dir::new(openat(above, name, flags, Mode::empty())?)
}
