//! One btrfs for all sandboxes on a host that has none: an image in the data directory, mounted beside it.
//!
//! ```text
//! <data>/pool.btrfs   the image; every block of it is set aside by the filesystem below
//! <data>/pool         where it is mounted
//! <data>/pool.lock    held while it is made, mounted, grown or unmounted
//! <data>/pool.users   held shared by every store that is open; who gets it alone may unmount
//! ```
//! A sparse image would be a promise that the disk below may not keep: when that is full, a write into a hole fails, the
//! filesystem in the image turns read-only for every sandbox at once, and what they wrote last is gone. So the image begins
//! small, has all its blocks (`fallocate`), and grows in steps ahead of its writers for as long as the filesystem below has
//! more than it keeps for others. A pool that cannot grow is full: who writes gets ENOSPC, and nothing breaks. What is
//! deleted stays with the image until it has far too much, and is then given back by shrinking it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cove_sys::btrfs;
use cove_sys::loop_device::LoopDevice;
use rustix::fs::{
    FallocateFlags, FlockOperation, IFlags, StatVfsMountFlags, fallocate, flock, ioctl_getflags, ioctl_setflags,
    statvfs,
};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::space::Space;
use super::{Error, make_private};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Below this mkfs.btrfs refuses, or nothing useful fits.
const LEAST: u64 = 256 * MIB;
/// The image's size is a multiple of this.
const GRAIN: u64 = 16 * MIB;
/// What it grows by at most at one time, and what it shrinks by.
const MOST: u64 = 8 * GIB;
/// A pool that grows again this soon has a fast writer: it grows by twice as much each time.
const SOON: Duration = Duration::from_secs(10);
/// After an attempt to grow in vain: not with every look on a full disk.
const RETRY: Duration = Duration::from_secs(2);
/// How long nobody may have needed room before some is given back.
const QUIET: Duration = Duration::from_secs(60);
/// The same after it had too little for metadata.
const ROOMY_AGAIN: Duration = Duration::from_secs(3600);
/// With about half as much room for metadata the kernel refuses to make a subvolume, or to rename one.
const LEAST_METADATA: u64 = 8 * MIB;
/// How long the kernel may take to let go of a device.
const LETTING_GO: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Pool {
    image: PathBuf,
    top: PathBuf,
    /// Where the kernel accounts for its data and metadata.
    account: PathBuf,
    lock: File,
    users: File,
    /// Nothing while it is replaced.
    device: Mutex<Option<LoopDevice>>,
    /// When growing was last tried in vain.
    full: Mutex<Option<Instant>>,
    /// When it last grew, or had to be looked at for shrinking.
    stirred: Mutex<Instant>,
    /// When it last grew, and by how much.
    grown: Mutex<Option<(Instant, u64)>>,
    /// When it last had too little for metadata.
    cramped: Mutex<Option<Instant>>,
    /// While it is mounted anew, and where that failed: what is seen at its place is not the pool.
    away: AtomicBool,
}

impl Pool {
    /// Mounted, whoever did it. `Err` names the first thing that this host lacks, or why the image cannot be used.
    pub(super) fn open(data: &Path) -> Result<Pool, Error> {
        let (image, top) = (data.join("pool.btrfs"), data.join("pool"));
        make_private(&top)?;
        let lock = lock_file(&data.join("pool.lock"))?;
        let users = lock_file(&data.join("pool.users"))?;
        let held = Held::exclusively(&lock, &image)?;
        flock(&users, FlockOperation::LockShared).map_err(Error::at("lock", &image))?;
        if !image.exists() {
            make_image(data, &image)?;
        }
        let file = open_image(&image)?;
        // One of an earlier version, or copied without its blocks. What cannot be had now is looked for again and again.
        let _ = set_aside(&file, &image);
        let found = LoopDevice::find(&file).map_err(Error::at("find the loop device of", &image))?;
        let in_use = found.is_some();
        let device = match found {
            Some(device) => device,
            None => LoopDevice::attach(&file).map_err(Error::at("attach a loop device to", &image))?,
        };
        let mounted =
            is_mounted(&device.path, &top).and_then(|mounted| if mounted { Ok(()) } else { mount_at(&device, &top) });
        match mounted {
            Ok(()) if !is_read_only(&top)? => {}
            // Sandboxes that run hold a filesystem that has failed: no other can be had of the image before they end.
            Ok(()) => {
                let _ = unmount(&top, UnmountFlags::DETACH);
                return Err(Error::Broken { path: image, reason: "it is read-only after an error".into() });
            }
            Err(error) if in_use => return Err(Error::Broken { path: image, reason: error.to_string() }),
            Err(error) => return Err(error),
        }
        // An older kernel may not let itself be told: then holes are filled as they are found.
        let _ = device.keep_blocks();
        drop(held);
        let account = account_of(&top).map_err(Error::at("identify", &top))?;
        let (device, stirred) = (Mutex::new(Some(device)), Mutex::new(Instant::now()));
        Ok(Pool {
            image,
            top,
            account,
            lock,
            users,
            device,
            full: Mutex::default(),
            stirred,
            grown: Mutex::default(),
            cramped: Mutex::default(),
            away: AtomicBool::new(false),
        })
    }

    pub(super) fn top(&self) -> &Path {
        &self.top
    }

    pub(super) fn image(&self) -> &Path {
        &self.image
    }

    /// More room when little is left, as far as the filesystem below has it.
    pub(super) fn grow(&self) -> Result<(), Error> {
        let below = Space::of(&self.image)?;
        if self.room()?.free >= below.headroom() { Ok(()) } else { self.enlarge(below) }
    }

    /// The same, also where little is left for names and attributes. That takes longer to find out: not for each launch.
    pub(super) fn grow_ahead(&self) -> Result<(), Error> {
        let below = Space::of(&self.image)?;
        if self.metadata()? >= below.headroom() / 4 {
            return self.grow();
        }
        *self.cramped.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.enlarge(below)
    }

    /// For somebody whom the kernel told that there is no room, whatever its accounts say.
    pub(super) fn grow_anyway(&self) -> Result<(), Error> {
        self.enlarge(Space::of(&self.image)?)
    }

    fn enlarge(&self, below: Space) -> Result<(), Error> {
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        if full.is_some_and(|tried| tried.elapsed() < RETRY) {
            return Ok(());
        }
        *full = Some(Instant::now());
        *self.stirred.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let _held = Held::exclusively(&self.lock, &self.image)?;
        let length = fs::metadata(&self.image).map_err(Error::at("look at", &self.image))?.len();
        let mut grown = self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = match *grown {
            Some((at, by)) if at.elapsed() < SOON => (2 * by).max(length / 8),
            _ => length / 8,
        };
        let step = wanted.clamp(below.headroom(), MOST).min(below.free.saturating_sub(below.kept()));
        let step = step / GRAIN * GRAIN;
        let top = File::open(&self.top).map_err(Error::at("open", &self.top))?;
        if step == 0 {
            // Perhaps it is only not given back yet; the next look will see.
            return btrfs::reclaim(&top).map_err(Error::at("reclaim space in", &self.top));
        }
        let file = open_image(&self.image)?;
        if let Err(errno) = reserve(&file, length, step) {
            // A part may have been had: it is no use to anybody.
            file.set_len(length).map_err(Error::at("size", &self.image))?;
            return Err(Error::at("set room aside for", &self.image)(errno));
        }
        self.refresh_device()?;
        btrfs::grow(&top).map_err(Error::at("grow", &self.top))?;
        *grown = Some((Instant::now(), step));
        *full = None;
        Ok(())
    }

    /// As those see it who add files: where there is no room for their names, what large files have left is of no use to them.
    pub(super) fn seen(&self) -> Result<Space, Error> {
        let (below, own) = (Space::of(&self.image)?, Space::of(&self.top)?);
        // One that can grow has too little for a moment at most.
        if below.free > below.kept() + 2 * below.headroom() {
            return Ok(own);
        }
        let metadata = self.metadata()?;
        Ok(if metadata < LEAST_METADATA { Space { free: own.free.min(metadata), ..own } } else { own })
    }

    /// Room for names, attributes and files of a few hundred bytes: `statvfs` tells of large files alone. What is left of what was
    /// given to them, and a quarter of what nobody was given yet and no data waits for: large files may take the rest. On a
    /// kernel that does not tell, there is always enough.
    fn metadata(&self) -> Result<u64, Error> {
        let total = Space::of(&self.top)?.total;
        let read = |kind: &str, name: &str| -> std::io::Result<u64> {
            let text = fs::read_to_string(self.account.join(kind).join(name))?;
            Ok(text.trim().parse().unwrap_or(0))
        };
        let told = || -> std::io::Result<u64> {
            let given = read("data", "disk_total")? + read("metadata", "disk_total")? + read("system", "disk_total")?;
            // The kernel's own reserve is among what may be used.
            let taken = |kind: &str| Ok::<_, std::io::Error>(read(kind, "bytes_used")? + read(kind, "bytes_may_use")?);
            let coming = taken("data")?.saturating_sub(read("data", "total_bytes")?);
            let left = read("metadata", "total_bytes")?.saturating_sub(taken("metadata")?);
            Ok(left + total.saturating_sub(given + coming) / 4)
        };
        Ok(told().unwrap_or(u64::MAX))
    }

    /// Its room without what is promised to data that waits to be written: `statvfs` counts that as free until it is on the
    /// disk, and a writer that the kernel buffers would meet the end before anybody sees it come.
    pub(super) fn room(&self) -> Result<Space, Error> {
        let space = Space::of(&self.top)?;
        let waiting = waiting_to_be_written(&self.account).unwrap_or(0);
        Ok(Space { free: space.free.saturating_sub(waiting), ..space })
    }

    /// Gives room back, a step at a time, when most of the image has been free for a while.
    pub(super) fn shrink(&self) -> Result<(), Error> {
        let (below, own) = (Space::of(&self.image)?, Space::of(&self.top)?);
        let step = (own.total / 8).clamp(GRAIN, MOST) / GRAIN * GRAIN;
        // It would grow again at once.
        let cramped = *self.cramped.lock().unwrap_or_else(PoisonError::into_inner);
        if cramped.is_some_and(|since| since.elapsed() < ROOMY_AGAIN) {
            return Ok(());
        }
        let mut stirred = self.stirred.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = own.free > own.total / 2 && own.free > step + 3 * below.headroom() && own.total > step + LEAST;
        if !spare || stirred.elapsed() < QUIET {
            return Ok(());
        }
        *stirred = Instant::now();
        drop(stirred);
        let _held = Held::exclusively(&self.lock, &self.image)?;
        let length = fs::metadata(&self.image).map_err(Error::at("look at", &self.image))?.len() - step;
        self.shrink_to(length)
    }

    /// Blocks of the image that the filesystem below has not set aside. They are asked for first.
    pub(super) fn unbacked(&self) -> Result<u64, Error> {
        let lacks = || -> Result<u64, Error> {
            Ok(lacking(&fs::metadata(&self.image).map_err(Error::at("look at", &self.image))?))
        };
        if lacks()? == 0 || set_aside(&open_image(&self.image)?, &self.image).is_ok() {
            return Ok(0);
        }
        lacks()
    }

    /// Makes an image smaller that promises more than the filesystem below has set aside, as those of earlier versions do.
    pub(super) fn fit(&self) -> Result<(), Error> {
        let metadata = fs::metadata(&self.image).map_err(Error::at("look at", &self.image))?;
        let (below, own) = (Space::of(&self.image)?, Space::of(&self.top)?);
        // It grows again when it has to.
        let length = (own.total - own.free + 2 * below.headroom()).max(LEAST).next_multiple_of(GRAIN);
        if lacking(&metadata) == 0 || length >= metadata.len() {
            return Ok(());
        }
        {
            let mut stirred = self.stirred.lock().unwrap_or_else(PoisonError::into_inner);
            if stirred.elapsed() < RETRY {
                return Ok(());
            }
            *stirred = Instant::now();
        }
        let _held = Held::exclusively(&self.lock, &self.image)?;
        self.shrink_to(length)
    }

    fn shrink_to(&self, length: u64) -> Result<(), Error> {
        let top = File::open(&self.top).map_err(Error::at("open", &self.top))?;
        btrfs::shrink(&top, length).map_err(Error::at("shrink", &self.top))?;
        open_image(&self.image)?.set_len(length).map_err(Error::at("size", &self.image))?;
        self.refresh_device()
    }

    /// Whether the filesystem has failed: btrfs turns read-only when it cannot write what it must.
    pub(super) fn has_failed(&self) -> Result<bool, Error> {
        Ok(self.away.load(Ordering::Acquire) || is_read_only(&self.top)?)
    }

    /// Whether every block of the image can be had.
    pub(super) fn may_renew(&self) -> Result<(), Error> {
        set_aside(&open_image(&self.image)?, &self.image)
    }

    /// Mounts the image anew after its filesystem has failed, once all its blocks can be had. Who holds the old filesystem
    /// must be gone, or the kernel must be able to have both (Linux 6.7).
    pub(super) fn renew(&self) -> Result<(), Error> {
        let _held = Held::exclusively(&self.lock, &self.image)?;
        let file = open_image(&self.image)?;
        set_aside(&file, &self.image)?;
        self.away.store(true, Ordering::Release);
        while unmount(&self.top, UnmountFlags::DETACH).is_ok() {}
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        *device = None;
        let begun = Instant::now();
        while begun.elapsed() < LETTING_GO && LoopDevice::find(&file).is_ok_and(|found| found.is_some()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let fresh = LoopDevice::attach(&file).map_err(Error::at("attach a loop device to", &self.image))?;
        mount_at(&fresh, &self.top)?;
        let _ = fresh.keep_blocks();
        *device = Some(fresh);
        self.away.store(false, Ordering::Release);
        Ok(())
    }

    fn refresh_device(&self) -> Result<(), Error> {
        match &*self.device.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(device) => device.refresh_size().map_err(Error::at("resize", &device.path)),
            None => Ok(()),
        }
    }

    /// Unmounts when no other store has it open and nobody has a file open in it. Sandboxes that run keep the filesystem alive
    /// by their own mounts; the next store finds its device again.
    pub(super) fn close(&self) -> Result<(), Error> {
        let _held = Held::exclusively(&self.lock, &self.image)?;
        let alone = flock(&self.users, FlockOperation::NonBlockingLockExclusive).is_ok();
        let unmounted = if alone { unmount(&self.top, UnmountFlags::empty()) } else { Ok(()) };
        flock(&self.users, FlockOperation::Unlock).map_err(Error::at("unlock", &self.image))?;
        match unmounted {
            // Busy: a file is open in it. Invalid: it is not mounted any more.
            Ok(()) | Err(Errno::BUSY | Errno::INVAL) => Ok(()),
            Err(errno) => Err(Error::at("unmount", &self.top)(errno)),
        }
    }
}

/// The pool of a data directory as it is mounted now, by whomever: its room, and whether it has failed.
pub(super) fn look(data: &Path) -> Result<(Option<Space>, Option<String>), Error> {
    let top = data.join("pool");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    if source_at(&mounts, &top).is_none() {
        return Ok((None, None));
    }
    let broken = is_read_only(&top)?.then(|| "the pool's filesystem is read-only after an error".to_owned());
    Ok((Some(Space::of(&top)?), broken))
}

/// A lock for as long as this lives.
struct Held<'a>(&'a File);

impl Held<'_> {
    fn exclusively<'a>(lock: &'a File, image: &Path) -> Result<Held<'a>, Error> {
        flock(lock, FlockOperation::LockExclusive).map_err(Error::at("lock", image))?;
        Ok(Held(lock))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Cannot fail on a lock that is held; closing the file would free it anyway.
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

fn lock_file(path: &Path) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    options.open(path).map_err(Error::at("open", path))
}

/// Whether this pool's own device is mounted there. Another one is of a data directory that was deleted under its server: it
/// goes, or the sandboxes of today would write to an image that nobody will find again.
fn is_mounted(device: &Path, top: &Path) -> Result<bool, Error> {
    loop {
        let mounts =
            fs::read_to_string("/proc/self/mounts").map_err(Error::at("read", Path::new("/proc/self/mounts")))?;
        let top_as_told = fs::canonicalize(top).map_err(Error::at("look at", top))?;
        match source_at(&mounts, &top_as_told) {
            None => return Ok(false),
            Some(source) if Path::new(source) == device => return Ok(true),
            Some(_) => {
                unmount(top, UnmountFlags::empty()).map_err(Error::at("unmount a foreign filesystem from", top))?
            }
        }
    }
}

/// What is mounted at a place; of several the last one is seen. The kernel writes a space in a path as `\040`.
fn source_at<'a>(mounts: &'a str, at: &Path) -> Option<&'a str> {
    let place = at.to_str()?.replace('\\', "\\134").replace(' ', "\\040");
    let here = |line: &&str| line.split(' ').nth(1) == Some(&place);
    mounts.lines().rfind(here)?.split(' ').next()
}

/// Made under another name and renamed: neither a crash nor a power cut leaves a half-made pool.
fn make_image(data: &Path, image: &Path) -> Result<(), Error> {
    let below = Space::of(data)?;
    let room = below.free.saturating_sub(below.kept());
    let size = (2 * below.headroom()).max(LEAST).min(room) / GRAIN * GRAIN;
    if size < LEAST {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        return Err(Error::at("make a pool image in", data)(full));
    }
    let draft = data.join("pool.btrfs.new");
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(true).read(true).write(true).mode(0o600).open(&draft);
    let file = file.map_err(Error::at("make", &draft))?;
    // On a btrfs without quotas the image itself shall not be copied on write; elsewhere the flag means nothing.
    if let Ok(flags) = ioctl_getflags(&file) {
        let _ = ioctl_setflags(&file, flags | IFlags::NOCOW);
    }
    file.set_len(size).map_err(Error::at("size", &draft))?;
    // One copy of the metadata: a second on the same disk protects little and costs a write each time. Blocks that were
    // given back would be missing later.
    let made = Command::new("mkfs.btrfs")
        .args(["--quiet", "--nodiscard", "--metadata", "single", "--data", "single"])
        .arg(&draft)
        .output();
    let made = made.map_err(Error::at("run mkfs.btrfs for", &draft))?;
    if !made.status.success() {
        let output = String::from_utf8_lossy(&made.stderr).trim().to_owned();
        return Err(Error::Program { program: "mkfs.btrfs", path: draft, output });
    }
    set_aside(&file, &draft)?;
    file.sync_all().map_err(Error::at("write out", &draft))?;
    fs::rename(&draft, image).map_err(Error::at("rename", &draft))?;
    File::open(data).and_then(|folder| folder.sync_all()).map_err(Error::at("write out", data))
}

fn open_image(image: &Path) -> Result<File, Error> {
    OpenOptions::new().read(true).write(true).open(image).map_err(Error::at("open", image))
}

/// Every block of the image, also those in its holes; none where not all can be had without taking what others need, or where
/// they are more than a pool grows by at one time. A filesystem that sets nothing aside is taken as it is: the room below is watched instead.
fn set_aside(file: &File, image: &Path) -> Result<(), Error> {
    let metadata = file.metadata().map_err(Error::at("look at", image))?;
    let below = Space::of(image)?;
    if lacking(&metadata) > below.free.saturating_sub(below.kept() / 2).min(MOST) {
        return Err(Error::at("set room aside for", image)(std::io::Error::from(std::io::ErrorKind::StorageFull)));
    }
    reserve(file, 0, metadata.len()).map_err(Error::at("set room aside for", image))
}

/// Blocks of the image that the filesystem below has not set aside.
fn lacking(metadata: &fs::Metadata) -> u64 {
    metadata.len().saturating_sub(metadata.blocks() * 512)
}

fn reserve(file: &File, from: u64, length: u64) -> Result<(), Errno> {
    match fallocate(file, FallocateFlags::empty(), from, length) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => rustix::fs::ftruncate(file, from + length),
        other => other,
    }
}

/// Without discard: a block that was given back to the filesystem below may not be had again.
fn mount_at(device: &LoopDevice, top: &Path) -> Result<(), Error> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    mount(&device.path, top, "btrfs", flags, c"nodiscard").map_err(Error::at("mount the pool at", top))
}

fn account_of(top: &Path) -> std::io::Result<PathBuf> {
    let id = btrfs::filesystem_id(File::open(top)?)?;
    Ok(Path::new("/sys/fs/btrfs").join(id).join("allocation"))
}

/// Bytes of data that have a place in the filesystem's account and not yet on its disk.
fn waiting_to_be_written(account: &Path) -> std::io::Result<u64> {
    let read = |name: &str| fs::read_to_string(account.join(name)).map(|text| text.trim().parse().unwrap_or(0));
    ["data/bytes_may_use", "data/bytes_reserved"].into_iter().map(read).sum()
}

fn is_read_only(top: &Path) -> Result<bool, Error> {
    let told = statvfs(top).map_err(Error::at("look at", top))?;
    Ok(told.f_flag.contains(StatVfsMountFlags::RDONLY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_mount_at_a_place_is_the_one_seen() {
        let mounts = "/dev/vda / ext4 rw 0 0\n/dev/loop3 /d/pool btrfs rw 0 0\n/dev/loop7 /d/pool btrfs rw 0 0\n\
                      /dev/loop8 /a\\040b/pool btrfs rw 0 0\n";
        assert_eq!(source_at(mounts, Path::new("/d/pool")), Some("/dev/loop7"));
        assert_eq!(source_at(mounts, Path::new("/a b/pool")), Some("/dev/loop8"));
        assert_eq!(source_at(mounts, Path::new("/d")), None);
    }
}
