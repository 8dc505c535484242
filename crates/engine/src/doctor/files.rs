//! Overlays, mounts and what holds a disk limit.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use cove_sys::probe::{Throwaway, close_in_child, in_child, leave, map_ids};
use rustix::fs::{CWD, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, OpenTreeFlags, fsconfig_create,
    fsmount, fsopen, mount, mount_change, open_tree,
};
use rustix::thread::UnshareFlags;

use super::{Finding, is_root};
use crate::kernel::{self, OVERLAYS_OF_ID_MAPS};
use crate::storage::Store;

/// What a server keeps free unless it is configured otherwise.
const KEPT: u64 = 2 << 30;

pub(super) fn examine() -> Vec<Finding> {
    vec![overlay(), overlay_in_user_namespace(), mount_interface(), idmapped_mounts(), disk_limits(), project_quotas()]
}

fn overlay() -> Finding {
    let name = "overlay";
    if !is_root() {
        return Finding::ok(name, "tried within a user namespace, see below");
    }
    match in_child(|| leave(UnshareFlags::NEWNS).and_then(|()| write_through_overlay(""))) {
        Ok(()) => Finding::ok(name, "sandboxes write to a layer of their own over shared ones"),
        Err(error) => {
            Finding::missing(name, format!("no overlay can be mounted and written: {error}"), "modprobe overlay")
        }
    }
    .required()
}

/// As sandboxes' roots are mounted: from within a user namespace, marks in `user.` attributes (Linux 5.11).
fn overlay_in_user_namespace() -> Finding {
    let attempt = in_child(|| {
        let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        leave(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
        fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
        write_through_overlay(",userxattr")
    });
    let name = "overlay in user namespaces";
    match attempt {
        Ok(()) => Finding::ok(name, "a sandbox's root is mounted without power over the host"),
        Err(error) => {
            let detail =
                format!("an overlay with userxattr cannot be mounted and written in a user namespace: {error}");
            Finding::missing(name, detail, "a kernel of 5.11 or newer, and no policy that forbids it")
        }
    }
    .required()
}

/// In a mount namespace of its own. Only a write shows that the overlay did not come up read-only.
fn write_through_overlay(options: &str) -> io::Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("tmpfs", "/tmp", "tmpfs", MountFlags::empty(), None)?;
    for directory in ["/tmp/lower", "/tmp/upper", "/tmp/work", "/tmp/root"] {
        fs::create_dir(directory)?;
    }
    fs::write("/tmp/lower/file", "below")?;
    let options = format!("lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work{options}");
    let options = std::ffi::CString::new(options).map_err(io::Error::other)?;
    mount("overlay", "/tmp/root", "overlay", MountFlags::empty(), options.as_c_str())?;
    fs::write("/tmp/root/file", "above")?;
    fs::remove_file("/tmp/root/file")
}

fn mount_interface() -> Finding {
    let name = "new mount interface";
    let attempt = in_child(|| {
        let kinds = if is_root() { UnshareFlags::NEWNS } else { UnshareFlags::NEWUSER | UnshareFlags::NEWNS };
        leave(kinds)?;
        detached_tmpfs().map(|_| ())
    });
    match attempt {
        Ok(()) => Finding::ok(name, "mounts are made and moved by descriptor"),
        Err(error) => {
            Finding::missing(name, format!("fsopen and fsmount are refused: {error}"), "a kernel of 5.2 or newer")
        }
    }
    .required()
}

fn detached_tmpfs() -> io::Result<std::os::fd::OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

/// The host's own `/usr` is shown with other ids, as every layer is.
fn idmapped_mounts() -> Finding {
    let name = "idmapped mounts";
    if !is_root() {
        return Finding::weaker(
            name,
            "need root: files of the host's root are shown as nobody's, so /usr can be used and not changed",
            "run as root to let sandboxes change their /usr",
        );
    }
    match map(Path::new("/usr")) {
        Ok(()) if !kernel::has(OVERLAYS_OF_ID_MAPS) => Finding::weaker(
            name,
            "this kernel may be too old to make a sandbox's root of them",
            "a kernel of 5.19 or newer, or an ordinary user, whose sandboxes need none",
        ),
        Ok(()) => Finding::ok(name, "every sandbox has its own range of ids over the same layers"),
        Err(error) => Finding::missing(
            name,
            format!("/usr cannot be shown with other ids: {error}"),
            "a kernel of 5.19 or newer and /usr on a filesystem that can (ext4, xfs, btrfs; tmpfs from 6.3)",
        ),
    }
    .required()
}

/// The same for the directory that holds a server's layers and, where there is no pool image, sandboxes' files. `None` for
/// an ordinary user, who needs none.
pub fn idmapped_data(data: &Path) -> Option<Finding> {
    if !is_root() {
        return None;
    }
    let name = "idmapped data directory";
    // The directory may not be made yet: then what it will be made in counts.
    let there = data.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    let finding = match map(there) {
        Ok(()) => Finding::ok(name, format!("{}: its filesystem can show files with other ids", data.display())),
        Err(error) => Finding::missing(
            name,
            format!("files in {} cannot be shown with other ids: {error}", data.display()),
            "choose a directory on ext4, xfs or btrfs with --data or COVE_DATA; in a container, mount a volume there",
        ),
    };
    Some(finding.required())
}

fn map(path: &Path) -> io::Result<()> {
    let (reader, writer) = rustix::pipe::pipe()?;
    let (ready, announce) = rustix::pipe::pipe()?;
    let held = {
        let (reader, announce) = (reader.as_fd(), announce.as_fd());
        let writer = writer.as_fd();
        Throwaway::spawn(move || {
            leave(UnshareFlags::NEWUSER)?;
            rustix::io::write(announce, b"1")?;
            // Lives until the parent closes its end; our copy of that end would keep us waiting.
            close_in_child(writer);
            rustix::io::read(reader, &mut [0_u8])?;
            Ok(())
        })?
    };
    drop(announce);
    let mut byte = [0_u8];
    let mapped = match rustix::io::read(&ready, &mut byte)? {
        1 => map_to(path, held.pid()),
        _ => Err(io::Error::other("no user namespace could be made")),
    };
    drop(writer);
    held.wait().and(mapped)
}

fn map_to(path: &Path, pid: u32) -> io::Result<()> {
    for file in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{pid}/{file}"), "0 1000000 65536")?;
    }
    let namespace = File::open(format!("/proc/{pid}/ns/user"))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let layer = open_tree(CWD, path, flags)?;
    map_ids(layer.as_fd(), namespace.as_fd())
}

/// Whether the disk that a data directory is on has room, and whether what is mounted there works.
pub fn room(data: &Path) -> Finding {
    let name = "room on disk";
    // The directory may not be made yet: then what it will be made in counts.
    let there = data.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let health = match Store::look(there) {
        Ok(health) => health,
        Err(error) => return Finding::weaker(name, error.to_string(), "look at the disk"),
    };
    match health.refusal(KEPT) {
        Some(sentence) => Finding::weaker(name, format!("{}: {sentence}", data.display()), "make room on the disk"),
        None => {
            // Of a small disk the GiB say too little.
            let (unit, shift) = if health.host.free < 10 << 30 { ("MiB", 20) } else { ("GiB", 30) };
            let (free, total) = (health.host.free >> shift, health.host.total >> shift);
            Finding::ok(name, format!("{}: {free} of {total} {unit} are free", data.display()))
        }
    }
}

/// What can enforce a disk limit, besides the data directory's own filesystem, which the engine checks when it opens
/// it.
fn disk_limits() -> Finding {
    let name = "disk limits";
    if !is_root() {
        return Finding::weaker(
            name,
            "need root: `cove run` keeps files in memory, where a limit holds; a server refuses a disk limit",
            "run as root",
        );
    }
    let control = rustix::fs::open("/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, rustix::fs::Mode::empty());
    let btrfs =
        fs::read_to_string("/proc/filesystems").is_ok_and(|list| list.lines().any(|line| line.trim() == "btrfs"));
    let mut lacking = Vec::new();
    if let Err(errno) = control {
        lacking.push(format!("loop devices ({})", io::Error::from(errno)));
    }
    if !btrfs {
        lacking.push("btrfs in the kernel (modprobe btrfs)".into());
    }
    if super::host::find_program("mkfs.btrfs").is_none() {
        lacking.push("mkfs.btrfs (Debian: apt-get install btrfs-progs)".into());
    }
    if lacking.is_empty() {
        return Finding::ok(
            name,
            "loop devices, btrfs and mkfs.btrfs: a pool image holds the limits on any filesystem",
        );
    }
    Finding::weaker(
        name,
        format!("no pool image, since these are missing: {}", lacking.join(", ")),
        "install them, or put the data directory on btrfs with quotas on, or on ext4 or xfs mounted with prjquota; \
         else a disk limit is refused",
    )
}

fn project_quotas() -> Finding {
    let name = "project quotas";
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let has = |line: &&str| {
        let mut fields = line.split(' ').skip(2);
        let (kind, options) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
        matches!(kind, "ext4" | "xfs") && options.split(',').any(|option| matches!(option, "prjquota" | "pquota"))
    };
    let places: Vec<&str> = mounts.lines().filter(has).filter_map(|line| line.split(' ').nth(1)).collect();
    if places.is_empty() {
        let remedy = "only where no pool image can be had: mount the data directory's ext4 or xfs with prjquota";
        return Finding::weaker(name, "no filesystem is mounted with them", remedy);
    }
    Finding::ok(name, format!("a data directory in {} has disk limits without an image", places.join(", ")))
}
