//! The memory a sandbox believes to have.
//!
//! The kernel tells the host's memory in `/proc/meminfo`, whatever the cgroup allows, and programs that size their
//! heaps by it are killed. A file with the sandbox's limit is mounted over it. It is a picture: the total is right at all
//! times, what is free is as of the last time somebody asked for the sandbox's usage. sysinfo(2) still tells the host's.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::OpenTreeFlags;

use cove_sys::mount::{Attributes, Reach, set_attributes};

use crate::error::Error;
use crate::refused::Step;

/// Writes the file, which lies at `path`, and opens it as a detached mount.
pub fn fill(file: &File, path: &Path, limit: u64) -> Result<OwnedFd, Error> {
    file.write_all_at(text(limit, 0).as_bytes(), 0).map_err(Error::file("write", path))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = rustix::mount::open_tree(CWD, path, flags).map_err(|errno| Error::file("open", path)(errno.into()))?;
    let fixed = Attributes::READ_ONLY.and(Attributes::NO_SUID).and(Attributes::NO_DEVICES).and(Attributes::NO_EXEC);
    set_attributes(mount.as_fd(), Reach::One, fixed, None).step("make /proc/meminfo read-only")?;
    Ok(mount)
}

/// Renews what a running sandbox sees, in place.
pub fn renew(path: &Path, limit: u64, used: u64) -> Result<(), Error> {
    let file = File::options().write(true).open(path).map_err(Error::file("open", path))?;
    file.write_all_at(text(limit, used).as_bytes(), 0).map_err(Error::file("write", path))
}

/// Lines of one width, so that a reader during a renewal sees old or new numbers, never half a line.
fn text(limit: u64, used: u64) -> String {
    let (total, free) = (limit >> 10, limit.saturating_sub(used) >> 10);
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
    lines.iter().map(|(name, kilobytes)| format!("{name:<16}{kilobytes:>12} kB\n")).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_total_is_the_limit_and_every_text_has_one_length() {
        let (empty, full) = (super::text(1 << 30, 0), super::text(1 << 30, 2 << 30));
        assert!(empty.starts_with("MemTotal:            1048576 kB\nMemFree:             1048576 kB\n"), "{empty}");
        assert!(full.contains("MemAvailable:              0 kB\n"), "{full}");
        assert_eq!(empty.len(), full.len());
    }
}
