//! Writing a file.
//!
//! A replaced file is written beside the old one and takes its name in one step, with the old one's mode and owner.
//! Where that cannot be done with the user's rights (the directory is not the user's, or the owner could not be
//! kept) the file is written in place.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use cove_protocol::file::WriteMode;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, fchmod, fchown, fstat, ftruncate, linkat, renameat_with,
    unlinkat,
};
use rustix::io::{Errno, pwrite};
use rustix::process::{Gid, Uid};

use super::actor::Actor;
use super::place::{Place, open_beneath, refuse_kernels, require_regular};
use super::{entry, make_directory};
use crate::connection::Connection;
use crate::failure::{During, Result, from_errno, invalid};
use crate::guest::Guest;

/// A file that takes a new name when it is whole. Watchers know these names: see [`super::watch`].
pub const NEW: &str = ".cove-new-";
/// The same, where it replaces another.
pub const REPLACING: &str = ".cove-replacing-";

const NEW_MODE: u32 = 0o644;

/// Zeros are looked for in stretches of this size.
const HOLE: usize = 64 << 10;
/// A shorter stretch is not worth a hole.
const SMALLEST_HOLE: usize = 4 << 10;

pub struct Wanted<'a> {
    pub path: &'a str,
    pub user: Option<&'a str>,
    pub how: WriteMode,
    pub mode: Option<u32>,
    pub parents: Parents,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parents {
    Make,
    Expect,
}

impl Parents {
    pub fn of(make: bool) -> Self {
        if make { Parents::Make } else { Parents::Expect }
    }
}

pub fn write(guest: &Guest, connection: &mut Connection, wanted: &Wanted<'_>) -> Result<()> {
    let actor = Actor::become_user(guest, wanted.user)?;
    if wanted.parents == Parents::Make {
        make_directory::make_parents(&actor, wanted.path)?;
    }
    let shown = Place::find(&actor, wanted.path)?;
    let place = Place::find(&actor, wanted.path)?.through_links()?;
    let mut target = Target::open(&place, wanted.how, wanted.mode)?;
    while let Some(bytes) = connection.data()? {
        target.write(bytes).during(format!("write {}", place.path))?;
    }
    target.finish().during(format!("write {}", place.path))?;
    let mut seen = entry::entry(&actor, &place, "stat")?;
    seen.path.clone_from(&shown.path);
    seen.name = entry::describe(&place.stat().during("stat")?, &shown.path, &actor.users.names()).name;
    connection.reply(&cove_protocol::Reply::Entry { entry: seen })
}

/// A file being written.
pub struct Target<'a> {
    place: &'a Place,
    file: OwnedFd,
    offset: u64,
    sparse: bool,
    beside: Option<Beside>,
}

/// The file has this name until it is whole.
struct Beside {
    name: CString,
    claim: Claim,
}

/// What happens to a file that has the name when the new one is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// It was there and is replaced.
    Replaces,
    /// There was none; a file that was made meanwhile is replaced.
    New,
    /// A file that was made meanwhile stays, and this one is dropped.
    OnlyNew,
}

impl<'a> Target<'a> {
    pub fn open(place: &'a Place, how: WriteMode, mode: Option<u32>) -> Result<Target<'a>> {
        let path = &place.path;
        let name = place.proper_name("write")?;
        let old = match place.stat() {
            Ok(stat) => {
                require_regular(&stat, path, "write")?;
                Some(stat)
            }
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(from_errno(errno, format!("write {path}"))),
        };
        let mode_bits = Mode::from_raw_mode(mode.unwrap_or(NEW_MODE) & 0o7777);
        let in_place = |flags: OFlags, offset| {
            let flags = flags | OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
            let file = open_beneath(&place.directory, name, flags, mode_bits).during(format!("write {path}"))?;
            refuse_kernels(&file, path)?;
            require_regular(&fstat(&file).during(format!("write {path}"))?, path, "write")?;
            Ok(Target { place, file, offset, sparse: false, beside: None })
        };
        match (how, old) {
            (WriteMode::Create, Some(_)) => Err(from_errno(Errno::EXIST, format!("create {path}"))),
            (WriteMode::Append, _) => in_place(OFlags::APPEND, 0).map(|mut target| {
                target.offset = fstat(&target.file).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
                target
            }),
            (WriteMode::At(offset), _) => {
                if i64::try_from(offset).is_err() {
                    return Err(invalid(format!("write {path}: no file reaches offset {offset}")));
                }
                in_place(OFlags::empty(), offset)
            }
            (WriteMode::InPlace, _) => in_place(OFlags::TRUNC, 0),
            (WriteMode::Create, None) => {
                Self::beside(place, Claim::OnlyNew, None, mode_bits).during(format!("create {path}"))
            }
            (WriteMode::Replace, None) => {
                Self::beside(place, Claim::New, None, mode_bits).during(format!("write {path}"))
            }
            (WriteMode::Replace, Some(old)) => {
                // A user who may not write the old file may not replace it either.
                let writable = open_beneath(&place.directory, name, OFlags::WRONLY | OFlags::NOFOLLOW, Mode::empty());
                refuse_kernels(&writable.during(format!("write {path}"))?, path)?;
                match Self::beside(place, Claim::Replaces, Some(&old), Mode::from_raw_mode(old.st_mode & 0o7777)) {
                    Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::NAMETOOLONG) => in_place(OFlags::TRUNC, 0),
                    other => other.during(format!("write {path}")),
                }
            }
        }
    }

    fn beside(
        place: &'a Place,
        claim: Claim,
        old: Option<&Stat>,
        mode: Mode,
    ) -> std::result::Result<Target<'a>, Errno> {
        let prefix = if old.is_some() { REPLACING } else { NEW };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let (name, file) = loop {
            let name = CString::new(format!("{prefix}{:016x}", random())).map_err(|_| Errno::INVAL)?;
            match open_beneath(&place.directory, &name, flags, Mode::RUSR | Mode::WUSR) {
                Err(Errno::EXIST) => {}
                other => break (name, other?),
            }
        };
        let target = Target { place, file, offset: 0, sparse: true, beside: Some(Beside { name, claim }) };
        if let Some(old) = old {
            let ours = fstat(&target.file)?;
            if (ours.st_uid, ours.st_gid) != (old.st_uid, old.st_gid) {
                fchown(&target.file, Some(Uid::from_raw(old.st_uid)), Some(Gid::from_raw(old.st_gid)))?;
            }
        }
        // After the change of owner, which takes setuid and setgid away.
        fchmod(&target.file, mode)?;
        Ok(target)
    }

    /// Appends bytes; a stretch of zeros becomes a hole where the file is new.
    pub fn write(&mut self, bytes: &[u8]) -> std::result::Result<(), Errno> {
        if !self.sparse {
            return self.put(bytes);
        }
        // Data between two holes is written in one call.
        let mut solid = 0;
        for (at, stretch) in bytes.chunks(HOLE).enumerate() {
            if stretch.len() >= SMALLEST_HOLE && stretch.iter().all(|byte| *byte == 0) {
                let begin = at * HOLE;
                self.put(bytes.get(solid..begin).unwrap_or_default())?;
                self.offset = self.offset.saturating_add(stretch.len() as u64);
                solid = begin + stretch.len();
            }
        }
        self.put(bytes.get(solid..).unwrap_or_default())
    }

    fn put(&mut self, mut bytes: &[u8]) -> std::result::Result<(), Errno> {
        while !bytes.is_empty() {
            match pwrite(&self.file, bytes, self.offset) {
                Ok(count) => {
                    self.offset = self.offset.saturating_add(count as u64);
                    bytes = bytes.get(count..).unwrap_or_default();
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// The file takes its place.
    pub fn finish(mut self) -> std::result::Result<(), Errno> {
        if self.sparse {
            ftruncate(&self.file, self.offset)?;
        }
        let Some(Beside { name, claim }) = &self.beside else { return Ok(()) };
        let Place { directory, name: wanted, .. } = self.place;
        let rename = |flags| renameat_with(directory, name, directory, wanted, flags);
        let first = if *claim == Claim::Replaces { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        let named = match (rename(first), claim) {
            (Err(Errno::EXIST), Claim::New) if self.is_replaceable() => rename(RenameFlags::empty()),
            // Filesystems without the flag; a link takes no other's name either.
            (Err(Errno::INVAL), Claim::OnlyNew) => {
                return linkat(directory, name, directory, wanted, AtFlags::empty());
            }
            (Err(Errno::INVAL), _) => rename(RenameFlags::empty()),
            (other, _) => other,
        };
        if named.is_ok() {
            self.beside = None;
        }
        named
    }

    fn is_replaceable(&self) -> bool {
        self.place.stat().is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
    }
}

impl Drop for Target<'_> {
    /// Nothing remains of a write that was cut off.
    fn drop(&mut self) {
        if let Some(Beside { name, .. }) = &self.beside {
            let _ = unlinkat(&self.place.directory, name, AtFlags::empty());
        }
    }
}

/// Unpredictable names, so that nobody can prepare them.
pub fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // Before the kernel's pool is ready the clock will do: names are made exclusively anyway.
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_nanos() & u128::from(u64::MAX)).unwrap_or(0)),
    }
}
