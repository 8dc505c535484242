//! Reports changes below a directory.
//!
//! inotify(7) watches single directories. For a whole tree each directory has a watch. A new directory gets its own as
//! soon as its creation is seen, and is then listed, because files may have been made in it before the watch existed.
//! What the list reported is not reported again. A renamed directory keeps its watch and its new name is noted.
//!
//! Drafts of this guest ([`super::write`]) are not reported; their renaming is reported as a write.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use cove_protocol::file::{Change, ChangeKind};
use cove_protocol::{Event, Reply};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::actor::Actor;
use super::place::{Place, open_beneath};
use super::walk::Walk;
use super::write::{NEW, REPLACING};
use super::{beneath, entry};
use crate::connection::Connection;
use crate::failure::{During, Result, from_errno};
use crate::guest::Guest;

/// Directories watched for one connection.
const MOST: usize = 1 << 16;

/// How long the second half of a rename may take to arrive.
const RENAME_WITHIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Changes in one frame; an entry may be some ten kilobytes long.
const PORTION: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    Directory,
    Tree,
}

impl Depth {
    pub fn of(recursive: bool) -> Self {
        if recursive { Depth::Tree } else { Depth::Directory }
    }
}

pub fn watch(guest: &Guest, connection: &mut Connection, path: &str, user: Option<&str>, depth: Depth) -> Result<()> {
    let actor = Actor::become_user(guest, user)?;
    let place = Place::find(&actor, path)?;
    let step = format!("watch {}", place.path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
    let root = open_beneath(&place.directory, &place.name, flags, Mode::empty()).during(&step)?;
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).during(&step)?;
    let mut watcher = Watcher {
        actor: &actor,
        path: place.path.clone(),
        root,
        inotify,
        depth,
        directories: BTreeMap::new(),
        told: BTreeSet::new(),
        leaving: None,
        replaced: BTreeMap::new(),
        changes: Vec::new(),
        overflow: false,
    };
    watcher.stand("").during(&step)?;
    watcher.stand_below("", Tell::Nothing);
    connection.reply(&Reply::Done)?;
    watcher.run(connection)
}

struct Watcher<'a> {
    actor: &'a Actor,
    path: String,
    root: OwnedFd,
    inotify: OwnedFd,
    depth: Depth,
    /// The directory of each watch, relative to the root.
    directories: BTreeMap<i32, String>,
    /// Reported from the list of a new directory; the kernel's own event is still to come.
    told: BTreeSet<String>,
    /// The first half of a directory's rename.
    leaving: Option<(u32, String)>,
    /// Renames of our own temporary files, by cookie.
    replaced: BTreeMap<u32, &'static [ChangeKind]>,
    changes: Vec<Change>,
    /// Something may have been missed.
    overflow: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tell {
    Everything,
    Nothing,
}

/// An event, taken out of the kernel's buffer.
struct Seen {
    watch: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<CString>,
}

impl Watcher<'_> {
    fn run(&mut self, connection: &mut Connection) -> Result<()> {
        loop {
            let mut sources = [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(connection, PollFlags::RDHUP)];
            // Half a rename waits for its other half a moment only.
            let timeout = self.leaving.is_some().then_some(&RENAME_WITHIN);
            let ready = poll(&mut sources, timeout);
            let [changed, host] = sources.map(|source| !source.revents().is_empty());
            match ready {
                Ok(0) => self.leave(),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(from_errno(errno, format!("watch {}", self.path))),
            }
            if host {
                return Ok(());
            }
            if changed {
                for seen in self.take_in()? {
                    self.note(&seen);
                    if self.changes.len() >= PORTION {
                        self.tell(connection)?;
                    }
                }
            }
            self.tell(connection)?;
        }
    }

    fn take_in(&self) -> Result<Vec<Seen>> {
        let mut buffer = [MaybeUninit::<u8>::uninit(); 8 << 10];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut seen = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => seen.push(Seen {
                    watch: event.wd(),
                    flags: event.events(),
                    cookie: event.cookie(),
                    name: event.file_name().map(CStr::to_owned),
                }),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(seen),
                Err(errno) => return Err(from_errno(errno, format!("watch {}", self.path))),
            }
            // One buffer at a time: an endless stream of changes must not fill our memory.
            if reader.is_buffer_empty() {
                return Ok(seen);
            }
        }
    }

    fn note(&mut self, seen: &Seen) {
        let continues = seen.flags.contains(ReadFlags::MOVED_TO)
            && self.leaving.as_ref().is_some_and(|(cookie, _)| *cookie == seen.cookie);
        if self.leaving.is_some() && !continues {
            self.leave();
        }
        if seen.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.overflow = true;
            self.told.clear();
            self.stand_below("", Tell::Nothing);
            return;
        }
        if seen.flags.contains(ReadFlags::IGNORED) {
            self.directories.remove(&seen.watch);
            return;
        }
        let Some(directory) = self.directories.get(&seen.watch).cloned() else { return };
        let Some(name) = &seen.name else {
            if seen.flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) && directory.is_empty() {
                self.changes.push(Change { path: ".".into(), kind: ChangeKind::Remove, entry: None });
            }
            return;
        };
        let name_text = name.to_string_lossy();
        let path = join(&directory, &name_text);
        let is_directory = seen.flags.contains(ReadFlags::ISDIR);
        if !is_directory && self.is_our_own(seen, &name_text, &path) {
            return;
        }
        if seen.flags.contains(ReadFlags::CREATE) {
            // A directory that was reported from a list got its watch and was listed then.
            if !self.told.remove(&path) {
                self.add(&path, ChangeKind::Create);
                if is_directory {
                    self.enter(&path);
                }
            }
        } else if seen.flags.contains(ReadFlags::MOVED_FROM) {
            self.told.remove(&path);
            self.add(&path, ChangeKind::Rename);
            if is_directory {
                self.leaving = Some((seen.cookie, path));
            }
        } else if seen.flags.contains(ReadFlags::MOVED_TO) {
            self.add(&path, ChangeKind::Create);
            if is_directory {
                match self.leaving.take() {
                    Some((_, old)) => self.rename(&old, &path),
                    None => self.enter(&path),
                }
            }
        } else if seen.flags.contains(ReadFlags::DELETE) {
            self.told.remove(&path);
            self.add(&path, ChangeKind::Remove);
        } else if seen.flags.contains(ReadFlags::MODIFY) {
            self.add(&path, ChangeKind::Write);
        } else if seen.flags.contains(ReadFlags::ATTRIB) {
            self.add(&path, ChangeKind::Chmod);
        }
    }

    /// A draft of ours, or its renaming.
    fn is_our_own(&mut self, seen: &Seen, name: &str, path: &str) -> bool {
        let kinds: &'static [ChangeKind] = if name.starts_with(NEW) {
            &[ChangeKind::Create, ChangeKind::Write]
        } else if name.starts_with(REPLACING) {
            &[ChangeKind::Write]
        } else {
            if seen.flags.contains(ReadFlags::MOVED_TO)
                && let Some(kinds) = self.replaced.remove(&seen.cookie)
            {
                kinds.iter().for_each(|kind| self.add(path, *kind));
                return true;
            }
            return false;
        };
        if seen.flags.contains(ReadFlags::MOVED_FROM) {
            // The other half may never come, if the name leaves the tree; a few of those are enough to remember.
            if self.replaced.len() > 64 {
                self.replaced.clear();
            }
            self.replaced.insert(seen.cookie, kinds);
        }
        true
    }

    fn add(&mut self, path: &str, kind: ChangeKind) {
        if let Some(last) = self.changes.last()
            && last.path == path
            && last.kind == kind
            && kind == ChangeKind::Write
        {
            return;
        }
        let there = matches!(kind, ChangeKind::Create | ChangeKind::Write | ChangeKind::Chmod);
        let entry = if there { self.look(path) } else { None };
        self.changes.push(Change { path: path.to_owned(), kind, entry });
    }

    fn look(&self, path: &str) -> Option<cove_protocol::file::Entry> {
        let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
        let directory = beneath::open_directory(&self.root, parent.as_bytes()).ok()?;
        let name = CString::new(name).ok()?;
        entry::look(&directory, &name, &join(&self.path, path), &self.actor.users.names()).ok()
    }

    fn tell(&mut self, connection: &mut Connection) -> Result<()> {
        if self.overflow {
            self.overflow = false;
            connection.event(&Event::Overflow)?;
        }
        while !self.changes.is_empty() {
            let rest = self.changes.split_off(self.changes.len().min(PORTION));
            let changes = std::mem::replace(&mut self.changes, rest);
            connection.event(&Event::Changes { changes })?;
        }
        Ok(())
    }

    /// Puts a watch on one directory.
    fn stand(&mut self, path: &str) -> std::result::Result<(), Errno> {
        if self.directories.len() >= MOST {
            return Err(Errno::NOSPC);
        }
        let directory = if path.is_empty() {
            self.root.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?
        } else {
            beneath::open_directory(&self.root, path.as_bytes())?
        };
        let flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        // By the descriptor: exactly the directory that was opened, whatever has its name now.
        let held = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let watch = inotify::add_watch(&self.inotify, held, flags)?;
        self.directories.insert(watch, path.to_owned());
        Ok(())
    }

    /// Puts watches on all directories below one; what is found there is news or not.
    fn stand_below(&mut self, path: &str, tell: Tell) {
        if self.depth == Depth::Directory {
            return;
        }
        let directory = if path.is_empty() { "." } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = beneath::open_directory(&self.root, directory.as_bytes())
            .and_then(|directory| rustix::fs::openat(&directory, ".", flags, Mode::empty()));
        let Ok(mut walk) = opened.and_then(|directory| Walk::begin(&directory, u32::MAX)) else { return };
        while let Some(found) = walk.advance() {
            let path = join(path, &found.path());
            if tell == Tell::Everything {
                self.add(&path, ChangeKind::Create);
                self.told.insert(path.clone());
            }
            // Before the walk enters it: what comes later is seen by the watch.
            if found.kind == FileType::Directory {
                match self.stand(&path) {
                    Ok(()) | Err(Errno::ACCESS | Errno::NOENT | Errno::NOTDIR) => {}
                    Err(_) => self.overflow = true,
                }
            }
        }
    }

    fn enter(&mut self, path: &str) {
        if self.depth == Depth::Directory {
            return;
        }
        match self.stand(path) {
            Ok(()) => self.stand_below(path, Tell::Everything),
            Err(Errno::ACCESS | Errno::NOENT | Errno::NOTDIR) => {}
            Err(_) => self.overflow = true,
        }
    }

    /// The directory has gone out of the tree: its watches go too.
    fn leave(&mut self) {
        let Some((_, old)) = self.leaving.take() else { return };
        let gone: Vec<i32> =
            self.directories.iter().filter(|(_, path)| is_within(path, &old)).map(|(watch, _)| *watch).collect();
        for watch in gone {
            let _ = inotify::remove_watch(&self.inotify, watch);
            self.directories.remove(&watch);
        }
    }

    fn rename(&mut self, old: &str, new: &str) {
        for path in self.directories.values_mut() {
            if is_within(path, old) {
                *path = format!("{new}{}", path.get(old.len()..).unwrap_or_default());
            }
        }
    }
}

fn is_within(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{}/{name}", directory.trim_end_matches('/')) }
}
