//! Volumes: storage that outlives sandboxes, in several of them at once.

mod house;

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cove_engine::spec::{Access, Mount, Source};
use cove_engine::{Error, Spec, VolumeId};
use house::House;

fn new_volume() -> VolumeId {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("v{:09}{:010}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)).parse().unwrap()
}

fn mount(volume: &VolumeId, subpath: Option<&str>, target: &str, access: Access) -> Mount {
    let source = Source::Volume { volume: volume.clone(), subpath: subpath.map(PathBuf::from) };
    Mount { source, target: target.into(), access }
}

fn with(house: &House, mounts: Vec<Mount>) -> Spec {
    Spec { mounts, ..house.on_disk() }
}

#[test]
fn two_sandboxes_share_a_volume_with_owners_locks_and_what_is_written() {
    for house in [House::open(), House::open_plain()] {
        let volume = new_volume();
        house.engine.make_volume(&volume, (!house.is_plain()).then_some(64 << 20)).unwrap();
        assert!(matches!(house.engine.make_volume(&volume, None), Err(Error::VolumeExists(_))));
        let specs = [(); 2].map(|()| with(&house, vec![mount(&volume, None, "/data", Access::ReadWrite)]));
        for spec in &specs {
            house.engine.launch(spec).unwrap();
        }
        let [one, two] = [&specs[0].id, &specs[1].id];
        house.output(one, "echo from one > /data/file; sudo -n sh -c 'echo r > /data/roots; chmod 600 /data/roots'");
        assert_eq!(
            house.output(two, "cat /data/file; stat -c '%U %a' /data/file /data/roots"),
            "from one\nuser 644\nroot 600"
        );
        assert_ne!(house.run(two, "cat /data/roots").code, 0);
        // A lock in one keeps the other out.
        house.output(
            one,
            "nohup flock /data/lock sleep 60 >/dev/null 2>&1 & while ! [ -e /data/lock ]; do :; done; sleep 0.3",
        );
        assert_ne!(house.run(two, "flock -n /data/lock true").code, 0, "the other one has it");
        house.engine.destroy(one).unwrap();
        house::eventually("the lock goes with its sandbox", || house.run(two, "flock -n /data/lock true").code == 0);
        // Renames, maps and links are as on any disk; set-user-id and devices mean nothing.
        house.output(two, "cd /data && mv file moved && ln moved again && ln -s moved soft && cat soft");
        house.output(two, "sudo -n cp /usr/bin/id /data/id && sudo -n chmod 4755 /data/id");
        assert_eq!(house.output(two, "/data/id -u"), "1000", "nosuid");
        assert_eq!(house.output(two, "cat /data/file 2>/dev/null || cat /data/moved"), "from one");

        assert!(matches!(house.engine.remove_volume(&volume), Err(Error::VolumeInUse(_))));
        house.engine.stop(two, Duration::from_secs(5)).unwrap();
        let used = house.engine.volume_usage(&volume).unwrap();
        assert!(used.bytes > 0, "{used:?}");
        assert_eq!(house.engine.volumes().unwrap(), std::slice::from_ref(&volume));
        // Its files outlive all of them, and a sandbox that comes back has them again.
        house.engine.launch(&specs[1]).unwrap();
        assert_eq!(house.output(two, "cat /data/again"), "from one");
        house.engine.destroy(two).unwrap();
        house.engine.remove_volume(&volume).unwrap();
        house.engine.remove_volume(&volume).expect("gone already is fine");
        let error = house.engine.launch(&with(&house, vec![mount(&volume, None, "/data", Access::ReadWrite)]));
        assert!(matches!(error, Err(Error::VolumeMissing(id)) if id == volume));
        house.assert_empty();
    }
}

#[test]
fn a_volume_has_a_limit_that_can_be_moved() {
    let house = House::open();
    let volume = new_volume();
    house.engine.make_volume(&volume, Some(20 << 20)).unwrap();
    let id = house.engine.launch(&with(&house, vec![mount(&volume, None, "/data", Access::ReadWrite)])).unwrap().id;
    let write = |name: &str| format!("dd if=/dev/urandom of=/data/{name} bs=1M count=30 conv=fsync 2>&1");
    let ran = house.run(&id, &write("a"));
    assert!(ran.code != 0 && ran.stdout.contains("quota"), "{ran:?}");
    house.output(&id, "echo own > ~/file");
    house.engine.resize_volume(&volume, Some(80 << 20)).unwrap();
    house.output(&id, &write("b"));
    let error = house.engine.resize_volume(&volume, Some(10 << 20)).unwrap_err().to_string();
    assert!(error.contains("below the"), "{error}");
    house.engine.destroy(&id).unwrap();
    house.engine.remove_volume(&volume).unwrap();
    house.assert_empty();
}

/// Asks for BTRFS_IOC_SUBVOL_CREATE, its second version, and BTRFS_IOC_SYNC.
const ASK: &str = r"
import fcntl, os
top = os.open('/two', os.O_RDONLY)
for request in (0x5000940e, 0x50009418, 0x9408):
    start = 8 if request == 0x5000940e else 56
    words = bytearray(4096)
    words[start:start + 3] = b'sub'
    try: fcntl.ioctl(top, request, words)
    except OSError as error: print(error.errno)
    else: print('done')
print(os.listdir('/two'))
";

/// A subvolume that a sandbox made, or blocks of another volume, would be on nobody's account.
#[test]
fn nothing_in_a_volume_is_outside_of_its_limit() {
    let house = House::open();
    let volumes = [new_volume(), new_volume()];
    for volume in &volumes {
        house.engine.make_volume(volume, Some(20 << 20)).unwrap();
    }
    let mounts = [("/one", &volumes[0]), ("/two", &volumes[1])]
        .map(|(target, volume)| mount(volume, None, target, Access::ReadWrite))
        .to_vec();
    let id = house.engine.launch(&with(&house, mounts)).unwrap().id;
    for user in [None, Some("root")] {
        let ran = house.run_as(&id, user, &format!("python3 - <<'END'{ASK}END"));
        assert_eq!(ran.stdout.trim(), "1\n1\n1\n[]", "{ran:?}");
    }
    house.output(&id, "dd if=/dev/urandom of=/one/file bs=1M count=15 conv=fsync 2>&1");
    assert_ne!(house.run(&id, "cp --reflink=always /one/file /two/shared").code, 0);
    house.output(&id, "rm -f /two/shared; cp /one/file /two/file; cmp /one/file /two/file; sync /two/file");
    let used = house.engine.volume_usage(&volumes[1]).unwrap().bytes;
    assert!(used >= 15 << 20, "a copy is on the account of who has it: {used}");
    let ran = house.run(&id, "cp /one/file /two/more");
    assert!(ran.code != 0, "{ran:?}");
    house.engine.destroy(&id).unwrap();
    for volume in &volumes {
        house.engine.remove_volume(volume).unwrap();
    }
    house.assert_empty();
}

#[test]
fn a_read_only_mount_is_not_written_and_two_parts_of_a_volume_are_two_mounts() {
    let house = House::open();
    let volume = new_volume();
    house.engine.make_volume(&volume, Some(20 << 20)).unwrap();
    let mounts = vec![
        mount(&volume, Some("team/a"), "/data/a", Access::ReadWrite),
        mount(&volume, Some("team"), "/look", Access::ReadOnly),
    ];
    let id = house.engine.launch(&with(&house, mounts)).unwrap().id;
    assert_eq!(house.output(&id, "echo x > /data/a/file; cat /look/a/file; stat -c %U /data/a"), "x\nuser");
    let ran = house.run_as(
        &id,
        Some("root"),
        "echo y > /look/a/file || touch /look/new || mkdir /look/a/d || mount -o remount,rw /look",
    );
    assert_ne!(ran.code, 0, "{ran:?}");
    assert_eq!(house.output(&id, "cat /data/a/file"), "x");
    house.engine.destroy(&id).unwrap();
    house.engine.remove_volume(&volume).unwrap();
    house.assert_empty();
}

#[test]
fn a_subpath_cannot_leave_its_volume() {
    let house = House::open();
    let (volume, other) = (new_volume(), new_volume());
    for volume in [&volume, &other] {
        house.engine.make_volume(volume, Some(20 << 20)).unwrap();
    }
    let path = house.top().join("volumes").join(other.as_str());
    fs::write(path.join("theirs"), "secret").unwrap();
    let refused = |subpath: &str| {
        let spec = with(&house, vec![mount(&volume, Some(subpath), "/data", Access::ReadWrite)]);
        house.engine.launch(&spec).unwrap_err().to_string()
    };
    for subpath in ["..", "a/../..", "/etc", "a/../../b", "."] {
        assert!(refused(subpath).contains("plain path"), "{subpath}: {}", refused(subpath));
    }
    // What a sandbox left in it leads nowhere.
    let own = house.top().join("volumes").join(volume.as_str());
    symlink("/etc", own.join("absolute")).unwrap();
    symlink(format!("../{other}"), own.join("beside")).unwrap();
    symlink("inner", own.join("harmless")).unwrap();
    fs::create_dir(own.join("inner")).unwrap();
    fs::write(own.join("file"), "").unwrap();
    for subpath in ["absolute", "beside", "absolute/ssl", "harmless", "file", "file/x"] {
        let error = refused(subpath);
        assert!(error.contains("in a volume"), "{subpath}: {error}");
    }
    assert_eq!(own.metadata().unwrap().mode() & 0o777, 0o777);
    // By descriptor alone: what a link leads to is never opened.
    let root = house.engine.volume_root(&volume).unwrap();
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NOFOLLOW;
    assert!(rustix::fs::openat(&root, "absolute", flags, rustix::fs::Mode::empty()).is_err());
    assert!(matches!(house.engine.volume_root(&new_volume()), Err(Error::VolumeMissing(_))));
    for volume in [&volume, &other] {
        house.engine.remove_volume(volume).unwrap();
    }
    house.assert_empty();
}

#[test]
fn volumes_are_found_again_and_are_no_part_of_a_capture() {
    let mut house = House::open();
    let volume = new_volume();
    house.engine.make_volume(&volume, Some(20 << 20)).unwrap();
    let spec = with(&house, vec![mount(&volume, None, "/data", Access::ReadWrite)]);
    house.engine.launch(&spec).unwrap();
    house.output(&spec.id, "echo in the volume > /data/file; echo own > ~/file");
    house = house.reopen();
    assert!(house.engine.found().unwrap()[0].running.is_some());
    assert!(matches!(house.engine.remove_volume(&volume), Err(Error::VolumeInUse(_))));
    assert_eq!(house.output(&spec.id, "cat /data/file"), "in the volume");
    let fork = house.on_disk();
    house.engine.fork(&spec.id, &fork).unwrap();
    assert_eq!(house.output(&fork.id, "cat ~/file; ls /data"), "own");
    for id in [&spec.id, &fork.id] {
        house.engine.destroy(id).unwrap();
    }
    house.engine.remove_volume(&volume).unwrap();
    house.assert_empty();
}
