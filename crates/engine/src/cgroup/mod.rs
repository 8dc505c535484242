//! Limits, accounts, freezing and killing: control groups v1 and v2 behind one [`Hierarchy`] and its [`Group`]s.
//!
//! ```text
//! Hierarchy::detect()  ──create(name, limits)──►  Group ──entry()──►  the launcher's child joins itself
//!        │  names(), open(name): after a restart            set · freeze · thaw · kill · usage · remove
//!        └─ MemoryWatch: who was largest when memory ran out
//! ```
//! A child joins by itself and never by its number from outside: that costs a grace period of the kernel, 7 ms on an idle
//! machine (`cgroup_procs_write_start`), where writing `0` to a v1 `tasks` file costs 20 µs (Linux 6.0) and being born into
//! a v2 group (`CLONE_INTO_CGROUP`, Linux 5.7) about as much.
//!
//! One engine's groups are in one directory, its realm, so that two engines on a host never sweep each other's.

mod error;
mod file;
mod group;
mod kernel_log;
mod largest;
mod layout;
mod memory_watch;
mod processors;
mod ready;
mod v1;
mod v2;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

pub use error::{Absent, Error};
use group::Opened;
pub use group::{Entry, Group, Usage, Window};
pub use layout::{Layout, Mounted};
pub use memory_watch::MemoryWatch;

use crate::share::Processes;
use crate::spec::Limits;
use processors::{Processors, Seat};
pub(crate) use v1::{hand_over, honours_weights};

use v1::Fresh;

/// The realm of an engine that names no other.
const REALM: &str = "cove";

/// This host's control groups, as far as they are ours.
#[derive(Debug, Clone)]
pub struct Hierarchy {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    tree: Tree,
    /// A lock on the landmark, shared by all engines of the realm; an engine that gets it alone removes the empty
    /// directories, the landmark last.
    lock: Option<File>,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each engine")]
enum Tree {
    V1(v1::Tree),
    V2(v2::Tree),
    /// Nothing was delegated to an ordinary user, or nothing is mounted.
    Absent(Absent),
}

/// Which kind of control groups the sandboxes of this host get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
    Absent,
}

impl Hierarchy {
    pub fn detect() -> Result<Hierarchy, Error> {
        Hierarchy::of_realm(REALM)
    }

    /// As `detect`, in a directory of its own: for a second engine on the same host, and for tests.
    pub fn of_realm(realm: &str) -> Result<Hierarchy, Error> {
        check_name(realm)?;
        let layout = Layout::of_this_process().map_err(Error::at("read", Path::new("/proc/self/mountinfo")))?;
        let on_v2 = layout.v2_controllers.iter().any(|name| name == "memory") || layout.v1.is_empty();
        let landmark =
            if on_v2 { v2::Tree::landmark_of(&layout, realm) } else { v1::Tree::landmark_of(&layout, realm) };
        let inner = landmark.and_then(|landmark| {
            // All that follows is made under the lock: a neighbour that ends removes nothing meanwhile.
            let lock = Some(share(&landmark)?);
            let tree = if on_v2 {
                v2::Tree::at(landmark).map(Tree::V2)
            } else {
                v1::Tree::prepare(&layout, realm, landmark).map(Tree::V1)
            };
            Ok(Inner { tree: tree?, lock })
        });
        let inner = match inner {
            Err(Error::Absent(absent)) => Inner { tree: Tree::Absent(absent), lock: None },
            other => other?,
        };
        Ok(Hierarchy { inner: Arc::new(inner) })
    }

    pub fn version(&self) -> Version {
        match &self.inner.tree {
            Tree::V1(_) => Version::V1,
            Tree::V2(_) => Version::V2,
            Tree::Absent(_) => Version::Absent,
        }
    }

    /// Why there is none, where there is none.
    pub fn absent(&self) -> Option<&Absent> {
        match &self.inner.tree {
            Tree::Absent(absent) => Some(absent),
            _ => None,
        }
    }

    /// The controllers out of memory, cpu and pids that our groups lack, and why.
    pub fn missing(&self) -> Vec<(&'static str, Absent)> {
        let needed = ["memory", "cpu", "pids"];
        match &self.inner.tree {
            Tree::V1(_) => Vec::new(),
            Tree::V2(tree) => needed
                .into_iter()
                .filter(|controller| !tree.has(controller))
                .map(|controller| (controller, v2::not_delegated(controller)))
                .collect(),
            Tree::Absent(absent) => needed.map(|controller| (controller, absent.clone())).to_vec(),
        }
    }

    /// A new group with its limits set and nobody in it.
    pub fn create(&self, name: &str, limits: &Limits) -> Result<Group, Error> {
        check_name(name)?;
        let opened = match self.inner.tree.create(name) {
            // Somebody removed the empty realm by hand.
            Err(Error::File { source, .. }) if source.kind() == ErrorKind::NotFound => {
                self.inner.tree.make_bases().and_then(|()| self.inner.tree.create(name))
            }
            other => other,
        };
        let opened = opened?;
        let seat = self.inner.tree.seat(limits.cpus);
        let group = Group::new(&self.inner, name, seat, opened);
        if let Err(error) = group.write(limits, Fresh::Yes) {
            // The first error is the one to report; the sweep finds what stays.
            let _ = group.remove();
            return Err(error);
        }
        Ok(group)
    }

    /// A group of an earlier life of the server.
    pub fn open(&self, name: &str) -> Option<Group> {
        check_name(name).ok()?;
        let tree = &self.inner.tree;
        tree.landmark()?.join(name).join("cgroup.procs").exists().then_some(())?;
        let seat = tree.seated(name).and_then(|list| tree.processors()?.seat_at(&list, 1.0));
        Some(Group::new(&self.inner, name, seat, None))
    }

    /// Makes one ahead of its sandbox; for a thread of the background. Groups that a killed engine had made are removed
    /// before the first. Only v1 can rename a group.
    pub fn make_ready(&self) -> Result<(), Error> {
        match &self.inner.tree {
            Tree::V1(tree) => tree.make_ready(),
            Tree::V2(_) | Tree::Absent(_) => Ok(()),
        }
    }

    /// How many are ready; `None` where none can be.
    pub fn ready(&self) -> Option<usize> {
        match &self.inner.tree {
            Tree::V1(tree) => Some(tree.ready()),
            Tree::V2(_) | Tree::Absent(_) => None,
        }
    }

    /// Every group of this realm, with or without processes: the sweep uses this list. Groups that a crash left in only
    /// some of the v1 trees are among them.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.inner.tree.search().into_iter().flat_map(subdirectories).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Ends every process of a group, known or not, and takes it away; also what a crash left half made.
    pub fn clear(&self, name: &str) -> Result<(), Error> {
        check_name(name)?;
        let group = Group::new(&self.inner, name, None, None);
        match group.kill() {
            // Half made: no process can be in it.
            Err(Error::File { source, .. }) if source.kind() == ErrorKind::NotFound => {}
            other => other?,
        }
        group.remove()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Tree::V1(tree) = &self.tree {
            tree.let_go();
        }
        let alone = |lock: &File| rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        if self.lock.as_ref().is_some_and(alone) {
            match &self.tree {
                Tree::V1(tree) => tree.tidy(),
                Tree::V2(tree) => tree.tidy(),
                Tree::Absent(_) => {}
            }
        }
    }
}

impl Tree {
    fn landmark(&self) -> Option<&Path> {
        match self {
            Tree::V1(tree) => Some(tree.landmark()),
            Tree::V2(tree) => Some(tree.landmark()),
            Tree::Absent(_) => None,
        }
    }

    fn search(&self) -> Vec<&Path> {
        match self {
            Tree::V1(tree) => tree.search(),
            Tree::V2(tree) => vec![tree.landmark()],
            Tree::Absent(_) => Vec::new(),
        }
    }

    fn processors(&self) -> Option<&Arc<Processors>> {
        match self {
            Tree::V1(tree) if tree.seats() => Some(&tree.processors),
            Tree::V2(tree) if tree.has("cpuset") => Some(&tree.processors),
            _ => None,
        }
    }

    fn seat(&self, cpus: f64) -> Option<Seat> {
        self.processors()?.seat(cpus)
    }

    fn seated(&self, name: &str) -> Option<String> {
        match self {
            Tree::V1(tree) => tree.seated(name),
            Tree::V2(tree) => tree.seated(name),
            Tree::Absent(_) => None,
        }
    }

    fn make_bases(&self) -> Result<(), Error> {
        match self {
            Tree::V1(tree) => tree.make_bases(),
            Tree::V2(tree) => tree.make_bases(),
            Tree::Absent(absent) => Err(absent.clone().into()),
        }
    }

    fn create(&self, name: &str) -> Result<Option<Opened>, Error> {
        match self {
            Tree::V1(tree) => tree.create(name),
            Tree::V2(tree) => tree.create(name).map(|()| None),
            Tree::Absent(absent) => Err(absent.clone().into()),
        }
    }
}

/// A bounded wait for the kernel, with growing pauses.
struct Deadline {
    end: Instant,
    pause: std::cell::Cell<Duration>,
}

impl Default for Deadline {
    fn default() -> Self {
        Deadline::after(Duration::from_secs(2))
    }
}

impl Deadline {
    fn after(patience: Duration) -> Deadline {
        Deadline { end: Instant::now() + patience, pause: std::cell::Cell::new(Duration::from_micros(100)) }
    }

    /// A killed process dies within its own share of the processors, which is small on a busy host.
    fn of_the_killed() -> Deadline {
        Deadline::after(Duration::from_secs(30))
    }

    fn has_passed(&self) -> bool {
        Instant::now() >= self.end
    }

    fn pause(&self) {
        std::thread::sleep(self.pause.get());
        self.pause.set((self.pause.get() * 2).min(Duration::from_millis(10)));
    }
}

/// rmdir answers EBUSY until the last process is not only dead but released.
fn remove_directory(path: &Path, deadline: &Deadline, name: &str) -> Result<(), Error> {
    loop {
        match fs::remove_dir(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == ErrorKind::ResourceBusy && !deadline.has_passed() => deadline.pause(),
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                let pids = file::read_pids(&path.join("cgroup.procs"))?.len();
                return Err(Error::Busy { name: name.to_owned(), pids });
            }
            Err(error) => return Err(Error::at("remove", path)(error)),
        }
    }
}

/// Makes the landmark and locks it. The lock counts only on the directory that is there: a neighbour that ended may have
/// removed it while we waited.
fn share(landmark: &Path) -> Result<File, Error> {
    loop {
        make_directory(landmark)?;
        let lock = match File::open(landmark) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            other => other.map_err(Error::at("open", landmark))?,
        };
        rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockShared))
            .map_err(|errno| Error::at("lock", landmark)(errno.into()))?;
        let inode = |metadata: std::io::Result<fs::Metadata>| metadata.map(|metadata| metadata.ino()).ok();
        if inode(lock.metadata()) == inode(fs::metadata(landmark)) {
            return Ok(lock);
        }
    }
}

/// All sandboxes together leave the host some of its process numbers, whatever each of them may have. The one who
/// delegated an ordinary user's realm may have limited it.
fn bound_all(base: &Path) -> Result<(), Error> {
    match file::write(&base.join("pids.max"), &Processes::of_the_host().most_of_all().to_string()) {
        Err(_) if !crate::privilege::is_host_root() => Ok(()),
        other => other,
    }
}

fn make_directory(path: &Path) -> Result<(), Error> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Error::at("make", path)(error)),
        _ => Ok(()),
    }
}

fn subdirectories(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

fn check_name(name: &str) -> Result<(), Error> {
    let fits = (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if fits { Ok(()) } else { Err(Error::Name(name.to_owned())) }
}
