//! One btrfs for all sandboxes on a host that has none: a sparse image in the data directory, mounted beside it.
//!
//! ```text
//! <data>/pool.btrfs   the image, sparse: takes what is written, gives back what is deleted (discard)
//! <data>/pool         where it is mounted
//! <data>/pool.lock    held while it is made, mounted, grown or unmounted
//! <data>/pool.users   held shared by every store that is open; who gets it alone may unmount
//! ```
//! The image is never larger than what the filesystem below could hold: an image that cannot grow where it is promised
//! room would fail for every sandbox at once, and one that is full fails only for those who write.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cove_sys::btrfs;
use cove_sys::loop_device::LoopDevice;
use rustix::fs::{FlockOperation, IFlags, flock, ioctl_getflags, ioctl_setflags, statvfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::{Error, make_private};

const GIB: u64 = 1 << 30;
/// A pool starts with so much where there is room, and keeps so much free.
const FIRST: u64 = 32 * GIB;
const HEADROOM: u64 = 8 * GIB;
const RETRY: Duration = Duration::from_secs(10);
/// Below this mkfs.btrfs refuses, or nothing useful fits.
const LEAST: u64 = 256 << 20;

#[derive(Debug)]
pub(super) struct Pool {
    image: PathBuf,
    top: PathBuf,
    lock: File,
    users: File,
    device: LoopDevice,
    /// When growing was last tried in vain: not with every sandbox on a full disk.
    full: Mutex<Option<Instant>>,
}

impl Pool {
    /// Mounted, whoever did it. `Err` names the first thing that this host lacks.
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
        let file = OpenOptions::new().read(true).write(true).open(&image).map_err(Error::at("open", &image))?;
        let found = LoopDevice::find(&file).map_err(Error::at("find the loop device of", &image))?;
        let device = match found {
            Some(device) => device,
            None => LoopDevice::attach(&file).map_err(Error::at("attach a loop device to", &image))?,
        };
        if !is_mounted(&device.path, &top)? {
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
            mount(&device.path, &top, "btrfs", flags, c"discard=async")
                .map_err(Error::at("mount the pool at", &top))?;
        }
        drop(held);
        Ok(Pool { image, top, lock, users, device, full: Mutex::default() })
    }

    pub(super) fn top(&self) -> &Path {
        &self.top
    }

    pub(super) fn image(&self) -> &Path {
        &self.image
    }

    /// More room when little is left, as far as the filesystem below has it.
    pub(super) fn grow(&self) -> Result<(), Error> {
        let told = statvfs(&self.top).map_err(Error::at("ask the size of", &self.top))?;
        if told.f_bavail * told.f_frsize >= HEADROOM {
            return Ok(());
        }
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        if full.is_some_and(|tried| tried.elapsed() < RETRY) {
            return Ok(());
        }
        *full = Some(Instant::now());
        let top = File::open(&self.top).map_err(Error::at("open", &self.top))?;
        // Perhaps it is only not given back yet; the next look will see.
        btrfs::reclaim(&top).map_err(Error::at("reclaim space in", &self.top))?;
        let _held = Held::exclusively(&self.lock, &self.image)?;
        let metadata = fs::metadata(&self.image).map_err(Error::at("look at", &self.image))?;
        let bound = room(&self.image, metadata.blocks() * 512)?;
        let size = (metadata.len() + (metadata.len() / 2).max(FIRST)).min(bound) / LEAST * LEAST;
        if size < metadata.len() + LEAST {
            return Ok(());
        }
        let file = OpenOptions::new().write(true).open(&self.image).map_err(Error::at("open", &self.image))?;
        file.set_len(size).map_err(Error::at("grow", &self.image))?;
        self.device.refresh_size().map_err(Error::at("grow", &self.device.path))?;
        *full = None;
        btrfs::grow(top).map_err(Error::at("grow", &self.top))
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

/// Made under another name and renamed: a crash leaves no half-made pool.
fn make_image(data: &Path, image: &Path) -> Result<(), Error> {
    let size = room(data, 0)?.min(FIRST) / LEAST * LEAST;
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
    // One copy of the metadata: a second on the same disk protects little and costs a write each time.
    let made =
        Command::new("mkfs.btrfs").args(["--quiet", "--metadata", "single", "--data", "single"]).arg(&draft).output();
    let made = made.map_err(Error::at("run mkfs.btrfs for", &draft))?;
    if !made.status.success() {
        let output = String::from_utf8_lossy(&made.stderr).trim().to_owned();
        return Err(Error::Program { program: "mkfs.btrfs", path: draft, output });
    }
    fs::rename(&draft, image).map_err(Error::at("rename", &draft))
}

/// How large the image may be: what it has plus what is free below, less a reserve of a twentieth.
fn room(path: &Path, allocated: u64) -> Result<u64, Error> {
    let told = statvfs(path).map_err(Error::at("ask the size of", path))?;
    let (free, total) = (told.f_bavail * told.f_frsize, told.f_blocks * told.f_frsize);
    Ok(allocated + free.saturating_sub((total / 20).max(GIB)))
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
