//! What a launch costs on a warm engine, against fork and exec of a program in the same run.
//!
//! `cargo bench -p cove-engine --bench launch`, as root. Rounds are interleaved, so that a busy moment of the machine hits
//! all rows alike: ratios within one run are what counts. Then so many creators at a time make and destroy sandboxes as
//! fast as they can.

use std::io::Read;
use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cove_engine::spec::{Durability, Limits, Network, Root, Storage};
use cove_engine::{Config, Engine, SandboxId, Spawning, Spec};
use cove_protocol::process::{Command, Spec as ProcessSpec};
use cove_protocol::{Event, Kind, Request, frame};

const ROUNDS: usize = 300;
/// Dropped: caches fill, pools settle.
const WARM_UP: usize = 10;
const THROUGHPUT: usize = 400;
const POOL: usize = 64;

fn main() {
    // `cargo test --benches` only wants to know that it runs.
    let full = std::env::args().any(|argument| argument == "--bench");
    let (rounds, throughput) = if full { (ROUNDS, THROUGHPUT) } else { (2, 8) };
    // On the disk: what a tmpfs of a distribution's /tmp would hide.
    let data = tempfile::Builder::new().prefix("cove-bench-").tempdir_in("/var/tmp").expect("a directory");
    let engine = open(data.path());

    println!("one at a time, {rounds} rounds      p50 us     p99 us   ratio");
    let [mut exec, mut memory, mut disk, mut first_output, mut destroy] = [const { Vec::new() }; 5];
    for round in 0..rounds + WARM_UP {
        let keep = |times: &mut Vec<Duration>, time| {
            if round >= WARM_UP {
                times.push(time);
            }
        };
        keep(&mut exec, timed(fork_and_exec));
        let spec = spec(Storage::Memory);
        keep(&mut memory, timed(|| drop(engine.launch(&spec).expect("launch"))));
        keep(&mut first_output, timed(|| run(&engine, &spec.id)));
        keep(&mut destroy, timed(|| engine.destroy(&spec.id).expect("destroy")));
        let spec = self::spec(Storage::Disk);
        keep(&mut disk, timed(|| drop(engine.launch(&spec).expect("launch"))));
        engine.destroy(&spec.id).expect("destroy");
    }
    let baseline = percentile(&mut exec, 50);
    for (name, times) in [
        ("fork and exec of true", &mut exec),
        ("launch, files in memory", &mut memory),
        ("launch, files on disk", &mut disk),
        ("true in a live sandbox", &mut first_output),
        ("destroy", &mut destroy),
    ] {
        let (half, most) = (percentile(times, 50), percentile(times, 99));
        println!("{name:<30}{:>9}{:>11}{:>8.2}", half.as_micros(), most.as_micros(), ratio(half, baseline));
    }

    println!("\ncreate and destroy, {throughput} in all, per second");
    for creators in [1, 2, 4, 8] {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..creators {
                scope.spawn(|| {
                    for _ in 0..throughput / creators {
                        let spec = spec(Storage::Memory);
                        engine.launch(&spec).expect("launch");
                        engine.destroy(&spec.id).expect("destroy");
                    }
                });
            }
        });
        let sandboxes = throughput as f64 / began.elapsed().as_secs_f64();
        let began = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..creators {
                scope.spawn(|| (0..throughput / creators).for_each(|_| fork_and_exec()));
            }
        });
        let programs = throughput as f64 / began.elapsed().as_secs_f64();
        println!(
            "{creators} creators{sandboxes:>12.0} sandboxes{programs:>10.0} programs{:>8.3}",
            sandboxes / programs
        );
    }
}

fn open(data: &Path) -> Engine {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_cove-spawner"));
    let count = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let config = Config {
        data: data.to_owned(),
        spawning: Spawning::Processes { count, program },
        pool: POOL,
        layers: None,
        waived: Vec::new(),
    };
    Engine::open(config).expect("an engine")
}

fn spec(storage: Storage) -> Spec {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    Spec {
        id: format!("b{:09}{number:010}", std::process::id()).parse().expect("an id"),
        root: Root::base(),
        storage,
        durability: Durability::default(),
        limits: Limits { memory: 256 << 20, disk: Some(64 << 20), ..Limits::default() },
        network: Network::None,
        mounts: Vec::new(),
        hostname: "bench".into(),
        env: Default::default(),
        default_user: "user".into(),
        default_cwd: None,
    }
}

/// A command in a sandbox, to its exit.
fn run(engine: &Engine, id: &SandboxId) {
    let mut stream = UnixStream::connect(engine.socket(id)).expect("the guest's socket");
    let start = Request::Start(ProcessSpec::new(Command::Argv(vec!["/bin/true".into()])));
    frame::write_json(&mut stream, Kind::Request, &start).expect("a request");
    while let Some(frame) = frame::read(&mut stream).expect("a frame") {
        if frame.kind == Kind::Event && matches!(frame.parse(), Ok(Event::Exited { .. })) {
            return;
        }
    }
    panic!("the guest closed before the command ended");
}

fn fork_and_exec() {
    let mut child = std::process::Command::new("/bin/true").stdout(std::process::Stdio::piped()).spawn().expect("true");
    let mut nothing = Vec::new();
    child.stdout.take().map(|mut output| output.read_to_end(&mut nothing));
    child.wait().expect("its end");
}

fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

fn ratio(time: Duration, baseline: Duration) -> f64 {
    time.as_secs_f64() / baseline.as_secs_f64()
}
