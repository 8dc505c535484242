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

/// The number of the whole host is made small first, as it is on many a host: whoever opens an engine raises it.
#[test]
fn open_files_of_the_whole_host() {
    let read = |name: &str| -> Vec<u64> {
        let text = std::fs::read_to_string(format!("/proc/sys/fs/{name}")).unwrap();
        text.split_whitespace().map(|number| number.parse().unwrap()).collect()
    };
    // Less than the sandbox's memory has room for, and enough for everybody else.
    std::fs::write("/proc/sys/fs/file-max", (read("file-nr")[0] + 200_000).to_string()).unwrap();
    let flood = "import os\nfor _ in range(40):\n if os.fork() == 0: break\n\
        kept, told = [], False\nwhile True:\n try:\n  kept.append(os.open('/dev/null', 0))\n except (OSError, MemoryError):\n  \
        if not told: os.write(1, b'refused'); told = True\n";
    let raised = std::panic::catch_unwind(|| rages("open files of the host", flood));
    let number = read("file-max")[0];
    std::fs::write("/proc/sys/fs/file-max", i64::MAX.to_string()).unwrap();
    assert_eq!(number, i64::MAX.cast_unsigned(), "the engine raises the host's number");
    raised.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// As above: the default leaves 3,071 to all sandboxes together, and each may have 128.
#[test]
fn terminals_of_the_whole_host() {
    const NUMBER: &str = "/proc/sys/kernel/pty/max";
    std::fs::write(NUMBER, "4096").unwrap();
    rages("terminals", &until_refused("kept.append(os.openpty())"));
    assert_eq!(std::fs::read_to_string(NUMBER).unwrap().trim(), "1048576", "the engine raises the host's number");
}

/// No control group counts them: the process that holds them is ended.
#[test]
fn file_locks_without_end() {
    rages(
        "file locks",
        "import fcntl, os\nfiles = 0\nwhile True:\n files += 1\n fd = os.open('/tmp/%d' % files, 66)\n \
         for byte in range(500): fcntl.lockf(fd, fcntl.LOCK_EX, 1, 2 * byte)",
    );
}

/// They would stay with a descriptor in transit, where nobody finds them.
#[test]
fn locks_of_open_files() {
    rages(
        "locks of open files",
        &until_refused(
            "import fcntl, struct; kept = kept or [os.open('/tmp/locked', 66)]; \
             fcntl.fcntl(kept[0], 37, struct.pack('hhqqi4x', 1, 0, 0, 1, 0))",
        ),
    );
}

/// Nobody reads them, and no control group counts them: the process is ended. A refusal alone does not end it.
#[test]
fn answers_of_the_kernel_without_end() {
    rages(
        "unread answers",
        "import socket, struct, time\nask = struct.pack('=IHHII', 60000, 9999, 5, 1, 0) + bytes(59984)\nkept = []\n\
         while True:\n try:\n  kept.append(socket.socket(16, socket.SOCK_RAW, 0))\n  kept[-1].setblocking(False)\n  \
         kept[-1].bind((0, 0))\n  for _ in range(20): kept[-1].send(ask)\n \
         except (OSError, MemoryError): len(kept) > 4000 and time.sleep(0.1)",
    );
}

/// The kernel charges nobody for them before they are accepted. Nobody is refused anything, either.
#[test]
fn connections_that_nobody_accepts() {
    rages(
        "unaccepted connections",
        "import socket, time\nlisteners, piece = [], bytes(1 << 16)\nwhile True:\n try:\n  \
         listeners.append(socket.socket())\n  listeners[-1].bind(('127.0.0.1', 0))\n  listeners[-1].listen(4096)\n  \
         for _ in range(4000):\n   one = socket.socket()\n   one.settimeout(0.3)\n   \
         one.connect(listeners[-1].getsockname())\n   one.setblocking(False)\n   try: [one.send(piece) for _ in range(4)]\n   \
         except OSError: pass\n   one.close()\n \
         except (OSError, MemoryError): time.sleep(0.01)",
    );
}

/// On one file: with many the number of files is met first.
#[test]
fn large_attributes_of_files() {
    for name in ["system.posix_acl_access", "user.large"] {
        let rights = "b''.join(struct.pack('=HHI', *entry) for entry in [(1, 7, 0xffffffff)] + \
                      [(2, 7, 1000 + number) for number in range(4000)] + \
                      [(4, 5, 0xffffffff), (16, 7, 0xffffffff), (32, 5, 0xffffffff)])";
        let step = format!(
            "import struct; os.close(os.open('/dev/shm/one', 66)); \
             os.setxattr('/dev/shm/one', '{name}', struct.pack('=I', 2) + {rights})"
        );
        rages(name, &until_refused(&step));
    }
}

/// With one socket: many would meet another limit first.
#[test]
fn large_options_on_sockets() {
    rages(
        "socket options",
        &until_refused(
            "import socket, struct; option = struct.pack('=QII', 16000, 200, 99) + bytes(15984); \
             socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).setsockopt(41, 6, option)",
        ),
    );
}

/// They are left one by one, under a lock that every launch on the host needs. Memberships of one socket end with it.
#[test]
fn groups_of_receivers() {
    for (level, option) in [(0, 35), (0, 42), (41, 20), (41, 42)] {
        let step = format!(
            "import socket, struct; family = 2 if {level} == 0 else 10; \
             group = socket.inet_pton(family, '239.1.1.1' if family == 2 else 'ff02::77'); \
             address = struct.pack('=HH4s120x', 2, 0, group) if family == 2 else struct.pack('=HHI16s104x', 10, 0, 0, group); \
             value = struct.pack('=I4x', 1) + address if {option} == 42 else \
             group + (socket.inet_aton('127.0.0.1') if family == 2 else struct.pack('=I', 1)); \
             socket.socket(family, 2).setsockopt({level}, {option}, value)"
        );
        rages("groups of receivers", &until_refused(&step));
    }
}

/// Keys that routers sign with: one for each address, which nobody counts.
#[test]
fn keys_on_sockets() {
    rages(
        "keys on sockets",
        &until_refused(
            "import socket, struct; key = struct.pack('=H2x4s120xBBHi80s', 2, bytes(4), 0, 0, 5, 0, b'abcde'); \
             socket.socket().setsockopt(6, 14, key)",
        ),
    );
}

/// What one socket may keep of them; before Linux 6.8 the host's number is as small.
#[test]
fn small_options_on_sockets_are_few() {
    let house = House::open();
    let id = house.launch();
    let most = house.output(&id, "cat /proc/sys/net/core/optmem_max 2> /dev/null || echo absent");
    assert!(["20480", "absent"].contains(&most.as_str()), "{most}");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

/// Out of a memory that all of the host shares; a launch needs some of it.
#[test]
fn programs_on_sockets() {
    rages(
        "socket filters",
        &until_refused(
            "import socket, ctypes; kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)); \
             code = (ctypes.c_uint64 * 4096)(*([0x0000000000000006] * 4096)); \
             kept[-1].setsockopt(1, 26, (4096).to_bytes(8, 'little') + ctypes.addressof(code).to_bytes(8, 'little'))",
        ),
    );
}

#[test]
fn all_process_numbers_of_the_host() {
    let house = House::open();
    let all = Spec { limits: Limits { pids: 4 << 20, ..Limits::default() }, ..house.spec() };
    let error = house.engine.launch(&all).unwrap_err().to_string();
    assert!(error.contains("limits.pids") && error.contains("at most"), "{error}");
    house.assert_empty();
    // Whatever each of them may have, all together leave the host some.
    let realm = std::fs::read_to_string(house.data.path().join("realm")).unwrap();
    let bound = ["pids", "unified", ""].into_iter().find_map(|tree| {
        let text = std::fs::read_to_string(format!("/sys/fs/cgroup/{tree}/{realm}/pids.max")).ok()?;
        text.trim().parse::<u64>().ok()
    });
    let host: u64 = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap().trim().parse().unwrap();
    assert!(bound.is_some_and(|bound| bound <= host - 1024), "{bound:?} of {host}");
}

/// Nobody reads it.
#[test]
fn endless_output() {
    rages("endless output", "import os\nwhile True: os.write(1, bytes(1 << 16))");
}
