//! One git process inside the sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use cove_protocol::process::{Command, OnDisconnect, Spec, Stdio};
use cove_protocol::{Event, FailureKind, Request};

use super::{Credentials, Git, GitError};
use crate::guest::{GuestError, Item};

/// How much git may print before it is stopped: the sandbox decides how much it prints, the host how much it keeps.
pub(super) const MOST_OUTPUT: usize = 16 << 20;
const MOST_COMPLAINT: usize = 64 << 10;

const LOCAL: Duration = Duration::from_secs(60);
const REMOTE: Duration = Duration::from_secs(15 * 60);

/// Moves our end of the pipe to descriptor 3, where the credential helper reads, and gives git an empty input.
const WITH_CREDENTIALS: &str = "exec 3<&0 </dev/null; exec git \"$@\"";

/// A git command that is being built.
pub(super) struct Call<'a> {
    /// For messages: `push`.
    name: &'static str,
    options: Vec<String>,
    arguments: Vec<String>,
    env: BTreeMap<String, String>,
    input: Vec<u8>,
    credentials: Option<&'a Credentials>,
    within: Duration,
}

pub(super) struct Output {
    pub status: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Output {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl<'a> Call<'a> {
    /// `git -C repository name …`
    pub fn at(repository: &str, name: &'static str) -> Self {
        let mut call = Call::anywhere(name);
        call.options.extend(["-C".into(), repository.into()]);
        call
    }

    /// `git name …`
    pub fn anywhere(name: &'static str) -> Self {
        Call {
            name,
            options: Vec::new(),
            arguments: vec![name.into()],
            env: BTreeMap::new(),
            input: Vec::new(),
            credentials: None,
            within: LOCAL,
        }
    }

    pub fn with<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// `-c key=value`
    pub fn setting(mut self, setting: &str) -> Self {
        self.options.extend(["-c".into(), setting.into()]);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = bytes.into();
        self
    }

    /// The command talks to `url`, which gets the credentials if it asks.
    pub fn remote(mut self, url: &str, credentials: Option<&'a Credentials>) -> Result<Self, GitError> {
        self.within = REMOTE;
        if credentials.is_some() {
            self.options.extend(Credentials::options(url)?);
            self.credentials = credentials;
        }
        Ok(self)
    }

    fn spec(&self, cwd: Option<String>) -> Spec {
        let mut argv: Vec<String> = match self.credentials {
            Some(_) => ["/bin/sh", "-c", WITH_CREDENTIALS, "git"].map(String::from).to_vec(),
            None => vec!["git".into()],
        };
        argv.extend(self.options.iter().cloned());
        argv.extend(self.arguments.iter().cloned());
        let mut spec = Spec::new(Command::Argv(argv));
        spec.env = self.env.clone();
        // Git must not prompt: no terminal, no askpass program of the sandbox's configuration.
        for (name, value) in [("LC_ALL", "C"), ("GIT_TERMINAL_PROMPT", "0"), ("GIT_ASKPASS", ""), ("GIT_PAGER", "cat")]
        {
            spec.env.insert(name.into(), value.into());
        }
        spec.cwd = cwd;
        spec.stdio = Stdio::Piped;
        spec.timeout_ms = Some(self.within.as_millis() as u64);
        spec.on_disconnect = OnDisconnect::Kill;
        spec
    }
}

impl Git {
    /// Runs it; any status but 0 is an error.
    pub(super) async fn run(&self, call: Call<'_>) -> Result<Output, GitError> {
        let (name, credentials) = (call.name, call.credentials.cloned());
        let output = self.try_run(call).await?;
        if output.status == 0 {
            return Ok(output);
        }
        let hide = |text: &str| credentials.as_ref().map_or(text.to_owned(), |credentials| credentials.redact(text));
        Err(GitError::from_output(name, output.status, &hide(&output.stderr), &hide(&output.text())))
    }

    /// Runs it and leaves the status to the caller.
    pub(super) async fn try_run(&self, call: Call<'_>) -> Result<Output, GitError> {
        let spec = call.spec(self.cwd.clone());
        let (_, operation) = self.guest.open(&Request::Start(spec)).await.map_err(no_git)?;
        let (mut from, mut to) = operation.split();
        let input = call.credentials.map_or(call.input, Credentials::spoken);
        // Git may end without reading its input: then the write fails, and the exit status gives the reason.
        let feed = async {
            if !input.is_empty() {
                to.stdin(&input).await?;
            }
            to.end().await
        };
        let mut output = Output { status: -1, stdout: Vec::new(), stderr: String::new() };
        let mut stderr = Vec::new();
        let read = async {
            while let Some(item) = from.next().await? {
                match item {
                    Item::Stdout(bytes) if output.stdout.len() + bytes.len() > MOST_OUTPUT => {
                        return Err(GitError::TooLong { command: call.name.into(), limit: MOST_OUTPUT });
                    }
                    Item::Stdout(bytes) => output.stdout.extend(bytes),
                    Item::Stderr(bytes) => {
                        stderr.extend(bytes);
                        // The reason is at the end, after any amount of progress.
                        let surplus = stderr.len().saturating_sub(MOST_COMPLAINT);
                        stderr.drain(..surplus);
                    }
                    Item::Event(Event::Exited { exit }) if exit.timed_out => {
                        return Err(GitError::Timeout { command: call.name.into(), seconds: call.within.as_secs() });
                    }
                    Item::Event(Event::Exited { exit }) => output.status = exit.status(),
                    _ => {}
                }
            }
            Ok(())
        };
        let (_, finished) = tokio::join!(feed, read);
        finished?;
        output.stderr = String::from_utf8_lossy(&stderr).into_owned();
        if output.status == 127 && call.credentials.is_some() && output.stderr.contains("not found") {
            return Err(GitError::NoGit);
        }
        Ok(output)
    }
}

fn no_git(error: GuestError) -> GitError {
    match &error {
        GuestError::Failed(failure) if failure.kind == FailureKind::NotFound && failure.message.contains("git") => {
            GitError::NoGit
        }
        _ => error.into(),
    }
}
