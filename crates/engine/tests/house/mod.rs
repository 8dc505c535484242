//! An engine in a directory of its own, which must be empty at the end.

#![allow(dead_code, reason = "each test file uses its part of the house")]

use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cove_engine::spec::{Durability, Limits, Network, Root, Storage};
use cove_engine::{Config, Engine, LayerId, SandboxId, Spawning, Spec};
use cove_protocol::process::{Command, Spec as ProcessSpec};
use cove_protocol::{Event, Failure, FrameError, Kind, Request, frame};

pub struct House {
    pub engine: Engine,
    pub data: tempfile::TempDir,
}

/// How a command ended.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out_of_memory: bool,
    pub stdout: String,
    pub stderr: String,
}

/// Why a command's end was not seen.
#[derive(Debug, PartialEq, Eq)]
pub enum Lost {
    /// The sandbox ended before it.
    Gone,
    Refused(String),
}

impl House {
    pub fn open() -> House {
        let data = tempfile::Builder::new().prefix("cove-house-").tempdir().unwrap();
        House { engine: open(data.path()), data }
    }

    /// On plain directories, as where no pool can be made: nothing holds a disk limit, and copies are copies.
    pub fn open_plain() -> House {
        let data = tempfile::Builder::new().prefix("cove-house-").tempdir().unwrap();
        // In the way of the pool's image.
        std::fs::create_dir(data.path().join("pool.btrfs.new")).unwrap();
        House { engine: open(data.path()), data }
    }

    /// A sandbox with files on disk.
    pub fn on_disk(&self) -> Spec {
        let disk = (!self.is_plain()).then_some(256 << 20);
        let spec = self.spec();
        Spec { storage: Storage::Disk, limits: Limits { disk, ..spec.limits }, ..spec }
    }

    pub fn is_plain(&self) -> bool {
        self.data.path().join("pool.btrfs.new").exists()
    }

    /// Where uppers, layers and volumes are.
    pub fn top(&self) -> PathBuf {
        self.data.path().join(if self.is_plain() { "storage" } else { "pool" })
    }

    /// The engine dies and another takes its place.
    pub fn reopen(self) -> House {
        let House { engine, data } = self;
        drop(engine);
        House { engine: open(data.path()), data }
    }

    /// The plainest sandbox there is.
    pub fn spec(&self) -> Spec {
        Spec {
            id: new_id(),
            root: Root::base(),
            storage: Storage::Memory,
            durability: Durability::default(),
            limits: Limits { memory: 256 << 20, disk: Some(64 << 20), ..Limits::default() },
            network: Network::None,
            mounts: Vec::new(),
            hostname: "house".into(),
            env: Default::default(),
            default_user: "user".into(),
            default_cwd: None,
        }
    }

    pub fn launch(&self) -> SandboxId {
        self.engine.launch(&self.spec()).unwrap().id
    }

    pub fn connect(&self, id: &SandboxId) -> std::io::Result<UnixStream> {
        let stream = UnixStream::connect(self.engine.socket(id))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(stream)
    }

    pub fn answers(&self, id: &SandboxId) -> bool {
        let Ok(mut stream) = self.connect(id) else { return false };
        frame::write_json(&mut stream, Kind::Request, &Request::Ping).is_ok()
            && matches!(frame::read(&mut stream), Ok(Some(answer)) if answer.kind == Kind::Reply)
    }

    /// Runs a line of shell as the sandbox's default user.
    pub fn run(&self, id: &SandboxId, line: &str) -> Ran {
        self.run_as(id, None, line)
    }

    pub fn run_as(&self, id: &SandboxId, user: Option<&str>, line: &str) -> Ran {
        self.try_run(id, user, line).unwrap_or_else(|lost| panic!("{line}: {lost:?}"))
    }

    /// For a sandbox that may not live to see the command's end.
    pub fn try_run(&self, id: &SandboxId, user: Option<&str>, line: &str) -> Result<Ran, Lost> {
        let command = Command::Argv(vec!["/bin/sh".into(), "-c".into(), line.into()]);
        let spec = ProcessSpec { user: user.map(str::to_owned), ..ProcessSpec::new(command) };
        let mut stream = self.connect(id).map_err(|_| Lost::Gone)?;
        frame::write_json(&mut stream, Kind::Request, &Request::Start(spec)).map_err(|_| Lost::Gone)?;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        loop {
            let frame = match frame::read(&mut stream) {
                Ok(frame) => frame.ok_or(Lost::Gone)?,
                Err(FrameError::Io(error)) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return Err(Lost::Gone);
                }
                Err(error) => panic!("{line}: {error}"),
            };
            match frame.kind {
                Kind::Stdout => out.extend(frame.payload),
                Kind::Stderr => err.extend(frame.payload),
                Kind::Failure => return Err(Lost::Refused(frame.parse::<Failure>().unwrap().message)),
                Kind::Event => {
                    if let Event::Exited { exit } = frame.parse().unwrap() {
                        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                        let (code, out_of_memory) = (exit.status(), exit.out_of_memory);
                        return Ok(Ran { code, out_of_memory, stdout: text(out), stderr: text(err) });
                    }
                }
                _ => {}
            }
        }
    }

    /// What a command prints; it must succeed.
    pub fn output(&self, id: &SandboxId, line: &str) -> String {
        let ran = self.run(id, line);
        assert_eq!(ran.code, 0, "{line}: {ran:?}");
        ran.stdout.trim_end().to_owned()
    }

    /// No record, no cgroup, no file of a sandbox is left.
    pub fn assert_empty(&self) {
        let list = |path: PathBuf| -> Vec<PathBuf> {
            std::fs::read_dir(path).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
        };
        assert_eq!(list(self.data.path().join("sandboxes")), Vec::<PathBuf>::new(), "records");
        eventually("the trash is emptied", || list(self.top().join("trash")).is_empty());
        assert_eq!(list(self.top().join("uppers")), Vec::<PathBuf>::new(), "uppers");
        assert_eq!(list(self.top().join("drafts")), Vec::<PathBuf>::new(), "drafts");
        let realm = std::fs::read_to_string(self.data.path().join("realm")).unwrap();
        for hierarchy in list("/sys/fs/cgroup".into()) {
            let named = |path: &PathBuf| Some(path.file_name()?.to_str()?.parse::<SandboxId>().is_ok());
            let sandbox = |path: &PathBuf| named(path) == Some(true);
            let groups: Vec<_> = list(hierarchy.join(&realm)).into_iter().filter(sandbox).collect();
            assert_eq!(groups, Vec::<PathBuf>::new(), "cgroups");
        }
    }
}

pub fn open(data: &Path) -> Engine {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_cove-spawner"));
    let spawning = Spawning::Processes { count: NonZeroUsize::MIN, program };
    Engine::open(Config { data: data.to_owned(), spawning, pool: 2, layers: None, waived: Vec::new() }).unwrap()
}

pub fn new_id() -> SandboxId {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("t{:09}{number:010}", std::process::id()).parse().unwrap()
}

pub fn new_layer() -> LayerId {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&std::process::id().to_be_bytes());
    bytes[24..].copy_from_slice(&COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    LayerId::new(bytes)
}

/// Waits for what must come true, ten seconds at most.
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    within(Duration::from_secs(10), what, holds);
}

/// Waits for what must come true in this time.
pub fn within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
