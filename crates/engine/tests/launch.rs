//! A sandbox is born, works, sleeps, is found again, and leaves nothing.

mod house;

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use cove_engine::spec::{Access, Durability, Egress, LayerId, Limits, Mount, Network, Root, Storage, Under};
use cove_engine::{Ended, Error, Spec};
use house::{House, Lost, eventually, within};

#[test]
fn a_sandbox_starts_answers_and_is_gone() {
    let house = House::open();
    let id = house.launch();
    assert!(house.answers(&id));
    house.engine.stop(&id, Duration::from_secs(2)).unwrap();
    assert!(!house.answers(&id));
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn destroying_a_running_sandbox_leaves_nothing() {
    let house = House::open();
    let id = house.launch();
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn the_base_template_has_the_hosts_programs_and_files_of_its_own() {
    let house = House::open();
    let id = house.launch();
    assert_eq!(house.output(&id, "echo $((6*7)); id -un; pwd; hostname"), "42\nuser\n/home/user\nhouse");
    assert_eq!(house.output(&id, "touch /home/user/mine /tmp/mine && ls /home"), "daytona\nuser");
    let ran = house.run_as(&id, Some("root"), "echo new > /usr/local/bin/new && cat /usr/local/bin/new");
    assert_eq!(ran.stdout, "new\n", "{ran:?}");
    assert!(!std::path::Path::new("/usr/local/bin/new").exists(), "a write to /usr reached the host");
    assert_eq!(house.output(&id, "getent hosts house | tr -s ' '"), "127.0.1.1 house");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn sudo_works_and_reaches_no_further_than_the_sandbox() {
    let house = House::open();
    let id = house.launch();
    let ran = house.run(&id, "sudo -n id -u");
    assert_eq!((ran.code, ran.stdout.trim()), (0, "0"), "{ran:?}");
    let held = house.output(&id, "sudo -n grep CapEff /proc/self/status");
    // chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw audit_write setfcap
    assert_eq!(held, "CapEff:\t00000000a00025fb");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn memory_and_processors_are_seen_as_limited() {
    let house = House::open();
    let mut spec = house.spec();
    spec.limits = Limits { cpus: 1.0, memory: 300 << 20, ..spec.limits };
    let id = house.engine.launch(&spec).unwrap().id;
    assert_eq!(house.output(&id, "grep MemTotal /proc/meminfo | tr -s ' '"), "MemTotal: 307200 kB");
    assert_eq!(house.output(&id, "nproc"), "1");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn programs_that_look_at_the_machine_find_one() {
    let house = House::open();
    let mut spec = house.spec();
    spec.limits = Limits { cpus: 1.0, memory: 300 << 20, ..spec.limits };
    let id = house.engine.launch(&spec).unwrap().id;
    let uptime = house.output(&id, "uptime");
    assert!(uptime.contains("load average: 0.00, 0.00, 0.00"), "{uptime}");
    let top = house.output(&id, "TERM=dumb top -b -n 2 -d 0.1");
    assert!(top.contains("cove-gu") && top.contains("300.0 total"), "{top}");
    assert!(house.output(&id, "free -m").contains("300"));
    assert_eq!(house.output(&id, "vmstat | wc -l"), "3");
    let ages = house.output(&id, "ps -eo etimes=");
    assert!(!ages.is_empty(), "ps lists the guest and itself");
    assert!(ages.lines().all(|age| age.trim().parse::<u64>().is_ok_and(|seconds| seconds < 600)), "{ages}");
    let processors = "grep -c ^processor /proc/cpuinfo; grep -c '^cpu[0-9]' /proc/stat";
    let counts = house.output(&id, processors);
    assert!(counts.split_once('\n').is_some_and(|(info, stat)| info == stat), "{counts}");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn syncing_one_file_works_and_syncing_the_host_is_only_said_to() {
    let house = House::open();
    let id = house.launch();
    let script = "echo kept > file && sync && sync -f file && sync file && sync -d file && cat file";
    assert_eq!(house.output(&id, script), "kept");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn a_paused_sandbox_does_not_answer_until_it_is_resumed() {
    let house = House::open();
    let id = house.launch();
    house.engine.pause(&id).unwrap();
    assert!(house.engine.found().unwrap()[0].paused);
    house.engine.resume(&id).unwrap();
    assert!(house.answers(&id));
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn a_paused_sandbox_can_be_ended_every_time() {
    let house = House::open();
    // It is gone while it is being thawed, or a moment later.
    for _ in 0..8 {
        let id = house.launch();
        house.engine.pause(&id).unwrap();
        house.engine.destroy(&id).unwrap();
    }
    house.assert_empty();
}

#[test]
fn files_on_disk_outlive_a_stop_and_belong_to_the_same_users_in_the_next_life() {
    let house = House::open();
    let mut spec = house.spec();
    spec.storage = Storage::Disk;
    spec.limits.disk = Some(256 << 20);
    house.engine.launch(&spec).unwrap();
    let id = &spec.id;
    house.output(id, "echo kept > ~/kept && sudo -n sh -c 'echo too > /usr/local/too && rm -f /etc/services'");
    house.engine.stop(id, Duration::from_secs(5)).unwrap();
    // Other ranges are handed out in between.
    let other = house.launch();
    house.engine.launch(&spec).unwrap();
    let seen =
        house.output(id, "cat ~/kept /usr/local/too; stat -c %U ~/kept /usr/local/too; ls /etc/services 2>&1 | wc -l");
    assert_eq!(seen, "kept\ntoo\nuser\nroot\n1");
    for id in [id, &other] {
        house.engine.destroy(id).unwrap();
    }
    house.assert_empty();
}

#[test]
fn files_that_are_not_synced_outlive_a_stop_too() {
    let mut house = House::open();
    let volatile = Spec { storage: Storage::Disk, durability: Durability::Volatile, ..house.spec() };
    let id = house.engine.launch(&volatile).unwrap().id;
    house.output(&id, "echo kept >~/note && sync ~/note");
    house.engine.stop(&id, Duration::from_secs(5)).unwrap();
    // Each life may be of the other kind.
    for durability in [Durability::Durable, Durability::Volatile, Durability::Volatile] {
        house = house.reopen();
        let spec = Spec { durability, ..volatile.clone() };
        house.engine.launch(&spec).unwrap();
        assert_eq!(house.output(&id, "cat ~/note"), "kept", "{durability:?}");
        house.engine.stop(&id, Duration::ZERO).unwrap();
    }
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn a_host_folder_is_shown_as_asked_and_belongs_to_the_user() {
    let house = House::open();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("given"), "data\n").unwrap();
    let mut spec = house.spec();
    let mount = |target: &str, access| Mount { source: folder.path().into(), target: target.into(), access };
    spec.mounts = vec![mount("/data", Access::ReadWrite), mount("/usr/local/look", Access::ReadOnly)];
    let id = house.engine.launch(&spec).unwrap().id;
    assert_eq!(house.output(&id, "cat /data/given; stat -c %U /data/given; echo x > /data/made"), "data\nuser");
    let owner = folder.path().metadata().unwrap().uid();
    assert_eq!(folder.path().join("made").metadata().unwrap().uid(), owner);
    let ran = house.run(&id, "cat /usr/local/look/given && echo x > /usr/local/look/given");
    assert_ne!(ran.code, 0, "a read-only folder was written: {ran:?}");
    let ran = house.run_as(&id, Some("root"), "echo x > /data/by-root && stat -c %U /data/by-root");
    assert_eq!(ran.stdout, "root\n", "{ran:?}");
    let by_root = folder.path().join("by-root").metadata().unwrap();
    assert!(by_root.uid() >= 0x7000_0000 && by_root.gid() >= 0x7000_0000, "somebody of the host's: {by_root:?}");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn a_host_folder_belongs_to_root_where_root_works() {
    let house = House::open();
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(33), Some(33)).unwrap();
    let mount = |target: &str, access| Mount { source: folder.path().into(), target: target.into(), access };
    let mounts = vec![mount("/data", Access::ReadWrite), mount("/look", Access::ReadOnly)];
    let spec = house.spec();
    let id = house.engine.launch(&cove_engine::Spec { mounts, default_user: "root".into(), ..spec }).unwrap().id;
    assert_eq!(
        house.output(&id, "echo x > /data/made; mkdir /data/in; stat -c %U /data /data/made /look"),
        "root\nroot\nroot"
    );
    let ran = house.run(&id, "echo x > /look/made");
    assert_ne!(ran.code, 0, "a read-only folder was written: {ran:?}");
    for name in ["made", "in"] {
        let made = folder.path().join(name).metadata().unwrap();
        assert_eq!((made.uid(), made.gid()), (33, 33), "{name}");
    }
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn a_sandbox_that_starts_again_has_booted_again() {
    let house = House::open();
    let spec = cove_engine::Spec { storage: Storage::Disk, ..house.spec() };
    let id = house.engine.launch(&spec).unwrap().id;
    let boot = |id| house.output(id, "cat /proc/sys/kernel/random/boot_id");
    let first = boot(&id);
    assert_eq!((first.len(), boot(&id)), (36, first.clone()), "it does not change while it runs");
    assert_ne!(first, std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim());
    house.engine.stop(&id, Duration::from_secs(2)).unwrap();
    house.engine.launch(&spec).unwrap();
    assert_ne!(boot(&id), first);
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn engines_of_two_directories_tell_each_other_which_ranges_they_use() {
    let (one, other) = (House::open(), House::open());
    let held = |house: &House| {
        let running = house.engine.launch(&house.spec()).unwrap();
        let range = std::fs::metadata(format!("/proc/{}", running.pid)).unwrap().uid();
        let entry = std::path::PathBuf::from(format!("/run/cove-ids/{range:08x}"));
        let holder = std::fs::read_to_string(&entry).unwrap();
        assert!(holder.starts_with(&format!("{} ", running.pid)), "{holder}");
        (running.id, entry)
    };
    let ((mine, my_entry), (theirs, their_entry)) = (held(&one), held(&other));
    assert_ne!(my_entry, their_entry);
    one.engine.destroy(&mine).unwrap();
    eventually("it is given back", || !my_entry.exists());
    assert!(their_entry.exists());
    other.engine.destroy(&theirs).unwrap();
    one.assert_empty();
    other.assert_empty();
}

#[test]
fn python_has_its_short_name_too() {
    let house = House::open();
    let id = house.launch();
    assert_eq!(house.output(&id, "python -c 'print(6*7)'"), "42");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn uppers_are_made_ahead_of_their_sandboxes() {
    let house = House::open();
    let spec = cove_engine::Spec { storage: Storage::Disk, ..house.spec() };
    let id = house.engine.launch(&spec).unwrap().id;
    let ready = house.data.path().join("pool/ready");
    if ready.exists() {
        eventually("two are ready", || std::fs::read_dir(&ready).unwrap().count() == 2);
    } else {
        cove_testkit::skip(cove_testkit::Need::Pool, "nothing else is made ahead");
    }
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn an_engine_that_comes_back_finds_its_sandboxes_running() {
    let house = House::open();
    let (id, gone) = (house.launch(), house.launch());
    let pid = house.output(&id, "sleep 1000 >/dev/null 2>&1 & echo $!");
    let house = house.reopen();
    let mut found = house.engine.found().unwrap();
    found.sort_by_key(|found| found.id.clone());
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|found| found.running.is_some()));
    assert_eq!(house.output(&id, &format!("kill -0 {pid} && echo alive")), "alive");
    let departures = house.engine.departures().unwrap();
    let swept = house.engine.sweep(&|swept| *swept == id).unwrap();
    assert_eq!(swept, vec![gone]);
    assert!(house.answers(&id));
    house.engine.destroy(&id).unwrap();
    assert!(departures.try_recv().is_err(), "an end that was asked for is no news");
    house.assert_empty();
}

#[test]
fn files_outlive_their_record() {
    let house = House::open();
    let specs = [(); 3].map(|()| Spec { storage: Storage::Disk, ..house.spec() });
    for spec in &specs {
        let id = house.engine.launch(spec).unwrap().id;
        house.output(&id, "echo kept > /home/user/note");
    }
    // Cut short, emptied and gone, as a disk is found after a power failure. What still runs of them is nobody's.
    let record = |spec: &Spec| house.data.path().join("sandboxes").join(spec.id.as_str());
    let [cut, emptied, gone] = specs.each_ref().map(record);
    std::fs::write(cut.join("spec.json"), "{\"id\":").unwrap();
    std::fs::write(emptied.join("spec.json"), "").unwrap();
    std::fs::remove_dir_all(gone).unwrap();
    let house = house.reopen();
    let found = house.engine.found().unwrap();
    assert_eq!(found.len(), specs.len());
    for found in &found {
        assert!(found.running.is_none() && found.ended == Some(Ended::Vanished), "{found:?}");
    }
    for spec in &specs {
        house.engine.launch(spec).unwrap();
        assert_eq!(house.output(&spec.id, "cat /home/user/note"), "kept");
        house.engine.destroy(&spec.id).unwrap();
    }
    house.assert_empty();
}

#[test]
fn a_sandbox_whose_guest_dies_is_told_of_and_can_start_again() {
    let house = House::open();
    let departures = house.engine.departures().unwrap();
    let spec = house.spec();
    let running = house.engine.launch(&spec).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(running.pid.cast_signed()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    let (id, ended) = departures.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!((&id, ended), (&running.id, Ended::Killed { signal: 9 }));
    house.engine.launch(&spec).unwrap();
    assert!(house.answers(&id));
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn a_sandbox_that_was_taken_over_is_told_of_when_it_ends() {
    let house = House::open();
    let id = house.launch();
    let house = house.reopen();
    let departures = house.engine.departures().unwrap();
    let pid = house.engine.found().unwrap()[0].running.as_ref().unwrap().pid;
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let (gone, ended) = departures.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!((gone, ended), (id.clone(), Ended::Killed { signal: 9 }));
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn a_sandbox_with_a_network_reaches_the_proxy_before_and_after_the_engine_is_replaced() {
    let house = House::open();
    let mut spec = house.spec();
    spec.network = Network::Full(Egress::default());
    let id = house.engine.launch(&spec).unwrap().id;
    // The proxy takes the connection, sees that metadata addresses are refused, and closes it.
    let dial = "python3 -c \"import socket; s = socket.create_connection(('169.254.169.254', 80), 5); \
        s.settimeout(5); print(len(s.recv(1)))\" 2>&1 | tail -1";
    let refused = |said: &str| said == "0" || said.contains("reset") || said.contains("refused");
    let said = house.output(&id, dial);
    assert!(refused(&said), "{said}");
    let house = house.reopen();
    house.engine.found().unwrap();
    let said = house.output(&id, dial);
    assert!(refused(&said), "{said}");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn a_running_sandbox_can_be_cut_off_and_let_out_again() {
    let house = House::open();
    let mut spec = house.spec();
    spec.network = Network::Full(Egress::default());
    let id = house.engine.launch(&spec).unwrap().id;
    // The code of the answer to a question: 5 is a refusal.
    let ask = "python3 -c \"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); \
        s.sendto(bytes.fromhex('123401000001000000000000') + b'\\x07example\\x00\\x00\\x01\\x00\\x01', ('10.200.0.1', 53)); \
        print(s.recv(512)[3] & 15)\"";
    assert_ne!(house.output(&id, ask), "5");
    house.engine.set_network(&id, &Network::None).unwrap();
    assert_eq!(house.output(&id, ask), "5");
    let house = house.reopen();
    house.engine.found().unwrap();
    assert_eq!(house.output(&id, ask), "5", "a server that comes back holds to it");
    house.engine.set_network(&id, &spec.network).unwrap();
    assert_ne!(house.output(&id, ask), "5");
    let without = house.launch();
    let refused = house.engine.set_network(&without, &spec.network).unwrap_err().to_string();
    assert!(refused.contains("started without a network"), "{refused}");
    house.engine.destroy(&without).unwrap();
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn a_launch_that_is_refused_half_way_leaves_no_process() {
    let house = House::open();
    let mut spec = house.spec();
    let folder = tempfile::tempdir().unwrap();
    // Once the first is mounted there is no place for the second: nobody makes one in a folder of the host's.
    let mount = |target: &str| Mount { source: folder.path().into(), target: target.into(), access: Access::ReadOnly };
    spec.mounts = vec![mount("/data"), mount("/data/inner")];
    let refused = house.engine.launch(&spec).unwrap_err().to_string();
    assert!(refused.contains("/data/inner"), "{refused}");
    assert_eq!(zombies(), 0, "children of ours that nobody waited for");
    house.assert_empty();
}

fn zombies() -> usize {
    let ours = std::process::id().to_string();
    let stats = std::fs::read_dir("/proc").unwrap().flatten().map(|process| process.path().join("stat"));
    let is_ours = |stat: String| {
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.next() == Some("Z") && fields.next() == Some(&ours)
    };
    stats.filter_map(|path| std::fs::read_to_string(path).ok()).filter(|stat| is_ours(stat.clone())).count()
}

#[test]
fn a_sandbox_that_eats_its_memory_loses_the_process_and_the_host_counts_it() {
    let house = House::open();
    let mut spec = house.spec();
    spec.limits.memory = 64 << 20;
    let id = house.engine.launch(&spec).unwrap().id;
    // At once: the first command of a life that has just begun.
    let ran = house.run(&id, "exec python3 -c 'x = bytearray(500 << 20)'");
    assert!(ran.code == 137 && ran.out_of_memory, "{ran:?}");
    assert_eq!(house.engine.usage(&id).unwrap().memory_kills, 1);
    let largest = house.engine.largest_process(&id);
    let log = std::fs::File::open("/dev/kmsg").is_ok();
    assert!(!log || largest.as_ref().is_some_and(|largest| largest.name == "python3"), "{largest:?}");
    assert!(house.answers(&id), "the guest outlives its children");
    let ran = house.run(&id, "kill -9 $$");
    assert!(ran.code == 137 && !ran.out_of_memory, "a signal of its own is no want of memory: {ran:?}");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn a_neighbour_that_runs_out_of_memory_is_not_taken_for_oneself() {
    let house = House::open();
    let mut spec = house.spec();
    spec.limits.memory = 64 << 20;
    let (eater, other) = (house.engine.launch(&spec).unwrap().id, house.launch());
    let ran = std::thread::scope(|scope| {
        let line = "touch /tmp/ready; while [ ! -e /tmp/go ]; do sleep 0.05; done; kill -9 $$";
        let waiting = scope.spawn(|| house.run(&other, line));
        eventually("the neighbour runs", || house.run(&other, "test -e /tmp/ready").code == 0);
        assert!(house.run(&eater, "exec python3 -c 'x = bytearray(500 << 20)'").out_of_memory);
        house.output(&other, "touch /tmp/go");
        waiting.join().unwrap()
    });
    assert!(ran.code == 137 && !ran.out_of_memory, "{ran:?}");
    house.engine.destroy(&eater).unwrap();
    house.engine.destroy(&other).unwrap();
    house.assert_empty();
}

#[test]
fn a_guest_that_somebody_kills_after_a_shortage_was_not_out_of_memory_itself() {
    let house = House::open();
    let departures = house.engine.departures().unwrap();
    let mut spec = house.spec();
    spec.limits.memory = 64 << 20;
    let running = house.engine.launch(&spec).unwrap();
    assert!(house.run(&running.id, "exec python3 -c 'x = bytearray(500 << 20)'").out_of_memory);
    let guest = rustix::process::Pid::from_raw(running.pid.cast_signed()).unwrap();
    rustix::process::kill_process(guest, rustix::process::Signal::KILL).unwrap();
    let (id, ended) = departures.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(id, running.id);
    if std::fs::File::open("/dev/kmsg").is_ok() {
        assert_eq!(ended, Ended::Killed { signal: 9 });
    }
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn a_guest_killed_for_want_of_memory_is_told_so() {
    let house = House::open();
    let departures = house.engine.departures().unwrap();
    let mut spec = house.spec();
    (spec.limits.memory, spec.limits.disk) = (64 << 20, Some(256 << 20));
    let id = house.engine.launch(&spec).unwrap().id;
    // Files in memory belong to nobody whom the kernel could kill: when no other process is left it takes the guest.
    let fill = "head -c 1000000000 /dev/zero > /dev/shm/fill; exec head -c 1000000000 /dev/zero > /tmp/fill";
    // At its limit every page is fetched anew again and again: an emulated machine needs its time.
    let patience = Duration::from_secs(90);
    within(patience, "the guest is gone", || matches!(house.try_run(&id, None, fill), Err(Lost::Gone)));
    let (ended_id, ended) = departures.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(ended_id, id);
    assert!(matches!(ended, Ended::OutOfMemory { limit, .. } if limit == 64 << 20), "{ended:?}");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn bad_input_is_refused_by_name_and_leaves_nothing() {
    let house = House::open();
    let mut spec = house.spec();
    spec.hostname = "not a name".into();
    assert!(matches!(house.engine.launch(&spec), Err(Error::Invalid(text)) if text.contains("not a name")));
    let mut spec = house.spec();
    spec.root = Root { under: Under::Host, over: vec![LayerId::new([7; 32])] };
    let error = house.engine.launch(&spec).unwrap_err().to_string();
    assert!(error.contains("there is no layer 0707"), "{error}");
    let mut spec = house.spec();
    spec.mounts = vec![Mount { source: "/tmp".into(), target: "/proc/sys".into(), access: Access::ReadWrite }];
    assert!(house.engine.launch(&spec).unwrap_err().to_string().contains("/proc/sys"));
    let id = house.launch();
    let mut twin = house.spec();
    twin.id = id.clone();
    assert!(matches!(house.engine.launch(&twin), Err(Error::AlreadyRunning(_))));
    assert!(house.answers(&id), "a refused twin must not hurt the first");
    house.engine.destroy(&id).unwrap();
    assert!(matches!(house.engine.pause(&id), Err(Error::NotFound(_))));
    house.assert_empty();
}
