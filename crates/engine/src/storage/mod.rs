//! Where a sandbox's files are, with enforced disk limits.
//!
//! ```text
//! Store::open(data) ── the best this host has, top to bottom ──────────────────────────────┐
//!   btrfs      the data directory is on btrfs with quotas on: a subvolume per sandbox        │ chosen when the first
//!   projects   ext4 or xfs mounted with project quotas: a project number per sandbox        │ sandbox needs a disk;
//!   pool       root with loop devices and mkfs.btrfs: one btrfs image, subvolumes           │ a tmpfs needs none of
//!   plain      directories; nothing holds a limit, so a limit is refused                    │ them
//! ```
//! Every rung has the same shape on disk. Removal is a rename into the trash, at once; deletion happens later and
//! elsewhere ([`Store::empty_trash`]). Nothing is remembered but what is on disk, so a server that comes back finds all
//! of it.
//! ```text
//!   uppers/<id>/{root,root-work,usr,usr-work}    what a sandbox writes
//!   layers/<id>/{root,usr}, layers/<id>.json     read-only, and the facts about it  (layers.rs)
//!   volumes/<id>/                                shared by sandboxes                (volumes.rs)
//!   manifests/<id>                               what files an upper or a layer has (manifest/)
//!   drafts/<mark>/                               in the making, by the process in the mark
//!   trash/                                       to be deleted
//! ```
//! On btrfs each of them is a subvolume of one filesystem, so that an upper becomes a layer, and a layer an upper, by one
//! snapshot.

mod btrfs;
mod copy;
mod error;
mod export;
mod import;
mod layers;
mod manifest;
mod merge;
mod packages;
mod plain;
mod pool;
mod project_quota;
mod space;
mod sparse;
mod tmpfs;
mod trash;
mod volumes;

use std::fmt::Debug;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, XattrFlags, openat, renameat_with};
use rustix::io::Errno;

pub use error::Error;
pub(crate) use layers::linked as linked_data;
pub use layers::{Draft, HeldLayer, LayerInfo, is_missing};
pub use manifest::{Against, Checked, Digest, How, Problem, ProblemKind, Sealed, Watch};
pub use packages::TIME;
pub use space::{Health, Space};
pub use tmpfs::Tmpfs;

use crate::process;
use crate::spec::{Limits, SandboxId, Storage};

/// The directories of an upper: over the root, over `/usr`, and overlayfs's work directory for each.
const NAMES: [&str; 4] = ["root", "root-work", "usr", "usr-work"];

/// In `etc`: the sandbox's name and its resolver, written by its first launch (`birth.rs`).
const IDENTITY: [&str; 3] = ["hostname", "hosts", "resolv.conf"];

const WORKS: [&str; 2] = [NAMES[1], NAMES[3]];

/// Where overlayfs marks in its work directory that nothing was synced; it refuses to mount such an upper again
/// (overlayfs.rst, "Volatile mount").
const UNSYNCED: &str = "work/incompat";

/// Attributes of an upper's own directory, which the sandbox never sees. Bytes that a clone has from its source and that
/// do not count towards its limit:
const INHERITED: &str = "user.cove.inherited";
/// Bytes that count towards the limit of who wrote them although they may be a layer's or a clone's alone by now:
const PINNED: &str = "user.cove.pinned";

/// More than this waiting to be written is written out before a sandbox is frozen.
const MUCH_UNWRITTEN: u64 = 4 << 20;

/// How long a sandbox's files may take to be counted. One with more than that many has its limit and no more.
const RECOUNT: Duration = Duration::from_secs(5);

/// The same of a layer that a stopped sandbox is rolled back to: somebody waits for it.
const HERITAGE: Duration = Duration::from_secs(30);

/// A sandbox that can write less than this itself does not start.
const LEAST_OWN: u64 = 1 << 20;

const UNLIMITED: Limits = Limits { cpus: 1.0, memory: 0, pids: 0, disk: None, inodes: None };

/// Looking after a pool costs a millisecond or so; not with each sandbox.
const HOUSE_KEPT_EVERY: Duration = Duration::from_secs(1);

/// What a sandbox's overlay writes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upper {
    /// In the data directory.
    Directories(Directories),
    /// To be mounted by the launcher; the same four directories, named by [`Directories::below`], are in it.
    Memory(Tmpfs),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directories {
    pub root_upper: PathBuf,
    pub root_work: PathBuf,
    pub usr_upper: PathBuf,
    pub usr_work: PathBuf,
}

impl Directories {
    pub fn below(path: &Path) -> Directories {
        let [root_upper, root_work, usr_upper, usr_work] = NAMES.map(|name| path.join(name));
        Directories { root_upper, root_work, usr_upper, usr_work }
    }
}

/// What a sandbox has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    pub bytes: u64,
    /// Where the backing counts them.
    pub inodes: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Btrfs,
    Projects,
    Pool,
    Plain,
}

/// Where the uppers are, and what enforces their limits.
type Rung = (PathBuf, Box<dyn Backing>);

/// How a backing's own filesystem is; nothing where it has none.
#[derive(Debug, Default)]
struct Condition {
    space: Option<Space>,
    broken: Option<String>,
    unbacked: u64,
}

/// One rung of the ladder.
trait Backing: Debug + Send + Sync {
    fn kind(&self) -> Kind;
    /// For the log and the doctor.
    fn detail(&self) -> String;
    /// Takes over what an earlier life left ready.
    fn adopt(&self) -> Result<(), Error> {
        Ok(())
    }
    /// Makes an empty directory at `path` with a limit on what is in it. A failure leaves nothing.
    fn make_bare(&self, path: &Path, limits: &Limits) -> Result<(), Error>;
    /// The same with the four directories of an upper in it.
    fn make(&self, path: &Path, limits: &Limits) -> Result<(), Error> {
        self.make_bare(path, limits)?;
        make_upper(path).map(drop).inspect_err(|_| {
            // The first error is the one to report; the sweep finds what stays.
            let _ = self.erase(path);
        })
    }
    fn set_limit(&self, path: &Path, limits: &Limits) -> Result<(), Error>;
    fn used(&self, path: &Path) -> Result<Used, Error>;
    /// Deletes what `make` made, from the trash.
    fn erase(&self, path: &Path) -> Result<(), Error>;
    /// Makes `to` with everything in `from`.
    fn duplicate(&self, from: &Path, to: &Path, limits: &Limits) -> Result<(), Error>;
    /// Makes `to` what `from` is at this instant, in one act and on the disk when it returns. `None` where that takes a
    /// copy.
    fn snapshot(&self, _from: &Path, _to: &Path) -> Option<Result<(), Error>> {
        None
    }
    /// Whether what a snapshot has from its source counts towards its own limit too.
    fn counts_what_is_shared(&self) -> bool {
        true
    }
    /// Bytes that wait to be written to the disk.
    fn unwritten(&self, _path: &Path) -> Result<u64, Error> {
        Ok(0)
    }
    /// Makes empty ones ahead, where that is worth it.
    fn keep_ready(&self, _count: usize) -> Result<(), Error> {
        Ok(())
    }
    /// What has to be done now and then.
    fn keep_house(&self) -> Result<(), Error> {
        Ok(())
    }
    fn counted_groups(&self) -> Result<usize, Error> {
        Ok(0)
    }
    /// Has room ahead of those who write; called several times a second.
    fn make_room(&self) -> Result<(), Error> {
        Ok(())
    }
    /// How a filesystem of the backing's own is.
    fn condition(&self) -> Result<Condition, Error> {
        Ok(Condition::default())
    }
    fn has_failed(&self) -> bool {
        false
    }
    fn may_renew(&self) -> Result<(), Error> {
        Ok(())
    }
    /// Begins anew with a filesystem that has failed.
    fn renew(&self) -> Result<(), Error> {
        Ok(())
    }
    fn close(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// The uppers of one data directory.
#[derive(Debug)]
pub struct Store {
    data: PathBuf,
    backing: OnceLock<Rung>,
    removed: AtomicU64,
    house_kept: Mutex<Option<Instant>>,
}

impl Store {
    /// Cheap: which rung is used is found out when the first sandbox needs a disk.
    pub fn open(data: &Path) -> Result<Store, Error> {
        make_private(data)?;
        Ok(Store {
            data: data.to_owned(),
            backing: OnceLock::new(),
            removed: AtomicU64::new(0),
            house_kept: Mutex::default(),
        })
    }

    /// Plain directories whatever the host has: no limits, and a limit is refused with `why`.
    pub fn open_plain(data: &Path, why: &str) -> Result<Store, Error> {
        let store = Store::open(data)?;
        let plain = plain::Plain { why: why.to_owned() };
        store.install(data.join("storage"), Box::new(plain))?;
        Ok(store)
    }

    pub fn kind(&self) -> Result<Kind, Error> {
        Ok(self.backing()?.1.kind())
    }

    /// What was chosen and why, for people.
    pub fn detail(&self) -> Result<String, Error> {
        Ok(self.backing()?.1.detail())
    }

    pub fn create(&self, id: &SandboxId, storage: Storage, limits: &Limits) -> Result<Upper, Error> {
        if storage == Storage::Memory {
            return Ok(Upper::Memory(Tmpfs::sized(limits)));
        }
        let (top, backing) = self.backing()?;
        let path = uppers(top).join(id.as_str());
        match backing.make(&path, limits) {
            Err(error) if error.kind() == Some(ErrorKind::AlreadyExists) => Err(Error::Exists(id.clone())),
            other => other.map(|()| Upper::Directories(Directories::below(&path))),
        }
    }

    /// The files of an earlier life, fit for another.
    pub fn find(&self, id: &SandboxId) -> Result<Option<Upper>, Error> {
        let Some((top, _)) = self.used_backing()? else { return Ok(None) };
        let path = uppers(top).join(id.as_str());
        if !path.exists() {
            return Ok(None);
        }
        if WORKS.iter().any(|work| path.join(work).join(UNSYNCED).exists()) {
            fresh_work(&path)?;
        }
        Ok(Some(Upper::Directories(Directories::below(&path))))
    }

    /// What the sandbox wrote is on the disk when this returns.
    pub fn sync(&self, id: &SandboxId) -> Result<(), Error> {
        let path = self.existing(id)?;
        let synced = fs::File::open(&path).and_then(|upper| Ok(rustix::fs::syncfs(upper)?));
        synced.map_err(Error::at("sync", &path))
    }

    pub fn used(&self, id: &SandboxId) -> Result<Used, Error> {
        let path = self.existing(id)?;
        self.backing()?.1.used(&path)
    }

    /// Another limit, also while the sandbox runs.
    pub fn resize(&self, id: &SandboxId, limits: &Limits) -> Result<(), Error> {
        let path = self.existing(id)?;
        let backing = &self.backing()?.1;
        let wider = widened(&path, limits);
        if let (Some(limit), Some(wider)) = (limits.disk, wider.disk) {
            let used = backing.used(&path)?.bytes;
            if used > wider {
                return Err(Error::InUse { of: format!("sandbox {id}"), limit, used });
            }
        }
        backing.set_limit(&path, &wider)
    }

    /// A rename: fast, whatever its size. Already gone: nothing to do.
    pub fn remove(&self, id: &SandboxId) -> Result<(), Error> {
        let Some((top, _)) = self.used_backing()? else { return Ok(()) };
        manifest::forget(top, id.as_str())?;
        self.throw_away(top, &uppers(top).join(id.as_str()), id.as_str())
    }

    /// A rename into the trash. Already gone: nothing to do.
    fn throw_away(&self, top: &Path, path: &Path, label: &str) -> Result<(), Error> {
        loop {
            let number = self.removed.fetch_add(1, Ordering::Relaxed);
            let target = trash_of(top).join(format!("{label}.{}.{number}", std::process::id()));
            match fs::rename(path, &target) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                // A process with our number left it there before a restart.
                Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty) => {}
                // A full filesystem has room to delete and none for the rename: else nobody could make any.
                Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                    return self.backing()?.1.erase(path);
                }
                other => return other.map_err(Error::at("move to the trash", path)),
            }
        }
    }

    /// Deletes what was removed; for a thread of the background. Answers how many were deleted. One that cannot be
    /// deleted does not keep the others. While it is at it, it keeps house.
    pub fn empty_trash(&self) -> Result<usize, Error> {
        let Some((top, backing)) = self.used_backing()? else { return Ok(0) };
        if self.is_time_to_keep_house() {
            backing.keep_house()?;
        }
        let (mut deleted, mut failed) = (0, None);
        for name in list(&trash_of(top))? {
            match backing.erase(&trash_of(top).join(name)) {
                Ok(()) => deleted += 1,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(deleted), Err)
    }

    /// A copy of a sandbox's files as they are at this moment, for a new sandbox; on btrfs a snapshot, whatever their
    /// size. The caller freezes a sandbox that runs. Overlayfs's work directories are not copied.
    pub fn clone_upper(&self, id: &SandboxId, new: &SandboxId, limits: &Limits) -> Result<Upper, Error> {
        let from = self.existing(id)?;
        let backing = &self.backing()?.1;
        let inherited = inherited(&from) + backing.used(&from)?.bytes;
        self.make_whole(new, |path| {
            backing.duplicate(&from, path, limits)?;
            self.as_upper(path, inherited)
        })
    }

    /// Whether a copy of an upper is one act of the filesystem's, whatever its size.
    pub fn makes_snapshots(&self) -> Result<bool, Error> {
        Ok(matches!(self.backing()?.1.kind(), Kind::Btrfs | Kind::Pool))
    }

    /// Makes an upper under another name, which it gets when it is whole: whoever finds one after a crash can use it.
    fn make_whole(&self, new: &SandboxId, make: impl FnOnce(&Path) -> Result<(), Error>) -> Result<Upper, Error> {
        let (top, backing) = self.backing()?;
        let (draft, path) = (drafts(top).join(process::mark()), self.path(new)?);
        let named = make(&draft).and_then(|()| match renameat_with(CWD, &draft, CWD, &path, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => Err(Error::Exists(new.clone())),
            other => other.map_err(Error::at("name", &path)),
        });
        if named.is_err() {
            // The first error is the one to report; the sweep finds what stays.
            let _ = backing.erase(&draft);
        }
        named.map(|()| Upper::Directories(Directories::below(&path)))
    }

    /// Makes a snapshot of an upper or a layer an upper of its own.
    fn as_upper(&self, path: &Path, inherited: u64) -> Result<(), Error> {
        for name in [NAMES[0], NAMES[2]].map(|name| path.join(name)) {
            if !name.exists() {
                make_directory(&name)?;
            }
        }
        fresh_work(path)?;
        if !self.backing()?.1.counts_what_is_shared() {
            note(path, INHERITED, inherited)?;
            note(path, PINNED, 0)?;
        }
        Ok(())
    }

    /// As [`Store::clone_upper`], of files that lie somewhere else: those of a sandbox in memory. They are copied.
    pub fn clone_files(&self, files: BorrowedFd<'_>, new: &SandboxId, limits: &Limits) -> Result<Upper, Error> {
        let backing = &self.backing()?.1;
        self.make_whole(new, |path| {
            backing.make(path, limits)?;
            copy::parts(files, path, &[NAMES[0], NAMES[2]])
        })
    }

    /// After a snapshot of a sandbox: what it has now stays on its account for as long as the snapshot does, even if the
    /// sandbox deletes or rewrites it. So that it can, its limit is raised by as much. Nothing to do where what is shared is
    /// counted by who has it.
    pub fn pin(&self, id: &SandboxId, limits: &Limits) -> Result<(), Error> {
        let path = self.existing(id)?;
        let backing = &self.backing()?.1;
        if backing.counts_what_is_shared() {
            return Ok(());
        }
        let used = backing.used(&path)?.bytes;
        // One with more on its account may have all of that, thanks to the last time: it is counted first.
        if own_limit(&path, limits).is_some_and(|limit| used > limit) {
            return Ok(());
        }
        give_leave(&**backing, &path, limits, used)
    }

    /// The rest of [`Store::pin`], for a background thread: one that has more on its account than its limit is counted. Where
    /// its files are within the limit it can write as much as before; where they are more, or cannot be counted, what it was
    /// given before is taken back. They are counted as they are at one instant: a sandbox that runs could move them from where they
    /// are looked for next to where they were looked for before.
    pub fn recount(&self, id: &SandboxId, limits: &Limits) -> Result<(), Error> {
        let path = self.existing(id)?;
        let (top, backing) = self.backing()?;
        if backing.counts_what_is_shared() {
            return Ok(());
        }
        let Some(limit) = own_limit(&path, limits) else { return Ok(()) };
        let used = backing.used(&path)?.bytes;
        if used <= limit {
            return Ok(());
        }
        let picture = drafts(top).join(process::mark());
        let Some(taken) = backing.snapshot(&path, &picture) else { return Ok(()) };
        let counted = taken.and_then(|()| plain::count_within(&picture, RECOUNT));
        let erased = backing.erase(&picture);
        let counted = counted?;
        erased?;
        if counted.is_some_and(|counted| counted.bytes.saturating_sub(inherited(&path)) <= limit) {
            return give_leave(&**backing, &path, limits, used);
        }
        let used = backing.used(&path)?.bytes;
        note(&path, PINNED, used.saturating_sub(limit))?;
        backing.set_limit(&path, &Limits { disk: Some(used.max(limit)), ..*limits })
    }

    /// What a clone has of others is on no account of its own, and stays when they are gone: with what it writes itself it is at
    /// most twice its limit. Its files are counted where the accounts of those before it leave that open; `counted` is what another
    /// clone of the same instant was found to have. Nobody has started it yet.
    pub fn accept_heritage(
        &self,
        id: &SandboxId,
        limits: &Limits,
        counted: &mut Option<Option<u64>>,
    ) -> Result<(), Error> {
        let path = self.existing(id)?;
        if limits.disk.is_none_or(|limit| inherited(&path) <= limit) {
            return Ok(());
        }
        let found = match *counted {
            Some(found) => found,
            None => *counted.insert(plain::count_within(&path, RECOUNT)?.map(|counted| counted.bytes)),
        };
        let heritage = found.map_or(inherited(&path), |found| found.min(inherited(&path)));
        self.inherit(id, &path, heritage, limits)
    }

    /// Notes what the upper of a sandbox has of others, and limits what it writes itself.
    fn inherit(&self, id: &SandboxId, path: &Path, heritage: u64, limits: &Limits) -> Result<(), Error> {
        let Some(limit) = limits.disk else { return note(path, INHERITED, heritage) };
        let own = own_part(limit, heritage);
        if own < LEAST_OWN.min(limit) {
            return Err(Error::Heritage { id: id.clone(), has: heritage, limit });
        }
        note(path, INHERITED, heritage)?;
        self.backing()?.1.set_limit(path, &Limits { disk: Some(own), ..*limits })
    }

    /// Writes out what waits to be written of one sandbox, where that is much: nobody is frozen meanwhile. Not by syncfs(2),
    /// which waits for what all the others wrote.
    pub fn settle(&self, id: &SandboxId) -> Result<(), Error> {
        let path = self.existing(id)?;
        let (top, backing) = self.backing()?;
        // A sandbox that writes faster than the disk is never done.
        for _ in 0..2 {
            if backing.unwritten(&path)? < MUCH_UNWRITTEN {
                break;
            }
            let passing = drafts(top).join(process::mark());
            match backing.snapshot(&path, &passing) {
                None => break,
                Some(done) => done.and_then(|()| backing.erase(&passing))?,
            }
        }
        Ok(())
    }

    /// What a small file of a sandbox's root holds; `None` where there is none, or a link on the way, or more than `most`.
    pub fn read_small(&self, id: &SandboxId, path: &str, most: usize) -> Result<Option<Vec<u8>>, Error> {
        let upper = self.existing(id)?;
        let root = open_directory(CWD, upper.join(NAMES[0])).map_err(Error::at("open", &upper))?;
        Ok(read_beneath(&root, path, most))
    }

    /// Writes a stopped sandbox's files as a tar archive with the folders `root` and `usr`. What could not be imported again
    /// within these limits is refused.
    pub fn export<W: Write>(&self, id: &SandboxId, limits: &Limits, writer: W) -> Result<W, Error> {
        let room = limits.disk.map(|limit| limit.saturating_add(limit / 8).saturating_add(32 << 20));
        export::write(&self.existing(id)?, room, writer)
    }

    /// Makes a sandbox's files out of an archive of `export`. The archive may come from anybody; a bad one leaves nothing.
    pub fn import(&self, id: &SandboxId, limits: &Limits, reader: impl Read) -> Result<Upper, Error> {
        // What was within its limit may take somewhat more as it comes back: other blocks, and names that several files
        // have for a moment. It gets its own limit when it is there.
        let wider = limits.disk.map(|limit| limit.saturating_add(limit / 4).saturating_add(64 << 20));
        let upper = self.create(id, Storage::Disk, &Limits { disk: wider, ..*limits })?;
        let filled = self.existing(id).and_then(|path| {
            import::read(&path, reader)?;
            self.backing()?.1.set_limit(&path, limits)
        });
        if filled.is_err() {
            // The first error is the one to tell; what stays is found by the sweep.
            let _ = self.remove(id);
        }
        filled.map(|()| upper)
    }

    /// Makes this many uppers ahead; for a background thread.
    pub fn keep_ready(&self, count: usize) -> Result<(), Error> {
        self.backing()?.1.keep_ready(count)
    }

    /// Grows the pool and removes the trash; for a background thread, now and then. Making and removing sandboxes do it
    /// too; this is for hosts where sandboxes only write.
    pub fn keep_house(&self) -> Result<(), Error> {
        self.used_backing()?.map_or(Ok(()), |(_, backing)| backing.keep_house())
    }

    /// What the background does now and then: so many uppers are made ahead and the house is kept, where any sandbox has a
    /// disk at all.
    pub fn tend(&self, count: usize) -> Result<(), Error> {
        let Some((_, backing)) = self.used_backing()? else { return Ok(()) };
        if self.is_time_to_keep_house() {
            backing.keep_house()?;
        }
        backing.keep_ready(count)
    }

    /// Makes room ahead of those who write; for a thread of the background, several times a second.
    pub fn make_room(&self) -> Result<(), Error> {
        self.backing.get().map_or(Ok(()), |(_, backing)| backing.make_room())
    }

    /// How it is, asked at this moment: a few calls of statvfs.
    pub fn health(&self) -> Result<Health, Error> {
        let host = Space::of(&self.data)?;
        let condition = match self.backing.get() {
            Some((_, backing)) => backing.condition()?,
            None => Condition::default(),
        };
        Ok(Health { host, pool: condition.space, broken: condition.broken, unbacked: condition.unbacked })
    }

    /// Whether the filesystem of the uppers has failed: nothing can be written to it.
    pub fn has_failed(&self) -> bool {
        self.backing.get().is_some_and(|(_, backing)| backing.has_failed())
    }

    /// Whether it could begin anew now; else what is lacking.
    pub fn may_renew(&self) -> Result<(), Error> {
        self.backing.get().map_or(Ok(()), |(_, backing)| backing.may_renew())
    }

    /// As [`Store::health`] of a data directory that nobody has opened here: nothing is made or mounted.
    pub fn look(data: &Path) -> Result<Health, Error> {
        let host = Space::of(data)?;
        let (pool, broken) = pool::look(data)?;
        Ok(Health { host, pool, broken, unbacked: 0 })
    }

    /// Begins anew with a filesystem that has failed, where that can be done now. No sandbox may run on it.
    pub fn renew(&self) -> Result<(), Error> {
        self.backing.get().map_or(Ok(()), |(_, backing)| backing.renew())
    }

    /// Lets go of the pool where no other store uses it; dropping a store does the same and keeps quiet about errors.
    /// Sandboxes may be running: they keep what they have, and the next store finds it again.
    pub fn close(&self) -> Result<(), Error> {
        self.backing.get().map_or(Ok(()), |(_, backing)| backing.close())
    }

    /// How many quota groups the backing counts in, where it does: grows with the sandboxes and shrinks with them.
    pub fn counted_groups(&self) -> Result<usize, Error> {
        self.backing()?.1.counted_groups()
    }

    /// Every sandbox that has files here.
    pub fn names(&self) -> Result<Vec<SandboxId>, Error> {
        let Some((top, _)) = self.used_backing()? else { return Ok(Vec::new()) };
        Ok(list(&uppers(top))?.into_iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Whether this sandbox has files here.
    pub fn has(&self, id: &SandboxId) -> Result<bool, Error> {
        Ok(self.used_backing()?.is_some_and(|(top, _)| uppers(top).join(id.as_str()).exists()))
    }

    /// Whether a sandbox's files hold no more than its launch wrote; also where it has none.
    pub fn is_blank(&self, id: &SandboxId) -> Result<bool, Error> {
        let Some((top, _)) = self.used_backing()? else { return Ok(true) };
        let path = uppers(top).join(id.as_str());
        let holds_only = |folder: &str, expected: &[&str]| match fs::read_dir(path.join(folder)) {
            Ok(entries) => {
                let names = entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<Vec<_>, _>>();
                let names = names.map_err(Error::at("list", &path))?;
                Ok(names.iter().all(|name| expected.iter().any(|expected| name == expected)))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            Err(error) => Err(Error::at("list", &path)(error)),
        };
        Ok(holds_only(NAMES[0], &["etc"])? && holds_only("root/etc", &IDENTITY)? && holds_only(NAMES[2], &[])?)
    }

    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.names()?.is_empty())
    }

    fn path(&self, id: &SandboxId) -> Result<PathBuf, Error> {
        Ok(uppers(&self.backing()?.0).join(id.as_str()))
    }

    fn is_time_to_keep_house(&self) -> bool {
        let mut kept = self.house_kept.lock().unwrap_or_else(PoisonError::into_inner);
        let due = kept.is_none_or(|kept| kept.elapsed() > HOUSE_KEPT_EVERY);
        if due {
            *kept = Some(Instant::now());
        }
        due
    }

    fn existing(&self, id: &SandboxId) -> Result<PathBuf, Error> {
        let path = self.used_backing()?.map(|(top, _)| uppers(top).join(id.as_str()));
        path.filter(|path| path.exists()).ok_or_else(|| Error::NotFound(id.clone()))
    }

    /// Nothing where no sandbox of this data directory ever had a disk: a question makes no pool.
    fn used_backing(&self) -> Result<Option<&Rung>, Error> {
        let used =
            self.backing.get().is_some() || ["storage", "pool.btrfs"].iter().any(|name| self.data.join(name).exists());
        used.then(|| self.backing()).transpose()
    }

    fn backing(&self) -> Result<&Rung, Error> {
        if let Some(backing) = self.backing.get() {
            return Ok(backing);
        }
        let (top, backing) = choose(&self.data)?;
        self.install(top, backing)
    }

    fn install(&self, top: PathBuf, backing: Box<dyn Backing>) -> Result<&Rung, Error> {
        let folders = [uppers(&top), trash_of(&top), layers::folder(&top), drafts(&top)];
        for path in [top.clone()].into_iter().chain(folders).chain([volumes::folder(&top), manifest::folder(&top)]) {
            make_private(&path)?;
        }
        backing.adopt()?;
        layers::sweep(&top, &*backing)?;
        manifest::sweep(&top)?;
        Ok(self.backing.get_or_init(|| (top, backing)))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // A mount that stays is found again by the next store.
        let _ = self.close();
    }
}

/// The first backing that works. The last one reports what each of the others lacked.
fn choose(data: &Path) -> Result<Rung, Error> {
    let top = data.join("storage");
    if !crate::privilege::is_host_root() {
        let why = "disk limits need root".to_owned();
        return Ok((top, Box::new(plain::Plain { why })));
    }
    if let Some(native) = btrfs::Btrfs::native(data, &top) {
        return Ok((top, Box::new(native)));
    }
    // A pool that is there is used: its sandboxes' files are in it.
    if !data.join("pool.btrfs").exists()
        && let Some(projects) = project_quota::Projects::on(data, &top)
    {
        return Ok((top, Box::new(projects)));
    }
    match pool::Pool::open(data) {
        Ok(pool) => {
            let pooled = btrfs::Btrfs::pooled(pool)?;
            Ok((data.join("pool"), Box::new(pooled)))
        }
        // An existing pool that cannot be used is an error.
        Err(error) if data.join("pool.btrfs").exists() => Err(error),
        Err(error) => {
            let why = format!("no quotas on the data directory's filesystem, and no pool: {error}");
            Ok((top, Box::new(plain::Plain { why })))
        }
    }
}

/// Where a data directory's storage can be, whichever rung it has.
pub(crate) fn tops(data: &Path) -> [PathBuf; 2] {
    ["pool", "storage"].map(|name| data.join(name))
}

fn uppers(top: &Path) -> PathBuf {
    top.join("uppers")
}

fn trash_of(top: &Path) -> PathBuf {
    top.join("trash")
}

fn drafts(top: &Path) -> PathBuf {
    top.join("drafts")
}

/// What counts towards a limit without being the sandbox's any more is allowed on top.
fn widened(path: &Path, limits: &Limits) -> Limits {
    Limits { disk: own_limit(path, limits).map(|limit| limit.saturating_add(noted(path, PINNED))), ..*limits }
}

/// For what a sandbox writes itself.
fn own_limit(path: &Path, limits: &Limits) -> Option<u64> {
    limits.disk.map(|limit| own_part(limit, inherited(path)))
}

/// With what it has of others it is at most twice the limit.
fn own_part(limit: u64, heritage: u64) -> u64 {
    limit.min(limit.saturating_mul(2).saturating_sub(heritage))
}

/// So many bytes of a sandbox's account are not its own business any more.
fn give_leave(backing: &dyn Backing, path: &Path, limits: &Limits, bytes: u64) -> Result<(), Error> {
    let disk = own_limit(path, limits).map(|limit| limit.saturating_add(bytes));
    // First: one that is at its limit has no room for the note either.
    backing.set_limit(path, &Limits { disk, ..*limits })?;
    note(path, PINNED, bytes)
}

fn inherited(path: &Path) -> u64 {
    noted(path, INHERITED)
}

/// A number on a directory; 0 where there is none.
fn noted(path: &Path, name: &str) -> u64 {
    let mut text = [0; 24];
    let length = rustix::fs::lgetxattr(path, name, &mut text[..]).unwrap_or(0);
    std::str::from_utf8(&text[..length]).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn note(path: &Path, name: &str, number: u64) -> Result<(), Error> {
    let noted = rustix::fs::lsetxattr(path, name, number.to_string().as_bytes(), XattrFlags::empty());
    noted.map_err(Error::at("note the size of", path))
}

/// Two names change places in one act.
fn exchange(one: &Path, other: &Path) -> Result<(), Error> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).map_err(Error::at("exchange", one))
}

fn open_directory(parent: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// A regular file below an open directory that others wrote; links are followed inside it.
pub(crate) fn read_beneath(directory: impl std::os::fd::AsFd, path: &str, most: usize) -> Option<Vec<u8>> {
    use rustix::fs::{FileType, ResolveFlags, fstat, openat2};
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let file = rustix::io::retry_on_intr(|| openat2(&directory, path, flags, Mode::empty(), inside)).ok()?;
    let told = fstat(&file).ok()?;
    if FileType::from_raw_mode(told.st_mode) != FileType::RegularFile || told.st_size > i64::try_from(most).ok()? {
        return None;
    }
    let mut text = Vec::new();
    fs::File::from(file).take(most as u64).read_to_end(&mut text).ok()?;
    Some(text)
}

fn make_upper(path: &Path) -> Result<Directories, Error> {
    for name in NAMES {
        make_directory(&path.join(name))?;
    }
    Ok(Directories::below(path))
}

/// Overlayfs's own directories, empty: a copied one would say that it was in use, or not cleanly unmounted.
fn fresh_work(path: &Path) -> Result<(), Error> {
    for work in WORKS.map(|name| path.join(name)) {
        trash::delete(&work)?;
        make_directory(&work)?;
    }
    Ok(())
}

/// What the sandbox sees as a directory of its own: readable as `/` and `/usr` are.
fn make_directory(path: &Path) -> Result<(), Error> {
    fs::DirBuilder::new().mode(0o755).create(path).map_err(Error::at("make", path))
}

/// No other user of the host may read sandboxes' files.
fn make_private(path: &Path) -> Result<(), Error> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Error::at("make", path)(error)),
        _ => Ok(()),
    }
}

fn list(path: &Path) -> Result<Vec<String>, Error> {
    let entries = fs::read_dir(path).map_err(Error::at("list", path))?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// For the fuzzer: no store, only the archive.
#[cfg(feature = "fuzzing")]
pub(crate) fn import_into(upper: &std::path::Path, archive: impl std::io::Read) -> Result<(), Error> {
    import::read(upper, archive)
}
