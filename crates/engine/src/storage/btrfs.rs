//! A subvolume per sandbox, its size held by a quota group: on the data directory's own btrfs, or on the pool's.
//!
//! Making one, limiting it, snapshotting it and deleting it are one ioctl each. A few empty ones are kept ready, so that
//! a launch takes one by a rename. The limit counts metadata too: a flood of empty files meets it like a large file does;
//! inodes are not counted apart.
//!
//! Under simple quotas (Linux 6.7) an extent belongs to the subvolume that wrote it: a clone starts at nothing and its limit
//! is for what it writes itself.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

use cove_sys::btrfs;

use super::pool::Pool;
use super::{
    Backing, Condition, Error, Kind, NAMES, Used, drafts, layers, list, make_upper, trash, trash_of, uppers, volumes,
};
use crate::spec::Limits;

#[derive(Debug)]
pub(super) struct Btrfs {
    top: PathBuf,
    /// `/sys/fs/btrfs/<id>/qgroups`: what the kernel counts, without waiting for a commit.
    groups: RwLock<PathBuf>,
    /// The image below, where the filesystem is ours alone.
    pool: Option<Pool>,
    ready: Mutex<Ready>,
    /// Whether quotas are of the simple kind.
    simple: OnceLock<bool>,
}

#[derive(Debug, Default)]
struct Ready {
    names: Vec<String>,
    made: u64,
    /// Quota groups that had no subvolume when last looked.
    orphans: BTreeSet<u64>,
}

impl Btrfs {
    /// The data directory's own btrfs, where its owner has quotas on. They are not turned on here: simple quotas
    /// would keep older kernels from mounting somebody's filesystem, the other kind slows all of it down.
    pub(super) fn native(data: &Path, top: &Path) -> Option<Btrfs> {
        let directory = File::open(data).ok()?;
        let groups = groups_of(&directory).ok().filter(|groups| groups.exists())?;
        Some(Btrfs::counting_in(groups, top.to_owned(), None))
    }

    /// On a pool's filesystem: quotas are turned on where they are not yet.
    pub(super) fn pooled(pool: Pool) -> Result<Btrfs, Error> {
        let top = pool.top().to_owned();
        Ok(Btrfs::counting_in(counted_in(&top)?, top, Some(pool)))
    }

    fn counting_in(groups: PathBuf, top: PathBuf, pool: Option<Pool>) -> Btrfs {
        Btrfs { top, groups: RwLock::new(groups), pool, ready: Mutex::default(), simple: OnceLock::new() }
    }

    fn groups(&self) -> PathBuf {
        self.groups.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn has_simple_quotas(&self) -> bool {
        *self.simple.get_or_init(|| {
            let mode = fs::read_to_string(self.groups().join("mode")).unwrap_or_default();
            mode.trim() == "squota"
        })
    }

    /// Metadata of a snapshot counts for nobody before it changes; the pool needs room for the commit.
    fn take_snapshot(&self, from: &Path, to: &Path) -> Result<(), Error> {
        if let Some(pool) = &self.pool {
            pool.grow()?;
        }
        let (parent, name) = split(to)?;
        let take = || -> Result<(), Error> {
            btrfs::snapshot(open(from)?, open(parent)?, name).map_err(Error::at("snapshot to", to))
        };
        match (take(), &self.pool) {
            // What waited to be written took the room that the commit would have had.
            (Err(error), Some(pool)) if error.kind() == Some(std::io::ErrorKind::StorageFull) => {
                pool.grow_anyway()?;
                take()
            }
            (taken, _) => taken,
        }
    }

    fn ready_directory(&self) -> PathBuf {
        self.top.join("ready")
    }

    fn limit(&self, path: &Path, limits: &Limits) -> Result<(), Error> {
        let directory = open(path)?;
        let limit = || btrfs::limit_subvolume(&directory, btrfs::subvolume_of(&directory)?, limits.disk);
        limit().map_err(Error::at("limit", path))
    }

    fn group(&self, path: &Path) -> Result<PathBuf, Error> {
        let number = btrfs::subvolume_of(open(path)?).map_err(Error::at("identify", path))?;
        Ok(self.groups().join(format!("0_{number}")))
    }

    /// Takes one that is ready. Another process on the same data directory may have been quicker.
    fn take_ready(&self, path: &Path, limits: &Limits) -> Result<Option<()>, Error> {
        loop {
            let Some(name) = self.lock().names.pop() else { return Ok(None) };
            let from = self.ready_directory().join(name);
            if !from.exists() {
                continue;
            }
            self.limit(&from, limits)?;
            // Onto nothing: the name of a sandbox is used once, and rename(2) would replace an empty directory.
            let flags = rustix::fs::RenameFlags::NOREPLACE;
            return match rustix::fs::renameat_with(rustix::fs::CWD, &from, rustix::fs::CWD, path, flags) {
                Err(rustix::io::Errno::NOENT) => continue,
                other => other.map(Some).map_err(Error::at("make", path)),
            };
        }
    }

    /// Forgets the quota groups of deleted subvolumes, which older kernels keep for ever. Only those without a
    /// subvolume at two looks: one may just be in the making.
    fn forget_orphans(&self) -> Result<(), Error> {
        let counted = self.counted()?;
        let mut named = Vec::new();
        for directory in [
            uppers(&self.top),
            trash_of(&self.top),
            self.ready_directory(),
            layers::folder(&self.top),
            drafts(&self.top),
            volumes::folder(&self.top),
        ] {
            named.extend(list(&directory)?.into_iter().map(|name| directory.join(name)));
        }
        named.retain(|path| path.extension().is_none_or(|extension| extension != layers::FACTS));
        if counted.len() <= named.len() {
            return Ok(());
        }
        let number = |path: &PathBuf| File::open(path).and_then(btrfs::subvolume_of).ok();
        let alive: BTreeSet<u64> = named.iter().filter_map(number).collect();
        let top = open(&self.top)?;
        let mut ready = self.lock();
        let orphans: BTreeSet<u64> = counted.difference(&alive).copied().collect();
        for number in orphans.intersection(&ready.orphans) {
            // EBUSY: a clone still uses what it wrote, or the kernel is not through with deleting it.
            let _ = btrfs::forget_group(&top, *number);
        }
        ready.orphans = orphans;
        Ok(())
    }

    /// The numbers of all subvolumes that have a quota group.
    fn counted(&self) -> Result<BTreeSet<u64>, Error> {
        let number = |name: String| name.strip_prefix("0_").and_then(|number| number.parse::<u64>().ok());
        Ok(list(&self.groups())?.into_iter().filter_map(number).filter(|number| *number >= 256).collect())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ready> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backing for Btrfs {
    fn kind(&self) -> Kind {
        if self.pool.is_some() { Kind::Pool } else { Kind::Btrfs }
    }

    fn detail(&self) -> String {
        let quotas = if self.has_simple_quotas() { "simple quotas" } else { "quota groups" };
        match &self.pool {
            Some(pool) => format!("btrfs subvolumes with {quotas} in the image {}", pool.image().display()),
            None => format!("btrfs subvolumes with {quotas} in the data directory"),
        }
    }

    /// Takes over what an earlier life kept ready; those half made go to the trash.
    fn adopt(&self) -> Result<(), Error> {
        let directory = self.ready_directory();
        super::make_private(&directory)?;
        let mut ready = self.lock();
        for name in list(&directory)? {
            if NAMES.iter().all(|part| directory.join(&name).join(part).exists()) {
                ready.made = ready.made.max(name.parse().unwrap_or(0) + 1);
                ready.names.push(name);
            } else {
                self.erase(&directory.join(name))?;
            }
        }
        Ok(())
    }

    fn make_bare(&self, path: &Path, limits: &Limits) -> Result<(), Error> {
        if let Some(pool) = &self.pool {
            pool.grow()?;
        }
        let (parent, name) = split(path)?;
        btrfs::create_subvolume(open(parent)?, name).map_err(Error::at("make subvolume", path))?;
        self.limit(path, limits).inspect_err(|_| {
            // The first error is the one to tell; what stays is found by the sweep.
            let _ = self.erase(path);
        })
    }

    fn make(&self, path: &Path, limits: &Limits) -> Result<(), Error> {
        if let Some(pool) = &self.pool {
            if pool.has_failed()? {
                let reason = "its filesystem has failed and is mounted anew".to_owned();
                return Err(Error::Broken { path: pool.image().to_owned(), reason });
            }
            pool.grow()?;
        }
        if self.take_ready(path, limits)?.is_some() {
            return Ok(());
        }
        self.make_bare(path, limits)?;
        make_upper(path).map(drop).inspect_err(|_| {
            let _ = self.erase(path);
        })
    }

    fn set_limit(&self, path: &Path, limits: &Limits) -> Result<(), Error> {
        self.limit(path, limits)
    }

    fn used(&self, path: &Path) -> Result<Used, Error> {
        let group = self.group(path)?;
        let read = |name: &str| -> Result<u64, Error> {
            let file = group.join(name);
            let text = fs::read_to_string(&file).map_err(Error::at("read", &file))?;
            Ok(text.trim().parse().unwrap_or(0))
        };
        // What waits to be written counts already.
        Ok(Used { bytes: read("referenced")? + read("rsv_data").unwrap_or(0), inodes: None })
    }

    fn erase(&self, path: &Path) -> Result<(), Error> {
        let (parent, name) = split(path)?;
        match btrfs::destroy_subvolume(open(parent)?, name) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            // No subvolume (EINVAL), or one with others in it: what a person put there.
            Err(_) if path.exists() => trash::delete(path),
            other => other.map_err(Error::at("delete subvolume", path)),
        }
    }

    fn duplicate(&self, from: &Path, to: &Path, limits: &Limits) -> Result<(), Error> {
        self.take_snapshot(from, to)?;
        self.limit(to, limits)
    }

    fn snapshot(&self, from: &Path, to: &Path) -> Option<Result<(), Error>> {
        Some(self.take_snapshot(from, to))
    }

    fn counts_what_is_shared(&self) -> bool {
        !self.has_simple_quotas()
    }

    fn unwritten(&self, path: &Path) -> Result<u64, Error> {
        let file = self.group(path)?.join("rsv_data");
        let text = fs::read_to_string(&file).map_err(Error::at("read", &file))?;
        Ok(text.trim().parse().unwrap_or(0))
    }

    fn keep_ready(&self, count: usize) -> Result<(), Error> {
        let directory = self.ready_directory();
        while self.lock().names.len() < count {
            let name = {
                let mut ready = self.lock();
                ready.made += 1;
                format!("{}", ready.made)
            };
            let path = directory.join(&name);
            match btrfs::create_subvolume(open(&directory)?, &name) {
                // Of another process on the same data directory.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
                other => other.map_err(Error::at("make subvolume", &path))?,
            }
            make_upper(&path)?;
            self.lock().names.push(name);
        }
        Ok(())
    }

    fn keep_house(&self) -> Result<(), Error> {
        if self.pool.is_none() {
            return Ok(());
        }
        self.make_room()?;
        self.forget_orphans()
    }

    fn make_room(&self) -> Result<(), Error> {
        let Some(pool) = &self.pool else { return Ok(()) };
        // What somebody dug out of the image is had again; what never can be had is not promised any longer.
        if pool.unbacked()? > 0 {
            pool.fit()?;
        }
        pool.grow_ahead()?;
        pool.shrink()
    }

    fn condition(&self) -> Result<Condition, Error> {
        let Some(pool) = &self.pool else { return Ok(Condition::default()) };
        let failed = pool.has_failed()?.then(|| "its filesystem is read-only after an error".to_owned());
        let unbacked = if failed.is_some() { 0 } else { pool.unbacked()? };
        Ok(Condition { space: Some(pool.seen()?), broken: failed, unbacked })
    }

    fn has_failed(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.has_failed().unwrap_or(false))
    }

    fn may_renew(&self) -> Result<(), Error> {
        self.pool.as_ref().map_or(Ok(()), Pool::may_renew)
    }

    fn renew(&self) -> Result<(), Error> {
        let Some(pool) = &self.pool else { return Ok(()) };
        pool.renew()?;
        *self.groups.write().unwrap_or_else(PoisonError::into_inner) = counted_in(&self.top)?;
        self.lock().names.clear();
        self.adopt()
    }

    fn counted_groups(&self) -> Result<usize, Error> {
        Ok(self.counted()?.len())
    }

    fn close(&self) -> Result<(), Error> {
        self.pool.as_ref().map_or(Ok(()), Pool::close)
    }
}

/// Where the kernel counts on a pool's filesystem: quotas are turned on where they are not yet.
fn counted_in(top: &Path) -> Result<PathBuf, Error> {
    let directory = open(top)?;
    let groups = groups_of(&directory).map_err(Error::at("identify", top))?;
    if !groups.exists() {
        btrfs::enable_simple_quota(&directory)
            .or_else(|_| btrfs::enable_quota(&directory))
            .map_err(Error::at("enable quotas on", top))?;
    }
    Ok(groups)
}

fn groups_of(directory: &File) -> std::io::Result<PathBuf> {
    Ok(Path::new("/sys/fs/btrfs").join(btrfs::filesystem_id(directory)?).join("qgroups"))
}

fn open(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(Error::at("open", path))
}

fn split(path: &Path) -> Result<(&Path, &str), Error> {
    let name = path.file_name().and_then(|name| name.to_str());
    path.parent()
        .zip(name)
        .ok_or_else(|| Error::at("name", path)(std::io::Error::from(std::io::ErrorKind::InvalidInput)))
}
