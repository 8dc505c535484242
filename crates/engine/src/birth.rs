//! What the engine prepares for a launch, in the host's own namespaces: layers, storage, sockets, all by descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;
use rustix::process::{Gid, Uid};

use cove_sys::mount::{Attributes, Reach, set_attributes};

use crate::cgroup::Entry;
use crate::cradle::Nest;
use crate::error::Error;
use crate::fence::Inside;
use crate::house::Fresh;
use crate::kernel::{self, COUNTS_BY_NAMESPACE};
use crate::network::RESOLVER;
use crate::pool::Identity;
use crate::privilege::{self, Ids, Privilege};
use crate::refused::{Refused, Step};
use crate::seccomp::Rules;
use crate::spawner::handle::Spawners;
use crate::spawner::wire::{Attach, AttachKind, Cgroup, Groups, Launch, Outgoing, Overlay, Request, Slot, Window};
use crate::spec::{Access, Durability, Mount, Root, Spec, Storage};
use crate::storage::Upper;
use crate::user_namespace::{Maps, RANGE};

/// Everything a launch takes along; closed by the reaper when the sandbox runs.
pub struct Birth {
    pub identity: Identity,
    pub network: OwnedFd,
    pub entry: Entry,
    pub nest: Nest,
    storage: OwnedFd,
    overlays: Vec<Layered>,
    shown: Vec<Shown>,
    rules: Rules,
    memory_info: Option<OwnedFd>,
    boot_id: String,
    fresh: Fresh,
    privilege: Privilege,
}

/// A host folder or file, as a detached mount.
struct Shown {
    mount: OwnedFd,
    target: String,
    kind: AttachKind,
}

/// One overlay: where it goes, its layers (top first), the directories it writes to.
struct Layered {
    target: &'static str,
    lowers: Vec<OwnedFd>,
    upper: &'static str,
    work: &'static str,
}

/// Which layers there are, by path.
pub struct Layers<'a> {
    pub spec: &'a Spec,
    pub base: &'a Path,
    /// Directories of programs that the host keeps outside of `/usr`.
    pub unmerged: &'a [&'static str],
    pub data: &'a Path,
    pub fresh: Fresh,
    pub privilege: Privilege,
    /// What `/proc/meminfo` shows inside; the host's where no limit is enforced.
    pub memory: Option<u64>,
}

impl Birth {
    pub fn prepare(
        layers: &Layers<'_>,
        upper: &Upper,
        identity: Identity,
        network: OwnedFd,
        entry: Entry,
        nest: Nest,
        spawners: &Spawners,
    ) -> Result<Birth, Error> {
        let overlays = layers.overlays(layers.map(&identity))?;
        let shown = layers.shown(&identity, spawners)?;
        let rules = layers.rules();
        // Files in memory are on a filesystem of their own, of the right size.
        let disk = layers.spec.limits.disk.filter(|_| layers.spec.storage == Storage::Disk);
        let memory_info = layers.memory.map(|memory| nest.memory_info(memory, disk)).transpose()?;
        let storage = open_storage(upper, &identity, layers.map(&identity))?;
        let boot_id = boot_id()?;
        let (fresh, privilege) = (layers.fresh, layers.privilege);
        Ok(Birth {
            identity,
            network,
            entry,
            nest,
            storage,
            overlays,
            shown,
            rules,
            memory_info,
            boot_id,
            fresh,
            privilege,
        })
    }

    /// The request to a spawner. Too many layers for one packet are refused.
    pub fn request<'fd>(
        &'fd self,
        spec: &Spec,
        leash: Option<BorrowedFd<'fd>>,
        outgoing: &mut Outgoing<'fd>,
    ) -> Result<Launch, Error> {
        let durability = match spec.storage {
            Storage::Memory => Durability::Volatile,
            Storage::Disk => spec.durability,
        };
        let mut pass = |descriptor: BorrowedFd<'fd>| -> Result<Slot, Error> {
            let full =
                || Error::Invalid("a sandbox with this many layers and mounts cannot be launched; flatten it".into());
            outgoing.add(descriptor).ok_or_else(full)
        };
        let mut overlays = Vec::new();
        for overlay in &self.overlays {
            overlays.push(Overlay {
                target: overlay.target.into(),
                lowers: overlay.lowers.iter().map(|lower| pass(lower.as_fd())).collect::<Result<_, _>>()?,
                upper: overlay.upper.into(),
                work: overlay.work.into(),
                durability,
            });
        }
        let mut mounts = Vec::new();
        for shown in &self.shown {
            mounts.push(Attach { mount: pass(shown.mount.as_fd())?, target: shown.target.clone(), kind: shown.kind });
        }
        let mut windows = Vec::new();
        for window in &self.entry.windows {
            let processors = window.processors.clone();
            windows.push(Window { tasks: pass(window.tasks.as_fd())?, processors });
        }
        Ok(Launch {
            user_namespace: pass(self.identity.pair.user.as_fd())?,
            assembly: pass(self.identity.pair.assembly.as_fd())?,
            network: pass(self.network.as_fd())?,
            cgroup: Cgroup {
                tasks: self.entry.tasks.iter().map(|file| pass(file.as_fd())).collect::<Result<_, _>>()?,
                windows,
                directory: self.entry.directory.as_ref().map(|directory| pass(directory.as_fd())).transpose()?,
                kills: self.entry.kills.as_ref().map(|kills| pass(kills.as_fd())).transpose()?,
            },
            overlays,
            storage: pass(self.storage.as_fd())?,
            mounts,
            rules: self.rules,
            files: if self.fresh == Fresh::Yes { identity_files(spec) } else { Vec::new() },
            hostname: spec.hostname.clone(),
            first_id: self.identity.first_id,
            terminal_group: self.terminal_group(),
            first_user: self.identity.inside.first(),
            groups: if self.privilege == Privilege::User(Ids::Single) { Groups::Kept } else { Groups::Dropped },
            processes: (self.privilege != Privilege::Root && kernel::has(COUNTS_BY_NAMESPACE))
                .then_some(spec.limits.pids),
            shared_memory: spec.limits.memory / 2,
            memory_info: self.memory_info.as_ref().map(|file| pass(file.as_fd())).transpose()?,
            boot_id: self.boot_id.clone(),
            listener: pass(self.nest.listener.as_fd())?,
            leash: leash.map(&mut pass).transpose()?,
            configuration: configuration(spec),
        })
    }

    /// 5 is the group `tty` of every distribution.
    fn terminal_group(&self) -> u32 {
        match self.identity.inside {
            Inside::Range => self.identity.first_id + 5,
            Inside::Single(_) => self.identity.first_id,
        }
    }

    /// Descriptors to close when the sandbox runs.
    pub fn leftovers(self) -> Vec<OwnedFd> {
        let mut rest = vec![self.identity.pair.user, self.identity.pair.assembly, self.network, self.storage];
        rest.extend(self.overlays.into_iter().flat_map(|overlay| overlay.lowers));
        rest.extend(self.shown.into_iter().map(|shown| shown.mount));
        rest.extend(self.memory_info);
        rest.extend(self.entry.tasks);
        rest.extend(self.entry.directory);
        rest.extend(self.entry.kills);
        rest
    }
}

impl Layers<'_> {
    /// What layers are mounted with; an ordinary user may map no ids and needs none: the home's are the sandbox's.
    fn map<'fd>(&self, identity: &'fd Identity) -> Option<BorrowedFd<'fd>> {
        (self.privilege == Privilege::Root).then(|| identity.pair.user.as_fd())
    }

    fn overlays(&self, map: Option<BorrowedFd<'_>>) -> Result<Vec<Layered>, Error> {
        let over_root = |lowers| Layered { target: "", lowers, upper: "root", work: "root-work" };
        match &self.spec.root {
            Root::Base | Root::BaseWith(_) => {
                let over = if let Root::BaseWith(paths) = &self.spec.root { paths.as_slice() } else { &[] };
                let paths = over.iter().map(PathBuf::as_path).chain([Path::new("/usr")]);
                let usr = paths.map(|path| open_layer(path, map)).collect::<Result<_, _>>()?;
                let usr = Layered { target: "usr", lowers: usr, upper: "usr", work: "usr-work" };
                Ok(vec![over_root(vec![open_layer(self.base, map)?]), usr])
            }
            Root::Layers(paths) => {
                let lowers = paths.iter().map(|path| open_layer(path, map)).collect::<Result<_, _>>()?;
                Ok(vec![over_root(lowers)])
            }
        }
    }
}

impl Layers<'_> {
    /// What the host shows of itself: folders that were asked for, and, on a host that has not merged them into
    /// `/usr`, the directories of programs and libraries.
    fn shown(&self, identity: &Identity, spawners: &Spawners) -> Result<Vec<Shown>, Error> {
        let mut shown = Vec::new();
        if matches!(self.spec.root, Root::Base | Root::BaseWith(_)) {
            for name in self.unmerged {
                let mount = open_layer(&Path::new("/").join(name), self.map(identity))?;
                shown.push(Shown { mount, target: (*name).into(), kind: AttachKind::Directory });
            }
        }
        for mount in &self.spec.mounts {
            shown.push(self.show(mount, identity, spawners)?);
        }
        Ok(shown)
    }

    /// Other users cannot reach a volume of ours; they may reach other folders of the host.
    fn rules(&self) -> Rules {
        let ours = |mount: &Mount| mount.source.canonicalize().is_ok_and(|source| source.starts_with(self.data));
        let shares = |mount: &Mount| mount.access != Access::ReadOnly && !ours(mount);
        if self.spec.mounts.iter().any(shares) { Rules::SharedFiles } else { Rules::Ordinary }
    }

    fn show(&self, mount: &Mount, identity: &Identity, spawners: &Spawners) -> Result<Shown, Error> {
        let source = mount.source.canonicalize().map_err(Error::file("mount", &mount.source))?;
        let metadata = source.metadata().map_err(Error::file("mount", &source))?;
        let kind = if metadata.is_dir() { AttachKind::Directory } else { AttachKind::File };
        let clone = clone_mount(&source)?;
        let mut attributes = Attributes::NO_SUID.and(Attributes::NO_DEVICES);
        if mount.access == Access::ReadOnly {
            attributes = attributes.and(Attributes::READ_ONLY);
        }
        if source.starts_with(self.data) || self.privilege != Privilege::Root {
            // A volume of ours: ids in it are 0-based like a layer's, and nobody else of the host gets there. To an ordinary
            // user's sandbox all files are as to that user.
            map_ids(&clone, attributes, self.map(identity), &source)?;
        } else {
            let maps =
                Maps::folder(identity.first_id, number_of(&self.spec.default_user), metadata.uid(), metadata.gid());
            let (_, descriptors) = spawners.call(&Request::UserNamespace(maps), &Outgoing::default())?;
            let map = descriptors.0.first().ok_or_else(|| Refused::new("receive a user namespace", Errno::BADMSG))?;
            match map_ids(&clone, attributes, Some(map.as_fd()), &source) {
                // A filesystem without id maps can still be read, as world-readable files can.
                Err(_) if mount.access == Access::ReadOnly => {
                    set_attributes(clone.as_fd(), Reach::One, attributes, None)
                        .step(&format!("make {} read-only", source.display()))?;
                }
                other => other?,
            }
        }
        let target = mount.target.to_string_lossy().trim_start_matches('/').to_owned();
        Ok(Shown { mount: clone, target, kind })
    }
}

/// The number of a sandbox's default user: names of a template's own are taken for the ordinary one.
fn number_of(user: &str) -> u32 {
    let name = user.split(':').next().unwrap_or(user);
    match name {
        "root" => 0,
        _ => name.parse().ok().filter(|number| *number < RANGE).unwrap_or(1000),
    }
}

/// The sandbox's name and its resolver; written into a new one.
fn identity_files(spec: &Spec) -> Vec<(String, String)> {
    let hosts =
        format!("127.0.0.1\tlocalhost\n127.0.1.1\t{}\n::1\tlocalhost ip6-localhost ip6-loopback\n", spec.hostname);
    vec![
        ("etc/hostname".into(), format!("{}\n", spec.hostname)),
        ("etc/hosts".into(), hosts),
        ("etc/resolv.conf".into(), format!("nameserver {RESOLVER}\noptions timeout:5 attempts:2\n")),
    ]
}

/// A random UUID, as the kernel writes its own: a sandbox that starts again has booted again, and no two are taken for one
/// machine.
fn boot_id() -> Result<String, Error> {
    let mut bytes = [0u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).step("make a boot id")?;
    // Version 4, variant 1: RFC 9562.
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{}-{}-{}-{}\n", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

/// A detached, read-only copy of the mount that holds `path`, rooted there, with the sandbox's ids.
fn open_layer(path: &Path, map: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Error> {
    let layer = clone_mount(path)?;
    map_ids(&layer, Attributes::READ_ONLY.and(Attributes::NO_DEVICES), map, path)?;
    Ok(layer)
}

fn open_storage(upper: &Upper, identity: &Identity, map: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Error> {
    match upper {
        Upper::Memory(tmpfs) => {
            let mount = tmpfs.mount()?;
            match map_ids(&mount, Attributes::NO_DEVICES, map, Path::new("tmpfs")) {
                // Before Linux 6.3 a tmpfs has no id maps. Nobody else ever sees this one: it can as well belong to the range.
                Err(Error::Refused(refused)) if refused.errno == Errno::INVAL.raw_os_error() => {
                    give_to(&mount, identity.first_id)?;
                }
                other => other?,
            }
            Ok(mount)
        }
        Upper::Directories(directories) => {
            let parent = directories.root_upper.parent().unwrap_or(&directories.root_upper);
            let mount = clone_mount(parent)?;
            map_ids(&mount, Attributes::NO_DEVICES, map, parent)?;
            Ok(mount)
        }
    }
}

fn give_to(mount: &OwnedFd, first_id: u32) -> Result<(), Error> {
    let (uid, gid) = (Uid::from_raw(first_id), Gid::from_raw(first_id));
    for name in ["", "root", "root-work", "usr", "usr-work"] {
        rustix::fs::chownat(mount, name, Some(uid), Some(gid), AtFlags::EMPTY_PATH)
            .step("give the tmpfs to its sandbox")?;
    }
    Ok(())
}

fn clone_mount(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let opened = rustix::mount::open_tree(CWD, path, flags);
    opened.map_err(|errno| match errno {
        // What is mounted below it was there before this user's mount namespace, and what lies beneath may not be laid open.
        Errno::INVAL if !privilege::is_host_root() => Error::Invalid(format!(
            "{} holds mounts of the host, which an ordinary user cannot leave out; choose a folder without any",
            path.display()
        )),
        errno => Error::file("open layer", path)(errno.into()),
    })
}

fn map_ids(mount: &OwnedFd, attributes: Attributes, map: Option<BorrowedFd<'_>>, path: &Path) -> Result<(), Error> {
    let mapped = set_attributes(mount.as_fd(), Reach::One, attributes, map);
    Ok(mapped.step(&format!("map the sandbox's ids onto {}", path.display())).map_err(explain)?)
}

/// EINVAL here has one meaning that people can act on.
fn explain(refused: Refused) -> Refused {
    if refused.errno == Errno::INVAL.raw_os_error() {
        let step = format!(
            "{} (its filesystem has no id-mapped mounts: ext4, xfs and btrfs do, tmpfs since Linux 6.3)",
            refused.step
        );
        return Refused { step, ..refused };
    }
    refused
}

/// What the guest finds in its environment.
fn configuration(spec: &Spec) -> String {
    let text = serde_json::json!({
        "env": spec.env,
        "default_user": spec.default_user,
        "default_cwd": spec.default_cwd,
    });
    text.to_string()
}
