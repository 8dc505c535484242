//! Manifests: every file of a sandbox or a layer as it was when it was written out, to be compared with later.
//!
//! ```text
//!   upper ──seal──▶ syncfs ──▶ manifests/new-<mark> ──fsync──▶ manifests/<sandbox>     replaces the one before
//!   layer ──seal──▶            manifests/new-<mark> ──fsync──▶ manifests/<layer>       the first one stays
//!   manifest + tree ──check──▶ missing, added, changed, unreadable
//! ```
//! A manifest has, of every name: kind, mode, owner, time, attributes (capabilities and the overlay's own marks too), link
//! target, device number, which names are one file, where a file has holes, and the SHA-256 of its data. It names the
//! manifests of the layers below by their digests and ends with a digest of itself ([`form`]): whoever keeps that digest
//! elsewhere can prove all of it.
//!
//! Trees were made by hostile code and can have millions of names. So both sides stream: a manifest has names in the order
//! in which the filesystem lists them, and a check looks each of them up. Nothing in a tree is followed, and no pipe,
//! socket or device is opened. Access times, labels of the host's security module, overlayfs's work directories and
//! volumes are no part of it.

mod check;
mod entry;
mod form;
mod through;
mod write;

use std::fmt;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{CWD, RenameFlags, fsync, renameat_with};
use rustix::io::Errno;

use self::check::Check;
use self::form::Verified;
use self::through::{Reading, Through};
use super::layers::PARTS;
use super::{Error, HeldLayer, Store, list, open_directory, packages};
use crate::process;
use crate::spec::{LayerId, SandboxId, VolumeId};

/// What the name of an unfinished one begins with; the mark of its process follows.
const DRAFT: &str = "new-";

/// Problems that are told by name; the others are counted.
const TOLD: usize = 100;
/// Characters of a name that is told.
const NAME_TOLD: usize = 512;

/// Told of every name and of every piece of data that was read: how many more. A `Break` ends the work.
pub type Watch<'a> = &'a (dyn Fn(u64, u64) -> ControlFlow<()> + 'a);

/// The SHA-256 that a manifest ends with.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    pub const fn new(bytes: [u8; 32]) -> Digest {
        Digest(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = hex::FromHexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes)?;
        Ok(Digest(bytes))
    }
}

/// A manifest that is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    pub digest: Digest,
    /// Names: files, directories, links and all else.
    pub files: u64,
    /// Bytes of data, without holes.
    pub bytes: u64,
}

/// What a tree was compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Manifest,
    /// Its own name, which is a digest of its content.
    Name,
    /// Nothing: everything could be read. Where the filesystem has checksums of its own (btrfs), the data is what was written.
    Read,
    /// Nothing: every name could be looked at, and no data was read.
    Names,
}

/// What a layer is to be compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Against {
    /// The manifest with this digest.
    Manifest(Digest),
    /// Its manifest, where it has one.
    Own,
    /// As [`Against::Own`]; without a manifest its name, which is a digest of its content.
    Name,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemKind {
    Missing,
    Added,
    Changed,
    Unreadable,
    /// The manifest itself is gone, damaged, or another one.
    Manifest,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub kind: ProblemKind,
    /// As the sandbox sees it, with everything escaped that a terminal would obey; empty where it is about no name.
    pub path: String,
    /// What differs, or why it cannot be read.
    pub detail: String,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    pub how: How,
    /// Names that were looked at, and bytes of data that were read.
    pub files: u64,
    pub bytes: u64,
    pub missing: u64,
    pub added: u64,
    pub changed: u64,
    pub unreadable: u64,
    /// The first of them.
    pub problems: Vec<Problem>,
    /// The layers below, with the digests of their manifests; of a sandbox with a manifest alone.
    pub layers: Vec<(LayerId, Digest)>,
}

impl Checked {
    fn begin(how: How) -> Checked {
        Checked {
            how,
            files: 0,
            bytes: 0,
            missing: 0,
            added: 0,
            changed: 0,
            unreadable: 0,
            problems: Vec::new(),
            layers: Vec::new(),
        }
    }

    pub fn is_sound(&self) -> bool {
        self.problems.is_empty() && self.missing + self.added + self.changed + self.unreadable == 0
    }

    fn add(&mut self, kind: ProblemKind, path: &[u8], detail: impl Into<String>) {
        match kind {
            ProblemKind::Missing => self.missing += 1,
            ProblemKind::Added => self.added += 1,
            ProblemKind::Changed => self.changed += 1,
            ProblemKind::Unreadable => self.unreadable += 1,
            ProblemKind::Manifest => {}
        }
        if !self.is_full() {
            let path = if kind == ProblemKind::Manifest { String::new() } else { shown(path) };
            self.problems.push(Problem { kind, path, detail: detail.into() });
        }
    }

    /// Whether no more problems are told by name.
    fn is_full(&self) -> bool {
        self.problems.len() >= TOLD
    }

    fn no_manifest(why: impl Into<String>) -> Checked {
        let mut checked = Checked::begin(How::Manifest);
        checked.problems.push(Problem { kind: ProblemKind::Manifest, path: String::new(), detail: why.into() });
        checked
    }
}

/// A name for people: nothing in it steers a terminal, and no two names look the same.
fn shown(path: &[u8]) -> String {
    let path = if path.is_empty() { &b"/"[..] } else { path };
    let mut text = String::new();
    let mut count = 0;
    for chunk in path.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                letter if steers(letter) => text.push_str(&format!("\\u{{{:x}}}", u32::from(letter))),
                letter => text.push(letter),
            }
            count += 1;
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
            count += 1;
        }
        if count > NAME_TOLD {
            let end = text.char_indices().nth(NAME_TOLD).map_or(text.len(), |(at, _)| at);
            text.truncate(end);
            text.push('…');
            break;
        }
    }
    text
}

/// Control characters, ends of lines, and marks that change the direction of writing.
fn steers(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

pub(super) fn folder(top: &Path) -> PathBuf {
    top.join("manifests")
}

/// What crashes left: drafts of dead processes.
pub(super) fn sweep(top: &Path) -> Result<(), Error> {
    let folder = folder(top);
    for name in list(&folder)? {
        if name.strip_prefix(DRAFT).is_some_and(process::is_of_the_dead) {
            remove(&folder.join(name))?;
        }
    }
    Ok(())
}

/// The files that it was of are about to change, or to go.
pub(super) fn forget(top: &Path, name: &str) -> Result<(), Error> {
    remove(&folder(top).join(name))
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::at("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Gives a draft its name, on the disk when it returns.
fn name(draft: &Path, path: &Path, flags: RenameFlags) -> Result<(), Errno> {
    renameat_with(CWD, draft, CWD, path, flags)?;
    let folder = path.parent().unwrap_or(path);
    fsync(open_directory(CWD, folder)?)
}

fn open(path: &Path) -> Result<Option<File>, Error> {
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some).map_err(Error::at("open", path)),
    }
}

impl Store {
    /// Writes out all files of a sandbox and a manifest of them. No process of it may move meanwhile. The manifest names
    /// those of the layers below by their digests.
    pub fn seal(&self, id: &SandboxId, layers: &[(LayerId, Digest)], watch: Watch<'_>) -> Result<Sealed, Error> {
        let upper = self.existing(id)?;
        let (top, backing) = self.backing()?;
        backing.make_room()?;
        self.sync(id)?;
        let path = folder(top).join(id.as_str());
        let draft = write::draft(&upper, layers, &folder(top), watch)?;
        name(&draft.path, &path, RenameFlags::empty()).map_err(Error::at("name", &path))?;
        Ok(draft.sealed)
    }

    /// The manifest of a layer, written where it has none. A layer does not change, so the first one is the only one.
    pub fn seal_layer(&self, layer: &HeldLayer, watch: Watch<'_>) -> Result<Sealed, Error> {
        let (top, backing) = self.backing()?;
        let path = folder(top).join(layer.id.to_string());
        loop {
            if let Some(manifest) = open(&path)? {
                return match form::verify(&manifest).map_err(Error::at("read", &path))? {
                    Verified::Whole(sealed) => Ok(sealed),
                    Verified::Damaged(why) => Err(Error::Manifest {
                        what: format!("the manifest of layer {}", layer.id),
                        why: format!("it {why}; remove {} to have it written anew", path.display()),
                    }),
                };
            }
            backing.make_room()?;
            let draft = write::draft(&layer.path, &[], &folder(top), watch)?;
            match name(&draft.path, &path, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(draft.sealed),
                // Somebody else was quicker.
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(Error::at("name", &path)(errno)),
            }
        }
    }

    /// Compares a sandbox's files with its manifest; without a digest, reads all of them. No process of it may move
    /// meanwhile. Changes nothing.
    pub fn check(&self, id: &SandboxId, digest: Option<&Digest>, watch: Watch<'_>) -> Result<Checked, Error> {
        let upper = self.existing(id)?;
        let tree = open_directory(CWD, &upper).map_err(Error::at("open", &upper))?;
        let Some(digest) = digest else {
            return Through::of(How::Read, Reading::Everything, watch).parts(tree.as_fd());
        };
        let path = folder(&self.backing()?.0).join(id.as_str());
        self.compare(&path, tree.as_fd(), Some(digest), watch)
    }

    /// The same of a layer.
    pub fn check_layer(&self, layer: &HeldLayer, against: Against, watch: Watch<'_>) -> Result<Checked, Error> {
        let tree = open_directory(CWD, &layer.path).map_err(Error::at("open", &layer.path))?;
        let path = folder(&self.backing()?.0).join(layer.id.to_string());
        match against {
            Against::Manifest(digest) => self.compare(&path, tree.as_fd(), Some(&digest), watch),
            Against::Own | Against::Name if path.exists() => self.compare(&path, tree.as_fd(), None, watch),
            Against::Own => Through::of(How::Read, Reading::Everything, watch).parts(tree.as_fd()),
            Against::Name => {
                let mut checked = Through::of(How::Name, Reading::Everything, watch).parts(tree.as_fd())?;
                if checked.is_sound() && !packages::is_named_by(&layer.path, &layer.id)? {
                    checked.add(ProblemKind::Changed, b"", "its files are not those that its name is the digest of");
                }
                Ok(checked)
            }
        }
    }

    /// Whether every name of a volume can be looked at. Sandboxes may write to it meanwhile, so its data is not read.
    pub fn check_volume(&self, id: &VolumeId, watch: Watch<'_>) -> Result<Checked, Error> {
        let root = self.volume_root(id)?;
        Through::of(How::Names, Reading::Names, watch).all(root.as_fd())
    }

    fn compare(
        &self,
        path: &Path,
        tree: std::os::fd::BorrowedFd<'_>,
        digest: Option<&Digest>,
        watch: Watch<'_>,
    ) -> Result<Checked, Error> {
        let Some(manifest) = open(path)? else { return Ok(Checked::no_manifest("the manifest is not there")) };
        let sealed = match form::verify(&manifest) {
            Ok(Verified::Whole(sealed)) => sealed,
            Ok(Verified::Damaged(why)) => return Ok(Checked::no_manifest(format!("the manifest {why}"))),
            Err(error) => return Ok(Checked::no_manifest(format!("the manifest cannot be read: {error}"))),
        };
        if digest.is_some_and(|digest| *digest != sealed.digest) {
            let why = format!("the manifest is another one: its digest is {}", sealed.digest);
            return Ok(Checked::no_manifest(why));
        }
        Check::new(&manifest, watch).tree(tree, &PARTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_shown_so_that_no_terminal_obeys_it_and_no_two_look_the_same() {
        for (name, text) in [
            (&b""[..], "/"),
            (b"/etc/passwd", "/etc/passwd"),
            ("/ř 日本".as_bytes(), "/ř 日本"),
            (b"/a\nb\x1b[31m\\", "/a\\nb\\u{1b}[31m\\\\"),
            (b"/\xff\xfe", "/\\xff\\xfe"),
            ("/\u{202e}x".as_bytes(), "/\\u{202e}x"),
        ] {
            assert_eq!(shown(name), text);
        }
        let long = shown(&b"n".repeat(5000));
        assert_eq!((long.chars().count(), long.ends_with('…')), (NAME_TOLD + 1, true));
    }

    #[test]
    fn a_digest_survives_its_text() {
        let digest = Digest::new([0xab; 32]);
        assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest);
        assert!("ab".parse::<Digest>().is_err());
    }

    #[test]
    fn problems_are_counted_beyond_those_that_are_told() {
        let mut checked = Checked::begin(How::Manifest);
        for _ in 0..TOLD + 50 {
            checked.add(ProblemKind::Missing, b"/x", "");
        }
        assert_eq!((checked.problems.len(), checked.missing), (TOLD, TOLD as u64 + 50));
        assert!(!checked.is_sound());
    }
}
