//! What a service must be able to do, by its own calls.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use http::HeaderMap;

use super::super::{Capabilities, Kind, Limit, Limits, Network, Order, ProviderError, SandboxId, Seen, Supply, Usage};
use super::Trouble;

/// A service's sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Ours, by its label.
    pub id: SandboxId,
    /// The service's.
    pub name: String,
    pub state: Seen,
}

/// How a port of a sandbox is reached.
#[derive(Debug, Clone, PartialEq)]
pub struct Way {
    /// With `http` or `https`.
    pub url: String,
    /// What lets us through.
    pub headers: HeaderMap,
}

/// A command to run.
#[derive(Debug, Clone, Default)]
pub struct Run {
    pub words: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
    /// The service's own choice where absent.
    pub user: Option<String>,
    /// Whether bytes for its standard input will come.
    pub input: bool,
}

impl Run {
    pub fn script(script: &str, arguments: &[&str]) -> Run {
        let words = ["sh", "-c", script, "cove"].into_iter().chain(arguments.iter().copied());
        Run { words: words.map(str::to_owned).collect(), ..Run::default() }
    }

    pub fn by(self, user: Option<&str>) -> Run {
        Run { user: user.map(str::to_owned), ..self }
    }
}

/// A command that runs.
pub struct Running {
    /// The service's name for it.
    pub process: String,
    /// What it prints; the last piece says how it ended. A stream that ends before that was cut off.
    pub pieces: BoxStream<'static, Result<Piece, Trouble>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Out(Bytes),
    Err(Bytes),
    Exited(i32),
}

/// What is said to a running command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    Bytes(Bytes),
    End,
}

/// What a command printed, to its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    pub code: i32,
    pub out: Vec<u8>,
    pub err: Vec<u8>,
}

impl Output {
    /// The last thing that it complained of.
    pub fn complaint(&self) -> String {
        let text = String::from_utf8_lossy(&self.err);
        text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it said nothing").to_owned()
    }
}

#[async_trait]
pub trait Service: Send + Sync + 'static {
    fn kind(&self) -> &'static Kind;
    fn capabilities(&self) -> Capabilities;
    /// What its sandboxes start from.
    fn supply(&self) -> Supply;
    /// Limits that it does not take from its callers.
    fn unheld(&self) -> &'static [Limit];
    /// How long it keeps a sandbox running after the last [`Service::renew`].
    fn lease(&self) -> Duration;
    /// The cheapest call that shows whether it answers, and knows the key.
    async fn answers(&self) -> Result<(), ProviderError>;

    /// Makes a sandbox that carries our label and starts it. A repeated call may make another: the caller looks first.
    async fn create(&self, order: &Order) -> Result<String, ProviderError>;
    /// Every sandbox with our label, or the one that is ours by this id.
    async fn list(&self, of: Option<&SandboxId>) -> Result<Vec<Found>, ProviderError>;
    /// One by the service's name; `None` where it is gone or not ours.
    async fn get(&self, name: &str) -> Result<Option<Found>, ProviderError>;
    /// Makes one run that is paused or stopped. Already running: nothing to do.
    async fn start(&self, name: &str) -> Result<(), ProviderError>;
    /// Ends its processes and keeps its files. Already stopped: nothing to do.
    async fn stop(&self, name: &str) -> Result<(), ProviderError>;
    /// Keeps its memory too.
    async fn pause(&self, name: &str) -> Result<(), ProviderError>;
    /// Already gone: nothing to do.
    async fn destroy(&self, name: &str) -> Result<(), ProviderError>;
    /// The lease begins anew.
    async fn renew(&self, name: &str) -> Result<(), ProviderError>;
    async fn set_network(&self, name: &str, network: &Network) -> Result<(), ProviderError>;
    async fn resize(&self, _name: &str, _limits: &Limits) -> Result<(), ProviderError> {
        Err(ProviderError::Unsupported("this service gives a sandbox its size once".into()))
    }
    async fn usage(&self, _name: &str) -> Result<Usage, ProviderError> {
        Err(ProviderError::Unsupported("this service does not say what a sandbox uses".into()))
    }

    /// The way to a port inside; `None` where the service has none, or none to this one.
    async fn way(&self, name: &str, port: u16) -> Result<Option<Way>, ProviderError>;
    /// The client for that way.
    fn http(&self) -> &reqwest::Client;

    /// Starts a command.
    async fn run(&self, name: &str, run: &Run) -> Result<Running, Trouble>;
    async fn input(&self, name: &str, process: &str, input: Input) -> Result<(), Trouble>;
    async fn signal(&self, name: &str, process: &str, signal: i32) -> Result<(), Trouble>;
    /// A file's bytes, with the rights of the service's own daemon.
    async fn read(&self, name: &str, path: &str) -> Result<BoxStream<'static, Result<Bytes, Trouble>>, Trouble>;
    /// Makes or replaces a file, with the rights of the service's own daemon. Its directory is there.
    async fn write(&self, name: &str, path: &str, content: Bytes) -> Result<(), Trouble>;
}

/// The most that a command of ours may print.
const MOST: usize = 128 << 20;

/// Runs a command to its end.
pub async fn finish(service: &dyn Service, name: &str, run: &Run) -> Result<Output, Trouble> {
    use futures::StreamExt as _;

    let mut running = service.run(name, run).await?;
    let mut output = Output::default();
    while let Some(piece) = running.pieces.next().await {
        match piece? {
            Piece::Out(bytes) => output.out.extend_from_slice(&bytes),
            Piece::Err(bytes) => output.err.extend_from_slice(&bytes),
            Piece::Exited(code) => {
                output.code = code;
                return Ok(output);
            }
        }
        if output.out.len() + output.err.len() > MOST {
            return Err(Trouble::Garbled(format!("a command printed more than {} MiB", MOST >> 20)));
        }
    }
    Err(Trouble::Away("the output of a command was cut off".into()))
}
