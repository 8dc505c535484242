//! What a control group and a disk cost: each step of their lives, 200 times.
//!
//! `cargo bench -p cove-engine --bench parts`, as root, on a host where the engine has control groups and a btrfs pool.

use std::io::Write as _;
use std::time::{Duration, Instant};

use cove_engine::SandboxId;
use cove_engine::cgroup::{Group, Hierarchy, MemoryWatch};
use cove_engine::spec::{Limits, Storage};
use cove_engine::storage::{Kind, Store};

fn main() {
    // `cargo test --benches` only wants to know that it runs.
    let rounds = if std::env::args().any(|argument| argument == "--bench") { 200 } else { 2 };
    groups(rounds);
    disks(rounds);
}

fn groups(rounds: usize) {
    let hierarchy = Hierarchy::of_realm(&format!("cove-bench-{}", std::process::id())).expect("control groups");
    assert!(hierarchy.absent().is_none(), "{:?}", hierarchy.absent());
    let watch = MemoryWatch::start().expect("watch memory");
    for (what, cpus) in [("a whole processor", 1.0), ("half a processor", 0.5), ("the whole machine", 1024.0)] {
        let limits = Limits { cpus, memory: 64 << 20, pids: 20, disk: None, inodes: None };
        let mut groups = Vec::new();
        let mut create = |n: usize| groups.push(hierarchy.create(&format!("g{n}"), &limits).expect("create"));
        row(&format!("create, {what}"), (0..rounds).map(|n| timed(|| create(n))).collect());
        row("entry", groups.iter().map(|group| timed(|| drop(group.entry().expect("entry")))).collect());
        row("usage", groups.iter().map(|group| timed(|| assert!(group.usage().is_ok()))).collect());
        row("set", groups.iter().map(|group| timed(|| group.set(&limits).expect("set"))).collect());
        row("watch", groups.iter().map(|group| timed(|| watch.add(&hierarchy, group).expect("watch"))).collect());
        let join = |group: &Group| {
            let entry = group.entry().expect("entry");
            // This thread itself, in and out again: the write that a launched child does.
            timed(|| entry.tasks.iter().for_each(|tasks| assert_eq!(rustix::io::write(tasks, b"0"), Ok(1))))
        };
        std::thread::scope(|scope| {
            let times = scope.spawn(|| groups.iter().map(join).collect()).join().expect("join");
            row("join (v1 tasks)", times);
        });
        row("remove", groups.iter().map(|group| timed(|| group.remove().expect("remove"))).collect());
    }
}

fn disks(rounds: usize) {
    let data = tempfile::Builder::new().prefix("cove-bench-").tempdir_in("/var/tmp").expect("a directory");
    let store = Store::open(data.path()).expect("a store");
    assert_eq!(store.kind().expect("its kind"), Kind::Pool, "{:?}", store.detail());
    let limits = |megabytes: u64| Limits { disk: Some(megabytes << 20), ..Limits::default() };
    let name = |text: String| -> SandboxId { text.parse().expect("an id") };
    let ids: Vec<SandboxId> = (0..rounds).map(|n| name(format!("{n:0>20}"))).collect();
    let create = |id: &SandboxId| drop(store.create(id, Storage::Disk, &limits(100)).expect("create"));
    row("create, made on the spot", ids.iter().map(|id| timed(|| create(id))).collect());
    row("used", ids.iter().map(|id| timed(|| assert!(store.used(id).is_ok()))).collect());
    row("resize", ids.iter().map(|id| timed(|| store.resize(id, &limits(200)).expect("resize"))).collect());
    row("remove (to the trash)", ids.iter().map(|id| timed(|| store.remove(id).expect("remove"))).collect());
    let each = |time: Duration| time / u32::try_from(rounds).expect("a small number");
    let all = timed(|| assert_eq!(store.empty_trash().expect("empty the trash"), rounds));
    println!("{:40} {:>8.1?} each", "deletion", each(all));
    let all = timed(|| store.keep_ready(rounds).expect("make ahead"));
    println!("{:40} {:>8.1?} each", "made ahead", each(all));
    row("create, made ahead", ids.iter().map(|id| timed(|| create(id))).collect());
    let file = data.path().join("pool/uppers").join(ids[0].as_str()).join("root/file");
    let mut file = std::fs::File::create(file).expect("a file");
    file.write_all(&vec![7; 64 << 20]).and_then(|()| file.sync_data()).expect("write 64 MiB");
    drop(file);
    let clones: Vec<SandboxId> = (0..rounds.min(20)).map(|n| name(format!("{n:x>20}"))).collect();
    let clone = |id: &SandboxId| drop(store.clone_upper(&ids[0], id, &limits(100)).expect("clone"));
    row("clone with 64 MiB", clones.iter().map(|id| timed(|| clone(id))).collect());
    store.close().expect("close the pool");
}

fn row(what: &str, mut times: Vec<Duration>) {
    times.sort();
    println!("{what:40} p50 {:>8.1?} p99 {:>8.1?}", times[times.len() / 2], times[times.len() * 99 / 100]);
}

fn timed(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}
