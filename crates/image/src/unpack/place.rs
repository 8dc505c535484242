//! Where a name leads: inside the tree, or nowhere.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{Mode, OFlags, ResolveFlags, fchmod, fchown, fstat, mkdirat, openat, openat2};
use rustix::io::Errno;

use super::Limits;

/// A directory that entries are put into.
pub(super) struct Folder {
    pub fd: OwnedFd,
    /// Tells it from all others of the tree.
    pub inode: u64,
}

/// What is done where a folder is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    Make,
    Leave,
}

/// Why there is no folder.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// A sentence about the image.
    Refused(&'static str),
    Host(Errno),
}

impl From<Errno> for NoPlace {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::LOOP => NoPlace::Refused("its folder is a link that leads in a circle"),
            Errno::NOTDIR => NoPlace::Refused("what should be its folder is none"),
            Errno::XDEV => NoPlace::Refused("its folder is on another filesystem"),
            Errno::NAMETOOLONG => NoPlace::Refused("a part of its name is longer than 255 bytes"),
            other => NoPlace::Host(other),
        }
    }
}

/// The parts of a name as the tree takes it: relative, without `.` and empty ones. `..` is refused.
pub(super) fn plain<'a>(path: &'a [u8], limits: &Limits) -> Result<Vec<&'a [u8]>, &'static str> {
    if path.len() > limits.path {
        return Err("its name is too long");
    }
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
    if parts.iter().any(|part| *part == b"..") {
        return Err("its name leads upwards (..)");
    }
    match parts.len() > limits.depth {
        true => Err("it lies too deep"),
        false => Ok(parts),
    }
}

const LOOK: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// The kernel answers EAGAIN where it cannot tell whether a `..` escaped: something was renamed or mounted meanwhile,
/// anywhere on the host (openat2(2)).
const ATTEMPTS: usize = 1000;

pub(super) struct Places<'a> {
    top: BorrowedFd<'a>,
    root: Rc<Folder>,
    /// What `..` leads to at last.
    identity: (u64, u64),
    depth: usize,
    /// Neighbours in an archive are mostly in one folder.
    last: RefCell<Option<(Vec<u8>, Rc<Folder>)>>,
}

impl<'a> Places<'a> {
    pub fn new(top: BorrowedFd<'a>, depth: usize) -> Result<Self, Errno> {
        let fd = openat(top, ".", LOOK, Mode::empty())?;
        let told = fstat(&fd)?;
        let root = Rc::new(Folder { fd, inode: told.st_ino });
        Ok(Places { top, root, identity: (told.st_dev, told.st_ino), depth, last: RefCell::new(None) })
    }

    /// The tree itself.
    pub fn root(&self) -> Rc<Folder> {
        Rc::clone(&self.root)
    }

    /// The directory with these parts; links are followed within the tree.
    pub fn folder(&self, parts: &[&[u8]], missing: Missing) -> Result<Option<Rc<Folder>>, NoPlace> {
        if parts.is_empty() {
            return Ok(Some(self.root()));
        }
        let path = parts.join(&b'/');
        if let Some((last, folder)) = &*self.last.borrow()
            && *last == path
        {
            return Ok(Some(Rc::clone(folder)));
        }
        let fd = match (self.resolve(&path), missing) {
            (Err(NoPlace::Host(Errno::NOENT)), Missing::Leave) => return Ok(None),
            (Err(NoPlace::Host(Errno::NOENT)), Missing::Make) => self.make(parts)?,
            (other, _) => other?,
        };
        let folder = Rc::new(Folder { inode: fstat(&fd)?.st_ino, fd });
        *self.last.borrow_mut() = Some((path, Rc::clone(&folder)));
        Ok(Some(folder))
    }

    /// Something was removed: it may have been on the way to the last folder.
    pub fn forget(&self) {
        *self.last.borrow_mut() = None;
    }

    fn resolve(&self, path: &[u8]) -> Result<OwnedFd, NoPlace> {
        let here = ResolveFlags::IN_ROOT | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
        match self.open(path, here | ResolveFlags::NO_SYMLINKS) {
            Err(Errno::LOOP) => {}
            other => return Ok(other?),
        }
        // Through links a folder can be deeper than its name says, without end.
        let fd = self.open(path, here)?;
        self.check_depth(fd.as_fd())?;
        Ok(fd)
    }

    fn open(&self, path: &[u8], resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
        for _ in 0..ATTEMPTS {
            match openat2(self.top, path, LOOK, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
        Err(Errno::AGAIN)
    }

    fn check_depth(&self, folder: BorrowedFd<'_>) -> Result<(), NoPlace> {
        let mut at = openat(folder, ".", LOOK, Mode::empty())?;
        // The entry itself is one deeper than its folder.
        for _ in 0..self.depth {
            let told = fstat(&at)?;
            if (told.st_dev, told.st_ino) == self.identity {
                return Ok(());
            }
            at = openat(&at, "..", LOOK, Mode::empty())?;
        }
        Err(NoPlace::Refused("it lies too deep"))
    }

    /// Makes what is missing: root's, open to all. What is there stays as it is.
    fn make(&self, parts: &[&[u8]]) -> Result<OwnedFd, NoPlace> {
        let mut at = openat(&self.root.fd, ".", LOOK, Mode::empty())?;
        for count in 1..=parts.len() {
            let so_far = parts.get(..count).unwrap_or_default();
            let path = so_far.join(&b'/');
            at = match (self.resolve(&path), so_far.last()) {
                (Err(NoPlace::Host(Errno::NOENT)), Some(name)) => {
                    match mkdirat(&at, *name, Mode::RWXU) {
                        Err(Errno::EXIST) => {
                            return Err(NoPlace::Refused("its folder is a link that leads to nothing"));
                        }
                        other => other?,
                    }
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let made = openat(&at, *name, flags, Mode::empty())?;
                    // The folder above may hand its group down (S_ISGID), and the umask takes bits away.
                    fchown(&made, Some(rustix::fs::Uid::ROOT), Some(rustix::fs::Gid::ROOT))?;
                    fchmod(&made, Mode::from_raw_mode(0o755))?;
                    self.check_depth(made.as_fd())?;
                    made
                }
                (other, _) => other?,
            };
        }
        Ok(at)
    }
}
