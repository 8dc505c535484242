//! Control groups that root handed to an ordinary user, used by one. Only root can hand them over.
//!
//! The user's part runs in a process of its own: the same test again, as that user, with `COVE_TEST_REALM` set.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use cove_engine::cgroup::{Group, Hierarchy, Version};
use cove_engine::spec::Limits;
use cove_testkit::need::{self, Need, skip};

/// Nobody of this host.
const USER: u32 = 271_828;
const REALM: &str = "COVE_TEST_REALM";

/// Directories made for the user; gone at the end.
struct Handed(Vec<PathBuf>);

impl Handed {
    fn over(directories: Vec<PathBuf>) -> Handed {
        let handed = Handed(directories);
        for directory in &handed.0 {
            fs::create_dir(directory).unwrap();
            chown(directory, Some(USER), Some(USER)).unwrap();
            for file in fs::read_dir(directory).unwrap().flatten() {
                chown(file.path(), Some(USER), Some(USER)).unwrap();
            }
        }
        handed
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        for directory in self.0.iter().filter(|directory| directory.exists()) {
            for entry in fs::read_dir(directory).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
                let _ = fs::remove_dir(entry.path());
            }
            let removed = fs::remove_dir(directory);
            assert!(removed.is_ok() || std::thread::panicking(), "{}: {removed:?}", directory.display());
        }
    }
}

fn trees() -> Vec<PathBuf> {
    let names = ["memory", "cpu", "pids", "cpuset", "freezer", "cpuacct", "unified"];
    names.map(|name| Path::new("/sys/fs/cgroup").join(name)).into_iter().filter(|path| path.exists()).collect()
}

/// The realm that a test is to use as the user; `None` in the test of root, who hands it over.
fn handed_realm() -> Option<String> {
    std::env::var(REALM).ok()
}

/// This program as the user, with the same test.
fn as_user(test: &str, realm: &str, before: &str) {
    // Where ordinary users can read it.
    let program = std::env::temp_dir().join(format!("cove-test-delegation-{}-{test}", std::process::id()));
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let id = USER.to_string();
    let script = format!("{before} exec setpriv --reuid {id} --regid {id} --clear-groups --inh-caps=-all \"$@\"");
    let words: [&OsStr; 4] = [program.as_os_str(), "--exact".as_ref(), test.as_ref(), "--nocapture".as_ref()];
    let output =
        Command::new("unshare").args(["--mount", "sh", "-ec", &script, "sh"]).args(words).env(REALM, realm).output();
    fs::remove_file(&program).unwrap();
    let output = output.unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{told}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn small() -> Limits {
    Limits { cpus: 0.5, memory: 64 << 20, pids: 20, disk: None, inodes: None }
}

/// A shell that joins the group and runs `script` there; what it prints, and whether it succeeded.
fn run_in(group: &Group, script: &str) -> (String, bool) {
    let entry = group.entry().unwrap();
    let own = std::process::id();
    let number = |file: &std::os::fd::OwnedFd| std::os::fd::AsRawFd::as_raw_fd(file);
    let tasks = entry.tasks.iter().map(|tasks| format!("echo 0 > /proc/{own}/fd/{} && ", number(tasks)));
    let directory = entry.directory.iter().map(|at| format!("echo 0 > /proc/{own}/fd/{}/cgroup.procs && ", number(at)));
    let join: String = tasks.chain(directory).collect();
    let output = Command::new("sh").args(["-c", &format!("{join} {{ {script}\n}}")]).output().unwrap();
    (String::from_utf8_lossy(&output.stdout).trim().to_owned(), output.status.success())
}

#[test]
fn a_v1_subtree_handed_over_by_hand_holds_memory_and_processes() {
    if let Some(realm) = handed_realm() {
        return the_user_of_a_v1_subtree(&realm);
    }
    if !need::root() {
        return;
    }
    if !Path::new("/sys/fs/cgroup/memory/tasks").exists() {
        return skip(Need::ControlGroupsV1, "there is no /sys/fs/cgroup/memory/tasks");
    }
    let realm = format!("cove-test-handed-{}", std::process::id());
    let _handed = Handed::over(trees().into_iter().map(|tree| tree.join(&realm)).collect());
    as_user("a_v1_subtree_handed_over_by_hand_holds_memory_and_processes", &realm, "");
}

fn the_user_of_a_v1_subtree(realm: &str) {
    assert!(!rustix::process::geteuid().is_root());
    let hierarchy = Hierarchy::of_realm(realm).unwrap();
    assert_eq!((hierarchy.version(), hierarchy.missing().len()), (Version::V1, 0), "{:?}", hierarchy.absent());
    let group = hierarchy.create("a", &small()).unwrap();
    let entry = group.entry().unwrap();
    assert!(entry.directory.is_none(), "a v2 tree that a process of ours may not be born in is left alone");
    let (_, lived) = run_in(&group, "exec python3 -c 'b = bytearray(200 << 20)'");
    assert!(!lived);
    assert_eq!(group.memory_kills().unwrap(), 1);
    let (said, _) = run_in(&group, "(for i in $(seq 40); do sleep 3 & done) 2>&1 | grep -c -i 'fork' || true; wait");
    assert_ne!(said, "0", "20 processes hold");
    group.kill().unwrap();
    group.remove().unwrap();
}

#[test]
fn a_v2_subtree_without_controllers_freezes_and_kills_and_claims_no_more() {
    if let Some(realm) = handed_realm() {
        return the_user_of_a_v2_subtree(&realm);
    }
    if !need::root() {
        return;
    }
    let unified = Path::new("/sys/fs/cgroup/unified");
    if !unified.join("cgroup.procs").exists() {
        return skip(Need::BareControlGroupsV2, "there is no /sys/fs/cgroup/unified");
    }
    let realm = format!("cove-test-scope-{}", std::process::id());
    let unit = unified.join(format!("cove-test-unit-{}", std::process::id()));
    let _handed = Handed::over(vec![unit.clone()]);
    // A host with v2 alone: the trees of v1 are not mounted there.
    let alone = "for tree in /sys/fs/cgroup/*/tasks; do umount \"${tree%/tasks}\"; done;";
    let test = "a_v2_subtree_without_controllers_freezes_and_kills_and_claims_no_more";
    as_user(test, &realm, &format!("{alone} echo 0 > {}/cgroup.procs;", unit.display()));
}

fn the_user_of_a_v2_subtree(realm: &str) {
    assert!(!rustix::process::geteuid().is_root());
    let hierarchy = Hierarchy::of_realm(realm).unwrap();
    assert_eq!(hierarchy.version(), Version::V2, "{:?}", hierarchy.absent());
    let missing: Vec<&str> = hierarchy.missing().iter().map(|(controller, _)| *controller).collect();
    assert_eq!(missing, ["memory", "cpu", "pids"]);
    let remedy = &hierarchy.missing()[0].1.remedy;
    assert!(remedy.contains("Delegate="), "{remedy}");
    let error = hierarchy.create("a", &small()).unwrap_err().to_string();
    assert!(error.contains("cpus") && error.contains("cpu controller"), "half a processor is not claimed: {error}");
    let group = hierarchy.create("a", &Limits { cpus: 1024.0, ..small() }).unwrap();
    let (said, lived) = run_in(&group, "echo here");
    assert!(lived && said == "here");
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| run_in(&group, "while :; do :; done"));
        while group.pids().unwrap().is_empty() {
            std::thread::yield_now();
        }
        group.freeze().unwrap();
        assert!(group.is_frozen().unwrap());
        group.kill().unwrap();
        assert!(!busy.join().unwrap().1);
    });
    group.remove().unwrap();
}
