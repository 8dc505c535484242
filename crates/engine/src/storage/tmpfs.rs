//! Files in memory: a tmpfs of the sandbox's own, sized, gone with its last process.
//!
//! Nothing is mounted here where others could see it. The mount is made detached and handed on as a descriptor: the
//! launcher gives it the sandbox's uid range and moves it into the sandbox's own mount namespace, or uses it by
//! descriptor alone. Its pages are charged to the process that first writes them, which is the sandbox.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, mkdirat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};

use super::{Error, NAMES};
use crate::spec::Limits;

/// The size of the tmpfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tmpfs {
    pub size: u64,
    pub inodes: u64,
}

impl Tmpfs {
    /// Without a disk limit the memory limit applies. An inode costs about a kilobyte of kernel memory, so their number
    /// is always limited.
    pub(super) fn sized(limits: &Limits) -> Tmpfs {
        let size = limits.disk.unwrap_or(limits.memory);
        let inodes = limits.inodes.unwrap_or_else(|| (size / 4096).clamp(1024, 1 << 20));
        Tmpfs { size, inodes }
    }

    /// For `fsconfig` or the data of mount(2).
    pub fn options(&self) -> [(&'static str, String); 3] {
        // 0 would mean "no limit" to the kernel.
        let (size, inodes) = (self.size.max(4096), self.inodes.max(16));
        [("size", size.to_string()), ("nr_inodes", inodes.to_string()), ("mode", "0755".into())]
    }

    /// Detached, with the four directories of an upper in it. Needs CAP_SYS_ADMIN over the caller's mount namespace.
    pub fn mount(&self) -> Result<OwnedFd, Error> {
        let named = Path::new("tmpfs");
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(Error::at("open", named))?;
        for (key, value) in self.options() {
            fsconfig_set_string(&context, key, value).map_err(Error::at("configure", named))?;
        }
        fsconfig_create(&context).map_err(Error::at("create", named))?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags).map_err(Error::at("mount", named))?;
        for name in NAMES {
            mkdirat(&mount, name, Mode::from_raw_mode(0o755)).map_err(Error::at("make", Path::new(name)))?;
        }
        Ok(mount)
    }
}
