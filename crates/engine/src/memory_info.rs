//! The memory, and the disk, a sandbox believes to have.
//!
//! The kernel shows the host's memory in `/proc/meminfo`, whatever the cgroup allows, and programs that size their
//! heaps by it are killed. A file with the sandbox's limit is mounted over it. It is a fixed text: the total is always
//! right, the free memory is as of the last reading of the sandbox's usage. sysinfo(2) still reports the host's memory.
//!
//! Two more lines are for the `df` of the built-in template: statfs(2) on an overlay tells of the filesystem that the upper
//! lies on, which many sandboxes share, and quotas of btrfs do not show in it. They are renewed several times a second
//! ([`renew_disk`]).

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::OpenTreeFlags;

use cove_sys::mount::{Attributes, Reach, set_attributes};

use crate::error::Error;
use crate::refused::Step;

/// What a sandbox has of something, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    pub limit: u64,
    pub used: u64,
}

/// Writes the file at `path` and opens it as a detached mount.
pub fn fill(file: &File, path: &Path, memory: u64, disk: Option<u64>) -> Result<OwnedFd, Error> {
    let (memory, disk) = (Share { limit: memory, used: 0 }, disk.map(|limit| Share { limit, used: 0 }));
    file.write_all_at(text(memory, disk).as_bytes(), 0).map_err(Error::file("write", path))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = rustix::mount::open_tree(CWD, path, flags).map_err(|errno| Error::file("open", path)(errno.into()))?;
    let fixed = Attributes::READ_ONLY.and(Attributes::NO_SUID).and(Attributes::NO_DEVICES).and(Attributes::NO_EXEC);
    set_attributes(mount.as_fd(), Reach::One, fixed, None).step("make /proc/meminfo read-only")?;
    Ok(mount)
}

/// Renews what a running sandbox sees, in place.
pub fn renew(path: &Path, memory: Share, disk: Option<Share>) -> Result<(), Error> {
    let file = File::options().write(true).open(path).map_err(Error::file("open", path))?;
    file.write_all_at(text(memory, disk).as_bytes(), 0).map_err(Error::file("write", path))
}

/// Renews the lines about the disk alone, and only where they have changed. One of an earlier version has none: an error.
pub fn renew_disk(path: &Path, disk: Share) -> Result<(), Error> {
    let file = File::options().read(true).write(true).open(path).map_err(Error::file("open", path))?;
    let lines = disk_lines(disk);
    let mut shown = vec![0; lines.len()];
    file.read_exact_at(&mut shown, BEFORE_DISK).map_err(Error::file("read", path))?;
    if shown == lines.as_bytes() {
        return Ok(());
    }
    file.write_all_at(lines.as_bytes(), BEFORE_DISK).map_err(Error::file("write", path))
}

/// Bytes before the lines about the disk: 20 lines of one width.
const BEFORE_DISK: u64 = 20 * 32;

/// Lines of one width, so that a reader during a renewal sees old or new numbers, never half a line.
fn line((name, kilobytes): &(&str, u64)) -> String {
    format!("{name:<16}{kilobytes:>12} kB\n")
}

fn disk_lines(disk: Share) -> String {
    [("SandboxDisk:", disk.limit >> 10), ("SandboxDiskUsed:", disk.used >> 10)].iter().map(line).collect()
}

fn text(memory: Share, disk: Option<Share>) -> String {
    let (total, free) = (memory.limit >> 10, memory.limit.saturating_sub(memory.used) >> 10);
    let disk = disk.unwrap_or(Share { limit: 0, used: 0 });
    let lines = [
        ("MemTotal:", total),
        ("MemFree:", free),
        ("MemAvailable:", free),
        ("Buffers:", 0),
        ("Cached:", 0),
        ("SwapCached:", 0),
        ("Active:", total - free),
        ("Inactive:", 0),
        ("SwapTotal:", 0),
        ("SwapFree:", 0),
        ("Dirty:", 0),
        ("Writeback:", 0),
        ("AnonPages:", total - free),
        ("Mapped:", 0),
        ("Shmem:", 0),
        ("Slab:", 0),
        ("SReclaimable:", 0),
        ("SUnreclaim:", 0),
        ("CommitLimit:", total),
        ("Committed_AS:", total - free),
    ];
    lines.iter().map(line).chain([disk_lines(disk)]).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_total_is_the_limit_and_every_text_has_one_length() {
        let of = |used, disk| super::text(super::Share { limit: 1 << 30, used }, disk);
        let (empty, full) = (of(0, None), of(2 << 30, Some(super::Share { limit: 5 << 30, used: 1 << 30 })));
        assert!(full.contains("SandboxDisk:         5242880 kB\nSandboxDiskUsed:     1048576 kB\n"), "{full}");
        assert!(empty.starts_with("MemTotal:            1048576 kB\nMemFree:             1048576 kB\n"), "{empty}");
        assert!(full.contains("MemAvailable:              0 kB\n"), "{full}");
        assert_eq!(empty.len(), full.len());
    }

    #[test]
    fn what_is_used_of_the_disk_is_renewed_in_its_place() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (memory, disk) = (super::Share { limit: 1 << 30, used: 1 << 20 }, super::Share { limit: 5 << 30, used: 0 });
        std::fs::write(file.path(), super::text(memory, Some(disk))).unwrap();
        let filled = super::Share { used: 3 << 30, ..disk };
        for _ in 0..2 {
            super::renew_disk(file.path(), filled).unwrap();
            assert_eq!(std::fs::read_to_string(file.path()).unwrap(), super::text(memory, Some(filled)));
        }
        std::fs::write(file.path(), "MemTotal: of an earlier version").unwrap();
        assert!(super::renew_disk(file.path(), filled).is_err());
    }
}
