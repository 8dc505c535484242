//! What the engine prepares for a launch, in the host's own namespaces: layers, storage, sockets, all by descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;
use rustix::process::{Gid, Uid};

use cove_sys::mount::{Attributes, Reach, set_attributes};

use crate::base::USER;
use crate::cgroup::Entry;
use crate::cradle::Nest;
use crate::error::Error;
use crate::fence::Inside;
use crate::kernel::{self, COUNTS_BY_NAMESPACE};
use crate::network::RESOLVER;
use crate::pool::Identity;
use crate::privilege::{self, Ids, Privilege};
use crate::refused::{Refused, Step};
use crate::seccomp::Rules;
use crate::shelves::Found;
use crate::spawner::handle::Spawners;
use crate::spawner::wire::{Attach, AttachKind, Cgroup, Groups, Launch, Outgoing, Overlay, Request, Slot, Window};
use crate::spec::{Access, Durability, Mount, Source, Spec, Storage, Under};
use crate::storage::{Store, Upper, read_beneath};
use crate::user_namespace::{Maps, RANGE};

/// A passwd file larger than this is nobody's list of users.
const PASSWD: usize = 1 << 20;

/// Everything a launch takes along; closed by the reaper when the sandbox runs.
pub struct Birth {
    pub identity: Identity,
    pub network: OwnedFd,
    pub entry: Entry,
    pub nest: Nest,
    /// The files of a sandbox in memory, with 0-based ids: nothing else leads to them once it runs.
    pub in_memory: Option<OwnedFd>,
    storage: OwnedFd,
    overlays: Vec<Layered>,
    shown: Vec<Shown>,
    rules: Rules,
    memory_info: Option<OwnedFd>,
    boot_id: String,
    files: Vec<(String, String)>,
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

/// Which layers there are, and what else the sandbox's files are made of.
pub struct Layers<'a> {
    pub spec: &'a Spec,
    /// Those of the spec, in its order.
    pub over: &'a [Found],
    pub base: &'a Path,
    /// Directories of programs that the host keeps outside of `/usr`.
    pub unmerged: &'a [&'static str],
    /// Directories of ours: ids in them are 0-based, and no other user of the host gets there.
    pub ours: &'a [PathBuf],
    pub store: &'a Store,
    /// Files that are written into the root before it is entered.
    pub files: Vec<(String, String)>,
    pub privilege: Privilege,
    /// Whether files in memory can be reached from outside as long as the sandbox lives.
    pub reach: Reachable,
    /// What `/proc/meminfo` shows inside; the host's where no limit is enforced.
    pub memory: Option<u64>,
}

/// Whether the engine keeps a way to a sandbox's files in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reachable {
    Yes,
    No,
}

impl Birth {
    pub fn prepare(
        mut layers: Layers<'_>,
        upper: &Upper,
        identity: Identity,
        network: OwnedFd,
        entry: Entry,
        nest: Nest,
        spawners: &Spawners,
    ) -> Result<Birth, Error> {
        let overlays = layers.overlays(layers.map(&identity))?;
        let shown = layers.shown(upper, &identity, spawners)?;
        let rules = layers.rules();
        // Files in memory are on a filesystem of their own, of the right size.
        let disk = layers.spec.limits.disk.filter(|_| layers.spec.storage == Storage::Disk);
        let memory_info = layers.memory.map(|memory| nest.memory_info(memory, disk)).transpose()?;
        let (storage, in_memory) = open_storage(upper, &identity, layers.map(&identity), layers.reach)?;
        let boot_id = boot_id()?;
        let (files, privilege) = (std::mem::take(&mut layers.files), layers.privilege);
        Ok(Birth {
            identity,
            network,
            entry,
            nest,
            in_memory,
            storage,
            overlays,
            shown,
            rules,
            memory_info,
            boot_id,
            files,
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
            files: self.files.clone(),
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
        let mut root = self.parts("root", map)?;
        match self.spec.root.under {
            Under::Host => {
                root.push(open_layer(self.base, map)?);
                let mut usr = self.parts("usr", map)?;
                usr.push(open_layer(Path::new("/usr"), map)?);
                let usr = Layered { target: "usr", lowers: usr, upper: "usr", work: "usr-work" };
                Ok(vec![over_root(root), usr])
            }
            Under::Nothing if root.is_empty() => {
                Err(Error::Invalid("none of these layers has files for the root of a sandbox".into()))
            }
            Under::Nothing => Ok(vec![over_root(root)]),
        }
    }

    /// One folder of every layer that has it, top first.
    fn parts(&self, name: &str, map: Option<BorrowedFd<'_>>) -> Result<Vec<OwnedFd>, Error> {
        let mut parts = Vec::new();
        for found in self.over {
            if let Some(part) = found.layer.part(name)? {
                let path = found.layer.path.join(name);
                let mount = clone_directory(part.as_fd(), &path)?;
                map_ids(&mount, Attributes::READ_ONLY.and(Attributes::NO_DEVICES), map, &path)?;
                parts.push(mount);
            }
        }
        Ok(parts)
    }
}

impl Layers<'_> {
    /// What the host shows of itself: folders that were asked for, and, on a host that has not merged them into
    /// `/usr`, the directories of programs and libraries.
    fn shown(&self, upper: &Upper, identity: &Identity, spawners: &Spawners) -> Result<Vec<Shown>, Error> {
        let mut shown = Vec::new();
        if self.spec.root.under == Under::Host {
            for name in self.unmerged {
                let mount = open_layer(&Path::new("/").join(name), self.map(identity))?;
                shown.push(Shown { mount, target: (*name).into(), kind: AttachKind::Directory });
            }
        }
        for mount in &self.spec.mounts {
            let mut attributes = Attributes::NO_SUID.and(Attributes::NO_DEVICES);
            if mount.access == Access::ReadOnly {
                attributes = attributes.and(Attributes::READ_ONLY);
            }
            let (clone, kind) = match &mount.source {
                Source::Volume { volume, subpath } => {
                    let owner = (identity.inside == Inside::Range).then(|| self.default_user(upper)).transpose()?;
                    let subpath = subpath.as_deref().unwrap_or(Path::new(""));
                    let folder = self.store.volume_folder(volume, subpath, owner)?;
                    let shown = PathBuf::from(format!("volume {volume}"));
                    let clone = clone_directory(folder.as_fd(), &shown)?;
                    map_ids(&clone, attributes, self.map(identity), &shown)?;
                    (clone, AttachKind::Directory)
                }
                Source::Path(source) => self.show(source, mount.access, attributes, upper, identity, spawners)?,
            };
            let target = mount.target.to_string_lossy().trim_start_matches('/').to_owned();
            shown.push(Shown { mount: clone, target, kind });
        }
        Ok(shown)
    }

    fn is_ours(&self, source: &Path) -> bool {
        self.ours.iter().any(|place| source.starts_with(place))
    }

    /// Other users cannot reach a volume of ours; they may reach other folders of the host.
    fn rules(&self) -> Rules {
        let shares = |mount: &Mount| match &mount.source {
            Source::Volume { .. } => false,
            Source::Path(path) => {
                mount.access != Access::ReadOnly && !path.canonicalize().is_ok_and(|source| self.is_ours(&source))
            }
        };
        let is_volume = |mount: &Mount| matches!(mount.source, Source::Volume { .. });
        let mounts = &self.spec.mounts;
        Rules { shared_files: mounts.iter().any(shares), volumes: mounts.iter().any(is_volume) }
    }

    /// A folder or file of the host.
    fn show(
        &self,
        source: &Path,
        access: Access,
        attributes: Attributes,
        upper: &Upper,
        identity: &Identity,
        spawners: &Spawners,
    ) -> Result<(OwnedFd, AttachKind), Error> {
        let source = source.canonicalize().map_err(Error::file("mount", source))?;
        let metadata = source.metadata().map_err(Error::file("mount", &source))?;
        let kind = if metadata.is_dir() { AttachKind::Directory } else { AttachKind::File };
        let clone = clone_mount(&source)?;
        if self.is_ours(&source) || self.privilege != Privilege::Root {
            // Ids in it are 0-based like a layer's. To an ordinary user's sandbox all files are as to that user.
            map_ids(&clone, attributes, self.map(identity), &source)?;
        } else {
            let user = self.default_user(upper)?;
            let maps = Maps::folder(identity.first_id, user, metadata.uid(), metadata.gid());
            let (_, descriptors) = spawners.call(&Request::UserNamespace(maps), &Outgoing::default())?;
            let map = descriptors.0.first().ok_or_else(|| Refused::new("receive a user namespace", Errno::BADMSG))?;
            match map_ids(&clone, attributes, Some(map.as_fd()), &source) {
                // A filesystem without id maps can still be read, as world-readable files can.
                Err(_) if access == Access::ReadOnly => {
                    set_attributes(clone.as_fd(), Reach::One, attributes, None)
                        .step(&format!("make {} read-only", source.display()))?;
                }
                // Only this folder is unfit, not the host.
                Err(error @ Error::NoIdMaps(_)) => {
                    return Err(Error::Invalid(format!("cannot be written from a sandbox: {error}")));
                }
                other => other?,
            }
        }
        Ok((clone, kind))
    }

    /// The number of the sandbox's default user, by the passwd file that it will see.
    fn default_user(&self, upper: &Upper) -> Result<u32, Error> {
        let name = self.spec.default_user.split(':').next().unwrap_or_default();
        if let Some(number) = name.parse::<u32>().ok().filter(|number| *number < RANGE) {
            return Ok(number);
        }
        let mut text = None;
        if let Upper::Directories(directories) = upper {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let root = rustix::fs::open(&directories.root_upper, flags, Mode::empty()).step("open an upper")?;
            text = read_beneath(&root, "etc/passwd", PASSWD);
        }
        for found in self.over {
            if text.is_none()
                && let Some(root) = found.layer.part("root")?
            {
                text = read_beneath(&root, "etc/passwd", PASSWD);
            }
        }
        let named = text.as_deref().and_then(|text| number_in(&String::from_utf8_lossy(text), name));
        match (named, name, self.spec.root.under) {
            (Some(number), ..) => Ok(number),
            (None, "root", _) => Ok(0),
            // The built-in template's own.
            (None, _, Under::Host) => Ok(USER),
            (None, _, Under::Nothing) => Err(Error::Invalid(format!(
                "user {name:?}, to whom the mounted folders shall belong, is not in the image's /etc/passwd"
            ))),
        }
    }
}

/// The number of a user in a passwd file. A sandbox wrote it: only what fits its range counts.
fn number_in(passwd: &str, name: &str) -> Option<u32> {
    let mut numbers = passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    numbers.find(|number| *number < RANGE)
}

/// The sandbox's name and its resolver; written into a new one.
pub fn identity_files(spec: &Spec) -> Vec<(String, String)> {
    vec![
        ("etc/hostname".into(), format!("{}\n", spec.hostname)),
        (HOSTS.into(), hosts(&spec.hostname)),
        ("etc/resolv.conf".into(), format!("nameserver {RESOLVER}\noptions timeout:5 attempts:2\n")),
    ]
}

/// Where a sandbox finds names without asking anybody.
pub const HOSTS: &str = "etc/hosts";

pub fn hosts(hostname: &str) -> String {
    format!("127.0.0.1\tlocalhost\n127.0.1.1\t{hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n")
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

/// Whether a sandbox with these ids can be shown these directories; the error names the first that it cannot.
pub fn try_layers(paths: &[&Path], map: BorrowedFd<'_>) -> Result<(), Error> {
    paths.iter().try_for_each(|path| open_layer(path, Some(map)).map(drop))
}

/// A detached, read-only copy of the mount that holds `path`, rooted there, with the sandbox's ids.
fn open_layer(path: &Path, map: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Error> {
    let layer = clone_mount(path)?;
    map_ids(&layer, Attributes::READ_ONLY.and(Attributes::NO_DEVICES), map, path)?;
    Ok(layer)
}

/// The storage's mount, and a second one of files in memory, which the ids are not mapped on.
fn open_storage(
    upper: &Upper,
    identity: &Identity,
    map: Option<BorrowedFd<'_>>,
    reach: Reachable,
) -> Result<(OwnedFd, Option<OwnedFd>), Error> {
    match upper {
        Upper::Memory(tmpfs) => {
            let mount = tmpfs.mount()?;
            // Before Linux 6.15 a mount that is nowhere attached cannot be had twice: then nobody captures these files.
            let mut second =
                (reach == Reachable::Yes).then(|| clone_directory(mount.as_fd(), Path::new("tmpfs")).ok()).flatten();
            match map_ids(&mount, Attributes::NO_DEVICES, map, Path::new("tmpfs")) {
                // Before Linux 6.3 a tmpfs has no id maps. Nobody else ever sees this one: it can as well belong to the range.
                Err(Error::NoIdMaps(_)) => {
                    second = None;
                    give_to(&mount, identity.first_id)?;
                }
                other => other?,
            }
            Ok((mount, second))
        }
        Upper::Directories(directories) => {
            let parent = directories.root_upper.parent().unwrap_or(&directories.root_upper);
            let mount = clone_mount(parent)?;
            map_ids(&mount, Attributes::NO_DEVICES, map, parent)?;
            Ok((mount, None))
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
    rustix::mount::open_tree(CWD, path, flags).map_err(explain_clone(path))
}

/// The same of an open directory; `path` is for people.
fn clone_directory(directory: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Error> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::mount::open_tree(directory, "", flags).map_err(explain_clone(path))
}

fn explain_clone(path: &Path) -> impl FnOnce(Errno) -> Error {
    move |errno| match errno {
        // What is mounted below it was there before this user's mount namespace, and what lies beneath may not be laid open.
        Errno::INVAL if !privilege::is_host_root() => Error::Invalid(format!(
            "{} holds mounts of the host, which an ordinary user cannot leave out; choose a folder without any",
            path.display()
        )),
        errno => Error::file("open layer", path)(errno.into()),
    }
}

fn map_ids(mount: &OwnedFd, attributes: Attributes, map: Option<BorrowedFd<'_>>, path: &Path) -> Result<(), Error> {
    let mapped = set_attributes(mount.as_fd(), Reach::One, attributes, map);
    let step = || format!("map the sandbox's ids onto {}", path.display());
    mapped.map_err(|errno| match errno {
        // With a map EINVAL has one meaning (mount_setattr(2)), and people can act on it.
        Errno::INVAL if map.is_some() => Error::NoIdMaps(path.to_owned()),
        errno => Refused::new(step(), errno).into(),
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_the_images_own_list() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nnode:x:1001:1001::/home/node:\nhuge:x:70000:1::/:\nhuge:x:33:33::/:\nbad\n";
        assert_eq!(number_in(passwd, "node"), Some(1001));
        assert_eq!(number_in(passwd, "huge"), Some(33), "only what the range has counts");
        assert_eq!((number_in(passwd, "bad"), number_in(passwd, "user"), number_in("", "root")), (None, None, None));
    }
}
