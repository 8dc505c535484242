//! Two grounds, since a host has its controllers either in v1 or in v2:
//!
//! * `real_…`: a v2 tree of the kernel, with or without controllers. Making, joining, freezing, killing and removing need
//!   none, so they are shown on any host that has a v2 tree mounted and root.
//! * `imitated_…`: a plain directory with files named as cgroupfs names them. It shows what is written where and how the
//!   kernel's texts are read; that the kernel obeys is shown only where it has v2 controllers, by `tests/cgroup.rs`.

use super::*;
use cove_testkit::need::{self, Need, skip};
use std::process::{Child, Command};

/// A group in the kernel's own v2 tree, taken away at the end.
struct Real {
    tree: Tree,
}

impl Real {
    fn new(test: &str) -> Option<Real> {
        if !need::root() {
            return None;
        }
        let Some(mounted) = Layout::of_this_process().unwrap().v2 else {
            skip(Need::ControlGroups, "no v2 tree is mounted");
            return None;
        };
        let base = mounted.at.join(format!("cove-test-v2-{test}-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        Some(Real { tree: Tree::at(base).unwrap() })
    }

    fn run(&self, name: &str, script: &str) -> Child {
        let procs = self.tree.directory(name).join("cgroup.procs");
        let script = format!("echo 0 > {} && {{ {script}\n}}", procs.display());
        let child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
        let deadline = Deadline::default();
        while !pids(&self.tree.directory(name)).unwrap().contains(&child.id()) {
            assert!(!deadline.has_passed(), "the child joined in time");
            deadline.pause();
        }
        child
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        for entry in fs::read_dir(&self.tree.base).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                let _ = kill(&entry.path());
                let _ = remove_directory(&entry.path(), &Deadline::default(), "test");
            }
        }
        self.tree.tidy();
    }
}

#[test]
fn real_groups_are_joined_counted_killed_and_removed() {
    let Some(real) = Real::new("life") else { return };
    real.tree.create("a").unwrap();
    assert!(matches!(real.tree.create("a"), Err(Error::Exists(_))));
    assert!(real.tree.entry("a").unwrap().directory.is_some());
    let mut child = real.run("a", "while :; do :; done");
    let group = real.tree.directory("a");
    let deadline = Deadline::default();
    while cpu_ns(&group).unwrap() == 0 {
        assert!(!deadline.has_passed(), "processor time is counted");
        deadline.pause();
    }
    let at_once = Deadline { end: std::time::Instant::now(), ..Deadline::default() };
    let busy = remove_directory(&group, &at_once, "a");
    assert!(matches!(busy, Err(Error::Busy { pids: 1, .. })), "{busy:?}");
    kill(&group).unwrap();
    child.wait().unwrap();
    real.tree.remove("a", &Deadline::default()).unwrap();
    assert!(!group.exists());
}

#[test]
fn real_groups_freeze_with_everybody_in_them() {
    let Some(real) = Real::new("freeze") else { return };
    real.tree.create("a").unwrap();
    let group = real.tree.directory("a");
    freeze(&group, "a").expect("an empty group is at rest");
    thaw(&group).unwrap();
    let mut child = real.run("a", "while :; do :; done & while :; do :; done");
    freeze(&group, "a").unwrap();
    assert!(is_frozen(&group).unwrap());
    let used = cpu_ns(&group).unwrap();
    assert_eq!(cpu_ns(&group).unwrap(), used);
    thaw(&group).unwrap();
    assert!(!is_frozen(&group).unwrap());
    freeze(&group, "a").unwrap();
    kill(&group).unwrap();
    child.wait().unwrap();
}

#[test]
fn real_limits_are_refused_where_the_tree_has_no_controllers() {
    let Some(real) = Real::new("bare") else { return };
    if real.tree.has("memory") {
        return skip(Need::BareControlGroupsV2, "this v2 tree has controllers");
    }
    real.tree.create("a").unwrap();
    let error = real.tree.set("a", &Limits::default(), None, Fresh::Yes).unwrap_err();
    assert!(error.to_string().contains("no memory controller"), "{error}");
}

/// A directory with the files that cgroupfs would put there.
struct Imitated {
    _folder: tempfile::TempDir,
    tree: Tree,
    group: PathBuf,
}

const FILES: [&str; 7] =
    ["memory.max", "memory.swap.max", "pids.max", "cpu.weight", "cpu.max", "cpuset.cpus", "io.weight"];

impl Imitated {
    fn new(controllers: &[&str]) -> Imitated {
        let folder = tempfile::tempdir().unwrap();
        let controllers = controllers.iter().map(|name| (*name).to_owned()).collect();
        let tree = Tree { base: folder.path().to_owned(), controllers, processors: Processors::from_list("0-3") };
        tree.create("a").unwrap();
        let group = tree.directory("a");
        Imitated { _folder: folder, tree, group }
    }

    fn set(&self, cpus: f64, fresh: Fresh) -> Result<(), Error> {
        let seat = self.tree.processors.seat(cpus).filter(|_| self.tree.has("cpuset"));
        for file in FILES {
            fs::write(self.group.join(file), "").unwrap();
        }
        let limits = Limits { cpus, memory: 1 << 28, pids: 77, disk: None, inodes: None };
        self.tree.set("a", &limits, seat.as_ref(), fresh)
    }

    fn says(&self, file: &str) -> String {
        fs::read_to_string(self.group.join(file)).unwrap()
    }
}

#[test]
fn imitated_limits_are_written_where_the_kernel_reads_them() {
    let imitated = Imitated::new(&USEFUL);
    imitated.set(1.5, Fresh::Yes).unwrap();
    assert_eq!(imitated.says("memory.max"), "268435456");
    assert_eq!(imitated.says("memory.swap.max"), "0");
    assert_eq!(imitated.says("pids.max"), "77");
    assert_eq!(imitated.says("cpu.weight"), "150");
    assert_eq!(imitated.says("cpu.max"), "150000 100000");
    assert_eq!(imitated.says("cpuset.cpus"), "0-1");
    assert_eq!(imitated.says("io.weight"), "default 150");
}

#[test]
fn imitated_whole_processors_need_no_quota() {
    let imitated = Imitated::new(&USEFUL);
    imitated.set(2.0, Fresh::Yes).unwrap();
    assert_eq!((imitated.says("cpu.max").as_str(), imitated.says("cpuset.cpus").as_str()), ("", "0-1"));
    imitated.set(4.0, Fresh::No).unwrap();
    assert_eq!((imitated.says("cpu.max").as_str(), imitated.says("cpuset.cpus").as_str()), ("max 100000", "0-3"));
}

#[test]
fn imitated_delegations_without_cpu_refuse_a_part_of_the_machine() {
    let imitated = Imitated::new(&["memory", "pids"]);
    let error = imitated.set(1.0, Fresh::Yes).unwrap_err();
    assert!(error.to_string().contains("Delegate=yes"), "{error}");
    imitated.set(4.0, Fresh::Yes).expect("the whole machine is no limit");
}

#[test]
fn imitated_accounts_are_read_without_cache() {
    let imitated = Imitated::new(&USEFUL);
    for (file, text) in [
        ("memory.current", "1000000\n"),
        ("memory.peak", "2000000\n"),
        ("memory.stat", "anon 500000\nfile 450000\nshmem 50000\nfile_mapped 1\n"),
        ("memory.events", "low 0\nhigh 0\nmax 12\noom 2\noom_kill 1\noom_group_kill 0\n"),
        ("cpu.stat", "usage_usec 1234\nuser_usec 1000\nsystem_usec 234\n"),
        ("pids.current", "3\n"),
    ] {
        fs::write(imitated.group.join(file), text).unwrap();
    }
    let usage = imitated.tree.usage("a").unwrap();
    let expected = Usage {
        cpu_ns: 1_234_000,
        memory: 600_000,
        memory_cache: 400_000,
        memory_peak: 2_000_000,
        memory_kills: 1,
        pids: 3,
    };
    assert_eq!(usage, expected);
    fs::remove_file(imitated.group.join("memory.peak")).unwrap();
    assert_eq!(imitated.tree.usage("a").unwrap().memory_peak, 1_000_000, "before Linux 5.19");
}

#[test]
fn imitated_controllers_are_enabled_once() {
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("cgroup.subtree_control");
    fs::write(folder.path().join("cgroup.controllers"), "cpuset cpu io memory hugetlb pids rdma misc\n").unwrap();
    fs::write(&control, "memory pids").unwrap();
    enable_all(folder.path()).unwrap();
    // The kernel would add to the list; the imitation shows what was asked for.
    assert_eq!(fs::read_to_string(&control).unwrap(), "+cpu +cpuset +io");
    fs::write(&control, "cpuset cpu io memory pids").unwrap();
    enable_all(folder.path()).unwrap();
    assert_eq!(fs::read_to_string(&control).unwrap(), "cpuset cpu io memory pids");
}

#[test]
fn imitated_users_get_a_subtree_only_where_it_was_handed_to_them() {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("unit");
    fs::create_dir_all(unit.join("cove-server")).unwrap();
    for file in ["cgroup.procs", "cgroup.subtree_control"] {
        fs::write(unit.join(file), "").unwrap();
    }
    let mounted = |own: &str| Mounted { at: folder.path().to_owned(), own: Some(PathBuf::from(own)) };
    if rustix::process::geteuid().is_root() {
        // Root may write everywhere; systemd's mark tells what is ours.
        let refused = parent(&mounted("unit"), "cove").unwrap_err();
        assert!(refused.remedy.contains("Delegate=yes"), "{refused}");
        rustix::fs::setxattr(&unit, "user.delegate", b"1", rustix::fs::XattrFlags::empty()).unwrap();
    }
    assert_eq!(parent(&mounted("unit"), "cove").unwrap(), unit);
    let aside = parent(&mounted("unit/cove-server"), "cove").unwrap();
    assert_eq!(aside, unit, "a server that stepped aside finds its unit again");
}
