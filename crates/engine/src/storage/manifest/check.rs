//! Compares a tree with its manifest. Changes nothing.
//!
//! The manifest leads: each of its names is looked up, so what is missing or changed is found in one pass. What was added
//! shows in the number of names that a directory has; only then is the directory compared name by name, some tens of
//! thousands at a time.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Advice, AtFlags, Dir, fadvise, statat};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::entry::{Entry, Kind, Looked, look};
use super::form::{Reader, Record, wrong};
use super::write::{Failed, PIECE, pieces, place_of, sum};
use super::{Checked, How, ProblemKind, Watch};
use crate::storage::Error;
use crate::storage::sparse::{self, Parts};

/// Names of one directory that are held at one time: 16 bytes each.
const AT_ONCE: u64 = 1 << 16;
/// Files with several names whose inodes are remembered. Of more than these only the number of names is compared.
const GROUPS: usize = 1 << 18;

pub(super) struct Check<'a> {
    manifest: &'a File,
    watch: Watch<'a>,
    checked: Checked,
    buffer: Vec<u8>,
    /// Where we are, as the sandbox sees it.
    path: Vec<u8>,
    /// Which inode stands for that of the manifest.
    groups: HashMap<u64, u64>,
}

/// A directory that is being compared.
struct Level {
    directory: OwnedFd,
    /// Where its names begin in the manifest.
    begins: u64,
    /// How many names the manifest has in it, and how many of them are there.
    named: u64,
    there: u64,
    /// The length of the path before it.
    before: usize,
}

/// What a name of the manifest is in the tree.
enum Stands {
    Gone,
    There,
    /// A directory as in the manifest, to be entered.
    Open(OwnedFd),
}

impl<'a> Check<'a> {
    pub(super) fn new(manifest: &'a File, watch: Watch<'a>) -> Check<'a> {
        Check {
            manifest,
            watch,
            checked: Checked::begin(How::Manifest),
            buffer: vec![0; PIECE],
            path: Vec::new(),
            groups: HashMap::new(),
        }
    }

    /// Compares these folders of a tree.
    pub(super) fn tree(mut self, tree: BorrowedFd<'_>, parts: &[&str]) -> Result<Checked, Error> {
        match self.walk(tree, parts) {
            Ok(()) => Ok(self.checked),
            Err(Trouble::Interrupted) => Err(Error::Interrupted),
            // Its checksum holds, so it was written like that, or its disk fails.
            Err(Trouble::Manifest(error)) => {
                let why = format!("the manifest cannot be read: {error}");
                self.checked.add(ProblemKind::Manifest, b"", why);
                Ok(self.checked)
            }
        }
    }

    fn walk(&mut self, tree: BorrowedFd<'_>, parts: &[&str]) -> Result<(), Trouble> {
        let mut reader = Reader::new(self.manifest, 0);
        self.checked.layers = reader.header()?;
        let (mut levels, mut seen): (Vec<Level>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
        loop {
            match reader.record()? {
                Record::Entry(entry) => {
                    let before = self.path.len();
                    match levels.last() {
                        Some(_) => {
                            self.path.push(b'/');
                            self.path.extend_from_slice(&entry.name);
                        }
                        None => {
                            seen.push(entry.name.clone());
                            self.path = place_of(&entry.name);
                        }
                    }
                    let parent = levels.last().map_or(tree, |level| level.directory.as_fd());
                    let stands = self.name(parent, &entry)?;
                    if let Some(level) = levels.last_mut() {
                        level.named += 1;
                        level.there += u64::from(!matches!(stands, Stands::Gone));
                    }
                    match stands {
                        Stands::Open(directory) => {
                            let begins = reader.position();
                            levels.push(Level { directory, begins, named: 0, there: 0, before });
                            continue;
                        }
                        Stands::Gone if entry.kind == Kind::Directory => self.checked.missing += reader.skip()?,
                        Stands::There if entry.kind == Kind::Directory => {
                            reader.skip()?;
                        }
                        Stands::Gone | Stands::There => {}
                    }
                    self.path.truncate(before);
                }
                Record::Leave => {
                    let level = levels.pop().ok_or_else(|| wrong("it leaves a directory that it was not in"))?;
                    self.leave(&level)?;
                    self.path.truncate(level.before);
                }
                Record::End if levels.is_empty() => break,
                Record::End => return Err(wrong("it ends inside of a directory").into()),
            }
        }
        if !reader.is_over()? {
            return Err(wrong("something follows its end").into());
        }
        for part in parts.iter().filter(|part| !seen.iter().any(|name| name == part.as_bytes())) {
            let name = CString::new(*part).unwrap_or_default();
            if statat(tree, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                self.checked.add(ProblemKind::Added, &place_of(part.as_bytes()), "");
            }
        }
        Ok(())
    }

    /// Compares one name.
    fn name(&mut self, parent: BorrowedFd<'_>, noted: &Entry) -> Result<Stands, Trouble> {
        self.checked.files += 1;
        if (self.watch)(1, 0).is_break() {
            return Err(Trouble::Interrupted);
        }
        let name = CString::new(noted.name.clone()).map_err(|_| wrong("a name that no file has"))?;
        let told = match statat(parent, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {
                self.checked.add(ProblemKind::Missing, &self.path, format!("it was {}", noted.kind.word()));
                return Ok(Stands::Gone);
            }
            other => other,
        };
        let looked = told.and_then(|told| look(parent, &name, &told));
        let Looked { entry, opened } = match looked {
            Ok(looked) => looked,
            Err(errno) => {
                self.unreadable(errno);
                return Ok(Stands::There);
            }
        };
        if std::mem::discriminant(&entry.kind) != std::mem::discriminant(&noted.kind) {
            let detail = format!("it was {}, and is {}", noted.kind.word(), entry.kind.word());
            self.checked.add(ProblemKind::Changed, &self.path, detail);
            return Ok(Stands::There);
        }
        let mut differs = self.differences(noted, &entry);
        let (directory, file) = match opened {
            Some(opened) if entry.kind == Kind::Directory => (Some(opened), None),
            opened => (None, opened.map(File::from)),
        };
        if let (Some(file), false) = (file, differs.contains(&"size")) {
            match self.is_same_data(noted, &file) {
                Ok(true) => {}
                Ok(false) => differs.push("content"),
                Err(Failed::Interrupted) => return Err(Trouble::Interrupted),
                Err(Failed::Read(error)) => self.unreadable(error),
            }
        }
        if !differs.is_empty() {
            self.checked.add(ProblemKind::Changed, &self.path, differs.join(", "));
        }
        Ok(directory.map_or(Stands::There, Stands::Open))
    }

    fn differences(&mut self, noted: &Entry, found: &Entry) -> Vec<&'static str> {
        let mut differs = Vec::new();
        let mut say = |is_so: bool, word: &'static str| differs.extend(is_so.then_some(word));
        say(noted.mode != found.mode, "mode");
        say((noted.owner, noted.group) != (found.owner, found.group), "owner");
        say(noted.modified != found.modified, "time");
        say(noted.attributes != found.attributes, "attributes");
        match (&noted.kind, &found.kind) {
            (Kind::File { size, .. }, Kind::File { size: now, .. }) => say(size != now, "size"),
            (Kind::Link { target, .. }, Kind::Link { target: now, .. }) => say(target != now, "target"),
            (Kind::Character { number }, Kind::Character { number: now })
            | (Kind::Block { number }, Kind::Block { number: now }) => say(number != now, "device"),
            _ => {}
        }
        let same_links = match (noted.kind.links(), found.kind.links()) {
            (None, None) => true,
            (Some(noted), Some(found)) => noted.count == found.count && self.is_group(noted.inode, found.inode),
            _ => false,
        };
        say(!same_links, "links");
        differs
    }

    /// Whether the names of one file of the manifest are names of one file in the tree, whatever its number is there.
    fn is_group(&mut self, noted: u64, found: u64) -> bool {
        match self.groups.get(&noted) {
            Some(inode) => *inode == found,
            None => {
                if self.groups.len() < GROUPS {
                    self.groups.insert(noted, found);
                }
                true
            }
        }
    }

    fn is_same_data(&mut self, noted: &Entry, file: &File) -> Result<bool, Failed> {
        let Kind::File { size, parts, digest, .. } = &noted.kind else { return Ok(true) };
        // From the disk, not from memory, where the kernel does as it is asked.
        let _ = fadvise(file, 0, None, Advice::DontNeed);
        let whole = vec![(0, *size)];
        let data = parts.as_ref().unwrap_or(&whole);
        let (bytes, watch) = (sparse::total(data), self.watch);
        if sum(file, data, &mut self.buffer, watch)? != *digest {
            return Ok(false);
        }
        self.checked.bytes += bytes;
        match parts {
            None => Ok(true),
            // What were holes must read as zeros, whether they are holes still or not.
            Some(parts) => {
                let now = sparse::parts(file, *size).map_err(Failed::Read)?;
                let mut zeros = true;
                pieces(file, &outside(&now, parts), &mut self.buffer, watch, |piece| {
                    zeros = piece.iter().all(|byte| *byte == 0);
                    if zeros { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                })?;
                Ok(zeros)
            }
        }
    }

    /// All names of a directory were compared: has it others?
    fn leave(&mut self, level: &Level) -> Result<(), Trouble> {
        let mut counted = 0_u64;
        if let Err(errno) = each_name(level.directory.as_fd(), |_| counted += 1) {
            self.unreadable(errno);
            return Ok(());
        }
        let Some(more) = counted.checked_sub(level.there).filter(|more| *more > 0) else { return Ok(()) };
        let before = self.checked.added;
        if !self.checked.is_full() {
            self.name_additions(level)?;
        }
        self.checked.added = before + more;
        Ok(())
    }

    fn name_additions(&mut self, level: &Level) -> Result<(), Trouble> {
        let rounds = u128::from(level.named / AT_ONCE + 1);
        for round in 0..rounds {
            let mut known = HashSet::new();
            let mut reader = Reader::new(self.manifest, level.begins);
            loop {
                match reader.record()? {
                    Record::Entry(entry) => {
                        let key = key_of(&entry.name);
                        if key % rounds == round {
                            known.insert(key);
                        }
                        if entry.kind == Kind::Directory {
                            reader.skip()?;
                        }
                    }
                    Record::Leave => break,
                    Record::End => return Err(wrong("it ends inside of a directory").into()),
                }
            }
            let (checked, path) = (&mut self.checked, &self.path);
            let listed = each_name(level.directory.as_fd(), |name| {
                let key = key_of(name.to_bytes());
                if key % rounds == round && !known.contains(&key) {
                    let path = [&path[..], &b"/"[..], name.to_bytes()].concat();
                    checked.add(ProblemKind::Added, &path, "");
                }
            });
            if let Err(errno) = listed {
                self.unreadable(errno);
                break;
            }
            if self.checked.is_full() {
                break;
            }
        }
        Ok(())
    }

    fn unreadable(&mut self, error: impl Into<io::Error>) {
        let error: io::Error = error.into();
        self.checked.add(ProblemKind::Unreadable, &self.path, error.to_string());
    }
}

/// Why a comparison did not come to its end.
enum Trouble {
    Manifest(io::Error),
    Interrupted,
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Manifest(error)
    }
}

fn each_name(directory: BorrowedFd<'_>, mut act: impl FnMut(&CStr)) -> Result<(), Errno> {
    let mut names = Dir::read_from(directory)?;
    while let Some(name) = names.read() {
        let name = name?;
        if name.file_name() != c"." && name.file_name() != c".." {
            act(name.file_name());
        }
    }
    Ok(())
}

/// Nobody finds two names with the same one.
fn key_of(name: &[u8]) -> u128 {
    let digest: [u8; 32] = Sha256::digest(name).into();
    u128::from_le_bytes(std::array::from_fn(|place| digest[place]))
}

/// What the first list has and the second has not; both are in order.
fn outside(list: &Parts, without: &Parts) -> Parts {
    let mut rest = Parts::new();
    let mut skip = without.iter().peekable();
    for (offset, length) in list {
        let (mut at, end) = (*offset, offset + length);
        while at < end {
            match skip.peek() {
                Some((from, size)) if from + size <= at => {
                    skip.next();
                }
                Some((from, size)) if *from <= at => at = end.min(from + size),
                Some((from, _)) if *from < end => {
                    rest.push((at, from - at));
                    at = *from;
                }
                _ => {
                    rest.push((at, end - at));
                    at = end;
                }
            }
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_outside_of_other_parts_is_found() {
        let list = vec![(0, 10), (20, 10), (40, 10)];
        assert_eq!(outside(&list, &vec![]), list);
        assert_eq!(outside(&list, &list), []);
        assert_eq!(outside(&list, &vec![(0, 100)]), []);
        assert_eq!(outside(&list, &vec![(5, 20), (42, 2)]), [(0, 5), (25, 5), (40, 2), (44, 6)]);
        assert_eq!(outside(&vec![(10, 5)], &vec![(0, 2), (4, 2), (12, 1)]), [(10, 2), (13, 2)]);
    }
}
