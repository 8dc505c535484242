//! Control groups of the second version: one tree, all controllers in it.
//!
//! ```text
//! /sys/fs/cgroup            as root, when nobody delegated anything to us
//! └── cove                  subtree_control: +memory +cpu +pids +cpuset +io; no process in it
//!     ├── k3f…              a sandbox
//!     └── …
//! /sys/fs/cgroup/…/cove.service     a systemd unit with Delegate=yes, or a user's own scope
//! ├── cove-server           where this process steps aside to: a group with controllers below it may hold no process
//! └── cove
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::layout::{Layout, Mounted};
use super::processors::{Processors, Seat};
use super::v1::{Fresh, quota};
use super::{Absent, Deadline, Entry, Error, Usage, bound_all, file, make_directory, remove_directory};
use crate::spec::Limits;

const USEFUL: [&str; 5] = ["memory", "cpu", "pids", "cpuset", "io"];

#[derive(Debug)]
pub(super) struct Tree {
    base: PathBuf,
    /// What our groups have, out of `USEFUL`.
    controllers: BTreeSet<String>,
    pub(super) processors: Arc<Processors>,
}

impl Tree {
    /// The directory of the realm's groups, which all engines of the realm lock.
    pub(super) fn landmark_of(layout: &Layout, realm: &str) -> Result<PathBuf, Error> {
        let mounted = layout.v2.as_ref().ok_or_else(|| Absent {
            reason: "no control groups are mounted".into(),
            remedy: "mount them: mount -t cgroup2 cgroup2 /sys/fs/cgroup".into(),
        })?;
        let parent = parent(mounted, realm)?;
        enable(&parent, realm)?;
        Ok(parent.join(realm))
    }

    /// In a directory whose parent has given it controllers.
    pub(super) fn at(base: PathBuf) -> Result<Tree, Error> {
        make_directory(&base)?;
        enable_all(&base)?;
        let enabled = file::read(&base.join("cgroup.subtree_control"))?;
        let controllers: BTreeSet<String> = enabled.split_whitespace().map(str::to_owned).collect();
        if controllers.contains("pids") {
            bound_all(&base)?;
        }
        let online = file::read(&base.join("cpuset.cpus.effective"))
            .or_else(|_| file::read(Path::new("/sys/devices/system/cpu/online")))?;
        Ok(Tree { base, controllers, processors: Processors::from_list(&online) })
    }

    pub(super) fn landmark(&self) -> &Path {
        &self.base
    }

    pub(super) fn make_bases(&self) -> Result<(), Error> {
        Tree::at(self.base.clone()).map(|_| ())
    }

    pub(super) fn has(&self, controller: &str) -> bool {
        self.controllers.contains(controller)
    }

    pub(super) fn create(&self, name: &str) -> Result<(), Error> {
        let path = self.base.join(name);
        fs::create_dir(&path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Error::Exists(name.to_owned()),
            _ => Error::at("make", &path)(error),
        })
    }

    pub(super) fn set(&self, name: &str, limits: &Limits, seat: Option<&Seat>, fresh: Fresh) -> Result<(), Error> {
        let group = self.base.join(name);
        if self.holds("memory", "memory")? {
            self.set_memory(name, &group, limits.memory)?;
        }
        if self.holds("pids", "pids")? {
            file::write(&group.join("pids.max"), &limits.pids.to_string())?;
        }
        self.set_cpu(&group, limits.cpus, seat, fresh)?;
        // The file is absent where no block scheduler honours weights.
        let weight = group.join("io.weight");
        if self.has("io") && weight.exists() {
            let weight_of = (limits.cpus * 100.0).clamp(1.0, 10_000.0) as u64;
            file::write(&weight, &format!("default {weight_of}"))?;
        }
        Ok(())
    }

    fn set_memory(&self, name: &str, group: &Path, limit: u64) -> Result<(), Error> {
        let set_memory = file::write(&group.join("memory.max"), &limit.to_string());
        set_memory.map_err(|error| match error.errno() {
            Some(errno) if errno == rustix::io::Errno::BUSY.raw_os_error() => {
                let usage = file::read_number(&group.join("memory.current")).unwrap_or(0);
                Error::InUse { name: name.to_owned(), limit, usage }
            }
            _ => error,
        })?;
        // Swap is counted apart in v2; none of it keeps the sum within the limit. The file is absent where the kernel has no swap.
        let swap = group.join("memory.swap.max");
        if swap.exists() {
            file::write(&swap, "0")?;
        }
        Ok(())
    }

    fn set_cpu(&self, group: &Path, cpus: f64, seat: Option<&Seat>, fresh: Fresh) -> Result<(), Error> {
        let quota = quota(cpus, seat, self.processors.count());
        if quota.is_some() {
            self.require("cpus", "cpu")?;
        }
        if self.has("cpu") {
            let weight = (cpus * 100.0).clamp(1.0, 10_000.0) as u64;
            file::write(&group.join("cpu.weight"), &weight.to_string())?;
            match quota {
                Some(quota) => file::write(&group.join("cpu.max"), &format!("{quota} 100000"))?,
                None if fresh == Fresh::Yes => {}
                None => file::write(&group.join("cpu.max"), "max 100000")?,
            }
        }
        match seat {
            Some(seat) if self.has("cpuset") => file::write(&group.join("cpuset.cpus"), &seat.list()),
            // By name: an empty list would mean the parent's, but the kernel takes none from a group with processes (ENOSPC).
            None if self.has("cpuset") && fresh == Fresh::No => {
                file::write(&group.join("cpuset.cpus"), &self.processors.all())
            }
            _ => Ok(()),
        }
    }

    /// For an ordinary user a limit without its controller is not set: the engine has refused or reported it (see
    /// `hold`).
    fn holds(&self, limit: &'static str, controller: &'static str) -> Result<bool, Error> {
        match self.require(limit, controller) {
            Err(_) if !crate::privilege::is_host_root() => Ok(false),
            other => other.map(|()| true),
        }
    }

    fn require(&self, limit: &'static str, controller: &'static str) -> Result<(), Error> {
        if self.has(controller) {
            return Ok(());
        }
        let remedy = "run as root, or start it with a delegation of all controllers: \
             systemd-run --user --scope -p Delegate=yes (see Delegate= in systemd.resource-control(5))";
        Err(Error::Missing { limit, controller, remedy })
    }

    pub(super) fn entry(&self, name: &str) -> Result<Entry, Error> {
        let group = self.base.join(name);
        // Without the controller there is no such file, and no limit either.
        let kills = self.has("memory").then(|| file::open_for_reading(&group.join("memory.events"))).transpose()?;
        let directory = Some(file::open_for_reading(&group)?);
        Ok(Entry { tasks: Vec::new(), windows: Vec::new(), directory, kills })
    }

    pub(super) fn directory(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    pub(super) fn seated(&self, name: &str) -> Option<String> {
        let list = file::read(&self.base.join(name).join("cpuset.cpus")).ok()?;
        Some(list.trim().to_owned()).filter(|list| !list.is_empty())
    }

    pub(super) fn usage(&self, name: &str) -> Result<Usage, Error> {
        let group = self.base.join(name);
        let total = file::read_number(&group.join("memory.current"))?;
        let stat = file::read(&group.join("memory.stat"))?;
        let cache = file::keyed(&stat, "file").saturating_sub(file::keyed(&stat, "shmem"));
        Ok(Usage {
            cpu_ns: cpu_ns(&group)?,
            memory: total.saturating_sub(cache),
            memory_cache: cache.min(total),
            // memory.peak came with Linux 5.19.
            memory_peak: file::read_number(&group.join("memory.peak")).unwrap_or(total),
            memory_kills: self.memory_kills(name)?,
            pids: file::read_number(&group.join("pids.current"))?,
        })
    }

    pub(super) fn memory_kills(&self, name: &str) -> Result<u64, Error> {
        let events = file::read(&self.base.join(name).join("memory.events"))?;
        Ok(file::keyed(&events, "oom_kill"))
    }

    /// See the same of v1. `memory.reclaim` (Linux 5.19) fails with EAGAIN when it could not get all: it took what there was.
    pub(super) fn reclaim(&self, name: &str) -> Result<(), Error> {
        let group = self.base.join(name);
        let current = file::read_number(&group.join("memory.current"))?;
        match file::write(&group.join("memory.reclaim"), &current.to_string()) {
            Err(error) if error.errno() != Some(rustix::io::Errno::AGAIN.raw_os_error()) => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn remove(&self, name: &str, deadline: &Deadline) -> Result<(), Error> {
        remove_directory(&self.base.join(name), deadline, name)
    }

    pub(super) fn tidy(&self) {
        // EBUSY: groups are left in it.
        let _ = fs::remove_dir(&self.base);
    }
}

pub(super) fn pids(group: &Path) -> Result<Vec<u32>, Error> {
    file::read_pids(&group.join("cgroup.procs"))
}

pub(super) fn cpu_ns(group: &Path) -> Result<u64, Error> {
    Ok(file::keyed(&file::read(&group.join("cpu.stat"))?, "usage_usec") * 1000)
}

/// Returns when the kernel says that everybody rests.
pub(super) fn freeze(group: &Path, name: &str) -> Result<(), Error> {
    file::write(&group.join("cgroup.freeze"), "1")?;
    let deadline = Deadline::default();
    while !is_frozen(group)? {
        // An empty group never reports itself frozen before somebody is in it; it will be from the first step.
        if pids(group)?.is_empty() {
            return Ok(());
        }
        if deadline.has_passed() {
            thaw(group)?;
            return Err(Error::NotFrozen(name.to_owned()));
        }
        deadline.pause();
    }
    Ok(())
}

pub(super) fn thaw(group: &Path) -> Result<(), Error> {
    file::write(&group.join("cgroup.freeze"), "0")
}

pub(super) fn is_frozen(group: &Path) -> Result<bool, Error> {
    Ok(file::keyed(&file::read(&group.join("cgroup.events"))?, "frozen") == 1)
}

/// Every process of the group gets SIGKILL, frozen ones too, and none can fork away from it. A group that somebody has
/// removed meanwhile holds no process.
pub(super) fn kill(group: &Path) -> Result<(), Error> {
    match file::write(&group.join("cgroup.kill"), "1") {
        Err(error) if error.is_gone() => Ok(()),
        answer => answer,
    }
}

/// Where a subtree may be made: below our own group if it was delegated to us, or at the top of the tree as root.
fn parent(mounted: &Mounted, realm: &str) -> Result<PathBuf, Absent> {
    let own = mounted.own.as_ref().map(|own| mounted.at.join(own)).map(|own| {
        // A server that has stepped aside already, or one of its children.
        let aside = own.file_name().is_some_and(|name| name.as_encoded_bytes() == server_group(realm).as_bytes());
        if aside { own.parent().map(Path::to_owned).unwrap_or(own) } else { own }
    });
    if let Some(own) = own.filter(|own| is_delegated(own)) {
        return Ok(own);
    }
    if crate::privilege::is_host_root() && file::is_writable(&mounted.at.join("cgroup.subtree_control")) {
        return Ok(mounted.at.clone());
    }
    Err(Absent {
        reason: "this process's own control group was not delegated to it".into(),
        remedy: "run as root, or start it as: systemd-run --user --scope -p Delegate=yes cove …".into(),
    })
}

/// systemd marks what it delegates with an extended attribute; for an ordinary user being able to write is enough.
pub(super) fn is_delegated(group: &Path) -> bool {
    let marked = |name: &str| {
        let mut value = [0_u8; 8];
        rustix::fs::getxattr(group, name, &mut value).is_ok_and(|length| value[..length] == *b"1")
    };
    let writable = ["cgroup.procs", "cgroup.subtree_control"].iter().all(|file| file::is_writable(&group.join(file)));
    writable
        && file::is_writable(group)
        && (!crate::privilege::is_host_root() || marked("user.delegate") || marked("trusted.delegate"))
}

/// Why a controller is not there for our groups.
pub(super) fn not_delegated(controller: &str) -> Absent {
    Absent {
        reason: format!("the {controller} controller was not delegated"),
        remedy: format!(
            "have root delegate it: Delegate=memory pids cpu cpuset io in user@.service ({controller} is not in it)"
        ),
    }
}

fn server_group(realm: &str) -> String {
    format!("{realm}-server")
}

/// Turns on what we use below `parent`. Where processes are in the way (EBUSY), this one steps aside.
fn enable(parent: &Path, realm: &str) -> Result<(), Error> {
    match enable_all(parent) {
        Err(error) if error.errno() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
            let aside = parent.join(server_group(realm));
            make_directory(&aside)?;
            file::write(&aside.join("cgroup.procs"), "0")?;
            enable_all(parent).map_err(|error| match error.errno() {
                Some(errno) if errno == rustix::io::Errno::BUSY.raw_os_error() => Error::Absent(Absent {
                    reason: format!("other processes are in {} and no limits can be set beside them", parent.display()),
                    remedy: "start cove alone in its group: systemd-run --scope -p Delegate=yes cove …".into(),
                }),
                _ => error,
            })
        }
        other => other,
    }
}

/// Enables each useful controller that is offered and not on yet.
fn enable_all(group: &Path) -> Result<(), Error> {
    let offered = file::read(&group.join("cgroup.controllers"))?;
    let control = group.join("cgroup.subtree_control");
    let enabled = file::read(&control)?;
    let has = |list: &str, name: &str| list.split_whitespace().any(|entry| entry == name);
    let wanted: Vec<String> = USEFUL
        .into_iter()
        .filter(|name| has(&offered, name) && !has(&enabled, name))
        .map(|name| format!("+{name}"))
        .collect();
    if wanted.is_empty() { Ok(()) } else { file::write(&control, &wanted.join(" ")) }
}

#[cfg(test)]
#[path = "v2_tests.rs"]
mod tests;
