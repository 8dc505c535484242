//! A sandbox's files: overlays put together by the sandbox's own root, then entered.
//!
//! Two processes share the work. [`assemble`] runs inside the sandbox's user namespace, because the kernel makes an
//! overlay over an id-mapped upper writable only for a mounter whose ids the map knows; a bug in overlayfs then acts
//! with the rights of the sandbox, not of the host. [`enter`] runs in the sandbox's mount namespace, which belongs to the host:
//! not even all capabilities inside the sandbox allow to mount or unmount there.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};
use rustix::process::{Gid, Uid};

use cove_sys::mount::{Attributes, Reach, set_attributes};
use cove_sys::namespace::{self, Kind};

use crate::kernel::{self, LAYERS_BY_DESCRIPTOR};
use crate::privilege::Privilege;
use crate::refused::{Refused, Step};
use crate::spawner::empty::layer_places;
use crate::spawner::wire::{AttachKind, Groups, Incoming, Launch, Overlay};
use crate::spec::Durability;
use crate::stills;

/// Directories that the engine mounts on or fills. An image may lack them, or have something else of that name.
const MOUNT_POINTS: [&str; 3] = ["proc", "dev", "sys"];
/// Links that are followed on the way to a directory that is made; as many as the kernel follows.
const LINKS: usize = 40;
/// Directories above one that is made: each is open meanwhile.
const DEEPEST: usize = 256;
/// Where programs put what they need for a moment.
const TEMPORARY: &str = "tmp";

/// Terminals of one sandbox. All containers of a host share what `kernel.pty.max` leaves (3071 by default): without a
/// maximum of its own one sandbox could take the terminals of all.
const TERMINALS: &str = "128";

/// What `/proc` hides: facts of the host, its memory, its keys, its controls. Docker's list, and `kallsyms`,
/// `config.gz`, `partitions` and `diskstats`, which tell an attacker what to aim at; and the host's boot command line, where
/// people put addresses and passwords; and what the neighbours do to its memory and processors, as finely as the kernel counts.
const MASKED_FILES: [&str; 16] = [
    "/proc/kcore",
    "/proc/keys",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/latency_stats",
    "/proc/config.gz",
    "/proc/kallsyms",
    "/proc/partitions",
    "/proc/diskstats",
    "/proc/cmdline",
    "/proc/interrupts",
    "/proc/key-users",
    "/proc/zoneinfo",
    "/proc/buddyinfo",
    "/proc/softirqs",
    "/proc/schedstat",
];
const MASKED_DIRECTORIES: [&str; 4] = ["proc/acpi", "proc/scsi", "proc/asound", "proc/pressure"];
/// What `/proc` shows and nobody may change.
const READ_ONLY: [&str; 5] = ["/proc/sys", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sysrq-trigger"];

/// The one file at a time in the spawner's `/pictures`.
const PICTURE: &str = "boot_id";

/// Makes the sandbox's overlays, root first, as detached mounts. For a process of its own: it becomes the sandbox's
/// root user and does not come back.
pub fn assemble(launch: &Launch, passed: &Incoming) -> Result<Vec<OwnedFd>, Refused> {
    namespace::enter(passed.get(launch.user_namespace)?, Kind::User).step("enter the user namespace")?;
    namespace::enter(passed.get(launch.assembly)?, Kind::Mount).step("enter the assembly namespace")?;
    become_first_user(launch)?;
    let storage = passed.get(launch.storage)?;
    attach_for_assembly(storage, 0)?;
    let mut place = 1;
    let overlays = launch.overlays.iter().map(|overlay| {
        let first = place;
        for &lower in &overlay.lowers {
            attach_for_assembly(passed.get(lower)?, place)?;
            place += 1;
        }
        make_overlay(overlay, passed, storage, first)
    });
    let overlays = overlays.collect::<Result<Vec<_>, _>>()?;
    furnish(launch, &overlays).map_err(Refused::among_files)?;
    Ok(overlays)
}

/// Makes what is mounted on, and writes the files that name the sandbox, whatever an image has in their places.
fn furnish(launch: &Launch, overlays: &[OwnedFd]) -> Result<(), Refused> {
    let root = overlays.first().ok_or_else(|| Refused::new("find the root overlay", Errno::INVAL))?;
    for name in MOUNT_POINTS {
        make_plain_directory(root.as_fd(), name)?;
    }
    for overlay in launch.overlays.iter().skip(1) {
        make_plain_directory(root.as_fd(), &overlay.target)?;
    }
    make_temporary(root.as_fd())?;
    for (path, text) in &launch.files {
        write_file(root.as_fd(), path, text)?;
    }
    for mount in &launch.mounts {
        // In the overlay that covers the place, which the mount will lie on.
        let covering = launch.overlays.iter().zip(overlays).rev().find_map(|(overlay, made)| {
            let rest = mount.target.strip_prefix(overlay.target.as_str())?;
            (overlay.target.is_empty() || rest.starts_with('/')).then_some((made, rest.trim_start_matches('/')))
        });
        let (overlay, rest) = covering.ok_or_else(|| Refused::new("find the root overlay", Errno::INVAL))?;
        make_mount_point(overlay.as_fd(), rest, mount.kind)?;
    }
    Ok(())
}

/// Replaces a file whatever was there, a symlink too.
fn write_file(root: BorrowedFd<'_>, path: &str, text: &str) -> Result<(), Refused> {
    let (folder, name) = path.rsplit_once('/').unwrap_or((".", path));
    let open = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = open_inside(root, folder, open, Mode::empty()).or_else(|_| {
        make_directories(root, folder)?;
        open_inside(root, folder, open, Mode::empty())
    })?;
    let make = || {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&folder, name, flags, Mode::from_raw_mode(0o644))
    };
    let file = match make() {
        Err(Errno::EXIST) => {
            // An image may have a directory of that name; an empty one can go.
            let removed = rustix::fs::unlinkat(&folder, name, AtFlags::empty())
                .or_else(|_| rustix::fs::unlinkat(&folder, name, AtFlags::REMOVEDIR));
            removed.step(&format!("replace /{path}"))?;
            make()
        }
        other => other,
    };
    let file = file.step(&format!("make /{path}"))?;
    rustix::io::write(&file, text.as_bytes()).map(drop).step(&format!("write /{path}"))
}

/// Makes a place to mount on: what is there already stays.
fn make_mount_point(root: BorrowedFd<'_>, target: &str, kind: AttachKind) -> Result<(), Refused> {
    match kind {
        AttachKind::Directory => make_directories(root, target),
        AttachKind::File => {
            if let Some((parent, _)) = target.rsplit_once('/') {
                make_directories(root, parent)?;
            }
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            open_inside(root, target, flags, Mode::from_raw_mode(0o644)).map(drop)
        }
    }
}

/// Makes the directories of a path that are missing, name by name. Links on the way are followed inside the root, as for a
/// program in the sandbox; where one leads to nothing, what it leads to is made.
fn make_directories(root: BorrowedFd<'_>, target: &str) -> Result<(), Refused> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if target.is_empty() || open_inside(root, target, directory, Mode::empty()).is_ok() {
        return Ok(());
    }
    let refused = |errno| Refused::new(format!("make directory /{target}"), errno);
    // The kernel follows no link here, and none leads above the root.
    let open =
        |parent: &OwnedFd, name: &OsStr| rustix::fs::openat(parent, name, directory | OFlags::NOFOLLOW, Mode::empty());
    let mut ahead = names_of(target.as_bytes());
    // The directories from the root to where it is.
    let mut way = vec![root.try_clone_to_owned().step("open the sandbox's root")?];
    let mut links = 0;
    while let Some(name) = ahead.pop() {
        if name == ".." {
            way.truncate((way.len() - 1).max(1));
            continue;
        }
        let Some(here) = way.last() else { return Err(refused(Errno::NOENT)) };
        if way.len() > DEEPEST {
            return Err(refused(Errno::NAMETOOLONG));
        }
        let next = match open(here, &name) {
            Ok(next) => next,
            Err(Errno::NOENT) => {
                rustix::fs::mkdirat(here, &*name, Mode::from_raw_mode(0o755)).map_err(refused)?;
                open(here, &name).map_err(refused)?
            }
            // open(2): so it answers for a link, too.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                // EINVAL: it is no link.
                let link = rustix::fs::readlinkat(here, &*name, Vec::new()).map_err(|_| refused(Errno::NOTDIR))?;
                links += 1;
                if links > LINKS {
                    return Err(refused(Errno::LOOP));
                }
                if link.as_bytes().starts_with(b"/") {
                    way.truncate(1);
                }
                ahead.extend(names_of(link.as_bytes()));
                continue;
            }
            Err(errno) => return Err(refused(errno)),
        };
        way.push(next);
    }
    Ok(())
}

/// The names of a path, the first one last.
fn names_of(path: &[u8]) -> Vec<OsString> {
    let names = path.split(|byte| *byte == b'/').rev().filter(|name| !matches!(*name, b"" | b"."));
    names.map(|name| OsStr::from_bytes(name).to_owned()).collect()
}

/// A directory of the root itself, and no link: what is mounted on it must lie there. Anything else of that name goes.
fn make_plain_directory(root: BorrowedFd<'_>, name: &str) -> Result<(), Refused> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if open_beneath(root, name, directory, Mode::empty()).is_ok() {
        return Ok(());
    }
    match rustix::fs::unlinkat(root, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(Refused::new(format!("make room for /{name}"), errno)),
    }
    rustix::fs::mkdirat(root, name, Mode::from_raw_mode(0o755)).step(&format!("make directory /{name}"))
}

/// `/tmp`, for everybody. An image that has one keeps it, and so does one whose `/tmp` is a link to a directory.
fn make_temporary(root: BorrowedFd<'_>) -> Result<(), Refused> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if open_inside(root, TEMPORARY, directory, Mode::empty()).is_ok() {
        return Ok(());
    }
    make_plain_directory(root, TEMPORARY)?;
    // mkdir(2) heeds the umask.
    let everybody = Mode::from_raw_mode(0o1777);
    rustix::fs::chmodat(root, TEMPORARY, everybody, AtFlags::empty()).step("open up /tmp")
}

/// Opens by a path on which no symlink lies: a sandbox's files are what an earlier life of it made of them.
fn open_beneath(root: BorrowedFd<'_>, path: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd, Refused> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::io::retry_on_intr(|| rustix::fs::openat2(root, path, flags, mode, resolve)).step(&format!("open /{path}"))
}

/// Opens by a path whose links lead nowhere but inside, as for a program in the sandbox.
fn open_inside(root: BorrowedFd<'_>, path: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd, Refused> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::io::retry_on_intr(|| rustix::fs::openat2(root, path, flags, mode, resolve)).step(&format!("open /{path}"))
}

/// Attaches a layer's mount: the kernel wants it in the mounter's own namespace before it lets it into an overlay.
fn attach_for_assembly(mount: BorrowedFd<'_>, place: usize) -> Result<(), Refused> {
    let target = format!("/layers/{}", place % layer_places());
    rustix::mount::move_mount(mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).step("attach a layer")
}

fn make_overlay(
    overlay: &Overlay,
    passed: &Incoming,
    storage: BorrowedFd<'_>,
    first_place: usize,
) -> Result<OwnedFd, Refused> {
    let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).step("open an overlay")?;
    match name_by_descriptor(&context, overlay, passed, storage) {
        // Linux before 6.13 takes layers by path only: EOPNOTSUPP up to 6.4, EINVAL since.
        Err(refused)
            if !kernel::has(LAYERS_BY_DESCRIPTOR)
                && [Errno::INVAL, Errno::OPNOTSUPP].map(Errno::raw_os_error).contains(&refused.errno) =>
        {
            name_by_path(&context, overlay, first_place)?;
        }
        other => other?,
    }
    // Whiteouts and opaque marks in `user.*`: the mounter is no root of the host.
    rustix::mount::fsconfig_set_flag(&context, "userxattr").step("configure the overlay")?;
    if overlay.durability == Durability::Volatile {
        rustix::mount::fsconfig_set_flag(&context, "volatile").step("configure the overlay")?;
    }
    rustix::mount::fsconfig_create(&context).step("make the overlay")?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount =
        rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).step("mount the overlay")?;
    // An overlay whose work directory could not be made comes up read-only and says nothing.
    let flags = rustix::fs::fstatvfs(&mount).step("look at the overlay")?.f_flag;
    if flags.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        return Err(Refused::new("mount the overlay writable", Errno::ROFS));
    }
    Ok(mount)
}

fn name_by_descriptor(
    context: &OwnedFd,
    overlay: &Overlay,
    passed: &Incoming,
    storage: BorrowedFd<'_>,
) -> Result<(), Refused> {
    for &lower in &overlay.lowers {
        rustix::mount::fsconfig_set_fd(context, "lowerdir+", passed.get(lower)?).step("add a layer to the overlay")?;
    }
    let path = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let upper = rustix::fs::openat(storage, &overlay.upper, path, Mode::empty()).step("open the upper directory")?;
    let work = rustix::fs::openat(storage, &overlay.work, path, Mode::empty()).step("open the work directory")?;
    rustix::mount::fsconfig_set_fd(context, "upperdir", &upper).step("set the overlay's upper")?;
    rustix::mount::fsconfig_set_fd(context, "workdir", &work).step("set the overlay's work directory")
}

/// Where the layers were attached; the kernel takes 256 bytes of such names.
fn name_by_path(context: &OwnedFd, overlay: &Overlay, first_place: usize) -> Result<(), Refused> {
    let places = first_place..first_place + overlay.lowers.len();
    if places.end > layer_places() {
        return Err(Refused::new("stack so many layers before Linux 6.13", Errno::TOOBIG));
    }
    rustix::process::chdir("/layers").step("enter the layers")?;
    let lowers = places.map(|place| place.to_string()).collect::<Vec<_>>().join(":");
    let options = [
        ("lowerdir", lowers),
        ("upperdir", format!("0/{}", overlay.upper)),
        ("workdir", format!("0/{}", overlay.work)),
    ];
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(context, key, value.as_str()).step(&format!("set the overlay's {key}"))?;
    }
    Ok(())
}

/// Root of the user namespace just entered, or the only one it knows.
pub fn become_first_user(launch: &Launch) -> Result<(), Refused> {
    if launch.groups == Groups::Dropped {
        rustix::thread::set_thread_groups(&[]).step("drop groups")?;
    }
    let (uid, gid) = (Uid::from_raw(launch.first_user), Gid::from_raw(launch.first_user));
    rustix::thread::set_thread_res_gid(gid, gid, gid).step("become the sandbox's first group")?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).step("become the sandbox's first user")
}

/// Makes the first overlay the root of this process and mounts the rest in it. The mount namespace is a fresh copy of
/// the spawner's: what stays beneath the new root is an empty read-only tmpfs.
pub fn enter(launch: &Launch, passed: &Incoming, overlays: &[OwnedFd], privilege: Privilege) -> Result<(), Refused> {
    let [root, inner @ ..] = overlays else {
        return Err(Refused::new("find the root overlay", Errno::INVAL));
    };
    let open = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let devices = rustix::fs::open("/dev", open, Mode::empty()).step("open the device tree")?;
    let nothing = rustix::fs::open("/nothing", open, Mode::empty()).step("open the empty directory")?;
    let stills = rustix::fs::open("/stills", open, Mode::empty()).step("open the stills")?;
    let proc = new_proc(privilege)?;

    let pictures = rustix::fs::open("/pictures", open, Mode::empty()).step("open the pictures")?;
    let boot_id = paint(pictures.as_fd(), &launch.boot_id)?;

    // As switch_root(8) does: the new root covers "/" of the namespace, so that ".." never leads below it.
    rustix::mount::move_mount(root, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).step("attach the root")?;
    rustix::process::fchdir(root).step("enter the root")?;
    rustix::process::chroot(".").step("change to the root")?;

    for (mount, overlay) in inner.iter().zip(&launch.overlays[1..]) {
        attach(mount.as_fd(), root.as_fd(), &overlay.target)?;
    }
    // Before /proc and /dev: a link in an image could lead there, and what is mounted through it is covered by them.
    for extra in &launch.mounts {
        let place = open_inside(root.as_fd(), &extra.target, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(Refused::among_files)?;
        attach_at(passed.get(extra.mount)?, place.as_fd(), &extra.target)?;
    }
    mount_devices(launch, root.as_fd(), devices.as_fd())?;
    mount_proc(proc.as_fd(), root.as_fd(), nothing.as_fd(), stills.as_fd())?;
    if let Some(slot) = launch.memory_info {
        attach(passed.get(slot)?, root.as_fd(), "proc/meminfo")?;
    }
    attach(boot_id.as_fd(), root.as_fd(), "proc/sys/kernel/random/boot_id")?;
    rustix::fs::unlinkat(&pictures, PICTURE, AtFlags::empty()).step("take the boot id's name away")
}

/// A read-only file with this text, as a detached mount. It lies in a tmpfs of the spawner's, so that no path of the host shows in
/// `/proc/self/mountinfo`. Its name is taken away once it is attached (a nameless file cannot be): it goes with its mount.
fn paint(pictures: BorrowedFd<'_>, text: &str) -> Result<OwnedFd, Refused> {
    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(pictures, PICTURE, flags, Mode::from_raw_mode(0o444)).step("make a boot id")?;
    rustix::io::write(&file, text.as_bytes()).map(drop).step("write a boot id")?;
    let mount = clone_mount(pictures, PICTURE).step("open a boot id")?;
    let fixed = Attributes::READ_ONLY.and(Attributes::NO_SUID).and(Attributes::NO_DEVICES).and(Attributes::NO_EXEC);
    set_attributes(mount.as_fd(), Reach::One, fixed, None).step("make a boot id read-only")?;
    Ok(mount)
}

fn attach(mount: BorrowedFd<'_>, root: BorrowedFd<'_>, target: &str) -> Result<(), Refused> {
    let place = open_beneath(root, target, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    attach_at(mount, place.as_fd(), target)
}

fn attach_at(mount: BorrowedFd<'_>, place: BorrowedFd<'_>, target: &str) -> Result<(), Refused> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, "", place, "", flags).step(&format!("mount on /{target}"))
}

/// The processes of the new pid namespace. To an ordinary user the kernel shows them only where all of the host's `/proc`
/// can be seen already (`mount_too_revealing`), so the spawner's place has that as well; here it is taken away.
fn new_proc(privilege: Privilege) -> Result<OwnedFd, Refused> {
    let proc = detached_proc()?;
    if let Privilege::User(_) = privilege {
        rustix::mount::unmount("/proc", UnmountFlags::DETACH).step("leave the host's /proc")?;
    }
    Ok(proc)
}

/// The processes of the caller's pid namespace, at no path.
pub(crate) fn detached_proc() -> Result<OwnedFd, Refused> {
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    new_filesystem("proc", &[], attributes)
}

/// Once `/proc` and `/dev` are there, what lies at a path below them is the kernel's or ours, never the sandbox's: old-style
/// calls by path do then, one for each cover instead of five.
fn mount_proc(
    proc: BorrowedFd<'_>,
    root: BorrowedFd<'_>,
    nothing: BorrowedFd<'_>,
    stills: BorrowedFd<'_>,
) -> Result<(), Refused> {
    attach(proc, root, "proc")?;
    for target in MASKED_FILES {
        where_present(rustix::mount::mount_bind("/dev/null", target), "cover", target)?;
    }
    for name in stills::NAMES {
        // The stills lie beneath the new root, where no path leads; their mount is read-only, and so is what is made of it.
        let (still, target) = (format!("/proc/self/fd/{}/{name}", stills.as_raw_fd()), format!("/proc/{name}"));
        where_present(rustix::mount::mount_bind(still, &target), "cover", &target)?;
    }
    for target in READ_ONLY {
        if where_present(rustix::mount::mount_bind(target, target), "copy", target)? {
            let fixed =
                MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            rustix::mount::mount_remount(target, fixed, c"").step(&format!("make {target} read-only"))?;
        }
    }
    for target in MASKED_DIRECTORIES {
        cover(nothing, root, target)?;
    }
    Ok(())
}

/// Whether it was done; a kernel that has no such file needs no cover.
fn where_present(done: rustix::io::Result<()>, what: &str, target: &str) -> Result<bool, Refused> {
    match done {
        Err(Errno::NOENT) => Ok(false),
        done => done.map(|()| true).step(&format!("{what} {target}")),
    }
}

/// Hides a directory under the empty one, which has no path here.
fn cover(nothing: BorrowedFd<'_>, root: BorrowedFd<'_>, target: &str) -> Result<(), Refused> {
    let place = match open_beneath(root, target, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Err(refused) if refused.errno == Errno::NOENT.raw_os_error() => return Ok(()),
        other => other?,
    };
    let copy = clone_mount(nothing, "").step(&format!("make a cover for /{target}"))?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(&copy, "", &place, "", flags).step(&format!("cover /{target}"))
}

fn clone_mount(directory: BorrowedFd<'_>, path: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::mount::open_tree(directory, path, flags)
}

fn mount_devices(launch: &Launch, root: BorrowedFd<'_>, devices: BorrowedFd<'_>) -> Result<(), Refused> {
    attach(devices, root, "dev")?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let terminal_group = launch.terminal_group.to_string();
    let terminals = [("ptmxmode", "0666"), ("mode", "0620"), ("max", TERMINALS), ("gid", terminal_group.as_str())];
    let terminals = new_filesystem("devpts", &terminals, attributes).or_else(|refused| {
        // Older kernels read a number with a sign. Without it a terminal's group is its owner's.
        let too_large = refused.errno == Errno::INVAL.raw_os_error() && i32::try_from(launch.terminal_group).is_err();
        if too_large { new_filesystem("devpts", &terminals[..3], attributes) } else { Err(refused) }
    });
    attach(terminals?.as_fd(), root, "dev/pts")?;
    let (size, owner) = (launch.shared_memory.to_string(), launch.first_id.to_string());
    // The kernel's own number is by the memory of the host.
    let inodes = (launch.shared_memory / 4096).clamp(1024, 1 << 16).to_string();
    let (mode, size, inodes) = (("mode", "1777"), ("size", size.as_str()), ("nr_inodes", inodes.as_str()));
    let shared = [mode, size, inodes, ("uid", owner.as_str()), ("gid", owner.as_str())];
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    attach(new_filesystem("tmpfs", &shared, attributes)?.as_fd(), root, "dev/shm")
}

fn new_filesystem(kind: &str, options: &[(&str, &str)], attributes: MountAttrFlags) -> Result<OwnedFd, Refused> {
    let name = format!("mount {kind}");
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).step(&name)?;
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(&context, *key, *value).step(&format!("{name} with {key}={value}"))?;
    }
    rustix::mount::fsconfig_create(&context).step(&name)?;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).step(&name)
}
