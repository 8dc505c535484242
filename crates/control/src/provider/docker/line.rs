//! Connections to a guest.
//!
//! ```text
//!   here    server ──▶ /proc/PID/root/.cove/guest.sock                      proven each time, see `process`
//!   far     server ══ docker exec, attached ══▶ cove-guest --through ──▶ /.cove/guest.sock
//! ```
//! No port is open for it anywhere. Either way the first frame is the container's token. What comes back is the sandbox's
//! word: bounded and judged where it is read ([`crate::guest`]).

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, Weak};

use async_trait::async_trait;
use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bytes::Bytes;
use cove_protocol::{Kind, SandboxId, frame};
use futures::StreamExt as _;
use tokio_util::io::StreamReader;

use super::Inner;
use super::container::{self, Found, PROGRAM, SOCKET};
use super::process::Process;
use crate::guest::{Connect, GuestError, Pipe};
use crate::provider::Seen;

/// Bytes that are taken from the daemon at a time.
const CAPACITY: usize = 64 << 10;
/// Characters of a complaint that are shown.
const COMPLAINT: usize = 500;

/// How guests were reached the last time.
#[derive(Default)]
pub struct Lines(Mutex<HashMap<SandboxId, Known>>);

#[derive(Debug, Clone)]
struct Known {
    token: String,
    /// Where it is a process of this machine.
    process: Option<Process>,
}

impl Lines {
    fn get(&self, id: &SandboxId) -> Option<Known> {
        self.0.lock().expect("no panic while held").get(id).cloned()
    }

    fn put(&self, id: &SandboxId, known: Known) {
        self.0.lock().expect("no panic while held").insert(id.clone(), known);
    }

    /// After its end, or where it is another container from now on.
    pub fn forget(&self, id: &SandboxId) {
        self.0.lock().expect("no panic while held").remove(id);
    }
}

/// The way to one sandbox's guest; to nobody's where the handle is no sandbox's.
pub struct Line {
    pub provider: Weak<Inner>,
    pub sandbox: Option<SandboxId>,
}

#[async_trait]
impl Connect for Line {
    async fn connect(&self) -> Result<Box<dyn Pipe>, GuestError> {
        let Some(id) = &self.sandbox else { return Err(GuestError::Unreachable("no such sandbox".into())) };
        let gone = || GuestError::Unreachable("the server ends".into());
        self.provider.upgrade().ok_or_else(gone)?.connect(id).await
    }
}

impl Inner {
    async fn connect(&self, id: &SandboxId) -> Result<Box<dyn Pipe>, GuestError> {
        if let Some(known) = self.lines.get(id) {
            if let Some(pipe) = near(&known).await {
                return greeted(pipe, &known.token).await;
            }
            // It was started anew, or has ended.
            self.lines.forget(id);
        }
        let known = self.look(id).await?;
        let pipe = match near(&known).await {
            Some(pipe) => pipe,
            None => self.through(id).await?,
        };
        // Without a process each connection asks anew: whether it runs is known to the daemon alone.
        if known.process.is_some() {
            self.lines.put(id, known.clone());
        }
        greeted(pipe, &known.token).await
    }

    async fn look(&self, id: &SandboxId) -> Result<Known, GuestError> {
        let unreachable = |error: crate::provider::ProviderError| GuestError::Unreachable(error.to_string());
        let found = self.found(id).await.map_err(unreachable)?;
        let found = found.ok_or_else(|| GuestError::Unreachable("no such sandbox".into()))?;
        let token = match &found {
            Found { state: Seen::Running, token, .. } if !token.is_empty() => token.clone(),
            Found { state: Seen::Paused, .. } => return Err(GuestError::Unreachable("it is paused".into())),
            _ => return Err(GuestError::Unreachable("it does not run".into())),
        };
        let is_far = self.client.facts().await.map_err(unreachable)?.far.is_some();
        Ok(Known { token, process: found.process().filter(|_| !is_far) })
    }

    /// By a second program inside, which the daemon runs.
    async fn through(&self, id: &SandboxId) -> Result<Box<dyn Pipe>, GuestError> {
        let unreachable = |error: String| GuestError::Unreachable(error);
        let docker = self.client.docker().await.map_err(|error| unreachable(error.to_string()))?;
        let options = CreateExecOptions {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(false),
            cmd: Some([PROGRAM, "--through", SOCKET].map(ToOwned::to_owned).to_vec()),
            env: Some(vec![container::without_token()]),
            user: Some("0:0".to_owned()),
            working_dir: Some("/".to_owned()),
            privileged: Some(false),
            detach_keys: None,
        };
        let name = container::name_of(id);
        let made = docker.create_exec(&name, options).await.map_err(|error| unreachable(error.to_string()))?;
        let options = StartExecOptions { detach: false, tty: false, output_capacity: Some(CAPACITY) };
        match docker.start_exec(&made.id, Some(options)).await.map_err(|error| unreachable(error.to_string()))? {
            StartExecResults::Attached { output, input } => {
                let output = output.map(|piece| match piece {
                    Ok(LogOutput::StdOut { message }) => Ok(message),
                    Ok(LogOutput::StdErr { message }) => Err(complaint(&message)),
                    Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "docker mixes its streams")),
                    Err(error) => Err(io::Error::other(error.to_string())),
                });
                Ok(Box::new(tokio::io::join(StreamReader::new(output), input)))
            }
            StartExecResults::Detached => Err(unreachable("docker did not attach its streams".into())),
        }
    }
}

/// The words of a program inside: shortened, and without what would steer a terminal.
fn complaint(message: &Bytes) -> io::Error {
    let text = String::from_utf8_lossy(message);
    let text: String = text.trim().chars().take(COMPLAINT).flat_map(char::escape_default).collect();
    io::Error::other(text)
}

/// `None` where it is no process of this machine, or does not listen.
async fn near(known: &Known) -> Option<Box<dyn Pipe>> {
    let stream = known.process.as_ref()?.connect().await.ok()?;
    Some(Box::new(stream))
}

async fn greeted(mut pipe: Box<dyn Pipe>, token: &str) -> Result<Box<dyn Pipe>, GuestError> {
    frame::write_async(&mut pipe, Kind::Token, token.as_bytes()).await?;
    Ok(pipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_sandbox_are_shortened_and_steer_no_terminal() {
        let long = Bytes::from(format!("\u{1b}[31m{}\n", "x".repeat(2000)));
        let text = complaint(&long).to_string();
        assert!(text.starts_with("\\u{1b}[31mxx") && text.len() < 600, "{text}");
    }

    #[tokio::test]
    async fn a_connection_begins_with_the_token() {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        greeted(Box::new(ours), "secret").await.unwrap();
        let frame = frame::read_async(&mut theirs).await.unwrap().unwrap();
        assert_eq!((frame.kind, frame.payload.as_slice()), (Kind::Token, b"secret".as_slice()));
    }
}
