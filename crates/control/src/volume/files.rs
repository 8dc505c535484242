//! A volume's files, for those who have no sandbox.
//!
//! Sandboxes write into the volume at the same time, and they are hostile: every name is resolved by the kernel beneath
//! the volume's directory, no symbolic link is followed, and what is opened is looked at before it is read. Owners are
//! numbers as the sandboxes see them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid, chownat, fchmod, fchown, fstat,
    mkdirat, openat2, readlinkat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

use super::mount::beneath;
use super::{State, Volume};
use crate::shares::Shares;
use crate::{App, Caller, Error, Scope, random};

/// Entries of one list, and bytes of their paths and targets: sandboxes choose both.
const ENTRIES_MAX: usize = 10_000;
const LIST_MAX: usize = 4 << 20;
/// How long one removal may take: a sandbox may add files as fast as they are removed.
const REMOVAL: Duration = Duration::from_secs(60);
/// Work on files at one time, of one organisation and of all: each takes a thread, and a list or a removal takes long.
const EACH: usize = 8;
const AT_ONCE: usize = 64;
/// Users and groups of a sandbox.
const IDS: u32 = 65_536;
/// How deep a tree is walked.
const DEPTH_MAX: usize = 256;
const CHUNK: usize = 256 << 10;
/// The sandboxes' default user.
const USER: u32 = 1000;
/// Names of files that are being written.
const DRAFT: &str = ".cove-draft-";

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = VolumeEntryKind)]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    Other,
}

/// A file of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = VolumeEntry)]
pub struct Entry {
    pub name: String,
    /// From the volume's top: begins with a slash.
    pub path: String,
    pub kind: EntryKind,
    pub size: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub accessed_ms: i64,
    pub modified_ms: i64,
    pub changed_ms: i64,
    /// Where a symlink points.
    pub target: Option<String>,
}

/// Whose a file is, and who may do what with it; what is `None` stays, or is as new files of a sandbox have it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owner {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Permission bits.
    pub mode: Option<u32>,
}

/// How a file is written.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteFile {
    pub owner: Owner,
    /// Makes missing directories on the way.
    pub parents: bool,
    /// A file that is there makes this an error.
    pub only_new: bool,
}

/// An open volume.
#[derive(Debug, Clone)]
pub struct Files {
    top: Arc<OwnedFd>,
    name: String,
    organisation: String,
    turns: Arc<Shares>,
}

/// A directory that is being listed.
struct Level {
    path: String,
    directory: OwnedFd,
    /// Directories in it that are still to be listed.
    below: Vec<OsString>,
}

/// Turns to work on the files of volumes.
pub(crate) fn turns() -> Arc<Shares> {
    Arc::new(Shares::new(AT_ONCE, EACH))
}

impl App {
    /// A volume's files, for reading or, with [`Scope::Write`], for changes.
    pub async fn volume_files(&self, caller: &Caller, id_or_name: &str, scope: Scope) -> Result<Files, Error> {
        caller.require(scope)?;
        let volume = self.volume(caller, id_or_name).await?;
        self.open_volume(&volume).await
    }

    /// As [`App::volume_files`], for whoever has proved a right to the volume: by its token.
    pub async fn open_volume(&self, volume: &Volume) -> Result<Files, Error> {
        self.check_volume_here(volume)?;
        if volume.state != State::Ready {
            return Err(Error::not_found("volume", volume.id.to_string()));
        }
        let top = self.provider(&volume.provider)?.volumes().open_volume(&volume.id).await?;
        let (name, organisation) = (volume.name.clone(), volume.organisation.clone());
        Ok(Files { top: Arc::new(top), name, organisation, turns: Arc::clone(self.volume_turns()) })
    }
}

impl Files {
    pub async fn stat(&self, path: &str) -> Result<Entry, Error> {
        let path = beneath(path)?;
        self.blocking(move |files| files.entry(&path)).await
    }

    /// What is in a directory; with a depth of more than 1 what is in its directories, too.
    pub async fn list(&self, path: &str, depth: u32) -> Result<Vec<Entry>, Error> {
        let path = beneath(path)?;
        self.blocking(move |files| files.walk(&path, depth.clamp(1, DEPTH_MAX as u32) as usize)).await
    }

    /// A regular file, to be read from its beginning.
    pub async fn read(&self, path: &str) -> Result<(Entry, tokio::fs::File), Error> {
        let path = beneath(path)?;
        let (entry, file) = self
            .blocking(move |files| {
                // Without NONBLOCK the open of a pipe would wait for its writer.
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = files.open(&path, flags)?;
                let stat = fstat(&file).map_err(|errno| files.trouble("read", &path, errno))?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Err(Error::invalid("path", format!("/{path} is not a regular file")));
                }
                Ok((entry_of(&path, &stat, None), file))
            })
            .await?;
        Ok((entry, tokio::fs::File::from_std(file.into())))
    }

    /// Replaced at the end in one step: a reader sees the old file or the new one.
    pub async fn write(&self, path: &str, how: WriteFile, mut from: impl AsyncRead + Unpin) -> Result<Entry, Error> {
        let path = beneath(path)?;
        how.owner.check()?;
        if path.is_empty() {
            return Err(Error::invalid("path", "the name of a file is needed"));
        }
        let (parent, name) = self.parent_of(&path, how).await?;
        let draft = Draft { directory: Arc::new(parent), name: format!("{DRAFT}{}", random::hex(8)) };
        let file = {
            let (directory, name) = (Arc::clone(&draft.directory), draft.name.clone());
            let path = path.clone();
            self.blocking(move |files| {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::openat(&*directory, name.as_str(), flags, Mode::RUSR | Mode::WUSR)
                    .map_err(|errno| files.trouble("write", &path, errno))
            })
            .await?
        };
        let mut file = tokio::fs::File::from_std(file.into());
        let mut buffer = vec![0; CHUNK];
        loop {
            let count = from.read(&mut buffer).await.map_err(|error| Error::invalid("body", error.to_string()))?;
            if count == 0 {
                break;
            }
            let written = file.write_all(&buffer[..count]).await;
            written.map_err(|error| self.io_trouble("write", &path, &error))?;
        }
        file.flush().await.map_err(|error| self.io_trouble("write", &path, &error))?;
        let file = file.into_std().await;
        self.blocking(move |files| {
            let trouble = |errno| files.trouble("write", &path, errno);
            let old = statat(&*draft.directory, name.as_str(), AtFlags::SYMLINK_NOFOLLOW).ok();
            if let Some(old) = old
                && FileType::from_raw_mode(old.st_mode) == FileType::Directory
            {
                return Err(Error::invalid("path", format!("/{path} is a directory")));
            }
            let (uid, gid, mode) = how.owner.of_new(old.as_ref(), 0o644);
            fchown(&file, Some(uid), Some(gid)).map_err(trouble)?;
            fchmod(&file, mode).map_err(trouble)?;
            rustix::fs::fsync(&file).map_err(trouble)?;
            let flags = if how.only_new { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
            renameat_with(&*draft.directory, draft.name.as_str(), &*draft.directory, name.as_str(), flags)
                .map_err(trouble)?;
            // The name too: what was acknowledged is there after a power cut.
            rustix::fs::fsync(&*draft.directory).map_err(trouble)?;
            let stat = fstat(&file).map_err(trouble)?;
            Ok(entry_of(&path, &stat, None))
        })
        .await
    }

    async fn parent_of(&self, path: &str, how: WriteFile) -> Result<(OwnedFd, String), Error> {
        let path = path.to_owned();
        self.blocking(move |files| {
            let (parent, name) = split(&path);
            if how.parents {
                files.make_all(parent, Owner { mode: None, ..how.owner })?;
            }
            Ok((files.directory(parent)?, name.to_owned()))
        })
        .await
    }

    /// `parents` makes what is missing on the way, and takes a directory that is there.
    pub async fn make_directory(&self, path: &str, owner: Owner, parents: bool) -> Result<Entry, Error> {
        let path = beneath(path)?;
        owner.check()?;
        self.blocking(move |files| {
            if parents {
                files.make_all(&path, owner)?;
            } else {
                files.make_one(&path, owner)?;
            }
            files.entry(&path)
        })
        .await
    }

    pub async fn rename(&self, from: &str, to: &str) -> Result<Entry, Error> {
        let (from, to) = (beneath(from)?, beneath(to)?);
        self.blocking(move |files| {
            let ((old_parent, old), (new_parent, new)) = (split(&from), split(&to));
            if old.is_empty() || new.is_empty() {
                return Err(Error::invalid("path", "the volume itself has no other name"));
            }
            let (old_parent, new_parent) = (files.directory(old_parent)?, files.directory(new_parent)?);
            let trouble = |errno| files.trouble("rename", &from, errno);
            renameat_with(&old_parent, old, &new_parent, new, RenameFlags::empty()).map_err(trouble)?;
            rustix::fs::fsync(&new_parent).and_then(|()| rustix::fs::fsync(&old_parent)).map_err(trouble)?;
            files.entry(&to)
        })
        .await
    }

    /// A directory with all that is in it.
    pub async fn remove(&self, path: &str) -> Result<(), Error> {
        let path = beneath(path)?;
        self.blocking(move |files| {
            let (parent, name) = split(&path);
            if name.is_empty() {
                return Err(Error::invalid("path", "this is the volume itself; hint: cove volume rm deletes it"));
            }
            let parent = files.directory(parent)?;
            remove(parent.as_fd(), OsStr::new(name), 0, Instant::now() + REMOVAL)
                .map_err(|errno| files.trouble("remove", &path, errno))
        })
        .await
    }

    pub async fn set_attributes(&self, path: &str, owner: Owner) -> Result<Entry, Error> {
        let path = beneath(path)?;
        owner.check()?;
        self.blocking(move |files| {
            let (parent, name) = split(&path);
            let trouble = |errno| files.trouble("change", &path, errno);
            let parent = files.directory(parent)?;
            let name = if name.is_empty() { "." } else { name };
            let (uid, gid) = (owner.uid.map(Uid::from_raw), owner.gid.map(Gid::from_raw));
            if uid.is_some() || gid.is_some() {
                chownat(&parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(trouble)?;
            }
            if let Some(mode) = owner.mode {
                // By descriptor: the name may become a link between a look and the change.
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = openat2(&parent, name, flags, Mode::empty(), RESOLVE).map_err(trouble)?;
                fchmod(&file, bits(mode)).map_err(trouble)?;
            }
            files.entry(&path)
        })
        .await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Files) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let files = self.clone();
        let turn = self.turns.take(&self.organisation).await;
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work(&files)
        });
        done.await.map_err(|error| Error::internal(format!("a volume's files: {error}")))?
    }

    fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Error> {
        let path = if path.is_empty() { "." } else { path };
        openat2(&*self.top, path, flags, Mode::empty(), RESOLVE).map_err(|errno| self.trouble("open", path, errno))
    }

    fn directory(&self, path: &str) -> Result<OwnedFd, Error> {
        self.open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC)
    }

    fn entry(&self, path: &str) -> Result<Entry, Error> {
        let (parent, name) = split(path);
        let parent = self.directory(parent)?;
        let name = if name.is_empty() { "." } else { name };
        let stat =
            statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| self.trouble("stat", path, errno))?;
        Ok(entry_of(path, &stat, target_of(parent.as_fd(), OsStr::new(name), &stat)))
    }

    /// Downwards first: no more directories are open at a time than the tree is deep, however wide it is.
    fn walk(&self, path: &str, depth: usize) -> Result<Vec<Entry>, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let mut open: Vec<Level> = Vec::new();
        let mut next = Some((path.to_owned(), self.directory(path)?));
        loop {
            if let Some((path, directory)) = next.take() {
                let trouble = |errno| self.trouble("list", &path, errno);
                let mut below = Vec::new();
                for found in Dir::read_from(&directory).map_err(trouble)? {
                    let found = found.map_err(trouble)?;
                    let name = found.file_name().to_bytes();
                    if name == b"." || name == b".." || name.starts_with(DRAFT.as_bytes()) {
                        continue;
                    }
                    let name = OsStr::from_bytes(name);
                    // Gone meanwhile: it is not listed.
                    let Ok(stat) = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
                    if entries.len() >= ENTRIES_MAX {
                        let message = format!("more than {ENTRIES_MAX} files; list a smaller part");
                        return Err(Error::invalid("path", message));
                    }
                    if open.len() + 1 < depth && FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                        below.push(name.to_owned());
                    }
                    let target = target_of(directory.as_fd(), name, &stat);
                    let entry = entry_of(&joined(&path, name), &stat, target);
                    bytes += entry.name.len() + entry.path.len() + entry.target.as_ref().map_or(0, String::len);
                    if bytes > LIST_MAX {
                        let message = "the names of its files are too long for one list; list a smaller part";
                        return Err(Error::invalid("path", message));
                    }
                    entries.push(entry);
                }
                open.push(Level { path, directory, below });
            }
            let Some(level) = open.last_mut() else { break };
            match level.below.pop() {
                Some(name) => {
                    // Gone meanwhile, or no directory any more: nothing is below it.
                    let inner = openat2(&level.directory, name.as_os_str(), flags, Mode::empty(), RESOLVE).ok();
                    next = inner.map(|inner| (joined(&level.path, &name), inner));
                }
                None => {
                    open.pop();
                }
            }
        }
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(entries)
    }

    fn make_one(&self, path: &str, owner: Owner) -> Result<(), Error> {
        let (parent, name) = split(path);
        if name.is_empty() {
            return Err(Error::Conflict("the volume's top is there already".into()));
        }
        let trouble = |errno| self.trouble("make", path, errno);
        let parent = self.directory(parent)?;
        mkdirat(&parent, name, Mode::RWXU).map_err(trouble)?;
        let (uid, gid, mode) = owner.of_new(None, 0o755);
        chownat(&parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map_err(trouble)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = openat2(&parent, name, flags, Mode::empty(), RESOLVE).map_err(trouble)?;
        fchmod(&made, mode).map_err(trouble)
    }

    fn make_all(&self, path: &str, owner: Owner) -> Result<(), Error> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        if parts.len() > DEPTH_MAX {
            return Err(Error::invalid("path", format!("at most {DEPTH_MAX} directories deep")));
        }
        for end in 1..=parts.len() {
            let part = parts[..end].join("/");
            match self.make_one(&part, owner) {
                Err(Error::Conflict(_)) => {
                    self.directory(&part)?;
                }
                made => made?,
            }
        }
        Ok(())
    }

    fn trouble(&self, verb: &str, path: &str, errno: Errno) -> Error {
        let path = format!("/{}", path.trim_start_matches('/'));
        match errno {
            Errno::NOENT => Error::not_found("file", path),
            Errno::EXIST => Error::Conflict(format!("{path} is there already")),
            Errno::NOTEMPTY => Error::Conflict(format!("{path} is not empty")),
            Errno::NOSPC | Errno::DQUOT => Error::Quota { message: format!("volume {} is full", self.name) },
            Errno::LOOP | Errno::XDEV | Errno::MLINK => {
                Error::invalid("path", format!("{path}: a symbolic link, or it leads out of the volume"))
            }
            Errno::NOTDIR => Error::invalid("path", format!("{path}: a part of it is not a directory")),
            Errno::ISDIR => Error::invalid("path", format!("{path} is a directory")),
            Errno::NAMETOOLONG => Error::invalid("path", "a name is too long"),
            // A device, which a sandbox made to hide a name from an overlay, cannot be opened.
            Errno::INVAL | Errno::NXIO | Errno::ACCESS => Error::invalid("path", format!("{path}: {errno}")),
            Errno::AGAIN => Error::Conflict(format!("{path} is in use by a sandbox; try again")),
            Errno::TIMEDOUT => {
                let remedy = "call again, or stop the sandboxes that add to it";
                Error::Conflict(format!("{path} has more than can be removed at a time; {remedy}"))
            }
            errno => Error::internal(format!("{verb} {path} of volume {}: {errno}", self.name)),
        }
    }

    fn io_trouble(&self, verb: &str, path: &str, error: &io::Error) -> Error {
        self.trouble(verb, path, Errno::from_io_error(error).unwrap_or(Errno::IO))
    }
}

impl Owner {
    /// Beyond these no sandbox could change the file, or remove it.
    fn check(&self) -> Result<(), Error> {
        for (field, id) in [("uid", self.uid), ("gid", self.gid)] {
            if id.is_some_and(|id| id >= IDS) {
                return Err(Error::invalid(field, format!("0 to {}", IDS - 1)));
            }
        }
        Ok(())
    }

    /// For a new file, or one that takes the place of another.
    fn of_new(&self, old: Option<&Stat>, usual: u32) -> (Uid, Gid, Mode) {
        let uid = self.uid.or(old.map(|old| old.st_uid)).unwrap_or(USER);
        let gid = self.gid.or(old.map(|old| old.st_gid)).unwrap_or(USER);
        let mode = self.mode.or(old.map(|old| old.st_mode)).unwrap_or(usual);
        (Uid::from_raw(uid), Gid::from_raw(gid), bits(mode))
    }
}

/// Nobody gets another's rights through a volume.
fn bits(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o1777)
}

/// A file that is being written. Dropped before it has its name, it goes.
struct Draft {
    directory: Arc<OwnedFd>,
    name: String,
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Renamed: there is nothing of this name.
        let _gone = unlinkat(&*self.directory, self.name.as_str(), AtFlags::empty());
    }
}

/// The path of what is in a directory, as it is shown.
fn joined(path: &str, name: &OsStr) -> String {
    let name = name.to_string_lossy();
    if path.is_empty() { name.into_owned() } else { format!("{path}/{name}") }
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn remove(parent: BorrowedFd<'_>, name: &OsStr, depth: usize, until: Instant) -> Result<(), Errno> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        done => return done,
    }
    if depth >= DEPTH_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat2(parent, name, flags, Mode::empty(), RESOLVE)?;
    for found in Dir::read_from(&directory)? {
        if Instant::now() > until {
            return Err(Errno::TIMEDOUT);
        }
        let found = found?;
        let inner = found.file_name().to_bytes();
        if inner != b"." && inner != b".." {
            match remove(directory.as_fd(), OsStr::from_bytes(inner), depth + 1, until) {
                Err(Errno::NOENT) => {}
                removed => removed?,
            }
        }
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

fn target_of(parent: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> Option<String> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return None;
    }
    let target = readlinkat(parent, name, Vec::new()).ok()?;
    Some(target.to_string_lossy().into_owned())
}

fn entry_of(path: &str, stat: &Stat, target: Option<String>) -> Entry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Other,
    };
    let millis = |seconds: i64, nanoseconds: u64| seconds.saturating_mul(1000) + (nanoseconds / 1_000_000) as i64;
    Entry {
        name: split(path).1.to_owned(),
        path: format!("/{path}"),
        kind,
        size: stat.st_size.unsigned_abs(),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        accessed_ms: millis(stat.st_atime, stat.st_atime_nsec),
        modified_ms: millis(stat.st_mtime, stat.st_mtime_nsec),
        changed_ms: millis(stat.st_ctime, stat.st_ctime_nsec),
        target,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use futures::FutureExt as _;

    use super::*;

    fn files() -> (tempfile::TempDir, Files) {
        let folder = tempfile::tempdir().unwrap();
        let top = fs::File::open(folder.path()).unwrap();
        let turns = Arc::new(Shares::new(1, 1));
        (folder, Files { top: Arc::new(top.into()), name: "v".into(), organisation: "o".into(), turns })
    }

    fn mine() -> Owner {
        // Who runs the tests may not give files away.
        Owner {
            uid: Some(rustix::process::getuid().as_raw()),
            gid: Some(rustix::process::getgid().as_raw()),
            mode: None,
        }
    }

    fn how() -> WriteFile {
        WriteFile { owner: mine(), parents: true, only_new: false }
    }

    #[tokio::test]
    async fn a_file_is_written_listed_read_moved_and_removed() {
        let (folder, files) = files();
        let entry = files.write("/a/b.txt", how(), &b"hello"[..]).await.unwrap();
        assert_eq!((entry.path.as_str(), entry.size, entry.mode), ("/a/b.txt", 5, 0o644));
        let with_mode = WriteFile { owner: Owner { mode: Some(0o4755), ..mine() }, ..how() };
        let entry = files.write("a/c", with_mode, &b"x"[..]).await.unwrap();
        assert_eq!(entry.mode, 0o755, "nobody becomes another by a file of a volume");
        let names: Vec<String> = files.list("/", 2).await.unwrap().into_iter().map(|entry| entry.path).collect();
        assert_eq!(names, ["/a", "/a/b.txt", "/a/c"]);
        let (entry, mut file) = files.read("a/b.txt").await.unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).await.unwrap();
        assert_eq!((text.as_str(), entry.kind), ("hello", EntryKind::File));
        files.make_directory("/d", mine(), false).await.unwrap();
        assert!(matches!(files.make_directory("/d", mine(), false).await, Err(Error::Conflict(_))));
        files.make_directory("/d/e/f", mine(), true).await.unwrap();
        files.rename("/a/b.txt", "/d/e/f/g").await.unwrap();
        let only_new = WriteFile { only_new: true, ..how() };
        assert!(matches!(files.write("/d/e/f/g", only_new, &b"y"[..]).await, Err(Error::Conflict(_))));
        let changed = files.set_attributes("/d/e/f/g", Owner { mode: Some(0o600), ..Owner::default() }).await.unwrap();
        assert_eq!(changed.mode, 0o600);
        files.remove("/d").await.unwrap();
        assert!(matches!(files.stat("/d").await, Err(Error::NotFound { .. })));
        assert_eq!(fs::read_dir(folder.path().join("a")).unwrap().count(), 1, "no draft is left");
    }

    #[tokio::test]
    async fn no_link_leads_anywhere() {
        let (folder, files) = files();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "s").unwrap();
        symlink(outside.path(), folder.path().join("out")).unwrap();
        symlink(outside.path().join("secret"), folder.path().join("file")).unwrap();
        symlink("/proc/self/root/etc", folder.path().join("magic")).unwrap();
        for path in ["out/secret", "file", "magic/hostname", "../secret", "/../../etc/passwd"] {
            assert!(files.read(path).await.is_err(), "{path}");
        }
        for path in ["out/new", "magic/new"] {
            assert!(files.write(path, how(), &b"x"[..]).await.is_err(), "{path}");
            assert!(files.make_directory(path, mine(), true).await.is_err(), "{path}");
            assert!(files.rename("file", path).await.is_err(), "{path}");
            assert!(files.remove(path).await.is_err(), "{path}");
        }
        // A link at the name itself is replaced, and removed, as what it is.
        files.write("file", how(), &b"mine"[..]).await.unwrap();
        files.remove("out").await.unwrap();
        assert_eq!(fs::read_to_string(outside.path().join("secret")).unwrap(), "s");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
        let link = files.stat("magic").await.unwrap();
        assert_eq!((link.kind, link.target.as_deref()), (EntryKind::Symlink, Some("/proc/self/root/etc")));
    }

    #[tokio::test]
    async fn a_list_has_an_end_however_long_the_names_are() {
        let (folder, files) = files();
        let deep = folder.path().join(["d".repeat(250).as_str(); 12].join("/"));
        fs::create_dir_all(&deep).unwrap();
        for number in 0..2000 {
            fs::write(deep.join(number.to_string()), "").unwrap();
        }
        // 2,000 entries with 3,000 letters each.
        let refused = files.list("/", 64).await.unwrap_err().to_string();
        assert!(refused.contains("list a smaller part"), "{refused}");
        assert_eq!(files.list("/", 3).await.unwrap().len(), 3);
    }

    #[tokio::test]
    async fn a_wide_tree_is_listed_with_all_that_is_in_it() {
        let (folder, files) = files();
        for number in 0..1500 {
            let directory = folder.path().join(number.to_string());
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("f"), "").unwrap();
        }
        assert_eq!(files.list("/", 1).await.unwrap().len(), 1500);
        let all = files.list("/", 2).await.unwrap();
        assert_eq!(all.len(), 3000);
        assert_eq!((all[0].path.as_str(), all[1].path.as_str()), ("/0", "/0/f"));
    }

    #[tokio::test]
    async fn an_organisation_waits_for_a_turn_of_its_own() {
        let (_folder, files) = files();
        let turn = files.turns.take("o").await;
        assert!(files.list("/", 1).now_or_never().is_none());
        drop(turn);
        assert!(files.list("/", 1).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn files_belong_to_users_that_a_sandbox_can_have() {
        let (_folder, files) = files();
        let beyond = Owner { uid: Some(65_536), ..mine() };
        let how = WriteFile { owner: beyond, ..how() };
        assert!(matches!(files.write("a", how, &b"x"[..]).await, Err(Error::Invalid { .. })));
        assert!(matches!(files.make_directory("d", beyond, true).await, Err(Error::Invalid { .. })));
        files.write("a", WriteFile { owner: mine(), parents: true, only_new: false }, &b"x"[..]).await.unwrap();
        assert!(matches!(files.set_attributes("a", beyond).await, Err(Error::Invalid { .. })));
    }

    #[test]
    fn a_removal_that_takes_too_long_ends() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("d/e")).unwrap();
        let top = fs::File::open(folder.path()).unwrap();
        let removed = remove(top.as_fd(), OsStr::new("d"), 0, Instant::now() - Duration::from_secs(1));
        assert_eq!(removed, Err(Errno::TIMEDOUT));
        assert_eq!(remove(top.as_fd(), OsStr::new("d"), 0, Instant::now() + REMOVAL), Ok(()));
    }

    #[tokio::test]
    async fn a_pipe_keeps_nobody_waiting_and_a_body_that_breaks_off_changes_nothing() {
        let (folder, files) = files();
        rustix::fs::mknodat(rustix::fs::CWD, folder.path().join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        assert!(files.read("pipe").await.is_err());
        fs::write(folder.path().join("kept"), "old").unwrap();
        fs::set_permissions(folder.path().join("kept"), fs::Permissions::from_mode(0o640)).unwrap();
        let broken = tokio_util::io::StreamReader::new(futures::stream::iter([
            Ok(bytes::Bytes::from_static(b"half")),
            Err(io::Error::other("gone")),
        ]));
        assert!(files.write("kept", how(), broken).await.is_err());
        assert_eq!(fs::read_to_string(folder.path().join("kept")).unwrap(), "old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no draft is left");
        assert_eq!(files.write("kept", how(), &b"new"[..]).await.unwrap().mode, 0o640);
    }
}
