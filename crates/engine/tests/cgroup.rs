//! Control groups of this host, v1 or v2 as it has them. Needs root (or a delegated subtree).

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cove_engine::cgroup::{Group, Hierarchy, MemoryWatch, Version};
use cove_engine::spec::Limits;
use cove_testkit::{Need, skip};

/// A realm for one test, empty and gone at its end.
struct Realm {
    hierarchy: Hierarchy,
    name: String,
}

impl Realm {
    fn new(test: &str) -> Option<Realm> {
        let name = format!("cove-test-{test}-{}", std::process::id());
        let hierarchy = Hierarchy::of_realm(&name).unwrap();
        match hierarchy.absent() {
            Some(absent) => {
                skip(Need::ControlGroups, absent);
                None
            }
            None => Some(Realm { hierarchy, name }),
        }
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        for name in self.hierarchy.names() {
            self.hierarchy.clear(&name).unwrap();
        }
        let name = self.name.clone();
        // The last of it takes the realm's directories away.
        self.hierarchy = Hierarchy::of_realm("cove-test-other").unwrap();
        if !std::thread::panicking() {
            assert_eq!(directories_named(&name), Vec::<String>::new(), "nothing is left behind");
        }
    }
}

fn directories_named(name: &str) -> Vec<String> {
    let trees = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
    let paths = trees.map(|tree| tree.path().join(name));
    paths.filter(|path| path.exists()).map(|path| path.display().to_string()).collect()
}

/// A shell that joins the group by itself, as a launched sandbox does, and then runs `script`. The launcher uses
/// CLONE_INTO_CGROUP for the v2 part; a shell cannot, so it writes itself there.
fn run_in(group: &Group, script: &str) -> Child {
    let entry = group.entry().unwrap();
    let own = std::process::id();
    let mut join = String::new();
    let window = entry.windows.first().map(|window| &*window.tasks);
    for tasks in entry.tasks.iter().chain(window) {
        join += &format!("echo 0 > /proc/{own}/fd/{} && ", tasks.as_raw_fd());
    }
    if let Some(directory) = &entry.directory {
        join += &format!("echo 0 > /proc/{own}/fd/{}/cgroup.procs && ", directory.as_raw_fd());
    }
    let mut child = Command::new("sh")
        .args(["-c", &format!("{join} echo joined && {{ {script}\n}}")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    // Byte by byte: what follows belongs to the test.
    let mut byte = [0];
    while !line.ends_with('\n') && child.stdout.as_mut().unwrap().read(&mut byte).unwrap() == 1 {
        line.push(char::from(byte[0]));
    }
    assert_eq!(line, "joined\n");
    child
}

fn output_in(group: &Group, script: &str) -> (String, std::process::ExitStatus) {
    let mut child = run_in(group, script);
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    (output.trim().to_owned(), child.wait().unwrap())
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "{what} within a minute");
        std::thread::yield_now();
    }
}

fn small() -> Limits {
    Limits { cpus: 1.0, memory: 64 << 20, pids: 20, disk: None, inodes: None }
}

#[test]
fn a_group_is_made_joined_found_again_killed_and_gone() {
    let Some(realm) = Realm::new("life") else { return };
    let group = realm.hierarchy.create("a", &small()).unwrap();
    assert!(realm.hierarchy.create("a", &small()).is_err(), "a name is used once");
    let mut child = run_in(&group, "sleep 1000 & sleep 1000 & wait");
    eventually("three processes", || group.pids().unwrap().len() == 3);
    assert_eq!(group.usage().unwrap().pids, 3);

    assert_eq!(realm.hierarchy.names(), ["a"]);
    let again = realm.hierarchy.open("a").expect("found again");
    assert!(realm.hierarchy.open("b").is_none());
    assert!(again.remove().is_err(), "not while somebody is in it");
    again.kill().unwrap();
    child.wait().unwrap();
    again.remove().unwrap();
    assert!(realm.hierarchy.names().is_empty());
    again.remove().expect("gone already is fine");
}

#[test]
fn a_group_made_ahead_becomes_the_one_that_is_asked_for() {
    let Some(realm) = Realm::new("ahead") else { return };
    if realm.hierarchy.version() != Version::V1 {
        // A v2 group cannot be renamed, so none is made ahead.
        realm.hierarchy.make_ready().unwrap();
        assert_eq!((realm.hierarchy.names(), realm.hierarchy.ready()), (Vec::new(), None));
        return;
    }
    realm.hierarchy.make_ready().unwrap();
    let inode = |name: &str| {
        let path = format!("/sys/fs/cgroup/memory/{}/{name}", realm.name);
        std::fs::metadata(path).map(|group| group.ino())
    };
    let [ready] = realm.hierarchy.names().try_into().unwrap();
    let made = inode(&ready).unwrap();
    let group = realm.hierarchy.create("a", &small()).unwrap();
    assert_eq!(inode("a").unwrap(), made, "the same one");
    assert_eq!((realm.hierarchy.names(), realm.hierarchy.ready()), (vec!["a".into()], Some(0)));
    let (said, _) = output_in(&group, "echo inside");
    assert_eq!(said.trim(), "inside");
    group.remove().unwrap();
}

#[test]
fn too_much_memory_kills_inside_and_is_counted() {
    let Some(realm) = Realm::new("memory") else { return };
    let group = realm.hierarchy.create("a", &small()).unwrap();
    let (_, status) = output_in(&group, "exec python3 -c 'b = bytearray(200 << 20)'");
    assert!(!status.success(), "{status}");
    let usage = group.usage().unwrap();
    assert_eq!(usage.memory_kills, 1);
    assert!(usage.memory_peak <= 64 << 20, "{usage:?}");
    assert!(usage.memory_peak > 32 << 20, "{usage:?}");
}

#[test]
fn the_process_that_took_the_memory_is_named() {
    let Some(realm) = Realm::new("largest") else { return };
    if !the_log_is_ours() {
        return;
    }
    let watch = MemoryWatch::start().unwrap();
    // Several lives: the kernel announces the groups of ten kills in five seconds and leaves out the rest.
    for round in 0..15 {
        let (name, user) = (format!("a{round}"), 3_000_000_000 + round);
        let group = realm.hierarchy.create(&name, &small()).unwrap();
        watch.expect(&group, Some(user..user + 1), 0);
        assert_eq!(watch.largest(&name, 0), None);
        let mut bystander = run_in(&group, "sleep 1000");
        let mut eater = run_in(&group, &eat_as(user));
        assert!(!eater.wait().unwrap().success());
        let kills = group.memory_kills().unwrap();
        assert_eq!(kills, 1, "counted before the signal");
        let largest = watch.largest(&name, kills).expect("the log told");
        assert_eq!(largest.name, "python3");
        assert!(largest.memory > 8 << 20 && largest.memory <= 64 << 20, "{largest:?}");
        assert_eq!(watch.was_killed(&name, eater.id(), kills), Some(true));
        assert_eq!(watch.was_killed(&name, bystander.id(), kills), Some(false));
        group.kill().unwrap();
        bystander.wait().unwrap();
        watch.forget(&name);
        group.remove().unwrap();
    }
}

/// A user with a name of its own eats more than there is.
fn eat_as(user: u32) -> String {
    format!("exec python3 -c 'import os; os.setuid({user}); b = bytearray(200 << 20)'")
}

/// `false` only where a skip is allowed.
fn the_log_is_ours() -> bool {
    let opened = std::fs::File::open("/dev/kmsg");
    if let Err(error) = &opened {
        skip(Need::KernelLog, format!("/dev/kmsg: {error}"));
    }
    opened.is_ok()
}

#[test]
fn kills_of_an_earlier_time_are_nobodys_end() {
    let Some(realm) = Realm::new("earlier") else { return };
    let group = realm.hierarchy.create("a", &small()).unwrap();
    let mut eater = run_in(&group, &eat_as(3_000_001_000));
    assert!(!eater.wait().unwrap().success());
    let kills = group.memory_kills().unwrap();
    // As a server that comes back finds it.
    let watch = MemoryWatch::start().unwrap();
    watch.expect(&group, Some(3_000_001_000..3_000_001_001), kills);
    assert_eq!(watch.was_killed("a", eater.id(), kills), Some(false), "another, earlier, was");
    assert_eq!(watch.largest("a", kills), None);
}

#[test]
fn without_the_log_a_look_finds_who_has_most() {
    let Some(realm) = Realm::new("look") else { return };
    let group = realm.hierarchy.create("a", &small()).unwrap();
    let mut bystander = run_in(&group, "sleep 1000");
    let mut holder = run_in(
        &group,
        "exec python3 -c 'b = bytearray(32 << 20); print(1, flush=True); import time; time.sleep(1000)'",
    );
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let largest = group.largest_process().unwrap().unwrap();
    assert_eq!(largest.name, "python3");
    assert!(largest.memory > 32 << 20 && largest.memory <= 64 << 20, "{largest:?}");
    group.kill().unwrap();
    bystander.wait().unwrap();
    holder.wait().unwrap();
}

#[test]
fn memory_full_of_cache_does_not_hide_who_took_the_rest() {
    let Some(realm) = Realm::new("cache") else { return };
    let watch = MemoryWatch::start().unwrap();
    let group = realm.hierarchy.create("a", &small()).unwrap();
    watch.expect(&group, Some(3_000_002_000..3_000_002_001), 0);
    watch.add(&realm.hierarchy, &group).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let (_, status) = output_in(&group, &format!("dd if=/dev/zero of={} bs=1M count=80 2>/dev/null", file.display()));
    assert!(status.success(), "the cache gives way");
    let usage = group.usage().unwrap();
    assert!(usage.memory_cache > 16 << 20, "{usage:?}");
    assert!(usage.memory < 32 << 20, "cache is not counted as use: {usage:?}");
    let (_, status) = output_in(&group, &eat_as(3_000_002_000));
    assert!(!status.success());
    let kills = group.memory_kills().unwrap();
    assert_eq!(kills, 1);
    if the_log_is_ours() {
        assert_eq!(watch.largest("a", kills).unwrap().name, "python3");
    }
}

#[test]
fn a_fork_bomb_stops_at_the_limit() {
    let Some(realm) = Realm::new("pids") else { return };
    let group = realm.hierarchy.create("a", &small()).unwrap();
    let script = "python3 -c '
import os, time
made = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(1000)
        made += 1
except OSError as error:
    print(made, error.errno, flush=True)
    time.sleep(1000)'";
    let mut child = run_in(&group, script);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    // The shell and the first Python are two of the twenty.
    assert_eq!(line.trim(), "18 11");
    group.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn half_a_processor_is_half_a_processor() {
    let Some(realm) = Realm::new("cpu") else { return };
    let group = realm.hierarchy.create("a", &Limits { cpus: 0.5, ..small() }).unwrap();
    let mut child = run_in(&group, "while :; do :; done & while :; do :; done");
    let used = || Duration::from_nanos(group.usage().unwrap().cpu_ns);
    let (begin, before) = (Instant::now(), used());
    // On a busy machine it gets less and this takes longer; what counts is that it never gets more.
    eventually("some processor time", || used() - before >= Duration::from_millis(400));
    let share = (used() - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    group.kill().unwrap();
    child.wait().unwrap();
    // A period's whole quota may be used at its very beginning: 50 ms more than the share of the time.
    assert!(share < 0.65, "used {share:.2} processors");
}

#[test]
fn nproc_tells_the_truth_and_follows_a_resize() {
    let Some(realm) = Realm::new("nproc") else { return };
    let machine = std::thread::available_parallelism().unwrap().get();
    if machine < 2 {
        return skip(Need::TwoProcessors, "this machine has one");
    }
    let group = realm.hierarchy.create("a", &small()).unwrap();
    assert_eq!(group.processors(), Some(1));
    assert_eq!(output_in(&group, "nproc").0, "1");
    let mut child = run_in(&group, "sleep 1000");
    let all = Limits { cpus: machine as f64, memory: 128 << 20, ..small() };
    group.set(&all).unwrap();
    let pid = *group.pids().unwrap().first().unwrap();
    let allowed = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let list = allowed.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned();
    assert_ne!(list, "0", "moved to the whole machine");
    assert_eq!(group.processors(), None);
    group.set(&small()).expect("and smaller again");
    group.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn frozen_processes_rest_until_thawed_and_can_be_killed_frozen() {
    let Some(realm) = Realm::new("freeze") else { return };
    let group = realm.hierarchy.create("a", &small()).unwrap();
    let mut child = run_in(&group, "while :; do :; done");
    group.freeze().unwrap();
    assert!(group.is_frozen().unwrap());
    let before = group.usage().unwrap().cpu_ns;
    let again = group.usage().unwrap().cpu_ns;
    assert_eq!(before, again, "no processor time is used");
    group.thaw().unwrap();
    assert!(!group.is_frozen().unwrap());
    eventually("work goes on", || group.usage().unwrap().cpu_ns > before);
    group.freeze().unwrap();
    group.kill().unwrap();
    child.wait().unwrap();
    group.remove().unwrap();
}

#[test]
fn bad_names_are_refused() {
    let Some(realm) = Realm::new("names") else { return };
    for name in ["", "..", "a/b", "A", &"x".repeat(65)] {
        let error = realm.hierarchy.create(name, &small()).unwrap_err();
        assert!(error.to_string().contains("lower-case"), "{error}");
    }
    assert_ne!(realm.hierarchy.version(), Version::Absent);
}

/// Each is one life of an engine: the realm opened, a sandbox's group made and joined, all let go again. The last one out removes
/// what the next one has perhaps just begun to use.
fn lives_side_by_side(many: usize, lives: usize) {
    let realm = format!("cove-test-side-{many}-{}", std::process::id());
    if let Some(absent) = Hierarchy::of_realm(&realm).unwrap().absent() {
        return skip(Need::ControlGroups, absent);
    }
    std::thread::scope(|scope| {
        for place in 0..many {
            let realm = &realm;
            scope.spawn(move || {
                for life in 0..lives {
                    let hierarchy = Hierarchy::of_realm(realm).unwrap_or_else(|error| panic!("life {life}: {error}"));
                    let group = hierarchy.create(&format!("g{place}"), &Limits::default()).unwrap();
                    let entry = group.entry().unwrap();
                    assert!(!entry.tasks.is_empty() || entry.directory.is_some());
                    group.remove().unwrap();
                }
            });
        }
    });
    assert_eq!(directories_named(&realm), Vec::<String>::new(), "the last one removes the realm");
}

#[test]
fn two_engines_that_come_and_go_do_not_take_each_others_groups_away() {
    lives_side_by_side(2, 500);
}

#[test]
fn eight_engines_that_come_and_go_do_not_take_each_others_groups_away() {
    lives_side_by_side(8, 100);
}
