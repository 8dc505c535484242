//! One layer: what each of its entries does to the tree.
//!
//! | entry | effect |
//! |---|---|
//! | directory over directory | they merge, with the new owner, mode and attributes |
//! | anything else over anything | replaces it |
//! | hard link | to a file of this layer or of one below |
//! | `.wh.NAME` | NAME of the layers below is gone |
//! | `.wh..wh..opq` | everything in the folder that is from the layers below is gone |
//! | other `.wh..wh.*` | nothing: aufs kept its own data there |
//! | device | takes the place of what was there, and is left out |
//! | folders that no entry names | made as root's, 0755, if they are not there |

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, fchmod, fchown,
    fsetxattr, futimens, linkat, mkdirat, mknodat, openat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::attributes;
use super::budget::Budget;
use super::place::{Folder, Missing, NoPlace, Places, plain};
use super::remove::{Stuck, Written};
use super::{Error, Limits, Owners, Skipped, stream};
use crate::tar::{Entry, Kind, Reader, Time};

/// A sandbox's range of ids, and who owns what is beyond it.
const IDS: u64 = 65_536;
const NOBODY: u32 = 65_534;

const WHITEOUT: &[u8] = b".wh.";
const AUFS: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// A hole is left for each such block of zeros; smaller ones would only split the file.
const BLOCK: usize = 64 << 10;
const BUFFER: usize = 4 * BLOCK;
/// How many bytes of names of directories are kept, to set their times when nothing is added any more.
const PENDING: usize = 32 << 20;

pub(super) struct Layer<'a> {
    limits: &'a Limits,
    budget: &'a Budget,
    places: Places<'a>,
    written: Written<'a>,
    pending: Vec<(Vec<u8>, Time)>,
    pending_bytes: usize,
    buffer: Vec<u8>,
    skipped: Skipped,
    owners: Owners,
}

/// What went wrong with an entry; its name is added outside.
enum Failed {
    Refused(&'static str),
    Host(Errno),
    Whole(Error),
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Failed::Host(errno)
    }
}

impl From<&'static str> for Failed {
    fn from(why: &'static str) -> Self {
        Failed::Refused(why)
    }
}

impl From<NoPlace> for Failed {
    fn from(reason: NoPlace) -> Self {
        match reason {
            NoPlace::Refused(why) => Failed::Refused(why),
            NoPlace::Host(errno) => Failed::Host(errno),
        }
    }
}

impl From<Stuck> for Failed {
    fn from(reason: Stuck) -> Self {
        match reason {
            Stuck::Host(errno) => Failed::Host(errno),
            Stuck::Limit(limit) => Failed::Whole(Error::Limit(limit)),
        }
    }
}

impl Failed {
    fn at(self, path: &[u8]) -> Error {
        let entry = String::from_utf8_lossy(path).chars().take(256).collect();
        match self {
            Failed::Refused(why) => Error::Refused { entry, why: why.to_owned() },
            // Names, links and counts of links beyond what any filesystem holds are the image's doing.
            Failed::Host(Errno::NAMETOOLONG) => {
                Error::Refused { entry, why: "a part of its name is longer than 255 bytes".into() }
            }
            Failed::Host(Errno::MLINK) => Error::Refused { entry, why: "its file has too many hard links".into() },
            Failed::Host(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => Error::Full { entry, errno },
            Failed::Host(errno) => Error::Host { entry, errno },
            Failed::Whole(error) => error,
        }
    }
}

impl<'a> Layer<'a> {
    pub fn new(top: BorrowedFd<'a>, limits: &'a Limits, budget: &'a Budget, owners: Owners) -> Result<Self, Error> {
        let places = Places::new(top, limits.depth).map_err(|errno| Error::Host { entry: "/".into(), errno })?;
        Ok(Layer {
            limits,
            budget,
            places,
            written: Written::new(budget),
            pending: Vec::new(),
            pending_bytes: 0,
            buffer: vec![0; BUFFER],
            skipped: Skipped::default(),
            owners,
        })
    }

    /// Applies an entry, whose data is read from `data`.
    pub fn entry<R: Read>(&mut self, entry: Entry, data: &mut Reader<R>) -> Result<(), Error> {
        self.apply(&entry, data).map_err(|failed| failed.at(&entry.path))
    }

    /// Sets the times of directories: nothing is added to them any more.
    pub fn finish(mut self) -> Result<Skipped, Error> {
        self.settle().map_err(|failed| failed.at(b"/"))?;
        Ok(self.skipped)
    }

    fn apply<R: Read>(&mut self, entry: &Entry, data: &mut Reader<R>) -> Result<(), Failed> {
        let parts = plain(&entry.path, self.limits)?;
        let Some((name, folders)) = parts.split_last() else {
            return match entry.kind {
                Kind::Directory => self.top(entry),
                _ => Err("only a directory can be the root".into()),
            };
        };
        if parts.iter().any(|part| part.starts_with(AUFS) && *part != OPAQUE) {
            return Ok(());
        }
        if folders.iter().any(|part| part.starts_with(WHITEOUT)) {
            return Err("it lies in a whiteout (.wh.), which is no folder".into());
        }
        if *name == OPAQUE {
            return self.opaque(folders);
        }
        if let Some(name) = name.strip_prefix(WHITEOUT) {
            return self.white_out(folders, name);
        }
        let folder = self.places.folder(folders, Missing::Make)?.ok_or(Errno::NOENT)?;
        self.make(entry, data, &folder, &c_name(name)?)?;
        self.written.note(folder.inode, name);
        if entry.kind == Kind::Directory {
            self.pending_bytes += entry.path.len() + size_of::<(Vec<u8>, Time)>();
            self.pending.push((entry.path.clone(), entry.modified));
            if self.pending_bytes > PENDING {
                self.settle()?;
            }
        }
        Ok(())
    }

    fn top(&mut self, entry: &Entry) -> Result<(), Failed> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(&self.places.root().fd, ".", flags, Mode::empty())?;
        self.dress(fd.as_fd(), entry)?;
        self.pending.push((Vec::new(), entry.modified));
        Ok(())
    }

    fn opaque(&mut self, folders: &[&[u8]]) -> Result<(), Failed> {
        let Some(folder) = self.places.folder(folders, Missing::Leave)? else { return Ok(()) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(&folder.fd, ".", flags, Mode::empty())?;
        self.places.forget();
        Ok(self.written.clear(folder)?)
    }

    fn white_out(&mut self, folders: &[&[u8]], name: &[u8]) -> Result<(), Failed> {
        if matches!(name, b"" | b"." | b"..") {
            return Err("it is a whiteout of nothing".into());
        }
        let Some(folder) = self.places.folder(folders, Missing::Leave)? else { return Ok(()) };
        self.places.forget();
        Ok(self.written.white_out(folder.fd.as_fd(), folder.inode, &c_name(name)?)?)
    }

    fn make<R: Read>(
        &mut self,
        entry: &Entry,
        data: &mut Reader<R>,
        folder: &Rc<Folder>,
        name: &CStr,
    ) -> Result<(), Failed> {
        match entry.kind {
            Kind::Directory => self.directory(entry, folder, name),
            Kind::HardLink => self.hard_link(entry, folder, name),
            Kind::File => {
                self.budget.file(entry.size).map_err(|limit| Failed::Whole(Error::Limit(limit)))?;
                self.clear_way(folder, name)?;
                self.file(entry, data, folder, name)
            }
            Kind::Symlink => {
                if entry.link.is_empty() || entry.link.len() > 4095 {
                    return Err("its link has no target, or one that is too long".into());
                }
                self.clear_way(folder, name)?;
                symlinkat(entry.link.as_slice(), &folder.fd, name)?;
                self.skipped.attributes += entry.attributes.len() as u64;
                self.finish_node(entry, folder, name)
            }
            Kind::Fifo => {
                self.clear_way(folder, name)?;
                mknodat(&folder.fd, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
                self.skipped.attributes += entry.attributes.len() as u64;
                chmod_later(entry, folder, name)?;
                self.finish_node(entry, folder, name)
            }
            Kind::CharacterDevice | Kind::BlockDevice => {
                self.clear_way(folder, name)?;
                self.skipped.devices += 1;
                Ok(())
            }
            Kind::Other(_) => Err("entries of its type are unknown here".into()),
        }
    }

    fn directory(&mut self, entry: &Entry, folder: &Rc<Folder>, name: &CStr) -> Result<(), Failed> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match openat(&folder.fd, name, flags, Mode::empty()) {
            // ELOOP: it is a link, wherever that leads.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                self.clear_way(folder, name)?;
                mkdirat(&folder.fd, name, Mode::RWXU)?;
                openat(&folder.fd, name, flags, Mode::empty())?
            }
            other => other?,
        };
        self.dress(fd.as_fd(), entry)
    }

    fn file<R: Read>(
        &mut self,
        entry: &Entry,
        data: &mut Reader<R>,
        folder: &Rc<Folder>,
        name: &CStr,
    ) -> Result<(), Failed> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(&folder.fd, name, flags, Mode::RUSR | Mode::WUSR)?);
        let whole = [(0, entry.size)];
        let parts = entry.parts.as_deref().unwrap_or(&whole);
        let mut end = 0;
        for (offset, length) in parts {
            end = self.pour(data, &file, *offset, *length)?.unwrap_or(end);
        }
        if end < entry.size {
            // It ends with a hole.
            rustix::fs::ftruncate(&file, entry.size)?;
        }
        self.dress(file.as_fd(), entry)?;
        Ok(futimens(&file, &times(entry.modified))?)
    }

    /// Writes what is not zero. Returns where that ends, if anything was.
    fn pour<R: Read>(
        &mut self,
        data: &mut Reader<R>,
        file: &File,
        offset: u64,
        length: u64,
    ) -> Result<Option<u64>, Failed> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let poured = pour(data, file, offset, length, &mut buffer);
        self.buffer = buffer;
        poured
    }

    fn hard_link(&mut self, entry: &Entry, folder: &Rc<Folder>, name: &CStr) -> Result<(), Failed> {
        let gone = "its hard link leads to nothing";
        let parts = plain(&entry.link, self.limits)?;
        let (target, folders) = parts.split_last().ok_or("its hard link leads to a directory")?;
        let there = match self.places.folder(folders, Missing::Leave) {
            Ok(there) => there.ok_or(gone)?,
            Err(NoPlace::Refused(_)) => return Err(gone.into()),
            Err(other) => return Err(other.into()),
        };
        let target = c_name(target)?;
        let told = match statat(&there.fd, &target, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Err(gone.into()),
            other => other?,
        };
        if FileType::from_raw_mode(told.st_mode) == FileType::Directory {
            return Err("its hard link leads to a directory".into());
        }
        if there.inode == folder.inode && target.as_c_str() == name {
            return Ok(());
        }
        self.clear_way(folder, name)?;
        // Without AT_SYMLINK_FOLLOW: a link to a symlink is another name of the symlink.
        match linkat(&there.fd, &target, &folder.fd, name, AtFlags::empty()) {
            // What was in the way had the target in it.
            Err(Errno::NOENT) => Err(gone.into()),
            other => Ok(other?),
        }
    }

    /// Removes what is under the name: never written through, since it may be a link, or have other names.
    fn clear_way(&mut self, folder: &Rc<Folder>, name: &CStr) -> Result<(), Failed> {
        match unlinkat(&folder.fd, name, AtFlags::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR) => self.written.remove_tree(folder.fd.as_fd(), name)?,
            other => other?,
        }
        self.places.forget();
        Ok(())
    }

    /// Owner, mode and attributes, in this order: chown(2) takes set-user-id and capabilities away.
    fn dress(&mut self, fd: BorrowedFd<'_>, entry: &Entry) -> Result<(), Failed> {
        if let Some((user, group)) = self.owner(entry) {
            fchown(fd, Some(user), Some(group))?;
        }
        fchmod(fd, Mode::from_raw_mode(entry.mode))?;
        for (name, value) in &entry.attributes {
            let Some(value) = attributes::kept(name, value) else {
                self.skipped.attributes += 1;
                continue;
            };
            match fsetxattr(fd, name.as_str(), &value, XattrFlags::empty()) {
                Ok(()) => {}
                // What one file's attributes may be differs between filesystems; a full one shows with the next file.
                Err(Errno::NOSPC | Errno::TOOBIG | Errno::RANGE | Errno::OPNOTSUPP | Errno::INVAL)
                    if name != attributes::CAPABILITY =>
                {
                    self.skipped.attributes += 1;
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Owner and time of what cannot be opened.
    fn finish_node(&mut self, entry: &Entry, folder: &Rc<Folder>, name: &CStr) -> Result<(), Failed> {
        if let Some((user, group)) = self.owner(entry) {
            chownat(&folder.fd, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(utimensat(&folder.fd, name, &times(entry.modified), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Who it is given to; `None` if it stays the caller's.
    fn owner(&mut self, entry: &Entry) -> Option<(Uid, Gid)> {
        if self.owners == Owners::Caller {
            self.skipped.owners += u64::from((entry.user, entry.group) != (0, 0));
            return None;
        }
        let within = |id: u64| u32::try_from(id).ok().filter(|_| id < IDS);
        if within(entry.user).is_none() || within(entry.group).is_none() {
            self.skipped.owners += 1;
        }
        let id = |id| within(id).unwrap_or(NOBODY);
        Some((Uid::from_raw(id(entry.user)), Gid::from_raw(id(entry.group))))
    }

    fn settle(&mut self) -> Result<(), Failed> {
        self.pending_bytes = 0;
        // The inner ones first would not matter: setting a time changes no other directory.
        for (path, time) in std::mem::take(&mut self.pending) {
            self.budget.look().map_err(|limit| Failed::Whole(Error::Limit(limit)))?;
            let parts = plain(&path, self.limits)?;
            let Some((name, folders)) = parts.split_last() else {
                utimensat(&self.places.root().fd, ".", &times(time), AtFlags::empty())?;
                continue;
            };
            // A later entry may have put something else there, or a link on the way to it.
            let Ok(Some(folder)) = self.places.folder(folders, Missing::Leave) else { continue };
            match utimensat(&folder.fd, *name, &times(time), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// The mode of a node that was just made: it is no link.
fn chmod_later(entry: &Entry, folder: &Rc<Folder>, name: &CStr) -> Result<(), Errno> {
    chmodat(&folder.fd, name, Mode::from_raw_mode(entry.mode), AtFlags::empty())
}

fn pour<R: Read>(
    data: &mut Reader<R>,
    file: &File,
    offset: u64,
    length: u64,
    buffer: &mut [u8],
) -> Result<Option<u64>, Failed> {
    let (mut at, mut left, mut end) = (offset, length, None);
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let piece = buffer.get_mut(..most).unwrap_or_default();
        data.read_exact(piece).map_err(|error| Failed::Whole(stream(error)))?;
        // Neighbouring blocks are written at once.
        let mut start = 0;
        for (number, block) in piece.chunks(BLOCK).enumerate() {
            let begin = number * BLOCK;
            if is_zero(block) {
                end = write(file, piece.get(start..begin), at + start as u64)?.or(end);
                start = begin + block.len();
            }
        }
        end = write(file, piece.get(start..), at + start as u64)?.or(end);
        at += most as u64;
        left -= most as u64;
    }
    Ok(end)
}

/// Where it ends, if there is anything to write.
fn write(file: &File, bytes: Option<&[u8]>, offset: u64) -> Result<Option<u64>, Errno> {
    let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else { return Ok(None) };
    file.write_all_at(bytes, offset).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(Some(offset + bytes.len() as u64))
}

/// A few bytes at a time, so that the compiler can compare them together.
fn is_zero(block: &[u8]) -> bool {
    block.len() == BLOCK && block.chunks(64).all(|piece| piece.iter().fold(0, |all, byte| all | byte) == 0)
}

fn c_name(name: &[u8]) -> Result<CString, Failed> {
    CString::new(name).map_err(|_| Failed::Refused("its name has a zero byte in it"))
}

fn times(time: Time) -> Timestamps {
    let time = Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}
