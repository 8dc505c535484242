//! The place a spawner lives in: a mount namespace whose root is an empty read-only tmpfs.
//!
//! Every sandbox's mount namespace is a copy of this one, so what lies under a sandbox's root is this and nothing more:
//! ```text
//!   /        tmpfs, read-only, no file in it
//!   ├─ layers/0 …      where layers are attached while an overlay is put together (in a namespace that is thrown away)
//!   ├─ nothing         covers what /proc shall not show
//!   ├─ stills          what /proc shows in place of the host's, the same for all
//!   ├─ pictures        a tmpfs for files that /proc shows in place of the host's; each has its name for a moment only
//!   ├─ proc            as an ordinary user: the host's, until the sandbox has its own (see `root::new_proc`)
//!   └─ dev             the devices a sandbox sees, one tree for all: null zero full random urandom tty
//! ```

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};

use cove_sys::mount::{Attributes, Reach, set_attributes};
use cove_sys::namespace;

use crate::kernel::{self, LAYERS_BY_DESCRIPTOR};
use crate::privilege::Privilege;
use crate::refused::{Refused, Step};
use crate::stills;

/// How many layers can be attached side by side: kernels before 6.13 want each by a path of its own. Others want them attached,
/// wherever, and one place holds them all, one on top of the other.
pub fn layer_places() -> usize {
    if kernel::has(LAYERS_BY_DESCRIPTOR) { 1 } else { 64 }
}

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
pub fn move_in(privilege: Privilege) -> Result<(), Refused> {
    namespace::unshare(namespace::Kind::Mount).step("make a mount namespace")?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).step("make mounts private")?;

    let root = tmpfs("755", MountAttrFlags::MOUNT_ATTR_NOEXEC)?;
    let directory = Mode::from_raw_mode(0o755);
    for name in ["layers", "nothing", "stills", "pictures", "dev", "proc"] {
        rustix::fs::mkdirat(&root, name, directory).step("make the empty root")?;
    }
    for place in 0..layer_places() {
        rustix::fs::mkdirat(&root, format!("layers/{place}"), directory).step("make the empty root")?;
    }
    for (name, text) in stills::all() {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&root, format!("stills/{name}"), flags, Mode::from_raw_mode(0o444));
        file.and_then(|file| rustix::io::write(&file, text.as_bytes())).step("make a picture for /proc")?;
    }
    let (devices, borrowed) = match privilege {
        Privilege::Root => (device_tree(make_device)?, Vec::new()),
        Privilege::User(_) => (device_tree(make_place)?, borrow()?),
    };
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
    rustix::mount::move_mount(&devices, "", CWD, "/dev", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .step("attach /dev")?;
    for (mount, place) in borrowed {
        rustix::mount::move_mount(&mount, "", CWD, &place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .step(&format!("attach {place}"))?;
    }
    Ok(())
}

/// What an ordinary user cannot make and shows instead as the host has it: devices, and all of `/proc`.
fn borrow() -> Result<Vec<(OwnedFd, String)>, Refused> {
    let clone = |path: &str, more: OpenTreeFlags| {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | more;
        rustix::mount::open_tree(CWD, path, flags).step(&format!("borrow {path}"))
    };
    let mut borrowed = Vec::new();
    for (name, _, _) in DEVICES {
        let path = format!("/dev/{name}");
        let device = clone(&path, OpenTreeFlags::empty())?;
        let fixed = Attributes::READ_ONLY.and(Attributes::NO_SUID).and(Attributes::NO_EXEC);
        set_attributes(device.as_fd(), Reach::One, fixed, None).step(&format!("make {path} read-only"))?;
        borrowed.push((device, path));
    }
    // With what is mounted in it, which the kernel does not let us leave out.
    borrowed.push((clone("/proc", OpenTreeFlags::AT_RECURSIVE)?, "/proc".into()));
    Ok(borrowed)
}

type MakeDevice = fn(&OwnedFd, &str, u32, u32) -> Result<(), Refused>;

fn make_device(tree: &OwnedFd, name: &str, major: u32, minor: u32) -> Result<(), Refused> {
    let device = rustix::fs::makedev(major, minor);
    rustix::fs::mknodat(tree, name, FileType::CharacterDevice, Mode::from_raw_mode(0o666), device)
        .step("make a device")?;
    // mknod(2) heeds the umask.
    rustix::fs::chmodat(tree, name, Mode::from_raw_mode(0o666), AtFlags::empty()).step("make a device")
}

/// For the host's own to lie on.
fn make_place(tree: &OwnedFd, name: &str, _major: u32, _minor: u32) -> Result<(), Refused> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(tree, name, flags, Mode::from_raw_mode(0o444)).map(drop).step("make a place for a device")
}

fn device_tree(make: MakeDevice) -> Result<OwnedFd, Refused> {
    let tree = tmpfs("755", MountAttrFlags::MOUNT_ATTR_NOEXEC)?;
    for (name, major, minor) in DEVICES {
        make(&tree, name, major, minor)?;
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
