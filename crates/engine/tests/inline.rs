//! An engine inside a process with one thread, as `cove run` has it. Its own `main`: the usual one has threads.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cove_engine::spec::{Durability, Limits, Network, Root, Storage};
use cove_engine::{Config, Engine, SandboxId, Spawning, Spec};

const NAME: &str = "a_killed_inline_engine_takes_its_sandbox_along_and_the_next_one_clears_up";
const VICTIM: &str = "--victim";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    match arguments.first().map(String::as_str) {
        Some(VICTIM) => victim(Path::new(&arguments[1])),
        _ if has("--list") && has("--ignored") => {}
        _ if has("--list") => println!("{NAME}: test"),
        _ => story(),
    }
}

fn story() {
    let data = tempfile::Builder::new().prefix("cove-inline-").tempdir().unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args([VICTIM.as_ref(), data.path().as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(victim.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid: u32 = line.trim().parse().unwrap();
    assert!(Path::new(&format!("/proc/{pid}")).exists());

    victim.kill().unwrap();
    victim.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(15);
    let runs = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    while runs() {
        assert!(Instant::now() < deadline, "the sandbox outlived its engine");
        std::thread::sleep(Duration::from_millis(10));
    }

    let records = || std::fs::read_dir(data.path().join("sandboxes")).unwrap().count();
    assert_eq!(records(), 1, "nobody was there to clear up");
    let engine = open(data.path());
    assert_eq!(records(), 0, "the next engine clears up");
    let spec = spec();
    let sandbox = engine.launch(&spec).unwrap();
    assert_eq!(threads(), 1, "a short command's engine does without");
    engine.destroy(&spec.id).unwrap();
    assert!(!Path::new(&format!("/proc/{}", sandbox.pid)).exists(), "nobody else waits for it");
    assert_eq!(records(), 0);

    engine.launch(&spec).unwrap();
    engine.settle().unwrap();
    assert!(threads() > 1, "a longer one is watched");
    engine.retire();
    let refused = engine.launch(&Spec { id: "r".repeat(SandboxId::LENGTH).parse().unwrap(), ..spec.clone() });
    assert!(refused.unwrap_err().to_string().contains("spawner"), "no launch follows");
    engine.destroy(&spec.id).unwrap();
    assert_eq!(records(), 0);
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Launches, says the pid, and waits to be killed.
fn victim(data: &Path) {
    let engine = open(data);
    println!("{}", engine.launch(&spec()).unwrap().pid);
    let mut forever = String::new();
    std::io::stdin().read_line(&mut forever).unwrap();
}

fn open(data: &Path) -> Engine {
    Engine::open(Config {
        data: data.to_owned(),
        spawning: Spawning::Inline,
        pool: 0,
        layers: None,
        waived: Vec::new(),
    })
    .unwrap()
}

fn spec() -> Spec {
    let id: SandboxId = format!("i{:019}", std::process::id()).parse().unwrap();
    Spec {
        id,
        root: Root::base(),
        storage: Storage::Memory,
        durability: Durability::default(),
        limits: Limits { memory: 128 << 20, disk: Some(32 << 20), ..Limits::default() },
        network: Network::None,
        mounts: Vec::new(),
        hostname: "inline".into(),
        env: Default::default(),
        default_user: "user".into(),
        default_cwd: None,
    }
}
