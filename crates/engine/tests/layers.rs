//! What a sandbox has written becomes a layer, another sandbox, and comes back; on both rungs of the storage.

mod house;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use cove_engine::spec::{Limits, Root, Storage, Under};
use cove_engine::{Error, LayerId, SandboxId, Spec};
use house::{House, eventually, new_id, new_layer};

/// The same story on btrfs snapshots and on plain copies.
fn on_both(story: impl Fn(&House)) {
    for house in [House::open(), House::open_plain()] {
        story(&house);
        house.assert_empty();
    }
}

fn over(layers: &[LayerId]) -> Root {
    Root { under: Under::Host, over: layers.to_vec() }
}

/// A sandbox that starts from layers over the host's files.
fn started(house: &House, layers: &[LayerId]) -> SandboxId {
    house.engine.launch(&Spec { root: over(layers), ..house.on_disk() }).unwrap().id
}

fn as_root(house: &House, id: &SandboxId, line: &str) -> String {
    let ran = house.run_as(id, Some("root"), line);
    assert_eq!(ran.code, 0, "{line}: {ran:?}");
    ran.stdout.trim_end().to_owned()
}

/// Everything that an upper can hold: files, links, holes, attributes, and what it takes away from below.
const MAKE: &str = r#"
set -e
echo mine > /home/user/mine; chown user: /home/user/mine
cp /usr/bin/id /usr/local/bin/rootid; chmod 4755 /usr/local/bin/rootid
cp /usr/bin/cat /usr/local/bin/capcat
echo secret > /etc/secret; chmod 600 /etc/secret
python3 - <<'END'
import os, struct
# VFS_CAP_REVISION_2 with the effective bit, CAP_DAC_OVERRIDE
os.setxattr("/usr/local/bin/capcat", "security.capability", struct.pack("<5I", 0x02000001, 1 << 1, 0, 0, 0))
with open("/home/user/sparse", "wb") as file:
    file.seek(40 << 20)
    file.write(b"end")
END
ln /home/user/mine /home/user/same
mkfifo /home/user/pipe
rm /etc/services
rm -rf /etc/perl; mkdir /etc/perl; echo new > /etc/perl/new
"#;

/// What a sandbox must see of it.
const CHECK: &str = r#"
cat ~/mine; stat -c %U ~/mine; rootid -u; capcat /etc/secret
[ "$(stat -c %i ~/mine)" = "$(stat -c %i ~/same)" ] && echo linked
stat -c %s ~/sparse; [ "$(stat -c %b ~/sparse)" -lt 1000 ] && echo holes
[ -p ~/pipe ] && echo pipe
[ -e /etc/services ] || echo gone
ls /etc/perl
[ -e ~/later ] || echo no later
"#;

const SEEN: &str = "mine\nuser\n0\nsecret\nlinked\n41943043\nholes\npipe\ngone\nnew\nno later";

#[test]
fn a_running_sandbox_is_captured_with_all_that_it_has() {
    on_both(|house| {
        let id = house.engine.launch(&house.on_disk()).unwrap().id;
        as_root(house, &id, MAKE);
        let layer = new_layer();
        let made = house.engine.capture(&id, &layer).unwrap();
        assert_eq!((made.id, made.beneath.as_ref()), (layer, Some(&Root::base())));
        assert!(made.bytes > 0, "{made:?}");
        assert!(house.answers(&id), "it goes on");
        house.output(&id, "echo x > ~/later");
        assert_eq!(house.engine.capture(&id, &layer).unwrap().id, layer, "a second call finds the first one's");

        let other = started(house, &[layer]);
        assert_eq!(house.output(&other, CHECK), SEEN);
        // What it writes is its own, also where it is the same file.
        house.output(&other, "echo theirs > ~/mine");
        assert_eq!(house.output(&id, "cat ~/mine"), "mine");
        let third = started(house, &[layer]);
        assert_eq!(house.output(&third, CHECK), SEEN, "the layer is as it was");
        for id in [&id, &other, &third] {
            house.engine.destroy(id).unwrap();
        }
        house.engine.remove_layer(&layer).unwrap();
        assert_eq!(house.engine.layers().unwrap(), []);
    });
}

#[test]
fn a_capture_outlives_its_sandbox_and_one_that_is_stopped_can_be_captured() {
    on_both(|house| {
        let spec = house.on_disk();
        house.engine.launch(&spec).unwrap();
        as_root(house, &spec.id, MAKE);
        house.engine.stop(&spec.id, Duration::from_secs(5)).unwrap();
        let layer = new_layer();
        house.engine.capture(&spec.id, &layer).unwrap();
        house.engine.destroy(&spec.id).unwrap();
        let other = started(house, &[layer]);
        assert_eq!(house.output(&other, CHECK), SEEN);
        house.engine.destroy(&other).unwrap();
        assert!(matches!(house.engine.capture(&spec.id, &new_layer()), Err(Error::NotFound(_))));
    });
}

#[test]
fn a_capture_is_of_one_instant_while_a_process_writes() {
    let house = House::open();
    let id = house.engine.launch(&house.on_disk()).unwrap().id;
    // The first is always at most one ahead of the second.
    let writer = r#"nohup python3 -c '
import os
one, two = (os.open(name, os.O_CREAT | os.O_WRONLY) for name in ("one", "two"))
number = 0
while True:
    number += 1
    os.pwrite(one, b"%012d" % number, 0)
    os.pwrite(two, b"%012d" % number, 0)
' >/dev/null 2>&1 & while ! [ -s two ]; do :; done"#;
    house.output(&id, writer);
    let mut last = 0;
    for _ in 0..8 {
        let layer = new_layer();
        house.engine.capture(&id, &layer).unwrap();
        let number = |name: &str| -> u64 {
            let path = house.top().join("layers").join(layer.to_string()).join("root/home/user").join(name);
            fs::read_to_string(path).unwrap().parse().unwrap()
        };
        let (one, two) = (number("one"), number("two"));
        assert!(one - two <= 1, "{one} {two}");
        assert!(two >= last);
        last = two;
        let now = || house.output(&id, "cat two").parse::<u64>().unwrap();
        eventually("it goes on in between", || now() > two);
    }
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn forks_have_the_files_of_their_source_and_go_their_own_way() {
    on_both(|house| {
        let spec = Spec { hostname: "source".into(), ..house.on_disk() };
        house.engine.launch(&spec).unwrap();
        as_root(house, &spec.id, MAKE);
        house.output(&spec.id, "echo 0 > ~/who");
        let specs: Vec<Spec> = (1..=10).map(|n| Spec { hostname: format!("fork-{n}"), ..house.on_disk() }).collect();
        let forked = house.engine.forks(&spec.id, &specs);
        assert!(forked.iter().all(Result::is_ok), "{forked:?}");
        for (number, fork) in specs.iter().enumerate() {
            assert_eq!(house.output(&fork.id, CHECK), SEEN);
            assert_eq!(house.output(&fork.id, "hostname; cat /etc/hostname"), format!("{0}\n{0}", fork.hostname));
            assert_eq!(
                house.output(&fork.id, "getent hosts $(hostname) | tr -s ' '"),
                format!("127.0.1.1 {}", fork.hostname)
            );
            house.output(&fork.id, &format!("echo {} > ~/who", number + 1));
        }
        assert_eq!(house.output(&spec.id, "cat ~/who; hostname"), "0\nsource");
        for (number, fork) in specs.iter().enumerate() {
            assert_eq!(house.output(&fork.id, "cat ~/who"), (number + 1).to_string());
        }
        // A fork of a fork, whose first source is gone; and the hosts that a sandbox wrote itself are kept.
        as_root(house, &specs[0].id, "echo 10.0.0.1 mine.example >> /etc/hosts");
        house.engine.destroy(&spec.id).unwrap();
        let again = house.on_disk();
        house.engine.fork(&specs[0].id, &again).unwrap();
        assert_eq!(house.output(&again.id, CHECK), SEEN);
        assert_eq!(house.output(&again.id, "cat ~/who; grep -c mine.example /etc/hosts"), "1\n1");
        house.engine.destroy(&again.id).unwrap();
        for fork in &specs {
            house.engine.destroy(&fork.id).unwrap();
        }
    });
}

#[test]
fn a_fork_is_refused_by_name_and_leaves_nothing() {
    let house = House::open();
    let spec = house.on_disk();
    house.engine.launch(&spec).unwrap();
    let fork = |change: &dyn Fn(&mut Spec)| {
        let mut other = house.on_disk();
        change(&mut other);
        house.engine.fork(&spec.id, &other).unwrap_err().to_string()
    };
    assert!(fork(&|other| other.root = over(&[new_layer()])).contains("same root"));
    assert!(fork(&|other| other.storage = Storage::Memory).contains("on disk"));
    assert!(fork(&|other| other.id = spec.id.clone()).contains("exists already"));
    let twin = house.on_disk();
    let both = house.engine.forks(&spec.id, &[twin.clone(), twin.clone()]);
    assert!(both[0].is_ok() && both[1].is_err(), "each alone: {both:?}");
    let gone = new_id();
    assert!(matches!(house.engine.fork(&gone, &house.on_disk()), Err(Error::NotFound(id)) if id == gone));
    for id in [&spec.id, &twin.id] {
        house.engine.destroy(id).unwrap();
    }
    house.assert_empty();
}

#[test]
fn a_fork_has_a_disk_limit_of_its_own_and_a_captured_sandbox_can_write_as_much_as_before() {
    let house = House::open();
    let limits = Limits { disk: Some(60 << 20), ..house.spec().limits };
    let spec = Spec { limits, ..house.on_disk() };
    house.engine.launch(&spec).unwrap();
    let write =
        |name: &str, megabytes: u64| format!("dd if=/dev/urandom of={name} bs=1M count={megabytes} conv=fsync 2>&1");
    house.output(&spec.id, &write("a", 40));
    assert_ne!(house.run(&spec.id, &write("b", 40)).code, 0, "60 MiB are all it may have");
    house.output(&spec.id, "rm b");
    let (layer, fork) = (new_layer(), Spec { limits: Limits { disk: Some(30 << 20), ..limits }, ..house.on_disk() });
    house.engine.capture(&spec.id, &layer).unwrap();
    house.engine.fork(&spec.id, &fork).unwrap();
    assert_ne!(house.run(&fork.id, &write("c", 40)).code, 0, "a fork's limit is for what it writes");
    house.output(&fork.id, "rm c");
    house.output(&fork.id, &write("c", 15));
    // The capture and the fork keep what the source wrote; it must not pay for that with its own room.
    house.output(&spec.id, &format!("rm a && {}", write("a", 50)));
    let usage = house.engine.usage(&spec.id).unwrap();
    assert!(usage.disk <= 60 << 20, "{usage:?}");
    assert_ne!(house.run(&spec.id, &write("more", 70)).code, 0, "and no more than before");
    for id in [&spec.id, &fork.id] {
        house.engine.destroy(id).unwrap();
    }
    house.assert_empty();
}

/// What forks have of those before them is on nobody's account once those are gone.
#[test]
fn a_line_of_forks_holds_no_more_than_twice_a_limit() {
    let house = House::open();
    let limits = Limits { disk: Some(60 << 20), ..house.spec().limits };
    let mut at = house.engine.launch(&Spec { limits, ..house.on_disk() }).unwrap().id;
    for generation in 0..6u64 {
        // As much as it may; the later ones meet their limit.
        house.run(&at, &format!("dd if=/dev/urandom of=f{generation} bs=1M count=50 conv=fsync 2>&1"));
        let held: u64 = house.output(&at, "du -sm . | cut -f1").parse().unwrap();
        assert!(held <= 121, "{held} MiB in generation {generation}");
        assert!(held >= 50 * (generation + 1).min(2), "{held} MiB in generation {generation}");
        let fork = Spec { limits, ..house.on_disk() };
        match house.engine.fork(&at, &fork) {
            Ok(_) => {
                house.engine.destroy(&at).unwrap();
                at = fork.id;
            }
            Err(error) => assert!(error.to_string().contains("twice its disk limit"), "{error}"),
        }
    }
    let small = Spec { limits: Limits { disk: Some(30 << 20), ..limits }, ..house.on_disk() };
    let error = house.engine.fork(&at, &small).unwrap_err().to_string();
    assert!(error.contains("twice its disk limit"), "{error}");
    // It counts what is there, not what was written once.
    house.output(&at, "rm f*");
    let fork = Spec { limits, ..house.on_disk() };
    house.engine.fork(&at, &fork).unwrap();
    house.output(&fork.id, "dd if=/dev/urandom of=own bs=1M count=50 conv=fsync 2>&1");
    for id in [&at, &fork.id] {
        house.engine.destroy(id).unwrap();
    }
    house.assert_empty();
}

/// Writes what fits, up to 50 MiB, into a folder whose path is longer than the kernel takes, and tells what is in it.
const HIDE: &str = r"
import os
os.chdir('/home/user')
for _ in range(25):
    os.makedirs('d' * 200, exist_ok=True)
    os.chdir('d' * 200)
try:
    with open(str(len(os.listdir('.'))), 'wb', buffering=0) as file:
        for _ in range(50): file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
except OSError: pass
print(sum(os.stat(name).st_blocks for name in os.listdir('.')) * 512)
";

#[test]
fn captures_one_after_the_other_give_no_more_than_twice_a_limit() {
    let house = House::open();
    let limits = Limits { disk: Some(60 << 20), ..house.spec().limits };
    let spec = Spec { limits, ..house.on_disk() };
    house.engine.launch(&spec).unwrap();
    let layers = [(); 6].map(|()| new_layer());
    for (round, layer) in layers.iter().enumerate() {
        house.engine.capture(&spec.id, layer).unwrap();
        let held: u64 = house.output(&spec.id, &format!("python3 - <<'END'{HIDE}END")).parse().unwrap();
        assert!(held <= 121 << 20, "{held} bytes in round {round}");
    }
    house.engine.destroy(&spec.id).unwrap();
    for layer in &layers {
        house.engine.remove_layer(layer).unwrap();
    }
    house.assert_empty();
}

#[test]
fn a_captured_sandbox_can_rewrite_its_files_again_and_again() {
    let house = House::open();
    let limits = Limits { disk: Some(60 << 20), ..house.spec().limits };
    let spec = Spec { limits, ..house.on_disk() };
    house.engine.launch(&spec).unwrap();
    let write = "dd if=/dev/urandom of=file bs=1M count=40 conv=fsync 2>&1";
    house.output(&spec.id, write);
    let layers = [(); 5].map(|()| new_layer());
    for layer in &layers {
        house.engine.capture(&spec.id, layer).unwrap();
        // Where it has more on its account than its limit, its files are counted first.
        eventually("it can write as much as before", || house.run(&spec.id, write).code == 0);
    }
    house.engine.destroy(&spec.id).unwrap();
    for layer in &layers {
        house.engine.remove_layer(layer).unwrap();
    }
    house.assert_empty();
}

#[test]
fn a_rollback_gives_back_what_was_captured_and_can_be_undone() {
    on_both(|house| {
        let spec = house.on_disk();
        let id = &spec.id;
        house.engine.launch(&spec).unwrap();
        as_root(house, id, MAKE);
        house.output(id, "echo before > ~/state");
        let (checkpoint, replaced, again) = (new_layer(), new_layer(), new_layer());
        house.engine.capture(id, &checkpoint).unwrap();
        house.output(id, "echo after > ~/state; rm ~/mine; echo x > ~/later; sudo -n rm -rf /usr/local/bin/rootid");
        assert!(matches!(house.engine.rollback(id, &checkpoint, &replaced), Err(Error::AlreadyRunning(_))));
        house.engine.stop(id, Duration::from_secs(5)).unwrap();
        house.engine.rollback(id, &checkpoint, &replaced).unwrap();
        house.engine.launch(&spec).unwrap();
        assert_eq!(house.output(id, "cat ~/state"), "before");
        assert_eq!(house.output(id, CHECK), SEEN);
        // It lives on, and what it wrote before is not lost.
        house.output(id, "echo other > ~/state");
        house.engine.stop(id, Duration::from_secs(5)).unwrap();
        house.engine.rollback(id, &replaced, &again).unwrap();
        house.engine.launch(&spec).unwrap();
        assert_eq!(
            house.output(id, "cat ~/state; ls ~/later; [ -e ~/mine ] || echo gone"),
            "after\n/home/user/later\ngone"
        );
        house.engine.destroy(id).unwrap();
        // A layer of another root is no place to go back to.
        let other = Spec { root: over(&[checkpoint]), ..house.on_disk() };
        house.engine.launch(&other).unwrap();
        house.engine.stop(&other.id, Duration::ZERO).unwrap();
        let error = house.engine.rollback(&other.id, &checkpoint, &new_layer()).unwrap_err();
        assert!(error.to_string().contains("was not captured from"), "{error}");
        assert!(matches!(house.engine.rollback(&other.id, &new_layer(), &new_layer()), Err(Error::LayerMissing(_))));
        house.engine.destroy(&other.id).unwrap();
    });
}

#[test]
fn a_lineage_can_lose_its_middle_once_nobody_stands_on_it() {
    on_both(|house| {
        let (low, high, flat) = (new_layer(), new_layer(), new_layer());
        let first = house.engine.launch(&house.on_disk()).unwrap().id;
        as_root(house, &first, MAKE);
        as_root(
            house,
            &first,
            "mkdir -p /srv/tree/a /srv/tree/b; echo 1 > /srv/tree/a/x; echo 1 > /srv/tree/b/y; echo 1 > /srv/file",
        );
        house.engine.capture(&first, &low).unwrap();
        let second = started(house, &[low]);
        as_root(house, &second, "chmod 711 /srv");
        let change = "rm -rf /srv/tree/a; mkdir /srv/tree/a; echo 2 > /srv/tree/a/z; echo 2 > /srv/tree/b/more; \
                      rm /srv/file; mkdir /srv/file; echo 2 > /srv/file/inside; rm -rf /etc/perl; chmod 700 /srv/tree/b; \
                      echo back > /etc/services; ln /srv/tree/b/more /srv/tree/b/linked; rm /usr/local/bin/capcat";
        as_root(house, &second, change);
        house.engine.capture(&second, &high).unwrap();
        house.engine.destroy(&first).unwrap();
        assert!(matches!(house.engine.remove_layer(&low), Err(Error::LayerInUse(_))), "the second stands on it");
        house.engine.stop(&second, Duration::ZERO).unwrap();
        assert!(matches!(house.engine.remove_layer(&low), Err(Error::LayerInUse(_))), "also while it is stopped");
        house.engine.destroy(&second).unwrap();

        let look = "stat -c %a /srv; find /srv /etc/perl /etc/services /usr/local/bin ! -type d -printf '%p %y %m %U %n %s %T@\\n' 2>&1 | sort; \
                    find /srv /usr/local/bin -type d -printf '%p %m %U %T@\\n' | sort";
        let stacked = started(house, &[high, low]);
        let seen = as_root(house, &stacked, look);
        assert!(seen.contains("/srv/file/inside") && seen.contains("/srv/tree/a/z") && !seen.contains("/srv/tree/a/x"));
        let merged = house.engine.flatten(&[high, low], &Root::base(), &flat).unwrap();
        assert_eq!(merged.beneath, Some(Root::base()));
        house.engine.destroy(&stacked).unwrap();
        house.engine.remove_layer(&high).unwrap();
        house.engine.remove_layer(&low).unwrap();
        assert_eq!(house.engine.layers().unwrap(), [flat]);
        let alone = started(house, &[flat]);
        assert_eq!(as_root(house, &alone, look), seen);
        assert_eq!(
            house.output(&alone, "cat ~/mine /srv/file/inside; rootid -u; ls /etc/perl 2>&1 | wc -l"),
            "mine\n2\n0\n1"
        );
        house.engine.destroy(&alone).unwrap();
        let orphan = Spec { root: over(&[high, low]), ..house.on_disk() };
        assert!(matches!(house.engine.launch(&orphan), Err(Error::LayerMissing(id)) if id == high));
    });
}

#[test]
fn generations_stack_and_a_deep_stack_can_be_launched() {
    let house = House::open();
    let mut stack: Vec<LayerId> = Vec::new();
    for generation in 0..20 {
        let id = started(&house, &stack);
        as_root(&house, &id, &format!("echo {generation} > /srv/{generation}; echo {generation} > /srv/last"));
        let layer = new_layer();
        house.engine.capture(&id, &layer).unwrap();
        house.engine.destroy(&id).unwrap();
        stack.insert(0, layer);
    }
    let id = started(&house, &stack);
    assert_eq!(as_root(&house, &id, "ls /srv | wc -l; cat /srv/last"), "21\n19");
    house.engine.destroy(&id).unwrap();
    let flat = new_layer();
    house.engine.flatten(&stack, &Root::base(), &flat).unwrap();
    let id = started(&house, &[flat]);
    assert_eq!(as_root(&house, &id, "ls /srv | wc -l; cat /srv/last"), "21\n19");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn files_in_memory_are_captured_and_forked_to_the_disk() {
    let house = House::open();
    let spec = house.spec();
    house.engine.launch(&spec).unwrap();
    as_root(&house, &spec.id, MAKE);
    let (layer, fork) = (new_layer(), house.on_disk());
    house.engine.capture(&spec.id, &layer).unwrap();
    house.engine.fork(&spec.id, &fork).unwrap();
    house.output(&spec.id, "echo x > ~/later");
    let other = started(&house, &[layer]);
    for id in [&other, &fork.id] {
        assert_eq!(house.output(id, CHECK), SEEN);
    }
    for id in [&spec.id, &other, &fork.id] {
        house.engine.destroy(id).unwrap();
    }
    house.assert_empty();
}

#[test]
fn a_sandbox_that_is_captured_while_it_ends_is_captured_or_refused() {
    let house = House::open();
    for round in 0..10 {
        let spec = house.on_disk();
        house.engine.launch(&spec).unwrap();
        house.output(&spec.id, "dd if=/dev/zero of=file bs=1M count=8 2>/dev/null");
        let layer = new_layer();
        let captured = std::thread::scope(|scope| {
            let capture = scope.spawn(|| house.engine.capture(&spec.id, &layer));
            std::thread::sleep(Duration::from_millis(round));
            house.engine.destroy(&spec.id).unwrap();
            capture.join().unwrap()
        });
        match captured {
            Ok(made) => assert_eq!(house.engine.layer(&layer).unwrap(), Some(made)),
            Err(Error::Ending(_) | Error::NotFound(_)) => assert_eq!(house.engine.layer(&layer).unwrap(), None),
            Err(error) => panic!("{error}"),
        }
    }
    house.assert_empty();
}

#[test]
fn captures_at_once_of_one_sandbox_do_not_disturb_each_other_nor_a_pause() {
    let house = House::open();
    let id = house.engine.launch(&house.on_disk()).unwrap().id;
    house.output(&id, "echo x > ~/file");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..4 {
                    house.engine.capture(&id, &new_layer()).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..10 {
                house.engine.pause(&id).unwrap();
                assert!(house.engine.found().unwrap()[0].paused, "a capture does not wake what is paused");
                house.engine.resume(&id).unwrap();
            }
        });
    });
    assert_eq!(house.engine.layers().unwrap().len(), 16);
    assert!(house.answers(&id));
    house.engine.pause(&id).unwrap();
    house.engine.capture(&id, &new_layer()).unwrap();
    assert!(house.engine.found().unwrap()[0].paused);
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn forks_are_of_one_instant_also_where_each_is_a_copy() {
    // On disk with snapshots, on disk without, and in memory.
    let houses =
        [(House::open(), Storage::Disk), (House::open_plain(), Storage::Disk), (House::open(), Storage::Memory)];
    for (house, storage) in houses {
        let spec = if storage == Storage::Disk { house.on_disk() } else { house.spec() };
        house.engine.launch(&spec).unwrap();
        let writer = r#"nohup python3 -c '
import os
one, two = (os.open(name, os.O_CREAT | os.O_WRONLY) for name in ("one", "two"))
number = 0
while True:
    number += 1
    os.pwrite(one, b"%012d" % number, 0)
    os.pwrite(two, b"%012d" % number, 0)
' >/dev/null 2>&1 & while ! [ -s two ]; do :; done"#;
        house.output(&spec.id, writer);
        let forks: Vec<Spec> = (0..12).map(|_| house.on_disk()).collect();
        let forked = house.engine.forks(&spec.id, &forks);
        assert!(forked.iter().all(Result::is_ok), "{forked:?}");
        let seen: BTreeSet<String> = forks.iter().map(|fork| house.output(&fork.id, "cat one two")).collect();
        assert_eq!(seen.len(), 1, "{storage:?}, plain {}: {seen:?}", house.is_plain());
        let now = || house.output(&spec.id, "cat two").parse::<u64>().unwrap();
        let before = now();
        eventually("the source goes on", || now() > before);
        // Each is its own from then on, also the first, which the others may be copies of.
        house.output(&forks[0].id, "rm one two");
        assert_eq!(house.output(&forks[1].id, "cat one two | wc -c"), "24");
        for id in forks.iter().map(|fork| &fork.id).chain([&spec.id]) {
            house.engine.destroy(id).unwrap();
        }
        house.assert_empty();
    }
}

#[test]
fn a_layer_comes_to_another_machine_as_it_is() {
    let machines = [(House::open(), House::open()), (House::open(), House::open_plain())];
    for (here, there) in machines {
        let id = here.engine.launch(&here.on_disk()).unwrap().id;
        as_root(&here, &id, MAKE);
        as_root(&here, &id, "chmod 711 /srv; head -c 3000000 /dev/urandom > /srv/a; cp --reflink=auto /srv/a /srv/b");
        let layer = new_layer();
        here.engine.capture(&id, &layer).unwrap();
        let mut packed = Vec::new();
        here.engine.export_layer(&layer, &mut packed).unwrap();
        let draft = there.engine.draft(None).unwrap();
        draft.unpack(&packed[..]).unwrap();
        draft.seal(&layer).unwrap();
        let look = "sha256sum /srv/a /srv/b; stat -c '%n %a %U %Y' /srv /srv/a /usr/local/bin/rootid /etc/secret";
        let before = as_root(&here, &id, look);
        let other = started(&there, &[layer]);
        assert_eq!(
            there.output(&other, CHECK),
            SEEN,
            "owners, modes, capabilities, links, holes and what was taken away"
        );
        assert_eq!(as_root(&there, &other, look), before);
        there.engine.destroy(&other).unwrap();
        // What breaks off is refused, and nothing of it stays.
        let draft = there.engine.draft(None).unwrap();
        assert!(draft.unpack(&packed[..packed.len() / 2]).is_err());
        drop(draft);
        assert_eq!(there.engine.layers().unwrap(), [layer]);
        assert!(matches!(there.engine.export_layer(&new_layer(), std::io::sink()), Err(Error::LayerMissing(_))));
        here.engine.destroy(&id).unwrap();
        here.assert_empty();
        there.assert_empty();
    }
}

#[test]
fn an_archive_of_a_layer_brings_no_power_that_it_must_not() {
    let house = House::open();
    let header = |kind: tar::EntryType, size: u64| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(size);
        header
    };
    let bring = |attribute: &str, value: &[u8], path: &str| {
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_data(&mut header(tar::EntryType::Directory, 0), "root", std::io::empty()).unwrap();
        archive.append_pax_extensions([(attribute, value)]).unwrap();
        archive.append_data(&mut header(tar::EntryType::Regular, 1), path, &b"x"[..]).unwrap();
        let draft = house.engine.draft(None).unwrap();
        draft.unpack(&archive.into_inner().unwrap()[..]).map(|()| {
            let (mut value, file) = ([0; 64], draft.path().join(path));
            ["security.capability", "trusted.overlay.redirect", "user.overlay.redirect", "user.mine"]
                .map(|name| rustix::fs::lgetxattr(&file, name, &mut value[..]).unwrap_or(0))
        })
    };
    let capability = |revision: u32, length: usize| {
        let mut bytes = vec![0; length];
        bytes[..4].copy_from_slice(&(revision | 1).to_le_bytes());
        bytes[4] = 2;
        bytes
    };
    let name = "SCHILY.xattr.security.capability";
    assert_eq!(bring(name, &capability(0x0200_0000, 20), "root/file").unwrap(), [20, 0, 0, 0]);
    // One that names a user namespace is for that one, and what is no capability is none.
    assert_eq!(bring(name, &capability(0x0300_0000, 24), "root/file").unwrap(), [0, 0, 0, 0]);
    assert_eq!(bring(name, b"much power", "root/file").unwrap(), [0, 0, 0, 0]);
    assert_eq!(bring("SCHILY.xattr.user.mine", b"1", "root/file").unwrap(), [0, 0, 0, 1]);
    for overlay in ["trusted.overlay.redirect", "user.overlay.redirect"] {
        assert_eq!(bring(&format!("SCHILY.xattr.{overlay}"), b"/etc", "root/file").unwrap(), [0, 0, 0, 0]);
    }
    for path in ["etc/file", "layers/file"] {
        assert!(bring("SCHILY.xattr.user.mine", b"1", path).is_err(), "{path}");
    }
    house.assert_empty();
}

#[test]
fn a_layer_is_removed_only_while_nobody_can_take_hold_of_it() {
    let house = House::open();
    let layer = new_layer();
    let draft = house.engine.draft(None).unwrap();
    draft.root().unwrap();
    draft.seal(&layer).unwrap();
    let store = cove_engine::storage::Store::open(house.data.path()).unwrap();
    // Whoever notes its need before it takes hold of the layer is seen by whoever is about to remove it, however late.
    let noted = std::sync::atomic::AtomicBool::new(false);
    let (ask, asked) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let removing = scope.spawn(|| {
            store.remove_layer_unless(&layer, || {
                ask.send(()).unwrap();
                eventually("the need is noted", || noted.load(std::sync::atomic::Ordering::SeqCst));
                Ok::<_, cove_engine::storage::Error>(noted.load(std::sync::atomic::Ordering::SeqCst))
            })
        });
        asked.recv().unwrap();
        let holding = scope.spawn(|| house.engine.hold_layer(&layer));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!holding.is_finished(), "nobody takes hold of it while it is decided");
        noted.store(true, std::sync::atomic::Ordering::SeqCst);
        assert!(!removing.join().unwrap().unwrap(), "it is needed");
        assert!(holding.join().unwrap().is_ok());
    });
    house.engine.remove_layer(&layer).unwrap();
    assert_eq!(house.engine.layers().unwrap(), []);
    house.assert_empty();
}

#[test]
fn a_layer_that_is_held_stays_and_a_draft_that_is_dropped_leaves_nothing() {
    on_both(|house| {
        let draft = house.engine.draft(None).unwrap();
        fs::write(draft.path().join("stray"), "").unwrap();
        let layer = new_layer();
        assert!(draft.seal(&layer).unwrap_err().to_string().contains("stray"));
        assert!(house.engine.draft(None).unwrap().seal(&layer).unwrap_err().to_string().contains("empty"));
        let draft = house.engine.draft(None).unwrap();
        std::os::unix::fs::symlink("/etc", draft.path().join("root")).unwrap();
        assert!(draft.seal(&layer).is_err(), "a link is no folder of a layer");
        assert_eq!(house.engine.layers().unwrap(), []);

        for _ in 0..2 {
            let draft = house.engine.draft(None).unwrap();
            draft.root().unwrap();
            fs::write(draft.path().join("root/given"), "x").unwrap();
            let made = draft.seal(&layer).unwrap();
            assert_eq!((made.files, made.beneath), (Some(2), None), "sealed once, and found again");
        }
        let held = house.engine.hold_layer(&layer).unwrap();
        assert!(matches!(house.engine.remove_layer(&layer), Err(Error::LayerInUse(_))));
        drop(held);
        let more = house.engine.draft_from(&layer, None).unwrap();
        fs::write(more.path().join("root/more"), "x").unwrap();
        let second = new_layer();
        more.seal(&second).unwrap();
        let id = started(house, &[second]);
        assert_eq!(house.output(&id, "cat /given /more"), "xx");
        house.engine.destroy(&id).unwrap();
        assert!(!house.top().join("layers").join(layer.to_string()).join("root/more").exists());
        house.engine.remove_layer(&layer).unwrap();
        house.engine.remove_layer(&layer).expect("gone already is fine");
        assert!(matches!(house.engine.hold_layer(&layer), Err(Error::LayerMissing(_))));
        let left: Vec<_> =
            fs::read_dir(house.top().join("layers")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "a layer and its facts: {left:?}");
    });
}

#[test]
fn a_draft_has_a_limit_and_a_full_one_is_reported_as_full() {
    let house = House::open();
    let draft = house.engine.draft(Some(8 << 20)).unwrap();
    draft.root().unwrap();
    let error = fs::write(draft.path().join("root/large"), vec![1; 32 << 20])
        .and_then(|()| fs::File::open(draft.path().join("root/large"))?.sync_all())
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::QuotaExceeded);
    drop(draft);
    house.assert_empty();
}

#[test]
fn a_layer_of_an_earlier_version_is_moved_into_the_pool_and_its_sandboxes_start() {
    for plain in [false, true] {
        let data = tempfile::Builder::new().prefix("cove-house-").tempdir().unwrap();
        if plain {
            fs::create_dir(data.path().join("pool.btrfs.new")).unwrap();
        }
        let layer = new_layer();
        let old = data.path().join("layers").join(layer.to_string());
        fs::create_dir_all(old.join("usr/local/share")).unwrap();
        fs::write(old.join("usr/local/share/given"), "given\n").unwrap();
        let house = House { engine: house::open(data.path()), data };
        assert_eq!(house.engine.layers().unwrap(), [layer]);
        assert!(!house.data.path().join("layers").exists(), "nothing stays where nobody looks");
        assert!(house.top().join("layers").join(layer.to_string()).is_dir());
        let id = started(&house, &[layer]);
        assert_eq!(house.output(&id, "cat /usr/local/share/given; ls /usr/bin/env"), "given\n/usr/bin/env");
        house.engine.destroy(&id).unwrap();
        house.assert_empty();
    }
}

#[test]
fn a_data_directory_can_share_the_layers_of_another() {
    let (house, layer) = (House::open(), new_layer());
    let id = house.engine.launch(&house.on_disk()).unwrap().id;
    as_root(&house, &id, "echo shared > /srv/file");
    house.engine.capture(&id, &layer).unwrap();
    house.engine.destroy(&id).unwrap();
    let data = tempfile::Builder::new().prefix("cove-house-").tempdir().unwrap();
    std::os::unix::fs::symlink(house.data.path().join("layers"), data.path().join("layers")).unwrap();
    let other = House { engine: house::open(data.path()), data };
    let id = other.engine.launch(&Spec { root: over(&[layer]), ..other.spec() }).unwrap().id;
    assert_eq!(other.output(&id, "cat /srv/file"), "shared");
    assert!(matches!(house.engine.remove_layer(&layer), Err(Error::LayerInUse(_))), "the other one holds it");
    other.engine.destroy(&id).unwrap();
    eventually("it is let go", || house.engine.remove_layer(&layer).is_ok());
    drop(other);
    house.assert_empty();
}

/// Run by the next test in a process of its own, which is killed.
#[test]
#[ignore = "captures and seals without end until it is killed"]
fn a_child_that_captures_until_it_is_killed() {
    let Some(data) = std::env::var_os("COVE_TEST_DATA") else { return };
    let engine = house::open(data.as_ref());
    let found = engine.found().unwrap();
    loop {
        for one in &found {
            let layer = new_layer();
            engine.capture(&one.id, &layer).unwrap();
            let draft = engine.draft(Some(64 << 20)).unwrap();
            draft.root().unwrap();
            fs::write(draft.path().join("root/file"), vec![1; 1 << 20]).unwrap();
            let sealed = new_layer();
            draft.seal(&sealed).unwrap();
            engine.remove_layer(&sealed).unwrap();
        }
    }
}

#[test]
fn an_engine_killed_at_any_moment_leaves_whole_layers_and_a_sandbox_that_runs() {
    for plain in [false, true] {
        let mut house = if plain { House::open_plain() } else { House::open() };
        let id = house.engine.launch(&house.on_disk()).unwrap().id;
        house.output(&id, "dd if=/dev/urandom of=file bs=1M count=4 2>/dev/null && sha256sum file > sum");
        for round in 0..6_u64 {
            let before = fs::read_dir(house.top().join("layers")).unwrap().count();
            let House { engine, data } = house;
            drop(engine);
            let mut child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "a_child_that_captures_until_it_is_killed", "--ignored", "--nocapture"])
                .env("COVE_TEST_DATA", data.path())
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            let begun = Instant::now();
            // Until it has begun, and then for a moment that is another each time.
            while begun.elapsed() < Duration::from_secs(20) {
                let top = data.path().join(if plain { "storage" } else { "pool" });
                if fs::read_dir(top.join("layers")).map_or(0, Iterator::count) > before + 2 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            std::thread::sleep(Duration::from_millis(round * 7));
            child.kill().unwrap();
            child.wait().unwrap();
            house = House { engine: house::open(data.path()), data };
            let found = house.engine.found().unwrap();
            assert!(found[0].running.is_some() && !found[0].paused, "it runs, and is not left frozen: {found:?}");
            assert!(house.answers(&id));
            assert_eq!(fs::read_dir(house.top().join("drafts")).unwrap().count(), 0, "no draft of the dead is left");
            let names: BTreeSet<String> = fs::read_dir(house.top().join("layers"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            for name in &names {
                let other = name.strip_suffix(".json").map_or_else(|| format!("{name}.json"), str::to_owned);
                assert!(names.contains(&other), "{name} without {other}");
            }
        }
        let layers = house.engine.layers().unwrap();
        assert!(layers.len() >= 6, "one in each round: {}", layers.len());
        // Every layer that has its name is whole.
        let is_capture = |layer: &&LayerId| house.engine.layer(layer).unwrap().unwrap().beneath.is_some();
        for layer in [layers.iter().find(is_capture).unwrap(), layers.iter().rfind(is_capture).unwrap()] {
            let other = started(&house, &[*layer]);
            assert_eq!(house.output(&other, "sha256sum --check --quiet sum && echo whole"), "whole");
            house.engine.destroy(&other).unwrap();
        }
        house.engine.destroy(&id).unwrap();
        for layer in layers {
            house.engine.remove_layer(&layer).unwrap();
        }
        house.assert_empty();
        if !plain {
            // Subvolumes and their quota groups went with them: what is left is ready for launches to come.
            let store = cove_engine::storage::Store::open(house.data.path()).unwrap();
            eventually("no quota group is left over", || {
                cove_sys::btrfs::reclaim(fs::File::open(house.top()).unwrap()).unwrap();
                store.keep_house().unwrap();
                let ready = fs::read_dir(house.top().join("ready")).unwrap().count();
                store.counted_groups().unwrap() <= ready
            });
        }
    }
}

/// Run by the next test in a process of its own, which is killed.
#[test]
#[ignore = "forks without end until it is killed"]
fn a_child_that_forks_until_it_is_killed() {
    let Some(data) = std::env::var_os("COVE_TEST_DATA") else { return };
    let house = House { engine: house::open(data.as_ref()), data: tempfile::tempdir().unwrap() };
    let source = house.engine.found().unwrap().remove(0).id;
    let limits = house.engine.spec(&source).unwrap().unwrap().limits;
    loop {
        let forks: Vec<Spec> = (0..4).map(|_| Spec { limits, ..house.on_disk() }).collect();
        assert!(house.engine.forks(&source, &forks).iter().all(Result::is_ok));
    }
}

#[test]
fn a_fork_that_a_killed_engine_left_has_all_its_files() {
    for plain in [false, true] {
        let mut house = if plain { House::open_plain() } else { House::open() };
        let source = house.engine.launch(&house.on_disk()).unwrap().id;
        house.output(&source, "mkdir d && for n in $(seq 200); do echo $n > d/$n; done; sha256sum d/* > sum");
        let mut left = 0;
        for round in 0..6_u64 {
            let House { engine, data } = house;
            drop(engine);
            let mut child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "a_child_that_forks_until_it_is_killed", "--ignored", "--nocapture"])
                .env("COVE_TEST_DATA", data.path())
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            let top = data.path().join(if plain { "storage" } else { "pool" });
            let entries = |name: &str| fs::read_dir(top.join(name)).map_or(0, Iterator::count);
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(20) && entries("uppers") < 2 && entries("drafts") == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(round * 3));
            child.kill().unwrap();
            child.wait().unwrap();
            house = House { engine: house::open(data.path()), data };
            let found = house.engine.found().unwrap();
            let own = found.iter().find(|one| one.id == source).unwrap();
            assert!(own.running.is_some() && !own.paused, "the source runs: {found:?}");
            for one in found.iter().filter(|one| one.id != source) {
                left += 1;
                // Whoever asked for it asks again.
                if one.running.is_none() {
                    house.engine.launch(&Spec { id: one.id.clone(), ..house.on_disk() }).unwrap();
                }
                assert_eq!(house.output(&one.id, "sha256sum --check --quiet sum && ls d | wc -l"), "200");
                house.engine.destroy(&one.id).unwrap();
            }
            assert_eq!(fs::read_dir(house.top().join("drafts")).unwrap().count(), 0, "no draft of the dead is left");
        }
        println!("{left} forks were found after 6 kills");
        house.engine.destroy(&source).unwrap();
        house.assert_empty();
    }
}

#[test]
fn sizes_do_not_matter_for_a_capture_or_a_fork() {
    let house = House::open();
    let limits = Limits { disk: Some(2 << 30), memory: 512 << 20, ..house.spec().limits };
    let small = house.engine.launch(&Spec { limits, ..house.on_disk() }).unwrap().id;
    let large = house.engine.launch(&Spec { limits, ..house.on_disk() }).unwrap().id;
    let fill =
        "mkdir d && for n in $(seq 500); do head -c 1000000 /dev/zero | tr '\\0' x > d/$n; done; sync -f d; sync d/*";
    house.output(&large, fill);
    let time = |id: &SandboxId| {
        // What others write at the same time delays a commit: the best of some counts.
        let best = (0..8).map(|_| {
            let begun = Instant::now();
            house.engine.capture(id, &new_layer()).unwrap();
            begun.elapsed()
        });
        best.min().unwrap()
    };
    time(&large);
    let (of_small, of_large) = (time(&small), time(&large));
    let begun = Instant::now();
    let forks: Vec<Spec> = (0..8).map(|_| Spec { limits, ..house.on_disk() }).collect();
    assert!(house.engine.forks(&large, &forks).iter().all(Result::is_ok));
    println!("capture: {of_small:?} of nothing, {of_large:?} of 500 MB; 8 forks in {:?}", begun.elapsed());
    assert!(of_large < of_small * 4 + Duration::from_millis(40), "{of_small:?} {of_large:?}");
    let fork = &forks[0].id;
    assert_eq!(house.output(fork, "ls d | wc -l; cat d/7 | wc -c"), "500\n1000000");
    assert!(house.engine.usage(fork).unwrap().disk < 50 << 20, "what it has from its source is not its own");
    for id in forks.iter().map(|spec| &spec.id).chain([&small, &large]) {
        house.engine.destroy(id).unwrap();
    }
    house.assert_empty();
}

#[test]
fn nothing_of_the_host_gets_into_a_layer_through_a_link() {
    on_both(|house| {
        let id = house.engine.launch(&house.on_disk()).unwrap().id;
        as_root(house, &id, "ln -s /etc/shadow /srv/link; ln -s / /srv/host; ln -s /srv/nowhere /srv/dangling");
        let layer = new_layer();
        house.engine.capture(&id, &layer).unwrap();
        let path = house.top().join("layers").join(layer.to_string()).join("root/srv");
        for name in ["link", "host", "dangling"] {
            let told = fs::symlink_metadata(path.join(name)).unwrap();
            assert!(told.is_symlink() && told.uid() == 0, "{name}");
        }
        house.engine.destroy(&id).unwrap();
    });
}

#[test]
fn a_full_pool_is_reported_as_full_and_works_again_once_there_is_room() {
    let Some(disk) = cove_testkit::disk::Disk::new(500) else { return };
    let data = tempfile::Builder::new().prefix("d-").tempdir_in(disk.path()).unwrap();
    let house = House { engine: house::open(data.path()), data };
    let limits = Limits { disk: None, ..house.spec().limits };
    let spec = Spec { limits, ..house.on_disk() };
    house.engine.launch(&spec).unwrap();
    house.output(&spec.id, "echo kept > ~/kept");
    house.output(&spec.id, "mkdir ballast");
    let fill = |number: u32| {
        house.run(&spec.id, &format!("dd if=/dev/zero of=ballast/{number} bs=1M count=20 conv=fsync 2>&1"))
    };
    let full = (0..100).map(fill).find(|ran| ran.code != 0).expect("a small disk is full in the end");
    assert!(full.stdout.contains("No space left"), "{full:?}");
    // A capture may still find room for the little it needs, or says that there is none.
    for _ in 0..4 {
        match house.engine.capture(&spec.id, &new_layer()) {
            Ok(_) => {}
            Err(error) => assert!(error.is_full(), "{error}"),
        }
    }
    let draft = house.engine.draft(None).and_then(|draft| {
        drop(draft.root()?);
        let written = fs::File::create(draft.path().join("root/large")).and_then(|mut file| {
            std::io::Write::write_all(&mut file, &vec![1; 64 << 20]).and_then(|()| file.sync_all())
        });
        written.map_err(Error::file("write", draft.path()))
    });
    assert!(draft.as_ref().is_err_and(Error::is_full), "{draft:?}");
    assert!(house.answers(&spec.id));
    house.output(&spec.id, "rm -r ballast");
    for layer in house.engine.layers().unwrap() {
        house.engine.remove_layer(&layer).unwrap();
    }
    let layer = new_layer();
    eventually("there is room again", || house.engine.capture(&spec.id, &layer).is_ok());
    let other = house.engine.launch(&Spec { root: over(&[layer]), limits, ..house.on_disk() }).unwrap().id;
    assert_eq!(house.output(&other, "cat ~/kept"), "kept");
    for id in [&spec.id, &other] {
        house.engine.destroy(id).unwrap();
    }
    house.assert_empty();
    drop(house);
}
