//! The `cove` program, run to its end within a time limit.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::wait::LIMIT;

/// The program's path: `COVE_BIN`, or next to the running tests (`target/debug/deps/…`).
///
/// # Panics
/// If it has not been built.
pub fn cove_path() -> PathBuf {
    if let Some(path) = std::env::var_os("COVE_BIN") {
        let path = PathBuf::from(path);
        if path.exists() {
            return path;
        }
    }
    let test = std::env::current_exe().expect("a test knows its own path");
    let path = test.parent().and_then(Path::parent).expect("tests lie in target/PROFILE/deps").join("cove");
    assert!(path.exists(), "{} is not there: build it with `cargo build --package cove`", path.display());
    path
}

/// Variables that set something for a server or a client, and that a developer may have set for a program of another product.
const SETTINGS: [&str; 22] = [
    "DATABASE_URL",
    "DAYTONA_API_KEY",
    "DAYTONA_API_URL",
    "DAYTONA_SERVER_URL",
    "DAYTONA_TARGET",
    "DOCKER_HOST",
    "E2B_API_KEY",
    "E2B_API_URL",
    "E2B_DOMAIN",
    "E2B_SANDBOX_URL",
    "E2B_TIMEOUT",
    "POSTGRES_URL",
    "SANDBOX_API_KEY",
    "SANDBOX_HOST",
    "SANDBOX_PORT",
    "SANDBOX_PROVIDER",
    "SANDBOX_SERVER_URL",
    "SANDBOX_TARGET",
    "SANDBOX_TIMEOUT",
    "VERCEL_PROJECT_ID",
    "VERCEL_TEAM_ID",
    "VERCEL_TOKEN",
];

/// Takes the caller's own settings out of a command's environment.
pub(crate) fn without_settings(command: &mut Command) {
    for name in SETTINGS {
        command.env_remove(name);
    }
}

/// A run of the program that is being set up.
pub struct Cove {
    command: Command,
    input: Option<Vec<u8>>,
    limit: Duration,
}

/// How a run ended.
#[derive(Debug)]
pub struct Finished {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Cove {
    /// With its data in `data`, no colour, and none of the caller's settings.
    pub fn new(data: &Path) -> Cove {
        Cove::by([cove_path()], data)
    }

    /// The same, with other arguments before it.
    pub fn by<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>, data: &Path) -> Cove {
        let mut words = words.into_iter();
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words);
        command.env("COVE_DATA", data).env_remove("COVE_URL").env_remove("COVE_API_KEY").env("NO_COLOR", "1");
        without_settings(&mut command);
        command.stdin(Stdio::null());
        Cove { command, input: None, limit: LIMIT }
    }

    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Cove {
        self.command.args(arguments);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Cove {
        self.command.env(name, value);
        self
    }

    pub fn env_remove(mut self, name: &str) -> Cove {
        self.command.env_remove(name);
        self
    }

    pub fn current_dir(mut self, directory: &Path) -> Cove {
        self.command.current_dir(directory);
        self
    }

    /// What the program reads on standard input; empty by default.
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> Cove {
        self.input = Some(bytes.into());
        self
    }

    /// A file or a pipe as standard input.
    pub fn input_from(mut self, input: impl Into<Stdio>) -> Cove {
        self.command.stdin(input);
        self
    }

    pub fn within(mut self, limit: Duration) -> Cove {
        self.limit = limit;
        self
    }

    /// Started, with its output to be read by the caller.
    pub fn spawn(mut self) -> Running {
        let child = self.command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start cove");
        Running { child, limit: self.limit }
    }

    /// Run to the end.
    ///
    /// # Panics
    /// If it takes longer than its limit; it is killed first.
    pub fn finish(mut self) -> Finished {
        if self.input.is_some() {
            self.command.stdin(Stdio::piped());
        }
        let input = self.input.take();
        let mut running = self.spawn();
        let writer = input.map(|bytes| {
            let mut stdin = running.child.stdin.take().expect("stdin is piped");
            // A program that does not read all of its input is not a failure of the test.
            std::thread::spawn(move || drop(stdin.write_all(&bytes)))
        });
        let finished = running.finish();
        if let Some(writer) = writer {
            writer.join().expect("the writer does not panic");
        }
        finished
    }
}

/// A running program.
pub struct Running {
    pub child: Child,
    limit: Duration,
}

impl Running {
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(pid_of(&self.child), signal).expect("signal cove");
    }

    pub fn finish(&mut self) -> Finished {
        let stdout = read_in_background(self.child.stdout.take());
        let stderr = read_in_background(self.child.stderr.take());
        let status = wait_within(&mut self.child, self.limit);
        let text = |reader: std::thread::JoinHandle<Vec<u8>>| {
            String::from_utf8_lossy(&reader.join().expect("the reader does not panic")).into_owned()
        };
        match status {
            Some(status) => Finished { code: shell_code(status), stdout: text(stdout), stderr: text(stderr) },
            None => {
                let (stdout, stderr) = (text(stdout), text(stderr));
                panic!("cove did not end within {:?}\nstdout: {stdout}\nstderr: {stderr}", self.limit);
            }
        }
    }
}

/// A test that fails half-way leaves no program running.
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// # Panics
    /// If the exit code is another.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Finished {
        assert_eq!(self.code, code, "exit code\nstdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    pub fn expect_success(self) -> Finished {
        self.expect_code(0)
    }
}

pub(crate) fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// The end of a child; after the limit, kills it and returns `None`.
pub(crate) fn wait_within(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let handle = rustix::process::pidfd_open(pid_of(child), PidfdFlags::empty()).expect("open a pidfd");
    let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    let ready = loop {
        match rustix::event::poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result.expect("poll a pidfd"),
        }
    };
    if ready == 0 {
        child.kill().expect("kill what took too long");
        child.wait().expect("wait for what was killed");
        return None;
    }
    Some(child.wait().expect("wait for what has ended"))
}

fn shell_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn read_in_background(stream: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            stream.read_to_end(&mut bytes).expect("read what cove says");
        }
        bytes
    })
}
