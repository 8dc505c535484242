//! Control groups of the first version: one tree per controller, a group is a directory of the same name in each.
//!
//! Where an empty v2 tree is mounted beside them it serves for what v2 does better and without any controller: it
//! freezes, it kills everything at once, and it counts processor time; the v1 `freezer` and `cpuacct` trees are then
//! not joined at all. Cpusets are not per sandbox but shared by all that sit on the same processors: joining one that exists costs
//! one write, while making one makes the kernel look at its scheduling domains.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::Access;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::layout::{Layout, Mounted};
use super::processors::{Processors, Seat, held_by_seat};
use super::ready::Ready;
use super::{Absent, Deadline, Error, Opened, Usage, Window, bound_all, file, make_directory, remove_directory, v2};
use crate::spec::Limits;

/// Bandwidth is measured out per so many microseconds; the kernel's own default.
const QUOTA_PERIOD: u64 = 100_000;
/// Enough for a few hundred busy connections of the smallest sandbox.
const LEAST_SOCKET_MEMORY: u64 = 16 << 20;

/// The weight a new group has.
const ONE_PROCESSOR: u64 = 1024;

/// The directories that our groups are made in.
#[derive(Debug)]
pub(super) struct Tree {
    memory: PathBuf,
    cpu: PathBuf,
    pids: PathBuf,
    /// Joined only where there is no `unified`.
    cpuacct: Option<PathBuf>,
    freezer: Option<PathBuf>,
    cpuset: Option<PathBuf>,
    /// Only where the kernel's block scheduler honours weights.
    blkio: Option<PathBuf>,
    unified: Option<PathBuf>,
    /// Whether the kernel counts swap.
    swap_counted: bool,
    pub(super) processors: Arc<Processors>,
    ready: Ready,
    /// The shared cpusets, by their processors, opened for those who join.
    windows: Mutex<HashMap<String, Arc<OwnedFd>>>,
}

impl Tree {
    /// The directory that says whether a group exists, and that all engines of the realm lock.
    pub(super) fn landmark_of(layout: &Layout, realm: &str) -> Result<PathBuf, Error> {
        needed(layout, "memory", realm)
    }

    /// The caller has locked the landmark.
    pub(super) fn prepare(layout: &Layout, realm: &str, memory: PathBuf) -> Result<Tree, Error> {
        let needed = |controller: &str| needed(layout, controller, realm);
        // A directory that turns out to be of no use does not stay.
        let wanted = |mounted: Option<&Mounted>, useful: &dyn Fn(&Path) -> bool| {
            let base = base(mounted?, realm)?;
            if useful(&base) {
                return Some(base);
            }
            let _ = fs::remove_dir(&base);
            None
        };
        // cgroup.kill came with Linux 5.14, cgroup.freeze with 5.2.
        let unified = wanted(layout.v2.as_ref(), &|base| {
            let entered = crate::privilege::is_host_root() || layout.v2.as_ref().is_some_and(|v2| may_enter(v2, base));
            entered && base.join("cgroup.kill").exists() && base.join("cgroup.freeze").exists()
        });
        let of_v1 = |controller: &str, useful: &dyn Fn(&Path) -> bool| wanted(layout.v1.get(controller), useful);
        let without_unified = |controller: &str| if unified.is_some() { None } else { of_v1(controller, &|_| true) };
        let (cpuacct, freezer) = (without_unified("cpuacct"), without_unified("freezer"));
        let cpuset = of_v1("cpuset", &|base| inherit_cpuset(base).is_ok());
        let online = match &cpuset {
            Some(base) => file::read(&base.join("cpuset.cpus"))?,
            None => fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_else(|_| "0".into()),
        };
        let pids = needed("pids")?;
        bound_all(&pids)?;
        Ok(Tree {
            swap_counted: memory.join("memory.memsw.limit_in_bytes").exists(),
            memory,
            cpu: needed("cpu")?,
            pids,
            cpuacct,
            freezer,
            cpuset,
            // The disks first: on most hosts no directory has to be made to find out.
            blkio: honours_weights().then(|| of_v1("blkio", &|base| base.join("blkio.bfq.weight").exists())).flatten(),
            unified,
            processors: Processors::from_list(&online),
            ready: Ready::default(),
            windows: Mutex::default(),
        })
    }

    /// Every tree a sandbox has a directory of its own in; mounted together they are named once.
    fn bases(&self) -> Vec<&PathBuf> {
        let optional = [&self.cpuacct, &self.freezer, &self.blkio, &self.unified];
        let mut bases = vec![&self.memory, &self.cpu, &self.pids];
        bases.extend(optional.into_iter().flatten());
        bases.sort();
        bases.dedup();
        bases
    }

    /// Those of the first version, in which a group can be given another name.
    fn renamable(&self) -> Vec<&PathBuf> {
        self.bases().into_iter().filter(|base| Some(*base) != self.unified.as_ref()).collect()
    }

    /// See [`Tree::landmark_of`].
    pub(super) fn landmark(&self) -> &Path {
        &self.memory
    }

    /// Every directory to look in for what was left behind: a crash may leave a group in one tree and not in another.
    pub(super) fn search(&self) -> Vec<&Path> {
        self.bases().into_iter().map(PathBuf::as_path).collect()
    }

    pub(super) fn make_bases(&self) -> Result<(), Error> {
        self.lock_windows().clear();
        for base in self.bases().into_iter().chain(&self.cpuset) {
            make_directory(base)?;
        }
        bound_all(&self.pids)?;
        self.cpuset.as_deref().map_or(Ok(()), inherit_cpuset)
    }

    /// With its files opened, where one was ready.
    pub(super) fn create(&self, name: &str) -> Result<Option<Opened>, Error> {
        let Some(mut opened) = self.ready.take(&self.renamable(), name) else {
            return self.make(&self.bases(), name).map(|()| None);
        };
        if let Some(unified) = &self.unified {
            let made = self.make(&[unified], name).and_then(|()| file::open_for_reading(&unified.join(name)));
            // The first error is the one to report; the sweep finds what stays.
            opened.directory = Some(made.inspect_err(|_| drop(self.remove(name, &Deadline::default())))?);
        }
        Ok(Some(opened))
    }

    pub(super) fn make_ready(&self) -> Result<(), Error> {
        self.ready.clear_of_the_dead(&self.renamable());
        let name = Ready::next_name();
        self.make(&self.renamable(), &name)?;
        let opened = self.open_tasks(&name).and_then(|tasks| Ok((tasks, self.open_kills(&name)?)));
        let (tasks, kills) = opened.inspect_err(|_| {
            // The first error is the one to report; the next engine finds what stays.
            let _ = self.remove(&name, &Deadline::default());
        })?;
        self.ready.add(name, Opened { tasks, directory: None, kills: Some(kills) });
        Ok(())
    }

    pub(super) fn ready(&self) -> usize {
        self.ready.count()
    }

    /// Removes ready groups.
    pub(super) fn let_go(&self) {
        self.ready.clear(&self.renamable());
    }

    fn make(&self, bases: &[&PathBuf], name: &str) -> Result<(), Error> {
        let mut made: Vec<PathBuf> = Vec::new();
        for base in bases {
            let path = base.join(name);
            if let Err(error) = fs::create_dir(&path) {
                for path in made {
                    // The first error is the one to tell; what stays is found by the sweep.
                    let _ = fs::remove_dir(path);
                }
                return Err(match error.kind() {
                    ErrorKind::AlreadyExists => Error::Exists(name.to_owned()),
                    _ => Error::at("make", &path)(error),
                });
            }
            made.push(path);
        }
        Ok(())
    }

    pub(super) fn set(&self, name: &str, limits: &Limits, seat: Option<&Seat>, fresh: Fresh) -> Result<(), Error> {
        self.set_memory(name, limits.memory, fresh)?;
        self.set_socket_memory(name, limits.memory)?;
        let cpu = self.cpu.join(name);
        let shares = shares(limits.cpus);
        if fresh == Fresh::No || shares != ONE_PROCESSOR {
            file::write(&cpu.join("cpu.shares"), &shares.to_string())?;
        }
        let quota = quota(limits.cpus, seat, self.processors.count());
        let unset =
            quota.is_none() && (fresh == Fresh::Yes || file::read(&cpu.join("cpu.cfs_quota_us"))?.trim() == "-1");
        if !unset {
            let quota = quota.map_or("-1".to_owned(), |quota| quota.to_string());
            file::write(&cpu.join("cpu.cfs_quota_us"), &quota)?;
        }
        file::write(&self.pids.join(name).join("pids.max"), &limits.pids.to_string())?;
        if let Some(blkio) = &self.blkio {
            let weight = (limits.cpus * 100.0).clamp(1.0, 1000.0) as u64;
            file::write(&blkio.join(name).join("blkio.bfq.weight"), &weight.to_string())?;
        }
        Ok(())
    }

    /// Memory, and memory with swap, are the same number: swap gives no room beyond the limit. The kernel refuses a
    /// `memsw` below `memory` with EINVAL, so the order depends on whether the limit grows.
    fn set_memory(&self, name: &str, limit: u64, fresh: Fresh) -> Result<(), Error> {
        let group = self.memory.join(name);
        let (plain, with_swap) = (group.join("memory.limit_in_bytes"), group.join("memory.memsw.limit_in_bytes"));
        let value = limit.to_string();
        let swap_counted = self.swap_counted;
        let set = || {
            // A new group has no limit: nothing it is given is above.
            if fresh == Fresh::No && swap_counted && file::read_number(&with_swap)? < limit {
                file::write(&with_swap, &value)?;
            }
            file::write(&plain, &value)?;
            if swap_counted { file::write(&with_swap, &value) } else { Ok(()) }
        };
        set().map_err(|error: Error| match error.errno() {
            Some(errno) if errno == rustix::io::Errno::BUSY.raw_os_error() => {
                let usage = file::read_number(&group.join("memory.usage_in_bytes")).unwrap_or(0);
                Error::InUse { name: name.to_owned(), limit, usage }
            }
            _ => error,
        })
    }

    /// Unlike in v2, `memory.limit_in_bytes` does not include socket memory: without this a sandbox of 128 MiB could
    /// use gigabytes, up to `tcp_mem` of the whole host.
    fn set_socket_memory(&self, name: &str, memory: u64) -> Result<(), Error> {
        let file = self.memory.join(name).join("memory.kmem.tcp.limit_in_bytes");
        // A kernel without CONFIG_INET's accounting has no such file.
        if file.exists() { file::write(&file, &(memory / 8).max(LEAST_SOCKET_MEMORY).to_string()) } else { Ok(()) }
    }

    /// Opens a group for those who join it.
    pub(super) fn open(&self, name: &str) -> Result<Opened, Error> {
        let tasks = self.open_tasks(name)?;
        let directory = self.unified.as_ref().map(|base| file::open_for_reading(&base.join(name))).transpose()?;
        Ok(Opened { tasks, directory, kills: Some(self.open_kills(name)?) })
    }

    fn open_kills(&self, name: &str) -> Result<OwnedFd, Error> {
        file::open_for_reading(&self.memory.join(name).join("memory.oom_control"))
    }

    fn open_tasks(&self, name: &str) -> Result<Vec<OwnedFd>, Error> {
        self.renamable().into_iter().map(|base| file::open_for_writing(&base.join(name).join("tasks"))).collect()
    }

    /// The cpuset shared by all that sit on these processors, opened once.
    pub(super) fn window(&self, list: &str, processors: &[u32]) -> Result<Window, Error> {
        let mut windows = self.lock_windows();
        let tasks = match windows.get(list) {
            Some(tasks) => Arc::clone(tasks),
            None => {
                let tasks = Arc::new(file::open_for_writing(&self.window_directory(list)?.join("tasks"))?);
                windows.insert(list.to_owned(), Arc::clone(&tasks));
                tasks
            }
        };
        Ok(Window { tasks, processors: processors.to_vec() })
    }

    fn lock_windows(&self) -> MutexGuard<'_, HashMap<String, Arc<OwnedFd>>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn window_directory(&self, list: &str) -> Result<PathBuf, Error> {
        let base = self.cpuset.as_deref().unwrap_or(Path::new(""));
        let window = base.join(format!("cpus-{list}"));
        let cpus = window.join("cpuset.cpus");
        let is_set = |text: &String| !text.trim().is_empty();
        // Another engine of the realm may have made it a moment ago and not filled it in yet: such a group cannot be
        // joined (ENOSPC). Both write the same.
        if !fs::read_to_string(&cpus).is_ok_and(|text| is_set(&text)) {
            make_directory(&window)?;
            file::write(&window.join("cpuset.mems"), file::read(&base.join("cpuset.mems"))?.trim())?;
            file::write(&cpus, list)?;
        }
        Ok(window)
    }

    /// Whether limits of whole processors are held by cpusets.
    pub(super) fn seats(&self) -> bool {
        self.cpuset.is_some()
    }

    /// Moves what runs in the group to other processors. Threads born meanwhile are caught by looking again.
    pub(super) fn reseat(&self, name: &str, seat: Option<&Seat>) -> Result<(), Error> {
        let Some(base) = &self.cpuset else { return Ok(()) };
        let target = match seat {
            Some(seat) => self.window_directory(&seat.list())?,
            None => base.clone(),
        };
        let deadline = Deadline::default();
        loop {
            let there = file::read_pids(&target.join("cgroup.procs"))?;
            let strays: Vec<u32> = self.pids(name)?.into_iter().filter(|pid| !there.contains(pid)).collect();
            if strays.is_empty() || deadline.has_passed() {
                return Ok(());
            }
            for pid in strays {
                match file::write(&target.join("cgroup.procs"), &pid.to_string()) {
                    Err(error) if error.errno() != Some(rustix::io::Errno::SRCH.raw_os_error()) => return Err(error),
                    _ => {}
                }
            }
        }
    }

    /// On which processors the group's first process sits, for a server that comes back.
    pub(super) fn seated(&self, name: &str) -> Option<String> {
        let pid = *self.pids(name).ok()?.first()?;
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let own = groups.lines().find_map(|line| line.split_once(":cpuset:"))?.1.to_owned();
        Some(own.rsplit_once("/cpus-")?.1.to_owned())
    }

    pub(super) fn pids(&self, name: &str) -> Result<Vec<u32>, Error> {
        file::read_pids(&self.memory.join(name).join("cgroup.procs"))
    }

    pub(super) fn freeze(&self, name: &str) -> Result<(), Error> {
        if let Some(unified) = &self.unified {
            return v2::freeze(&unified.join(name), name);
        }
        let state = self.freezer_state(name)?;
        let deadline = Deadline::default();
        // A process between fork and its first step can escape one look of the kernel (FREEZING); asking again helps.
        loop {
            file::write(&state, "FROZEN")?;
            if file::read(&state)?.trim() == "FROZEN" {
                return Ok(());
            }
            if deadline.has_passed() {
                file::write(&state, "THAWED")?;
                return Err(Error::NotFrozen(name.to_owned()));
            }
            deadline.pause();
        }
    }

    pub(super) fn thaw(&self, name: &str) -> Result<(), Error> {
        match &self.unified {
            Some(unified) => v2::thaw(&unified.join(name)),
            None => file::write(&self.freezer_state(name)?, "THAWED"),
        }
    }

    pub(super) fn is_frozen(&self, name: &str) -> Result<bool, Error> {
        match &self.unified {
            Some(unified) => v2::is_frozen(&unified.join(name)),
            None => Ok(file::read(&self.freezer_state(name)?)?.trim() == "FROZEN"),
        }
    }

    fn freezer_state(&self, name: &str) -> Result<PathBuf, Error> {
        let freezer = self.freezer.as_ref().ok_or(Error::Missing {
            limit: "pause",
            controller: "freezer",
            remedy: "mount the freezer controller or a v2 tree",
        })?;
        Ok(freezer.join(name).join("freezer.state"))
    }

    /// Everything at once by v2; by v1 frozen first, so that nobody forks away from the signal, until nobody is left.
    pub(super) fn kill(&self, name: &str) -> Result<(), Error> {
        if let Some(unified) = &self.unified {
            return v2::kill(&unified.join(name));
        }
        let deadline = Deadline::of_the_killed();
        loop {
            let pids = self.pids(name)?;
            if pids.is_empty() {
                return Ok(());
            }
            if deadline.has_passed() {
                return Err(Error::Busy { name: name.to_owned(), pids: pids.len() });
            }
            let frozen = self.freezer.is_some() && self.freeze(name).is_ok();
            for pid in self.pids(name)?.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
                // ESRCH: gone by itself, which is what was wanted.
                let _ = kill_process(pid, Signal::KILL);
            }
            // The group was removed after its last process ended.
            if frozen
                && let Err(error) = self.thaw(name)
                && !error.is_gone()
            {
                return Err(error);
            }
            deadline.pause();
        }
    }

    pub(super) fn usage(&self, name: &str) -> Result<Usage, Error> {
        let memory = self.memory.join(name);
        let total = file::read_number(&memory.join("memory.usage_in_bytes"))?;
        let stat = file::read(&memory.join("memory.stat"))?;
        // `cache` counts tmpfs and shared memory, which nobody can reclaim without swap.
        let cache = file::keyed(&stat, "total_cache").saturating_sub(file::keyed(&stat, "total_shmem"));
        let cpu_ns = match (&self.unified, &self.cpuacct) {
            (Some(unified), _) => v2::cpu_ns(&unified.join(name))?,
            (None, Some(cpuacct)) => file::read_number(&cpuacct.join(name).join("cpuacct.usage"))?,
            (None, None) => 0,
        };
        Ok(Usage {
            cpu_ns,
            memory: total.saturating_sub(cache),
            memory_cache: cache.min(total),
            memory_peak: file::read_number(&memory.join("memory.max_usage_in_bytes"))?,
            memory_kills: self.memory_kills(name)?,
            pids: file::read_number(&self.pids.join(name).join("pids.current"))?,
        })
    }

    pub(super) fn memory_kills(&self, name: &str) -> Result<u64, Error> {
        let control = file::read(&self.memory.join(name).join("memory.oom_control"))?;
        Ok(file::keyed(&control, "oom_kill"))
    }

    pub(super) fn pids_directory(&self, name: &str) -> PathBuf {
        self.pids.join(name)
    }

    pub(super) fn memory_directory(&self, name: &str) -> PathBuf {
        self.memory.join(name)
    }

    /// Gives back what a dead group's files still hold in the page cache: without it a group whose files are kept lives
    /// on in the kernel, unseen, until they are dropped.
    pub(super) fn reclaim(&self, name: &str) -> Result<(), Error> {
        file::write(&self.memory.join(name).join("memory.force_empty"), "0")
    }

    pub(super) fn remove(&self, name: &str, deadline: &Deadline) -> Result<(), Error> {
        for base in self.bases() {
            remove_directory(&base.join(name), deadline, name)?;
        }
        Ok(())
    }

    /// Removes the empty directories that groups were made in. The caller has the landmark's lock alone; the landmark
    /// is removed last, because the lock has no effect after that.
    pub(super) fn tidy(&self) {
        if let Some(cpuset) = &self.cpuset {
            for entry in fs::read_dir(cpuset).into_iter().flatten().flatten() {
                if entry.file_name().as_encoded_bytes().starts_with(b"cpus-") {
                    // EBUSY: somebody sits there still.
                    let _ = fs::remove_dir(entry.path());
                }
            }
        }
        let others = self.bases().into_iter().chain(&self.cpuset).filter(|base| **base != self.memory);
        for base in others.chain([&self.memory]) {
            let _ = fs::remove_dir(base);
        }
    }
}

/// Whether a group was made a moment ago and has the kernel's defaults.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fresh {
    Yes,
    No,
}

/// Whether any disk has the scheduler that uses weights: without it, joining another group is useless.
pub(crate) fn honours_weights() -> bool {
    let disks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    // What is in memory or a file has no scheduler of its own that counts.
    let real = |disk: &fs::DirEntry| {
        let name = disk.file_name();
        !["loop", "ram", "zram"].iter().any(|kind| name.as_encoded_bytes().starts_with(kind.as_bytes()))
    };
    disks.filter(real).map(|disk| disk.path().join("queue/scheduler")).any(|scheduler| {
        let text = fs::read_to_string(scheduler).unwrap_or_default();
        text.contains("[bfq]")
    })
}

/// One processor's worth, as everywhere in v1.
fn shares(cpus: f64) -> u64 {
    (cpus * ONE_PROCESSOR as f64).clamp(2.0, 262_144.0) as u64
}

/// Microseconds per period, where a seat alone does not hold the limit.
pub(super) fn quota(cpus: f64, seat: Option<&Seat>, processors: usize) -> Option<u64> {
    let width = seat.map_or(processors, Seat::width);
    // The kernel takes no less than a millisecond.
    if held_by_seat(cpus, width) { None } else { Some(((cpus * QUOTA_PERIOD as f64) as u64).max(1000)) }
}

/// Our directory in a tree that sandboxes cannot do without.
fn needed(layout: &Layout, controller: &str, realm: &str) -> Result<PathBuf, Error> {
    let mounted = layout.v1.get(controller).ok_or_else(|| Absent {
        reason: format!("the {controller} controller is not mounted"),
        remedy: format!("mount it: mount -t cgroup -o {controller} cgroup /sys/fs/cgroup/{controller}"),
    })?;
    let absent = || Absent {
        reason: format!("no group can be made in the {controller} tree at {}", mounted.at.display()),
        remedy: format!("run as root, or type as root: {}", hand_over(layout, &[realm], crate::privilege::caller())),
    };
    Ok(base(mounted, realm).ok_or_else(absent)?)
}

/// The commands with which root gives a user the groups of these realms.
pub(crate) fn hand_over<S: AsRef<str>>(layout: &Layout, realms: &[S], user: u32) -> String {
    let trees = ["memory", "cpu", "pids", "cpuset", "cpuacct", "freezer"];
    // Controllers that are mounted together have one directory.
    let trees: BTreeSet<&Path> =
        trees.iter().filter_map(|tree| layout.v1.get(*tree)).map(|tree| tree.at.as_path()).collect();
    let of_realm = |realm: &S| {
        let groups = trees.iter().map(|tree| tree.join(realm.as_ref()).display().to_string());
        groups.collect::<Vec<String>>()
    };
    let groups: Vec<String> = realms.iter().flat_map(of_realm).collect();
    let groups = groups.join(" ");
    format!("mkdir -p {groups} && chown -R {user} {groups}")
}

/// Our directory in one tree: at its top where we may, else below our own group, which somebody has then handed to us.
fn base(mounted: &Mounted, realm: &str) -> Option<PathBuf> {
    let below_own = mounted.own.as_ref().map(|own| mounted.at.join(own));
    for parent in std::iter::once(mounted.at.clone()).chain(below_own) {
        let base = parent.join(realm);
        while make_directory(&base).is_ok() {
            match rustix::fs::access(&base, Access::WRITE_OK) {
                Ok(()) => return Some(base),
                // A neighbour that ends has just removed the empty one.
                Err(Errno::NOENT) => {}
                Err(_) => break,
            }
        }
    }
    None
}

/// Whether a process of ours may be born in a v2 group: the kernel asks for the right to move processes in the nearest group that is
/// above both it and us (`cgroup_attach_permissions`), other than in v1.
fn may_enter(mounted: &Mounted, group: &Path) -> bool {
    let Some(own) = mounted.own.as_ref().map(|own| mounted.at.join(own)) else { return false };
    let above: PathBuf = own.components().zip(group.components()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
    file::is_writable(&above.join("cgroup.procs"))
}

/// A v1 cpuset starts empty and cannot be joined: it gets everything that its parent has.
fn inherit_cpuset(base: &Path) -> Result<(), Error> {
    for (own, parents) in [("cpuset.cpus", "cpuset.effective_cpus"), ("cpuset.mems", "cpuset.effective_mems")] {
        let parent = base.parent().unwrap_or(base);
        if file::read(&base.join(own))?.trim().is_empty() {
            file::write(&base.join(own), file::read(&parent.join(parents))?.trim())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_processor_gets_a_quota_and_a_whole_one_with_a_seat_does_not() {
        let processors = Processors::from_list("0-3");
        let seat = processors.seat(0.5).unwrap();
        assert_eq!(quota(0.5, Some(&seat), 4), Some(50_000));
        let seat = processors.seat(1.0).unwrap();
        assert_eq!(quota(1.0, Some(&seat), 4), None);
        assert_eq!(quota(1.0, None, 4), Some(100_000), "without cpusets the quota does it all");
        assert_eq!(quota(4.0, None, 4), None, "the whole machine");
        assert_eq!(quota(0.001, None, 4), Some(1000));
    }

    #[test]
    fn what_root_has_to_type_names_every_tree_once() {
        let mounted = |at: &str| Mounted { at: at.into(), own: None };
        let mut layout = Layout { v2: Some(mounted("/c/unified")), ..Layout::default() };
        for (controller, at) in [("memory", "/c/memory"), ("cpu", "/c/cpu,cpuacct"), ("cpuacct", "/c/cpu,cpuacct")] {
            layout.v1.insert(controller.into(), mounted(at));
        }
        layout.v1.insert("net_cls".into(), mounted("/c/net_cls"));
        assert_eq!(
            hand_over(&layout, &["cove-1"], 1000),
            "mkdir -p /c/cpu,cpuacct/cove-1 /c/memory/cove-1 && chown -R 1000 /c/cpu,cpuacct/cove-1 /c/memory/cove-1"
        );
        let both = hand_over(&layout, &["cove-1", "cove-2"], 1000);
        assert!(both.contains("/c/memory/cove-1 /c/cpu,cpuacct/cove-2 /c/memory/cove-2 && chown"), "{both}");
    }

    #[test]
    fn shares_stay_within_what_the_kernel_takes() {
        assert_eq!(shares(1.0), 1024);
        assert_eq!(shares(0.0001), 2);
        assert_eq!(shares(1e9), 262_144);
    }

    /// A host with v1 alone, as older ones are: this host's trees without its v2.
    #[test]
    fn without_a_v2_tree_the_freezer_freezes_kills_and_counts() {
        let mut layout = Layout::of_this_process().unwrap();
        layout.v2 = None;
        let realm = format!("cove-test-v1-{}", std::process::id());
        let prepared = Tree::landmark_of(&layout, &realm).and_then(|memory| Tree::prepare(&layout, &realm, memory));
        let tree = match prepared {
            Err(Error::Absent(absent)) => return cove_testkit::skip(cove_testkit::Need::ControlGroupsV1, absent),
            other => other.unwrap(),
        };
        assert!(tree.freezer.is_some() && tree.unified.is_none());
        tree.create("a").unwrap();
        tree.set("a", &Limits::default(), None, Fresh::Yes).unwrap();
        let entry = tree.open("a").unwrap();
        assert!(entry.directory.is_none());
        let own = std::process::id();
        let join = |file: &std::os::fd::OwnedFd| {
            format!("echo 0 > /proc/{own}/fd/{} && ", std::os::fd::AsRawFd::as_raw_fd(file))
        };
        let join: String = entry.tasks.iter().map(join).collect();
        let script = format!("{join} {{ while :; do :; done & while :; do :; done\n}}");
        let mut child = std::process::Command::new("sh").args(["-c", &script]).spawn().unwrap();
        let deadline = Deadline::default();
        while tree.pids("a").unwrap().len() < 2 || tree.usage("a").unwrap().cpu_ns == 0 {
            assert!(!deadline.has_passed(), "two processes run in time");
            deadline.pause();
        }
        tree.freeze("a").unwrap();
        assert!(tree.is_frozen("a").unwrap());
        let used = tree.usage("a").unwrap().cpu_ns;
        assert_eq!(tree.usage("a").unwrap().cpu_ns, used);
        tree.thaw("a").unwrap();
        assert!(!tree.is_frozen("a").unwrap());
        tree.freeze("a").unwrap();
        std::thread::scope(|scope| {
            // Killing waits until nobody is left, which takes a parent that reaps.
            let reaped = scope.spawn(|| child.wait().unwrap());
            tree.kill("a").unwrap();
            assert!(!reaped.join().unwrap().success());
        });
        tree.remove("a", &Deadline::default()).unwrap();
        tree.tidy();
        assert!(!tree.memory.exists());
    }
}
