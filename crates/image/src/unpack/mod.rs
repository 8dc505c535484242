//! Layers onto one tree, by descriptor.
//!
//! A layer is a tar of a stranger, and the server unpacks it as root. Three rules hold against it:
//! * **Nothing lands outside.** Every name is resolved from the tree's descriptor with openat2(2) `RESOLVE_IN_ROOT`: links
//!   on the way are followed inside the tree (`lib/x` over `/lib → usr/lib` lands in `usr/lib`), the last name never.
//! * **Everything has a limit that is counted while it is decoded:** bytes, entries, records per entry, depth, time.
//! * **Nothing in the tree means more than a file.** No devices; no attributes that overlayfs or the host would obey.
//!
//! ```text
//!  bytes ─▶ deadline ─▶ gzip │ zstd │ plain ─▶ limit, digest ─▶ tar ─▶ entry ─▶ tree
//!                       (first bytes decide)                      └──▶ whiteout ─▶ removal
//! ```
//!
//! Layers are applied in order onto one tree, and whiteouts really delete. What an entry does is in `layer.rs`.

mod attributes;
mod budget;
mod decode;
mod layer;
mod place;
mod remove;

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::digest::{Digest, Hashing};
use crate::tar;
use budget::{Budget, Counted};

pub use budget::Timed;
pub use decode::Decoder;

/// How much all layers of one tree may be together.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Decoded bytes of all layers, and the sizes of all files with their holes.
    pub bytes: u64,
    pub entries: u64,
    /// Headers, names and attributes of one entry.
    pub metadata: u64,
    /// Bytes of one name with its folders.
    pub path: usize,
    /// Folders within each other.
    pub depth: usize,
    pub deadline: Option<Instant>,
}

impl Limits {
    /// Whether there is time left.
    pub(crate) fn look(&self) -> Result<(), Limit> {
        budget::in_time(self.deadline)
    }
}

/// Whose the files of a tree are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Owners {
    /// As the image says.
    #[default]
    Kept,
    /// Whoever unpacks: an ordinary user cannot give files away.
    Caller,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { bytes: 64 << 30, entries: 4_000_000, metadata: 4 << 20, path: 4096, depth: 256, deadline: None }
    }
}

/// Which limit an image reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Limit {
    #[error("the image is larger than {0} bytes when unpacked")]
    Bytes(u64),
    #[error("the image has more than {0} entries")]
    Entries(u64),
    #[error("unpacking the image takes too long")]
    Time,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The image's fault: this entry of it.
    #[error("unpack {entry}: {why}")]
    Refused { entry: String, why: String },
    /// The image's fault: its stream.
    #[error("unpack a layer: {0}")]
    Broken(String),
    #[error("{0}")]
    Limit(Limit),
    #[error("the layer unpacks to {found}, its image says {expected}")]
    OtherContent { found: Digest, expected: Digest },
    /// The disk, or the quota of the tree, is full.
    #[error("unpack {entry}: no space left: {errno}")]
    Full { entry: String, errno: Errno },
    /// The host's fault.
    #[error("unpack {entry}: {errno}")]
    Host { entry: String, errno: Errno },
}

/// What became of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The digest of the decoded tar.
    pub diff_id: Digest,
    /// Its bytes.
    pub bytes: u64,
    pub entries: u64,
    pub skipped: Skipped,
}

/// What a layer had and the tree has not. Worth a line in a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Device nodes: a sandbox has its own `/dev`.
    pub devices: u64,
    /// Extended attributes that only the host or an overlay would obey, or that the filesystem cannot hold.
    pub attributes: u64,
    /// Entries whose owner is beyond a sandbox's 65,536 ids: they belong to nobody (65,534). With [`Owners::Caller`] also
    /// those of anybody but root.
    pub owners: u64,
}

impl std::ops::AddAssign for Skipped {
    fn add_assign(&mut self, other: Self) {
        self.devices += other.devices;
        self.attributes += other.attributes;
        self.owners += other.owners;
    }
}

/// A tree that layers are applied to. After an error it is of no use: the caller removes it.
pub struct Tree {
    root: OwnedFd,
    limits: Limits,
    budget: Budget,
    owners: Owners,
}

impl Tree {
    /// `root` is a directory that nobody else writes to.
    pub fn new(root: OwnedFd, limits: Limits) -> Result<Self, Error> {
        let failed = |errno| Error::Host { entry: "/".into(), errno };
        let told = rustix::fs::fstat(&root).map_err(failed)?;
        if FileType::from_raw_mode(told.st_mode) != FileType::Directory {
            return Err(failed(Errno::NOTDIR));
        }
        let budget = Budget::new(&limits);
        Ok(Tree { root, limits, budget, owners: Owners::default() })
    }

    /// Whose its files become.
    pub fn with_owners(self, owners: Owners) -> Self {
        Tree { owners, ..self }
    }

    /// Applies a layer, compressed or not. With `expected`, it is an error if the decoded tar has another digest.
    pub fn apply(&mut self, layer: impl Read, expected: Option<&Digest>) -> Result<Applied, Error> {
        let timed = Timed::new(layer, self.limits.deadline);
        let decoder = Decoder::new(timed).map_err(stream)?;
        let hashing = Hashing::new(Counted::new(decoder, &self.budget));
        let mut reader = tar::Reader::new(hashing, self.limits.metadata);
        let mut layer = layer::Layer::new(self.root.as_fd(), &self.limits, &self.budget, self.owners)?;
        let mut entries = 0;
        while let Some(entry) = reader.next_entry().map_err(broken)? {
            self.budget.entry().map_err(Error::Limit)?;
            entries += 1;
            layer.entry(entry, &mut reader)?;
        }
        let skipped = layer.finish()?;
        // Whatever follows the end of the archive belongs to the digest.
        let mut rest = reader.into_inner();
        io::copy(&mut rest, &mut io::sink()).map_err(stream)?;
        let found = rest.digest();
        match expected {
            Some(expected) if *expected != found => Err(Error::OtherContent { found, expected: *expected }),
            _ => Ok(Applied { diff_id: found, bytes: rest.bytes, entries, skipped }),
        }
    }
}

/// A failed read: one of the limits, or the stream itself.
fn stream(error: io::Error) -> Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Limit>()) {
        Some(limit) => Error::Limit(*limit),
        None => Error::Broken(error.to_string()),
    }
}

fn broken(error: tar::Error) -> Error {
    match error {
        tar::Error::Io(error) => stream(error),
        other => Error::Broken(other.to_string()),
    }
}

#[cfg(test)]
mod tests;
