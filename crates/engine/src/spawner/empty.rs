//! The place a spawner lives in: a mount namespace whose root is an empty read-only tmpfs.
//!
//! Every sandbox's mount namespace is a copy of this one, so what lies under a sandbox's root is this and nothing more:
//! ```text
//!   /        tmpfs, read-only, no file in it
//!   ├─ layers/0 … 63   where layers are attached while an overlay is put together (in a namespace that is thrown away)
//!   ├─ nothing         covers what /proc shall not show
//!   ├─ pictures        a tmpfs for files that /proc shows in place of the host's; each has its name for a moment only
//!   └─ dev             the devices a sandbox sees, one tree for all: null zero full random urandom tty
//! ```

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags};

use cove_sys::mount::{Attributes, Reach, set_attributes};
use cove_sys::namespace;

use crate::refused::{Refused, Step};

/// Layers that can be attached side by side, for kernels before 6.13 that want them by path.
pub const LAYER_PLACES: usize = 64;

/// Name, major and minor number of the devices a sandbox sees.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Leaves the host's files behind for good; only descriptors opened before lead back to them.
pub fn move_in() -> Result<(), Refused> {
    namespace::unshare(namespace::Kind::Mount).step("make a mount namespace")?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).step("make mounts private")?;

    let root = tmpfs("755", MountAttrFlags::MOUNT_ATTR_NOEXEC)?;
    let directory = Mode::from_raw_mode(0o755);
    for name in ["layers", "nothing", "pictures", "dev"] {
        rustix::fs::mkdirat(&root, name, directory).step("make the empty root")?;
    }
    for place in 0..LAYER_PLACES {
        rustix::fs::mkdirat(&root, format!("layers/{place}"), directory).step("make the empty root")?;
    }
    let devices = device_tree()?;
    let pictures = tmpfs("755", MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_NODEV)?;
    let read_only = Attributes::READ_ONLY.and(Attributes::NO_SUID);
    set_attributes(root.as_fd(), Reach::One, read_only, None).step("make the empty root read-only")?;
    set_attributes(devices.as_fd(), Reach::One, read_only, None).step("make /dev read-only")?;

    // The old root is pushed on top of the new one and then taken away: see pivot_root(2), "pivot_root(".", ".")".
    rustix::mount::move_mount(&root, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .step("attach the empty root")?;
    rustix::process::fchdir(&root).step("enter the empty root")?;
    cove_sys::mount::pivot_to_current_directory().step("pivot to the empty root")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).step("leave the host's root")?;
    rustix::process::chdir("/").step("enter the empty root")?;
    rustix::mount::move_mount(&pictures, "", CWD, "/pictures", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .step("attach the pictures")?;
    rustix::mount::move_mount(&devices, "", CWD, "/dev", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).step("attach /dev")
}

fn device_tree() -> Result<OwnedFd, Refused> {
    let tree = tmpfs("755", MountAttrFlags::MOUNT_ATTR_NOEXEC)?;
    for (name, major, minor) in DEVICES {
        let device = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(&tree, name, FileType::CharacterDevice, Mode::from_raw_mode(0o666), device)
            .step("make a device")?;
        // mknod(2) heeds the umask.
        rustix::fs::chmodat(&tree, name, Mode::from_raw_mode(0o666), AtFlags::empty()).step("make a device")?;
    }
    for (name, target) in LINKS {
        rustix::fs::symlinkat(target, &tree, name).step("link a device")?;
    }
    for name in ["pts", "shm"] {
        rustix::fs::mkdirat(&tree, name, Mode::from_raw_mode(0o755)).step("make a directory of /dev")?;
    }
    Ok(tree)
}

fn tmpfs(mode: &str, attributes: MountAttrFlags) -> Result<OwnedFd, Refused> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).step("open a tmpfs")?;
    rustix::mount::fsconfig_set_string(&context, "mode", mode).step("configure a tmpfs")?;
    rustix::mount::fsconfig_create(&context).step("make a tmpfs")?;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).step("mount a tmpfs")
}

/// The host's `/proc`, kept open across [`move_in`].
pub fn open_proc() -> Result<OwnedFd, Refused> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open("/proc", flags, Mode::empty()).step("open /proc")
}
