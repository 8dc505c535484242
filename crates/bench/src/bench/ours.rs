//! Our own ways to run a command in a fresh sandbox: `cove run`, the engine in this process, and HTTP.

use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use cove_engine::spec::{Durability, Limits, Network, Root, Storage};
use cove_engine::{Config, Engine, Limit, SandboxId, Spawning, Spec};
use cove_protocol::process::{Command, OnDisconnect, Spec as ProcessSpec};
use cove_protocol::{Kind, Request, frame};
use reqwest::Method;
use serde_json::json;

use super::peers::Timed;
use crate::measure::api::{Api, Trouble};

/// The engine, warm, as the server has it.
pub struct InProcess {
    engine: Engine,
}

impl InProcess {
    pub fn open(program: &Path, data: &Path) -> Result<InProcess, String> {
        let count = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let spawning = Spawning::Processes { count, program: program.to_owned() };
        let config = Config { data: data.to_owned(), spawning, pool: 64, layers: None, waived: Limit::ALL.to_vec() };
        Engine::open(config).map(|engine| InProcess { engine }).map_err(|error| error.to_string())
    }

    pub fn launch(&self) -> Result<SandboxId, String> {
        let id = new_id()?;
        let spec = Spec {
            id: id.clone(),
            root: Root::base(),
            storage: Storage::Memory,
            durability: Durability::default(),
            limits: Limits { memory: 1 << 30, disk: Some(256 << 20), ..Limits::default() },
            network: Network::None,
            mounts: Vec::new(),
            hostname: "bench".into(),
            env: Default::default(),
            default_user: "user".into(),
            default_cwd: None,
        };
        self.engine.launch(&spec).map_err(|error| error.to_string())?;
        Ok(id)
    }

    pub fn destroy(&self, id: &SandboxId) -> Result<(), String> {
        self.engine.destroy(id).map_err(|error| error.to_string())
    }

    /// Until the first byte of its output.
    pub fn first_output(&self, id: &SandboxId, words: &[&str]) -> Result<(), String> {
        let command = Command::Argv(words.iter().map(|&word| word.to_owned()).collect());
        let spec = ProcessSpec { on_disconnect: OnDisconnect::Kill, ..ProcessSpec::new(command) };
        let lost = |error: &dyn std::fmt::Display| format!("the guest: {error}");
        let mut stream = UnixStream::connect(self.engine.socket(id)).map_err(|error| lost(&error))?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).map_err(|error| lost(&error))?;
        frame::write_json(&mut stream, Kind::Request, &Request::Start(spec)).map_err(|error| lost(&error))?;
        loop {
            match frame::read(&mut stream).map_err(|error| lost(&error))? {
                Some(frame) if frame.kind == Kind::Stdout => return Ok(()),
                Some(frame) if frame.kind == Kind::Failure => return Err("the guest refused".into()),
                Some(_) => {}
                None => return Err("the guest said nothing".into()),
            }
        }
    }

    /// Launch, first output, gone.
    pub fn once(&self, words: &[&str]) -> Result<Timed, String> {
        let began = Instant::now();
        let id = self.launch()?;
        let told = self.first_output(&id, words);
        let first = began.elapsed();
        self.destroy(&id)?;
        told.map(|()| Timed { first, whole: began.elapsed() })
    }
}

fn new_id() -> Result<SandboxId, String> {
    const LETTERS: &[u8; 26] = b"abcdefghijklmnopqrstuvwxyz";
    let letter = |_: usize| char::from(LETTERS[rand::random_range(0..LETTERS.len())]);
    let id: String = (0..SandboxId::LENGTH).map(letter).collect();
    id.parse::<SandboxId>().map_err(|error| format!("make an id: {error}"))
}

/// Create, run, delete over HTTP.
pub async fn over_http(api: &Api, words: &[&str]) -> Result<Timed, Trouble> {
    let began = Instant::now();
    let id = api.create(json!({})).await?;
    let told = api.exec(&id, words).await;
    let first = began.elapsed();
    api.delete(&id).await?;
    told.map(|_| Timed { first, whole: began.elapsed() })
}

/// The template that sandboxes have where none is named.
pub const BASE: &str = "base";

/// Sandboxes of `base` that stand ready; 0 for none.
pub async fn set_pool(api: &Api, size: u32) -> Result<(), Trouble> {
    set_pool_of(api, BASE, size).await
}

pub async fn set_pool_of(api: &Api, template: &str, size: u32) -> Result<(), Trouble> {
    let path = format!("/api/pools/{template}");
    if size == 0 {
        return api.call(Method::DELETE, &path, None).await.map(drop);
    }
    api.call(Method::PUT, &path, Some(json!({ "size": size }))).await.map(drop)
}

/// Waits until the only pool is full and the interpreters of its members wait too; the wait is not measured.
pub async fn until_pool_is_full(api: &Api) -> Result<(), Trouble> {
    const WITHIN: Duration = Duration::from_secs(60);
    let began = Instant::now();
    loop {
        let pools = api.call(Method::GET, "/api/pools", None).await?;
        if pools[0]["warm"].as_u64() >= pools[0]["size"].as_u64() {
            return Ok(());
        }
        if began.elapsed() > WITHIN {
            return Err(Trouble::Wrong(format!("the pool does not fill: {pools}")));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
