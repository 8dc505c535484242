//! Disks of a test's own: small ones that fill up, and one whose power can be cut.
//!
//! A disk is a filesystem in an image on a loop device. To cut the power is to copy the image at one moment and to go on with
//! the copy: what the filesystem had not written by then is gone. The image lies on a filesystem that shares blocks between
//! files, so that the copy is made at one moment and not over some seconds.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::need::{Need, skip};
use crate::wait::{LIMIT, until};

pub struct Disk {
    folder: TempDir,
    image: PathBuf,
}

impl Disk {
    /// An ext4 of this many MiB. `None` only where it cannot be made and tests may skip; the skip is counted.
    ///
    /// # Panics
    /// If it cannot be made and no skip is allowed.
    pub fn new(mebibytes: u64) -> Option<Disk> {
        let made = Disk::make(mebibytes);
        if made.is_none() {
            skip(Need::Disks, "an ext4 on a loop device cannot be made or mounted");
        }
        made
    }

    fn make(mebibytes: u64) -> Option<Disk> {
        let folder = tempfile::Builder::new().prefix("cove-disk-").tempdir().expect("make a directory");
        let image = folder.path().join("image");
        make(&image, mebibytes, "ext4")?;
        let disk = Disk { folder, image };
        fs::create_dir(disk.path()).expect("make a place to mount");
        mount(&disk.image, &disk.path()).then_some(disk)
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("d")
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }

    /// Takes all that is free, to the last block.
    pub fn fill(&self) {
        use std::io::Write as _;
        let mut file = fs::File::options().create(true).append(true).open(self.ballast()).expect("make ballast");
        for size in [1 << 20, 4096] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
        // What is on its way to the disk has its blocks by now, or never gets them.
        let _ = file.sync_all();
    }

    pub fn make_room(&self) {
        fs::remove_file(self.ballast()).expect("remove ballast");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(&self.path());
    }
}

/// A disk whose power can be cut.
pub struct PoweredDisk {
    /// Holds the images, and shares blocks between them.
    outer: TempDir,
    cuts: u32,
}

impl PoweredDisk {
    /// `None` only where it cannot be made and tests may skip; the skip is counted.
    ///
    /// # Panics
    /// If it cannot be made and no skip is allowed.
    pub fn new(mebibytes: u64) -> Option<PoweredDisk> {
        let made = PoweredDisk::make(mebibytes);
        if made.is_none() {
            skip(Need::Disks, "a filesystem that shares blocks cannot be made or mounted");
        }
        made
    }

    fn make(mebibytes: u64) -> Option<PoweredDisk> {
        let outer = tempfile::Builder::new().prefix("cove-power-").tempdir().expect("make a directory");
        // A database on it runs as an ordinary user, who must get there.
        fs::set_permissions(outer.path(), fs::Permissions::from_mode(0o755)).expect("open the directory to others");
        let image = outer.path().join("outer");
        make(&image, mebibytes * 3, "xfs").or_else(|| make(&image, mebibytes * 3, "btrfs"))?;
        let disk = PoweredDisk { outer, cuts: 0 };
        for place in [disk.images(), disk.path()] {
            fs::create_dir(place).expect("make a place to mount");
        }
        if !mount(&image, &disk.images()) {
            return None;
        }
        make(&disk.current(), mebibytes, "ext4")?;
        mount(&disk.current(), &disk.path()).then_some(disk)
    }

    fn images(&self) -> PathBuf {
        self.outer.path().join("i")
    }

    fn current(&self) -> PathBuf {
        self.images().join(format!("disk{}", self.cuts))
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.outer.path().join("d")
    }

    /// The power goes at this moment. What runs on the disk goes on, on a disk that is no more: end it, and call
    /// [`PoweredDisk::come_back`].
    pub fn cut(&mut self) {
        let (from, to) = (self.current(), self.images().join(format!("disk{}", self.cuts + 1)));
        let copied = Command::new("cp").arg("--reflink=always").args([&from, &to]).status().expect("run cp");
        assert!(copied.success(), "the image could not be copied at one moment");
        self.cuts += 1;
    }

    /// The disk as it was when the power went. Nothing may use the old one any more.
    pub fn come_back(&self) {
        until("the old disk to be let go", LIMIT, || {
            !crate::leak::is_mount_point(&self.path()) || unmounted(&self.path())
        });
        fs::remove_file(self.images().join(format!("disk{}", self.cuts - 1))).expect("remove the old image");
        assert!(mount(&self.current(), &self.path()), "the disk does not come back after a power cut");
    }
}

impl Drop for PoweredDisk {
    fn drop(&mut self) {
        unmount(&self.path());
        unmount(&self.images());
    }
}

/// Gives back every block of a file that was set aside and never written, as a copy of the file would not have it. What is in the
/// file is as it was.
pub fn dig_holes(file: &Path) {
    use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
    let file = fs::File::options().read(true).write(true).open(file).expect("open a file to dig in");
    let length = file.metadata().expect("its size").len();
    let mut at = 0;
    while at < length {
        // Blocks that were never written read as a hole.
        let begin = seek(&file, SeekFrom::Hole(at)).expect("look for a hole").min(length);
        let end = seek(&file, SeekFrom::Data(begin)).unwrap_or(length).min(length);
        if end > begin {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, flags, begin, end - begin).expect("dig a hole");
        }
        at = end.max(begin + 1);
    }
}

fn make(image: &Path, mebibytes: u64, kind: &str) -> Option<()> {
    fs::File::create(image).ok()?.set_len(mebibytes << 20).ok()?;
    let options: &[&str] = match kind {
        "ext4" => &["-q", "-F", "-m", "0"],
        "xfs" => &["-q", "-m", "reflink=1"],
        _ => &["-q"],
    };
    let made = Command::new(format!("mkfs.{kind}")).args(options).arg(image).stderr(Stdio::null()).status();
    made.is_ok_and(|made| made.success()).then_some(())
}

fn mount(image: &Path, at: &Path) -> bool {
    Command::new("mount").args(["-o", "loop"]).args([image, at]).status().is_ok_and(|done| done.success())
}

fn unmounted(at: &Path) -> bool {
    Command::new("umount").arg(at).stderr(Stdio::null()).status().is_ok_and(|done| done.success())
}

fn unmount(at: &Path) {
    if !unmounted(at) {
        // Something of the test still uses it: it goes when that does.
        let _ = Command::new("umount").arg("--lazy").arg(at).stderr(Stdio::null()).status();
    }
}
