//! What the engine prepares for a launch, in the host's own namespaces: layers, storage, sockets, all by descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::OpenTreeFlags;

use cove_sys::mount::{Attributes, Reach, set_attributes};

use crate::base;
use crate::cgroup::Entry;
use crate::error::Error;
use crate::pool::Identity;
use crate::refused::{Refused, Step};
use crate::spawner::wire::{Cgroup, Durability, Launch, Outgoing, Overlay, Slot};
use crate::spec::{Root, Spec, Storage};
use crate::storage::Upper;

/// Everything a launch takes along; closed by the reaper when the sandbox runs.
pub struct Birth {
    pub identity: Identity,
    pub network: OwnedFd,
    pub entry: Entry,
    pub listener: UnixListener,
    storage: OwnedFd,
    overlays: Vec<Layered>,
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
}

impl Birth {
    pub fn prepare(
        layers: &Layers<'_>,
        upper: &Upper,
        identity: Identity,
        network: OwnedFd,
        entry: Entry,
        socket: &Path,
    ) -> Result<Birth, Error> {
        let map = identity.pair.user.as_fd();
        let overlays = layers.overlays(map)?;
        let storage = open_storage(upper, map)?;
        // What an earlier life left there is nobody's.
        match std::fs::remove_file(socket) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::file("remove", socket)(error));
            }
            _ => {}
        }
        let listener = UnixListener::bind(socket).map_err(Error::file("listen on", socket))?;
        Ok(Birth { identity, network, entry, listener, storage, overlays })
    }

    /// The request to a spawner. Too many layers for one packet are refused.
    pub fn request<'fd>(&'fd self, spec: &Spec, outgoing: &mut Outgoing<'fd>) -> Result<Launch, Error> {
        let durability = match spec.storage {
            Storage::Memory => Durability::Volatile,
            Storage::Disk => Durability::Durable,
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
        Ok(Launch {
            user_namespace: pass(self.identity.pair.user.as_fd())?,
            assembly: pass(self.identity.pair.assembly.as_fd())?,
            network: pass(self.network.as_fd())?,
            cgroup: Cgroup {
                tasks: self.entry.tasks.iter().map(|file| pass(file.as_fd())).collect::<Result<_, _>>()?,
                directory: self.entry.directory.as_ref().map(|directory| pass(directory.as_fd())).transpose()?,
            },
            overlays,
            storage: pass(self.storage.as_fd())?,
            mounts: Vec::new(),
            hostname: spec.hostname.clone(),
            first_id: self.identity.first_id,
            shared_memory: spec.limits.memory / 2,
            memory_info: None,
            listener: pass(self.listener.as_fd())?,
            leash: None,
            configuration: configuration(spec),
        })
    }

    /// What is left to close when the sandbox runs.
    pub fn leftovers(self) -> Vec<OwnedFd> {
        let mut rest = vec![self.identity.pair.user, self.identity.pair.assembly, self.network, self.storage];
        rest.extend(self.overlays.into_iter().flat_map(|overlay| overlay.lowers));
        rest.extend(self.entry.tasks);
        rest.extend(self.entry.directory);
        rest
    }
}

impl Layers<'_> {
    fn overlays(&self, map: BorrowedFd<'_>) -> Result<Vec<Layered>, Error> {
        let over_root = |lowers| Layered { target: "", lowers, upper: "root", work: "root-work" };
        match &self.spec.root {
            Root::Base => {
                let usr = vec![open_layer(Path::new("/usr"), map)?];
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

/// A detached, read-only copy of the mount that holds `path`, rooted there, with the sandbox's ids.
fn open_layer(path: &Path, map: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    let layer = clone_mount(path)?;
    map_ids(&layer, Attributes::READ_ONLY.and(Attributes::NO_DEVICES), map, path)?;
    Ok(layer)
}

fn open_storage(upper: &Upper, map: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    let (mount, path) = match upper {
        Upper::Memory(tmpfs) => (tmpfs.mount()?, PathBuf::from("tmpfs")),
        Upper::Directories(directories) => {
            let parent = directories.root_upper.parent().unwrap_or(&directories.root_upper);
            (clone_mount(parent)?, parent.to_owned())
        }
    };
    map_ids(&mount, Attributes::NO_DEVICES, map, &path)?;
    Ok(mount)
}

fn clone_mount(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let opened = rustix::mount::open_tree(CWD, path, flags);
    opened.map_err(|errno| Error::file("open layer", path)(errno.into()))
}

fn map_ids(mount: &OwnedFd, attributes: Attributes, map: BorrowedFd<'_>, path: &Path) -> Result<(), Error> {
    let mapped = set_attributes(mount.as_fd(), Reach::One, attributes, Some(map));
    Ok(mapped.step(&format!("map the sandbox's ids onto {}", path.display())).map_err(|refused| explain(refused))?)
}

/// EINVAL here has one meaning that people can act on.
fn explain(refused: Refused) -> Refused {
    if refused.errno == rustix::io::Errno::INVAL.raw_os_error() {
        let step = format!("{} (its filesystem has no id-mapped mounts: ext4, xfs, btrfs and tmpfs do)", refused.step);
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

/// The layer of the built-in template.
pub fn base_layer(data: &Path) -> Result<PathBuf, Error> {
    base::layer(data)
}
