//! Btrfs subvolumes and their quota groups, by ioctl: a launch does not run the `btrfs` program.
//!
//! Numbers and structures are those of the kernel's `include/uapi/linux/btrfs.h`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

const SUBVOLUME_CREATE_V2: libc::Ioctl = write_number(24, size_of::<VolumeV2>());
const SNAPSHOT_CREATE_V2: libc::Ioctl = write_number(23, size_of::<VolumeV2>());
const SNAPSHOT_DESTROY_V2: libc::Ioctl = write_number(63, size_of::<VolumeV2>());
const RESIZE: libc::Ioctl = write_number(3, size_of::<Volume>());
const SYNC: libc::Ioctl = number(0, 8, 0);
const QUOTA_CONTROL: libc::Ioctl = both_number(40, size_of::<QuotaControl>());
const GROUP_CREATE: libc::Ioctl = write_number(42, size_of::<GroupCreate>());
const GROUP_LIMIT: libc::Ioctl = read_number(43, size_of::<GroupLimit>());
const INODE_LOOKUP: libc::Ioctl = both_number(18, size_of::<InodeLookup>());
const FILESYSTEM_INFO: libc::Ioctl = read_number(31, size_of::<FilesystemInfo>());

/// The first inode of every subvolume.
const SUBVOLUME_ROOT: u64 = 256;
const QUOTA_ENABLE: u64 = 1;
/// Linux 6.7; an older kernel answers EINVAL.
const QUOTA_ENABLE_SIMPLE: u64 = 4;
const LIMIT_MAX_REFERENCED: u64 = 1;

const fn number(direction: u32, nr: u32, size: usize) -> libc::Ioctl {
    ((direction << 30) | ((size as u32) << 16) | (0x94 << 8) | nr) as libc::Ioctl
}

const fn write_number(nr: u32, size: usize) -> libc::Ioctl {
    number(1, nr, size)
}

const fn read_number(nr: u32, size: usize) -> libc::Ioctl {
    number(2, nr, size)
}

const fn both_number(nr: u32, size: usize) -> libc::Ioctl {
    number(3, nr, size)
}

#[repr(C)]
struct Volume {
    fd: i64,
    name: [u8; 4088],
}

#[repr(C)]
struct VolumeV2 {
    fd: i64,
    transaction: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; 4040],
}

#[repr(C)]
struct QuotaControl {
    command: u64,
    status: u64,
}

#[repr(C)]
struct GroupCreate {
    create: u64,
    id: u64,
}

#[repr(C)]
struct GroupLimit {
    id: u64,
    flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    reserved: [u64; 2],
}

#[repr(C)]
struct InodeLookup {
    tree: u64,
    object: u64,
    name: [u8; 4080],
}

#[repr(C)]
struct FilesystemInfo {
    max_id: u64,
    devices: u64,
    id: [u8; 16],
    rest: [u8; 992],
}

/// Makes the empty subvolume `name` in `directory`. EEXIST if the name is taken.
pub fn create_subvolume(directory: impl AsFd, name: &str) -> io::Result<()> {
    ioctl(directory.as_fd(), SUBVOLUME_CREATE_V2, &mut volume(0, name)?)
}

/// Makes `name` in `directory` a writable snapshot of `source`, the root directory of a subvolume.
pub fn snapshot(source: impl AsFd, directory: impl AsFd, name: &str) -> io::Result<()> {
    let source = i64::from(source.as_fd().as_raw_fd());
    ioctl(directory.as_fd(), SNAPSHOT_CREATE_V2, &mut volume(source, name)?)
}

/// Deletes the subvolume `name` of `directory`, whatever is in it. The kernel frees its space in the background.
pub fn destroy_subvolume(directory: impl AsFd, name: &str) -> io::Result<()> {
    ioctl(directory.as_fd(), SNAPSHOT_DESTROY_V2, &mut volume(0, name)?)
}

/// The number of the subvolume that an open file or directory is in.
pub fn subvolume_of(file: impl AsFd) -> io::Result<u64> {
    let mut lookup = InodeLookup { tree: 0, object: SUBVOLUME_ROOT, name: [0; 4080] };
    ioctl(file.as_fd(), INODE_LOOKUP, &mut lookup)?;
    Ok(lookup.tree)
}

/// The filesystem's id, as `/sys/fs/btrfs` names it.
pub fn filesystem_id(file: impl AsFd) -> io::Result<String> {
    let mut info = FilesystemInfo { max_id: 0, devices: 0, id: [0; 16], rest: [0; 992] };
    ioctl(file.as_fd(), FILESYSTEM_INFO, &mut info)?;
    let hex: Vec<String> = info.id.iter().map(|byte| format!("{byte:02x}")).collect();
    let part = |range: std::ops::Range<usize>| hex[range].concat();
    Ok([part(0..4), part(4..6), part(6..8), part(8..10), part(10..16)].join("-"))
}

/// Turns on simple quotas: an extent belongs for good to the subvolume that wrote it, so that snapshots cost no accounting.
/// EINVAL where the kernel is older than 6.7.
pub fn enable_simple_quota(file: impl AsFd) -> io::Result<()> {
    ioctl(file.as_fd(), QUOTA_CONTROL, &mut QuotaControl { command: QUOTA_ENABLE_SIMPLE, status: 0 })
}

/// Turns on quota groups of the older kind.
pub fn enable_quota(file: impl AsFd) -> io::Result<()> {
    ioctl(file.as_fd(), QUOTA_CONTROL, &mut QuotaControl { command: QUOTA_ENABLE, status: 0 })
}

/// Limits what a subvolume may refer to, metadata included; `None` removes the limit.
pub fn limit_subvolume(file: impl AsFd, subvolume: u64, bytes: Option<u64>) -> io::Result<()> {
    // The kernel clears a limit that is set to all ones.
    let max_referenced = bytes.unwrap_or(u64::MAX);
    let mut limit =
        GroupLimit { id: subvolume, flags: LIMIT_MAX_REFERENCED, max_referenced, max_exclusive: 0, reserved: [0; 2] };
    ioctl(file.as_fd(), GROUP_LIMIT, &mut limit)
}

/// Removes the quota group of a deleted subvolume. EBUSY while extents still belong to it.
pub fn forget_group(file: impl AsFd, subvolume: u64) -> io::Result<()> {
    ioctl(file.as_fd(), GROUP_CREATE, &mut GroupCreate { create: 0, id: subvolume })
}

/// Grows the filesystem to the size its device has now.
pub fn grow(file: impl AsFd) -> io::Result<()> {
    let mut arguments = Volume { fd: 0, name: [0; 4088] };
    arguments.name[..3].copy_from_slice(b"max");
    ioctl(file.as_fd(), RESIZE, &mut arguments)
}

/// Shrinks the filesystem to this size. What lies beyond it is moved to before it, which takes its time.
pub fn shrink(file: impl AsFd, bytes: u64) -> io::Result<()> {
    let mut arguments = Volume { fd: 0, name: [0; 4088] };
    let text = bytes.to_string();
    arguments.name[..text.len()].copy_from_slice(text.as_bytes());
    ioctl(file.as_fd(), RESIZE, &mut arguments)
}

/// Commits, and wakes the kernel's thread that gives back the space of deleted subvolumes, which would otherwise wait
/// for the next commit (30 s).
pub fn reclaim(file: impl AsFd) -> io::Result<()> {
    ioctl(file.as_fd(), SYNC, &mut ())
}

fn volume(fd: i64, name: &str) -> io::Result<VolumeV2> {
    let mut arguments = VolumeV2 { fd, transaction: 0, flags: 0, unused: [0; 4], name: [0; 4040] };
    // The kernel wants a terminated name without a slash and checks the rest itself.
    if name.len() >= arguments.name.len() || name.bytes().any(|byte| byte == 0 || byte == b'/') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    arguments.name[..name.len()].copy_from_slice(name.as_bytes());
    Ok(arguments)
}

fn ioctl<T>(file: BorrowedFd<'_>, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
    // SAFETY: every caller of this private function passes a request whose number carries the size of the
    // `repr(C)` structure it passes, so the kernel reads and writes within `argument`, which outlives the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(argument)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_numbers_are_the_kernels() {
        assert_eq!(size_of::<VolumeV2>(), 4096);
        assert_eq!(SUBVOLUME_CREATE_V2 as u32, 0x5000_9418);
        assert_eq!(SNAPSHOT_DESTROY_V2 as u32, 0x5000_943f);
        assert_eq!(QUOTA_CONTROL as u32, 0xc010_9428);
        assert_eq!(GROUP_LIMIT as u32, 0x8030_942b);
        assert_eq!(FILESYSTEM_INFO as u32, 0x8400_941f);
    }

    #[test]
    fn names_that_leave_the_directory_are_refused_before_the_kernel_sees_them() {
        let here = std::fs::File::open("/").unwrap();
        for name in ["a/b", "a\0b", &"x".repeat(4040)] {
            assert_eq!(create_subvolume(&here, name).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn another_filesystem_says_so() {
        let here = std::fs::File::open("/proc").unwrap();
        assert_eq!(subvolume_of(&here).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
    }
}
