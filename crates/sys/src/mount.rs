//! mount_setattr(2): what rustix's mount API lacks.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::{Errno, Result};

/// Attributes a mount gets (`MOUNT_ATTR_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes(u64);

impl Attributes {
    pub const READ_ONLY: Attributes = Attributes(libc::MOUNT_ATTR_RDONLY);
    pub const NO_SUID: Attributes = Attributes(libc::MOUNT_ATTR_NOSUID);
    pub const NO_DEVICES: Attributes = Attributes(libc::MOUNT_ATTR_NODEV);
    pub const NO_EXEC: Attributes = Attributes(libc::MOUNT_ATTR_NOEXEC);

    pub const fn and(self, other: Attributes) -> Attributes {
        Attributes(self.0 | other.0)
    }

    pub const fn none() -> Attributes {
        Attributes(0)
    }
}

/// Whether mounts below the mount change too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    One,
    Tree,
}

/// Adds attributes to the mount that `mount` is open on, and maps ids through a user namespace where one is given
/// (`MOUNT_ATTR_IDMAP`, Linux 5.12; only on a mount that is not attached anywhere).
pub fn set_attributes(mount: BorrowedFd<'_>, reach: Reach, add: Attributes, map: Option<BorrowedFd<'_>>) -> Result<()> {
    let attributes = libc::mount_attr {
        attr_set: add.0 | if map.is_some() { libc::MOUNT_ATTR_IDMAP } else { 0 },
        attr_clr: 0,
        propagation: 0,
        userns_fd: map.map_or(0, |namespace| namespace.as_raw_fd() as u64),
    };
    let flags = libc::AT_EMPTY_PATH | if reach == Reach::Tree { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string and the struct lives across the call; the kernel only reads both.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)) }
}

/// pivot_root(".", "."): the current directory becomes the root, and the old root is on top of it, to be unmounted.
pub fn pivot_to_current_directory() -> Result<()> {
    // SAFETY: both arguments are C strings; the kernel only reads them.
    let result = unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) };
    if result == 0 { Ok(()) } else { Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)) }
}
