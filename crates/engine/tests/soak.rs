//! Sandboxes come and go by the thousand, several at a time, and the host is as before.

mod house;

use std::collections::BTreeSet;
use std::path::Path;

use cove_engine::Spec;
use cove_engine::spec::Storage;
use house::{House, eventually};

const CREATORS: usize = 8;

/// `COVE_LONG=1` asks for all of them.
fn rounds() -> usize {
    if std::env::var_os("COVE_LONG").is_some() { 2000 } else { 400 }
}

/// What the host has of what sandboxes are made of, as far as this process and its data directory go.
#[derive(Debug, PartialEq, Eq)]
struct Census {
    children: usize,
    descriptors: usize,
    mounts: Vec<String>,
    /// Not the directories of the realm itself.
    groups: BTreeSet<String>,
    networks: usize,
    files: usize,
}

impl Census {
    fn take(data: &Path) -> Census {
        let count = |path: &str| std::fs::read_dir(path).unwrap().count();
        let realm = std::fs::read_to_string(data.join("realm")).unwrap();
        let mut groups = BTreeSet::new();
        for tree in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            for group in std::fs::read_dir(tree.path().join(realm.trim())).into_iter().flatten().flatten() {
                let name = group.file_name().into_string().unwrap();
                if group.path().is_dir() && !name.starts_with("ready-") && !name.starts_with("cpus-") {
                    groups.insert(group.path().display().to_string());
                }
            }
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let named = data.to_str().unwrap();
        Census {
            children: children(),
            descriptors: count("/proc/self/fd"),
            mounts: mounts.lines().filter(|line| line.contains(named)).map(str::to_owned).collect(),
            groups,
            networks: networks_held(),
            files: ["sandboxes", "storage/trash", "storage/uppers", "pool/trash", "pool/uppers"]
                .iter()
                .map(|name| std::fs::read_dir(data.join(name)).into_iter().flatten().count())
                .sum(),
        }
    }
}

/// Dead ones that nobody has waited for among them.
fn children() -> usize {
    let own = std::process::id().to_string();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let parent = |process: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1).map(str::to_owned)
    };
    processes.filter_map(parent).filter(|parent| *parent == own).count()
}

/// Network namespaces that this process keeps alive: its pool's.
fn networks_held() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    links
        .filter(|link| std::fs::read_link(link.path()).is_ok_and(|to| to.to_string_lossy().starts_with("net:[")))
        .count()
}

fn resident_kilobytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// What the kernel holds for everybody, seen and unseen: groups that live on without a directory, namespaces that nobody names, bytes
/// on the disk. Others of this host make and remove them too, so it is told and not judged.
fn kernels_account(data: &Path) -> String {
    let field = |file: &str, name: &str, place: usize| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().nth(place).unwrap_or("?").to_owned()
    };
    let disk =
        rustix::fs::statvfs(data).map(|disk| ((disk.f_blocks - disk.f_bfree) * disk.f_frsize) >> 20).unwrap_or(0);
    format!(
        "{} memory groups, {} network namespaces, {} processes, {disk} MiB on disk, {} KiB available",
        field("/proc/cgroups", "memory", 2),
        field("/proc/slabinfo", "net_namespace", 1),
        std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit())
            .count(),
        field("/proc/meminfo", "MemAvailable", 1),
    )
}

#[test]
fn two_thousand_lives_leave_the_host_as_it_was() {
    let house = House::open();
    let cycle = |number: usize| {
        // One in eight has its files on disk: a pool, a subvolume, a trash to empty.
        let storage = if number.is_multiple_of(8) { Storage::Disk } else { Storage::Memory };
        let id = house.engine.launch(&Spec { storage, ..house.spec() }).unwrap().id;
        assert_eq!(house.output(&id, "echo $((6*7))"), "42");
        house.engine.destroy(&id).unwrap();
    };
    // Pools fill, threads start, caches warm.
    (0..2 * CREATORS).for_each(cycle);
    let (mut before, mut unchanged) = (Census::take(house.data.path()), 0);
    eventually("the pools are full", || {
        let now = Census::take(house.data.path());
        unchanged = if now == before { unchanged + 1 } else { 0 };
        before = now;
        unchanged == 20
    });
    let memory = resident_kilobytes();
    println!("before: {}", kernels_account(house.data.path()));
    let began = std::time::Instant::now();

    std::thread::scope(|scope| {
        for creator in 0..CREATORS {
            let cycle = &cycle;
            scope.spawn(move || (creator..rounds()).step_by(CREATORS).for_each(cycle));
        }
    });

    let seconds = began.elapsed().as_secs_f64();
    eventually("the host is as before", || Census::take(house.data.path()) == before);
    let grown = resident_kilobytes().saturating_sub(memory);
    assert!(grown < 16 << 10, "the engine grew by {grown} KiB over {} lives", rounds());
    println!("after:  {}", kernels_account(house.data.path()));
    println!("{} lives in {seconds:.1} s, {CREATORS} at a time; the engine grew by {grown} KiB", rounds());
    house.assert_empty();
}
