//! An engine in a directory of its own, which must be empty at the end.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cove_engine::spec::{Limits, Network, Root, Storage};
use cove_engine::{Config, Engine, SandboxId, Spawning, Spec};
use cove_protocol::{Kind, Request, frame};

pub struct House {
    pub engine: Engine,
    pub data: tempfile::TempDir,
}

impl House {
    pub fn open() -> House {
        let data = tempfile::Builder::new().prefix("cove-house-").tempdir().unwrap();
        House { engine: open(data.path()), data }
    }

    /// The plainest sandbox there is.
    pub fn spec(&self) -> Spec {
        Spec {
            id: new_id(),
            root: Root::Base,
            storage: Storage::Memory,
            limits: Limits { memory: 256 << 20, disk: Some(64 << 20), ..Limits::default() },
            network: Network::None,
            mounts: Vec::new(),
            hostname: "house".into(),
            env: Default::default(),
            default_user: "user".into(),
            default_cwd: None,
        }
    }

    pub fn answers(&self, id: &SandboxId) -> bool {
        let Ok(mut stream) = std::os::unix::net::UnixStream::connect(self.engine.socket(id)) else { return false };
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        frame::write_json(&mut stream, Kind::Request, &Request::Ping).is_ok()
            && matches!(frame::read(&mut stream), Ok(Some(answer)) if answer.kind == Kind::Reply)
    }

    /// No record, no cgroup, no file of a sandbox is left.
    pub fn assert_empty(&self) {
        let left: Vec<PathBuf> =
            std::fs::read_dir(self.data.path().join("sandboxes")).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

pub fn open(data: &Path) -> Engine {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_cove-spawner"));
    let spawning = Spawning::Processes { count: NonZeroUsize::MIN, program };
    Engine::open(Config { data: data.to_owned(), spawning, pool: 2 }).unwrap()
}

pub fn new_id() -> SandboxId {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("t{:09}{number:010}", std::process::id()).parse().unwrap()
}
