//! Deleting what a sandbox left, however it was left.
//!
//! The tree was made by hostile code: it may be a hundred thousand directories deep, contain links to the host, and
//! directories without any permission. So no link is followed, one descriptor is open per level, and what is deeper
//! than [`DEEPEST`] is moved to the top first, which keeps the depth, the stack and the descriptors bounded.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, chmodat, openat, renameat_with, unlinkat};
use rustix::io::Errno;

use super::Error;

const DEEPEST: usize = 64;

/// Deletes `path` and all below it. Gone already is fine.
pub(super) fn delete(path: &Path) -> Result<(), Error> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let delete = || -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let parent = openat(rustix::fs::CWD, parent, flags, Mode::empty())?;
        delete_at(parent.as_fd(), &CString::new(name.as_encoded_bytes()).map_err(|_| Errno::INVAL)?)
    };
    delete().map_err(Error::at("delete", path))
}

/// The same of a name in an open directory.
pub(super) fn delete_at(parent: BorrowedFd<'_>, name: &CString) -> Result<(), Errno> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(Errno::NOENT) | Ok(()) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    let delete = || {
        let mut moved = 0;
        // Each round empties the tree or has moved deeper parts up to its top for the next.
        loop {
            let top = open_directory(parent, name)?;
            let before = moved;
            empty(top.as_fd(), top.as_fd(), 0, &mut moved)?;
            if moved == before {
                return unlinkat(parent, name, AtFlags::REMOVEDIR);
            }
        }
    };
    match delete() {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Opens a directory to read it, giving ourselves the right first where its owner took it away.
fn open_directory(parent: BorrowedFd<'_>, name: &CString) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match openat(parent, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
            openat(parent, name, flags, Mode::empty())
        }
        other => other,
    }
}

fn empty(top: BorrowedFd<'_>, directory: BorrowedFd<'_>, depth: usize, moved: &mut u64) -> Result<(), Errno> {
    let mut entries = Dir::read_from(directory)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let name = name.to_owned();
        let is_directory = match entry.file_type() {
            FileType::Directory => true,
            FileType::Unknown => match unlinkat(directory, &name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => continue,
                Err(Errno::ISDIR | Errno::PERM) => true,
                Err(errno) => return Err(errno),
            },
            _ => false,
        };
        if !is_directory {
            remove(directory, &name, AtFlags::empty())?;
        } else if depth >= DEEPEST {
            move_up(directory, &name, top, moved)?;
        } else {
            let inner = open_directory(directory, &name)?;
            let before = *moved;
            empty(top, inner.as_fd(), depth + 1, moved)?;
            // What was moved to the top may have the name of something there; the next round sees it.
            match remove(directory, &name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY) if *moved != before => {}
                other => other?,
            }
        }
    }
    Ok(())
}

/// Deletes what is in a directory; the directory stays.
pub(super) fn clear(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut moved = 0;
    loop {
        let before = moved;
        empty(directory, directory, 0, &mut moved)?;
        if moved == before {
            return Ok(());
        }
    }
}

/// Under a free name: an interrupted deletion may have left some at the top, and so may the sandbox.
fn move_up(directory: BorrowedFd<'_>, name: &CString, top: BorrowedFd<'_>, moved: &mut u64) -> Result<(), Errno> {
    loop {
        *moved += 1;
        match renameat_with(directory, name, top, format!(".deep-{moved}"), RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            other => return other,
        }
    }
}

fn remove(directory: BorrowedFd<'_>, name: &CString, flags: AtFlags) -> Result<(), Errno> {
    match unlinkat(directory, name, flags) {
        Err(Errno::ACCESS) => {
            // The directory we are in may lack the right to change it.
            rustix::fs::fchmod(directory, Mode::RWXU)?;
            unlinkat(directory, name, flags)
        }
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, mkdirat, symlinkat};

    #[test]
    fn links_to_the_host_are_removed_and_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("precious"), "x").unwrap();
        let tree = folder.path().join("tree");
        std::fs::create_dir_all(tree.join("a/b")).unwrap();
        std::fs::write(tree.join("a/file"), "x").unwrap();
        symlinkat(&outside, CWD, tree.join("a/b/link")).unwrap();
        delete(&tree).unwrap();
        assert!(!tree.exists());
        assert!(outside.join("precious").exists());
        delete(&tree).expect("gone already is fine");
    }

    #[test]
    fn a_tree_deeper_than_any_stack_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        make_deep(&tree);
        delete(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn a_deletion_that_was_cut_short_is_finished() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        for name in [".deep-1", ".deep-2/file", "deep"] {
            std::fs::create_dir_all(tree.join(name)).unwrap();
        }
        make_deep(&tree.join("deep"));
        make_deep(&tree.join(".deep-1"));
        delete(&tree).unwrap();
        assert!(!tree.exists());
    }

    fn make_deep(tree: &Path) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = openat(CWD, tree, flags, Mode::empty()).unwrap();
        for _ in 0..5000 {
            mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = openat(&at, "d", flags, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn a_file_where_a_directory_is_expected_goes_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "x").unwrap();
        delete(&path).unwrap();
        assert!(!path.exists());
    }
}
