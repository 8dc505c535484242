//! One name of a tree: all that is known of it without its data.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    FileType, Mode, OFlags, Stat, fgetxattr, flistxattr, flistxattr_query, lgetxattr, llistxattr, llistxattr_query,
    openat, readlinkat,
};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::storage::sparse::Parts;

/// The largest value of an attribute, and the largest list of their names (limits.h).
const ATTRIBUTE: usize = 65_536;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub name: Vec<u8>,
    /// Without the kind.
    pub mode: u32,
    pub owner: u32,
    pub group: u32,
    /// Seconds and nanoseconds.
    pub modified: (i64, u64),
    /// By name.
    pub attributes: Vec<Attribute>,
    pub kind: Kind,
}

/// An extended attribute. Values are large and many, so only their digests are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attribute {
    pub name: Vec<u8>,
    pub digest: [u8; 32],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// What is in it follows.
    Directory,
    File {
        size: u64,
        links: Option<Links>,
        /// What is no hole; `None` where it has none.
        parts: Option<Parts>,
        /// Of the data, without holes.
        digest: [u8; 32],
    },
    Link {
        target: Vec<u8>,
        links: Option<Links>,
    },
    Pipe {
        links: Option<Links>,
    },
    Socket {
        links: Option<Links>,
    },
    /// A whiteout is number 0. Overlayfs makes names of one inode of them as it likes, so their links are not noted.
    Character {
        number: u64,
    },
    Block {
        number: u64,
    },
}

/// A file with several names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Links {
    pub count: u64,
    /// The same for all of them.
    pub inode: u64,
}

impl Kind {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Kind::Directory => "a directory",
            Kind::File { .. } => "a file",
            Kind::Link { .. } => "a symbolic link",
            Kind::Pipe { .. } => "a pipe",
            Kind::Socket { .. } => "a socket",
            Kind::Character { number: 0 } => "a whiteout",
            Kind::Character { .. } | Kind::Block { .. } => "a device",
        }
    }

    pub(super) fn links(&self) -> Option<Links> {
        match self {
            Kind::File { links, .. } | Kind::Link { links, .. } | Kind::Pipe { links } | Kind::Socket { links } => {
                *links
            }
            Kind::Directory | Kind::Character { .. } | Kind::Block { .. } => None,
        }
    }
}

/// What was found under a name.
pub(super) struct Looked {
    pub entry: Entry,
    /// A directory, or a file to read its data from. Parts and digest of a file are not known yet.
    pub opened: Option<OwnedFd>,
}

/// Looks at a name. Nothing is followed; only files and directories are opened.
pub(super) fn look(parent: BorrowedFd<'_>, name: &CStr, told: &Stat) -> Result<Looked, Errno> {
    let links = (told.st_nlink > 1).then_some(Links { count: told.st_nlink, inode: told.st_ino });
    let size = u64::try_from(told.st_size).unwrap_or(0);
    let (kind, opened) = match FileType::from_raw_mode(told.st_mode) {
        FileType::Directory => (Kind::Directory, Some(open(parent, name, OFlags::DIRECTORY)?)),
        FileType::RegularFile => {
            let kind = Kind::File { size, links, parts: None, digest: [0; 32] };
            (kind, Some(open(parent, name, OFlags::NONBLOCK)?))
        }
        FileType::Symlink => {
            let target = readlinkat(parent, name, Vec::new())?.into_bytes();
            (Kind::Link { target, links }, None)
        }
        FileType::Fifo => (Kind::Pipe { links }, None),
        FileType::Socket => (Kind::Socket { links }, None),
        FileType::CharacterDevice => (Kind::Character { number: told.st_rdev }, None),
        FileType::BlockDevice => (Kind::Block { number: told.st_rdev }, None),
        FileType::Unknown => return Err(Errno::INVAL),
    };
    let place = match &opened {
        Some(opened) => Place::Open(opened.as_fd()),
        None => Place::named(parent, name),
    };
    let entry = Entry {
        name: name.to_bytes().to_vec(),
        mode: told.st_mode & 0o7777,
        owner: told.st_uid,
        group: told.st_gid,
        modified: (told.st_mtime, told.st_mtime_nsec),
        attributes: attributes(&place)?,
        kind,
    };
    Ok(Looked { entry, opened })
}

/// To read. Where we may, without a trace in the access time.
pub(super) fn open(parent: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    match openat(parent, name, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => openat(parent, name, flags, Mode::empty()),
        other => other,
    }
}

/// Where attributes are read from.
enum Place<'a> {
    Open(BorrowedFd<'a>),
    Path(Vec<u8>),
}

impl Place<'_> {
    /// Of what must not be opened. The kernel has no call that takes a directory and a name before Linux 6.13.
    fn named(parent: BorrowedFd<'_>, name: &CStr) -> Place<'static> {
        let mut path = format!("/proc/self/fd/{}/", parent.as_raw_fd()).into_bytes();
        path.extend_from_slice(name.to_bytes());
        Place::Path(path)
    }

    fn list(&self) -> Result<Vec<u8>, Errno> {
        let length = match self {
            Place::Open(file) => flistxattr_query(file),
            Place::Path(path) => llistxattr_query(path),
        };
        match length {
            Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(errno) => return Err(errno),
        }
        let mut list = vec![0; ATTRIBUTE];
        let length = match self {
            Place::Open(file) => flistxattr(file, &mut list[..]),
            Place::Path(path) => llistxattr(path, &mut list[..]),
        };
        list.truncate(length?);
        Ok(list)
    }

    fn value(&self, name: &[u8], value: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Place::Open(file) => fgetxattr(file, name, value),
            Place::Path(path) => lgetxattr(path, name, value),
        }
    }
}

/// What a sandbox, or the overlay, has set. Labels of the host's security module (`security.selinux`, `security.ima`) are
/// the host's business and change with its policy.
fn is_noted(name: &[u8]) -> bool {
    name == b"security.capability" || [&b"user."[..], b"trusted.", b"system."].iter().any(|kind| name.starts_with(kind))
}

fn attributes(place: &Place<'_>) -> Result<Vec<Attribute>, Errno> {
    let list = place.list()?;
    let mut noted = Vec::new();
    if list.is_empty() {
        return Ok(noted);
    }
    let mut value = vec![0; ATTRIBUTE];
    for name in list.split(|byte| *byte == 0).filter(|name| is_noted(name)) {
        let length = match place.value(name, &mut value) {
            Err(Errno::NODATA) => continue,
            other => other?,
        };
        noted.push(Attribute { name: name.to_vec(), digest: Sha256::digest(&value[..length]).into() });
    }
    noted.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(noted)
}
