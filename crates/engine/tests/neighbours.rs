//! One sandbox does its worst; its neighbour works on, and nothing is left of either.

mod house;

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use cove_engine::spec::Limits;
use cove_engine::{SandboxId, Spec};
use cove_protocol::process::{Command, Spec as ProcessSpec};
use cove_protocol::{Event, Kind, Request, frame};
use house::House;

/// What a neighbour's command may take while the other rages; alone it takes milliseconds.
const WELL: Duration = Duration::from_secs(5);

/// Runs a program of Python's that prints `refused` at its limit and goes on, or is killed there; meanwhile and afterwards the neighbour is asked
/// for work.
fn rages(name: &str, program: &str) {
    let house = House::open();
    let limits = Limits { memory: 128 << 20, pids: 64, disk: Some(32 << 20), ..Limits::default() };
    let wild = house.engine.launch(&Spec { limits, ..house.spec() }).unwrap().id;
    let neighbour = house.launch();
    let alone = worst_of_ten(&house, &neighbour);
    let mut stream = start(&house, &wild, program);
    meet_the_limit(&mut stream, name);
    let beside = worst_of_ten(&house, &neighbour);
    println!("{name}: the neighbour's slowest of ten commands took {alone:?} alone, {beside:?} beside it");
    house.engine.destroy(&wild).unwrap();
    assert_eq!(house.output(&neighbour, "echo well"), "well");
    house.engine.destroy(&neighbour).unwrap();
    house.assert_empty();
}

fn worst_of_ten(house: &House, id: &SandboxId) -> Duration {
    let one = || {
        let began = Instant::now();
        assert_eq!(house.output(id, "echo well"), "well");
        began.elapsed()
    };
    let worst = (0..10).map(|_| one()).max().unwrap_or_default();
    assert!(worst < WELL, "the neighbour waited {worst:?}");
    worst
}

fn start(house: &House, id: &SandboxId, program: &str) -> UnixStream {
    let command = Command::Argv(["/usr/bin/python3", "-c", program].map(str::to_owned).to_vec());
    let mut stream = house.connect(id).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    frame::write_json(&mut stream, Kind::Request, &Request::Start(ProcessSpec::new(command))).unwrap();
    stream
}

fn meet_the_limit(stream: &mut UnixStream, name: &str) {
    while let Some(frame) = frame::read(stream).unwrap_or_else(|error| panic!("{name}: {error}")) {
        match frame.kind {
            Kind::Stdout => return,
            Kind::Event if matches!(frame.parse(), Ok(Event::Exited { .. })) => return,
            Kind::Failure => panic!("{name}: {frame:?}"),
            _ => {}
        }
    }
    panic!("{name}: the sandbox ended");
}

/// Each breaks off the first time it is refused, says so, and tries for ever.
fn until_refused(step: &str) -> String {
    format!(
        "import os\nkept, told = [], False\nwhile True:\n try:\n  {step}\n except (OSError, MemoryError):\n  \
         if not told: os.write(1, b'refused'); told = True\n"
    )
}

#[test]
fn a_fork_bomb() {
    rages("fork bomb", &until_refused("os.fork()"));
}

#[test]
fn a_memory_bomb() {
    rages("memory bomb", "kept = []\nwhile True: kept.append(bytearray(8 << 20))");
}

#[test]
fn a_zip_bomb() {
    let program = "import zlib\ncompress = zlib.compressobj(1)\n\
        bomb = b''.join(compress.compress(bytes(1 << 20)) for _ in range(600)) + compress.flush()\nzlib.decompress(bomb)";
    rages("zip bomb", program);
}

#[test]
fn a_filled_disk() {
    rages(
        "disk fill",
        &until_refused(
            "os.write(kept[0] if kept else kept.append(os.open('/tmp/fill', 65)) or kept[0], bytes(1 << 20))",
        ),
    );
}

#[test]
fn a_flood_of_files() {
    rages("inode fill", &until_refused("os.close(os.open('/tmp/%d' % len(kept), 65)); kept.append(None)"));
}

#[test]
fn a_flood_of_descriptors() {
    rages("descriptor flood", &until_refused("kept.append(os.open('/dev/null', 0))"));
}

#[test]
fn filled_shared_memory() {
    rages(
        "/dev/shm fill",
        &until_refused(
            "os.write(kept[0] if kept else kept.append(os.open('/dev/shm/fill', 65)) or kept[0], bytes(1 << 20))",
        ),
    );
}

/// Nobody reads it.
#[test]
fn endless_output() {
    rages("endless output", "import os\nwhile True: os.write(1, bytes(1 << 16))");
}
