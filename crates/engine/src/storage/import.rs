//! A tar stream of [`super::export`] back into an upper. The archive may come from anybody.
//!
//! Every entry is put in place by descriptors, name by name, and no link on the way is followed, so nothing lands outside.
//! Refused: other folders than `root`, `usr` and `links` (what several names mean; gone when all is there), `..`, devices other than the whiteout, owners outside a
//! sandbox's 65,536, and more of anything than the bounds allow. Of the extended attributes only those come
//! through that mean the same everywhere; file capabilities only with a layer, which another server had as it is.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, fsetxattr, linkat,
    mkdirat, mknodat, openat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

use super::Error;
use super::export::{
    Attributes, CAPABILITY, CLONE, ENCODED, FOLDERS, LINKS, PLAIN, SPARSE_COUNT, SPARSE_MAP, SPARSE_SIZE, unescape,
};
use super::{copy, sparse, trash};

/// A sandbox's range of ids.
pub(super) const IDS: u64 = 65_536;
/// Names, links and attributes of one entry: the tar reader keeps them in memory.
pub(super) const METADATA: u64 = 16 << 20;
pub(super) const ENTRIES: u64 = 4_000_000;
/// All content together; what it takes on disk is the disk limit's business.
pub(super) const BYTES: u64 = 256 << 30;
/// A hole is left for each such block of zeros.
const BLOCK: usize = 4096;

/// Puts what is in the archive into `upper`, whose folders exist and are empty.
pub(super) fn read(upper: &Path, reader: impl Read) -> Result<(), Error> {
    read_with(upper, Attributes::Portable, reader)
}

/// Puts a layer's archive into an empty directory.
pub(super) fn read_layer(draft: &Path, reader: impl Read) -> Result<(), Error> {
    read_with(draft, Attributes::OfLayer, reader)
}

fn read_with(upper: &Path, attributes: Attributes, reader: impl Read) -> Result<(), Error> {
    let top = open(rustix::fs::CWD, upper).map_err(Error::at("open", upper))?;
    let budget = Rc::new(Cell::new(METADATA));
    let mut archive = Archive::new(Bounded { inner: reader, budget: Rc::clone(&budget) });
    let mut import = Import { top, attributes, bytes: 0, open: Vec::new() };
    let mut entries = archive.entries().map_err(Error::at("read an archive for", upper))?;
    for count in 0.. {
        budget.set(METADATA);
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(Error::at("read an archive for", upper))?;
        budget.set(u64::MAX);
        if count >= ENTRIES {
            return Err(refuse(&entry, &format!("more than {ENTRIES} entries")));
        }
        import.entry(&mut entry)?;
    }
    import.leave(None).map_err(Error::at("finish", upper))?;
    trash::delete(&upper.join(LINKS))
}

/// Fails a read beyond the budget: what the tar reader takes between two entries.
struct Bounded<R> {
    inner: R,
    budget: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let left = self.budget.get().checked_sub(count as u64);
        self.budget.set(left.ok_or_else(|| io::Error::other("an entry's name and attributes are larger than 16 MiB"))?);
        Ok(count)
    }
}

struct Import {
    top: OwnedFd,
    attributes: Attributes,
    bytes: u64,
    /// The directories above the last entry, with their times: adding files changes the times, so they are set at the
    /// end. Never more than one path of them: a sandbox can have millions of directories with names of any length.
    open: Vec<(PathBuf, u64)>,
}

impl Import {
    fn entry<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<(), Error> {
        let path = checked(entry)?;
        let records = records(entry, self.attributes)?;
        let header = entry.header();
        let (user, group) = (header.uid().unwrap_or(IDS), header.gid().unwrap_or(IDS));
        if user >= IDS || group >= IDS {
            return Err(refuse(entry, "its owner is not within a sandbox's 65536 ids"));
        }
        self.bytes = self.bytes.saturating_add(entry.size());
        if self.bytes > BYTES {
            return Err(refuse(entry, "the files are larger than 256 GiB together"));
        }
        match header.entry_type() {
            EntryType::Char
                if (header.device_major().ok().flatten(), header.device_minor().ok().flatten())
                    != (Some(0), Some(0)) =>
            {
                return Err(refuse(entry, "no devices but the whiteout (character device 0/0) can be in a sandbox"));
            }
            EntryType::Block => return Err(refuse(entry, "no block devices can be in a sandbox")),
            _ => {}
        }
        let mode = Mode::from_raw_mode(header.mode().unwrap_or(0o644) & 0o7777);
        let time = header.mtime().unwrap_or(0);
        let failed = |errno: io::Error| Error::Archive { entry: path.display().to_string(), why: errno.to_string() };
        let (parent, name) = self.parent(&path).map_err(|errno| failed(errno.into()))?;
        let made = self.make(entry, &parent, name, &path, &records).map_err(failed)?;
        if made == Made::Linked {
            return Ok(());
        }
        let finish = || -> Result<(), Errno> {
            let (user, group) = (Uid::from_raw(user as u32), Gid::from_raw(group as u32));
            chownat(&parent, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
            if made != Made::Symlink {
                chmodat(&parent, name, mode, AtFlags::empty())?;
            }
            if let Some(capability) = &records.capability {
                empower(&parent, name, capability)?;
            }
            utimensat(&parent, name, &times(time), AtFlags::SYMLINK_NOFOLLOW)
        };
        finish().map_err(|errno| failed(errno.into()))?;
        if made == Made::Directory {
            self.leave(Some(&path)).map_err(|errno| failed(errno.into()))?;
            self.open.push((path, time));
        }
        Ok(())
    }

    /// A later entry of the same name takes the earlier one's place, a directory joins it.
    fn make<R: Read>(
        &self,
        entry: &mut Entry<'_, R>,
        parent: &OwnedFd,
        name: &OsStr,
        path: &Path,
        records: &Records,
    ) -> io::Result<Made> {
        let kind = entry.header().entry_type();
        if kind == EntryType::Directory {
            match mkdirat(parent, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            put(&open(parent, name)?, &records.attributes)?;
            return Ok(Made::Directory);
        }
        match unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                // Sharing blocks needs a file that can be read too.
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let mut file = File::from(openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?);
                match &records.content {
                    Content::Plain => pour(entry, &mut file)?,
                    Content::Parts(size, parts) => {
                        for (offset, length) in parts {
                            place(&mut entry.by_ref().take(*length), &mut file, *offset)?;
                        }
                        file.set_len(*size)?;
                    }
                    Content::Of(first) => {
                        let (folder, name) = self.parent(first)?;
                        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                        let first = openat(&folder, name, flags, Mode::empty())?;
                        let size = rustix::fs::fstat(&first)?.st_size;
                        copy::data(first.as_fd(), file.as_fd(), u64::try_from(size).unwrap_or(0))?;
                    }
                }
                put(&file, &records.attributes)?;
                Ok(Made::Other)
            }
            EntryType::Symlink => {
                symlinkat(entry.link_name_bytes().ok_or(Errno::INVAL)?.as_ref(), parent, name)?;
                Ok(Made::Symlink)
            }
            EntryType::Link => {
                let target = entry.link_name()?.ok_or(Errno::INVAL)?.into_owned();
                if target == path || !is_inside(&target) {
                    return Err(io::Error::other("its hard link leads out of the archive"));
                }
                let (directory, file) = self.parent(&target)?;
                linkat(&directory, file, parent, name, AtFlags::empty())?;
                Ok(Made::Linked)
            }
            EntryType::Char => {
                mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), 0)?;
                Ok(Made::Other)
            }
            EntryType::Fifo => {
                mknodat(parent, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
                Ok(Made::Other)
            }
            other => Err(io::Error::other(format!("entries of type {other:?} are unknown here"))),
        }
    }

    /// The directory that `path` is in, step by step from the top; missing ones are made. A link in the way is ELOOP or ENOTDIR.
    fn parent<'a>(&self, path: &'a Path) -> Result<(OwnedFd, &'a OsStr), Errno> {
        let mut at = self.top.try_clone().map_err(|_| Errno::MFILE)?;
        let mut names = path.iter().peekable();
        while let Some(name) = names.next() {
            if names.peek().is_none() {
                return Ok((at, name));
            }
            at = match open(&at, name) {
                Err(Errno::NOENT) => {
                    mkdirat(&at, name, Mode::from_raw_mode(0o755))?;
                    open(&at, name)?
                }
                other => other?,
            };
        }
        Err(Errno::INVAL)
    }

    /// Sets the times of the directories that do not contain `next`. An archive that returns to one changes it once
    /// more.
    fn leave(&mut self, next: Option<&Path>) -> Result<(), Errno> {
        while let Some((path, time)) = self.open.pop_if(|(path, _)| !next.is_some_and(|next| next.starts_with(path))) {
            let (parent, name) = self.parent(&path)?;
            match utimensat(&parent, name, &times(time), AtFlags::SYMLINK_NOFOLLOW) {
                // Replaced by a later entry.
                Err(Errno::NOENT) | Ok(()) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

#[derive(PartialEq, Eq)]
enum Made {
    Directory,
    Symlink,
    /// Its owner and mode are the other name's.
    Linked,
    Other,
}

fn refuse<R: Read>(entry: &Entry<'_, R>, why: &str) -> Error {
    let name = String::from_utf8_lossy(&entry.path_bytes()).chars().take(256).collect();
    Error::Archive { entry: name, why: why.to_owned() }
}

/// Below `root` or `usr`, by plain names; or right below `links`.
fn is_inside(path: &Path) -> bool {
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    let below = path.iter().next().is_some_and(|first| FOLDERS.iter().any(|folder| first == *folder));
    plain && (below || is_shared(path))
}

fn is_shared(path: &Path) -> bool {
    path.parent() == Some(Path::new(LINKS))
}

fn checked<R: Read>(entry: &Entry<'_, R>) -> Result<PathBuf, Error> {
    let path = entry.path().map_err(|_| refuse(entry, "its name cannot be read"))?.into_owned();
    // "./root" is what other programs write.
    let path = path.strip_prefix(".").map(Path::to_owned).unwrap_or(path);
    let is_folder = FOLDERS.iter().any(|folder| path == Path::new(folder));
    if !is_inside(&path) {
        return Err(refuse(entry, "it leads out of the folders root, usr and links"));
    }
    if is_folder && entry.header().entry_type() != EntryType::Directory {
        return Err(refuse(entry, "root and usr are folders"));
    }
    Ok(path)
}

/// What the records before an entry say of it.
struct Records {
    attributes: Vec<(String, Vec<u8>)>,
    /// Of a regular file; set when its owner is.
    capability: Option<Vec<u8>>,
    content: Content,
}

/// Where a file's bytes come from.
enum Content {
    Plain,
    /// The file's size, and the parts of it that follow.
    Parts(u64, sparse::Parts),
    /// Another entry.
    Of(PathBuf),
}

fn records<R: Read>(entry: &mut Entry<'_, R>, which: Attributes) -> Result<Records, Error> {
    let (mut attributes, mut capability) = (Vec::new(), None);
    let is_file = matches!(entry.header().entry_type(), EntryType::Regular | EntryType::Continuous);
    let (mut size, mut map, mut content) = (None, None, Content::Plain);
    let mut wrong = None;
    let length = entry.size();
    for record in entry.pax_extensions().ok().flatten().into_iter().flatten() {
        let Ok(record) = record else {
            wrong = Some("its attributes cannot be read");
            break;
        };
        let value = record.value_bytes();
        let text = || std::str::from_utf8(value).unwrap_or_default();
        let key = record.key().unwrap_or("");
        match key {
            SPARSE_SIZE => size = text().parse::<u64>().ok().filter(|size| i64::try_from(*size).is_ok()),
            SPARSE_MAP => map = Some(text().to_owned()),
            SPARSE_COUNT => {}
            CLONE => content = Content::Of(PathBuf::from(text())),
            key if key.starts_with("GNU.sparse.") => {
                wrong = Some("its holes are told in a manner that is unknown here; pax format 0.1 and GNU's are known");
            }
            key => {
                let value = match (key.strip_prefix(PLAIN), key.strip_prefix(ENCODED)) {
                    (Some(name), _) => Some((name.to_owned(), value.to_vec())),
                    (_, Some(name)) => STANDARD.decode(value).ok().map(|value| (unescape(name), value)),
                    _ => None,
                };
                match value.filter(|(name, _)| which.take(name)) {
                    Some((name, value)) if name == CAPABILITY => {
                        capability = Some(value).filter(|value| is_file && is_of_any_root(value)).or(capability);
                    }
                    Some(named) => attributes.push(named),
                    None => {}
                }
            }
        }
    }
    if let Some(map) = map {
        let parts = size.and_then(|size| sparse::from_text(&map, size).map(|parts| (size, parts)));
        match parts.filter(|(_, parts)| sparse::total(parts) == length) {
            Some((size, parts)) => content = Content::Parts(size, parts),
            None => wrong = Some("its list of holes makes no sense"),
        }
    }
    if matches!(&content, Content::Of(first) if !is_shared(first)) {
        wrong = Some("its content is said to be that of an entry outside of links");
    }
    wrong.map_or(Ok(Records { attributes, capability, content }), |why| Err(refuse(entry, why)))
}

/// A file capability of the second version (capabilities(7)): it names no user namespace, so it means the same in each
/// sandbox. `VFS_CAP_REVISION_2` is in its highest byte.
fn is_of_any_root(value: &[u8]) -> bool {
    value.len() == 20 && value[3] == 2
}

/// Those that the filesystem does not take stay behind, as in every copy.
fn empower(parent: &OwnedFd, name: &OsStr, capability: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(parent, name, flags, Mode::empty())?;
    match fsetxattr(&file, CAPABILITY, capability, XattrFlags::empty()) {
        Err(Errno::PERM | Errno::OPNOTSUPP) => Ok(()),
        other => other,
    }
}

fn put(file: impl AsFd, attributes: &[(String, Vec<u8>)]) -> io::Result<()> {
    for (name, value) in attributes {
        fsetxattr(&file, name, value, XattrFlags::empty())?;
    }
    Ok(())
}

/// Writes what is not zero, and the size.
fn pour(from: &mut impl Read, to: &mut File) -> io::Result<()> {
    let size = place(from, to, 0)?;
    to.set_len(size)
}

/// Writes what is not zero from an offset on. Returns where it ends.
fn place(from: &mut impl Read, to: &mut File, offset: u64) -> io::Result<u64> {
    let mut buffer = vec![0; 64 * BLOCK];
    let mut size = offset;
    loop {
        let mut filled = 0;
        while filled < buffer.len() {
            match from.read(&mut buffer[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        if filled == 0 {
            return Ok(size);
        }
        for block in buffer[..filled].chunks(BLOCK) {
            if block.iter().any(|byte| *byte != 0) {
                to.seek(SeekFrom::Start(size))?;
                to.write_all(block)?;
            }
            size += block.len() as u64;
        }
    }
}

fn times(seconds: u64) -> Timestamps {
    let time = Timespec { tv_sec: i64::try_from(seconds).unwrap_or(0), tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

fn open(parent: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}
