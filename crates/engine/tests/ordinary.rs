//! Captures, forks and volumes of an ordinary user: plain directories, copies, no control groups. Its own `main`: a process
//! moves into a user namespace before it has threads.

mod house;

use std::os::unix::fs::chown;
use std::process::Command;
use std::time::Duration;

use cove_engine::spec::{Access, Limits, Mount, Root, Source, Storage};
use cove_engine::{Config, Engine, Limit, Spawning, Spec, VolumeId};
use house::{House, new_layer};

const NAME: &str = "an_ordinary_users_files_are_captured_forked_rolled_back_and_shared";
const USER: &str = "--as-user";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    match arguments.first().map(String::as_str) {
        Some(USER) => story(),
        _ if has("--list") && has("--ignored") => {}
        _ if has("--list") => println!("{NAME}: test"),
        _ => become_user(),
    }
}

/// As somebody without a name, a group or any capability.
fn become_user() {
    if !rustix::process::geteuid().is_root() {
        return story();
    }
    let uid = 200_000 + std::process::id();
    let place = tempfile::Builder::new().prefix("cove-user-").tempdir().unwrap();
    chown(place.path(), Some(uid), Some(uid)).unwrap();
    // The build directory may be closed to others.
    let program = place.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let id = uid.to_string();
    let ended = Command::new("setpriv")
        .args(["--reuid", &id, "--regid", &id, "--clear-groups", "--inh-caps=-all"])
        .arg(program)
        .arg(USER)
        .env("TMPDIR", place.path())
        .env("HOME", place.path())
        .current_dir(place.path())
        .status()
        .unwrap();
    assert!(ended.success(), "{ended}");
}

fn story() {
    let data = tempfile::Builder::new().prefix("d-").tempdir().unwrap();
    let waived = Limit::ALL.to_vec();
    let config = Config { data: data.path().to_owned(), spawning: Spawning::Inline, pool: 0, layers: None, waived };
    let house = House { engine: Engine::open(config).unwrap(), data };
    let on_disk = || {
        let spec = house.spec();
        Spec { storage: Storage::Disk, limits: Limits { disk: None, ..spec.limits }, ..spec }
    };
    let spec = on_disk();
    let id = &spec.id;
    house.engine.launch(&spec).unwrap();
    house.engine.settle().unwrap();
    house.output(id, "echo one > ~/state; ln ~/state ~/linked; rm /etc/os-release; rm -rf /opt/cove; mkdir /opt/cove");
    // There may be no control group to freeze: its processes are stopped for a moment, and go on.
    let running = new_layer();
    house.engine.capture(id, &running).unwrap();
    assert_eq!(house.output(id, "cat ~/state"), "one");
    let twin = on_disk();
    house.engine.fork(id, &twin).unwrap();
    assert_eq!(house.output(&twin.id, "cat ~/state"), "one");
    assert_eq!(house.output(id, "cat ~/state"), "one");
    house.engine.stop(id, Duration::from_secs(5)).unwrap();
    let (checkpoint, replaced) = (new_layer(), new_layer());
    house.engine.capture(id, &checkpoint).unwrap();

    let check = "cat ~/state; stat -c %h ~/linked; ls /etc/os-release 2>/dev/null; ls -A /opt/cove | wc -l";
    let other = Spec { root: Root { over: vec![checkpoint], ..Root::base() }, ..on_disk() };
    house.engine.launch(&other).unwrap();
    assert_eq!(house.output(&other.id, check), "one\n2\n0");
    let fork = on_disk();
    house.engine.fork(id, &fork).unwrap();
    assert_eq!(house.output(&fork.id, check), "one\n2\n0");
    house.output(&fork.id, "echo fork > ~/state");

    house.engine.launch(&spec).unwrap();
    house.output(id, "echo two > ~/state");
    house.engine.stop(id, Duration::from_secs(5)).unwrap();
    house.engine.rollback(id, &checkpoint, &replaced).unwrap();
    house.engine.launch(&spec).unwrap();
    assert_eq!(house.output(id, check), "one\n2\n0");

    let volume: VolumeId = "v".repeat(20).parse().unwrap();
    assert!(house.engine.make_volume(&volume, Some(1 << 20)).is_err(), "nothing here holds a limit");
    house.engine.make_volume(&volume, None).unwrap();
    let source = Source::Volume { volume: volume.clone(), subpath: Some("a/b".into()) };
    let mounts = vec![Mount { source, target: "/data".into(), access: Access::ReadWrite }];
    let both = [(); 2].map(|()| Spec { mounts: mounts.clone(), ..on_disk() });
    for spec in &both {
        house.engine.launch(spec).unwrap();
    }
    house.output(&both[0].id, "echo shared > /data/file");
    assert_eq!(house.output(&both[1].id, "cat /data/file"), "shared");
    for id in [id, &twin.id, &other.id, &fork.id, &both[0].id, &both[1].id] {
        house.engine.destroy(id).unwrap();
    }
    for layer in [&running, &checkpoint, &replaced] {
        house.engine.remove_layer(layer).unwrap();
    }
    house.engine.remove_volume(&volume).unwrap();
    let left = |name: &str| std::fs::read_dir(house.data.path().join("storage").join(name)).unwrap().count();
    house::eventually("nothing is left", || {
        ["uppers", "drafts", "trash", "volumes"].map(left).iter().sum::<usize>() == 0
    });
}
