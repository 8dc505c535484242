//! `cove serve` in a directory of its own, on a port of its own; a test can kill it and start it again.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::http::{self, Answer};
use crate::leak::LeakCheck;
use crate::program::{Cove, cove_path, pid_of, wait_within, without_settings};
use crate::wait::{LIMIT, until_some};

/// The first key of every server under test.
pub const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

/// A server that is ready. Dropping it ends it and removes every sandbox. If something is left, the test fails, unless
/// it failed already.
pub struct TestServer {
    child: Option<Child>,
    address: String,
    arguments: Vec<String>,
    /// The command that starts the program: its path, or arguments before it.
    words: Vec<OsString>,
    environment: Vec<(String, String)>,
    /// Where it keeps everything; in its own directory where absent.
    elsewhere: Option<PathBuf>,
    /// Dropped last: the check looks for traces of this directory.
    leaks: Option<LeakCheck>,
    directory: TempDir,
}

impl TestServer {
    pub fn start() -> TestServer {
        TestServer::start_with(&[])
    }

    /// With more flags for `cove serve`.
    pub fn start_with(arguments: &[&str]) -> TestServer {
        TestServer::start_in(arguments, &[])
    }

    /// And with variables of its environment.
    pub fn start_in(arguments: &[&str], environment: &[(&str, &str)]) -> TestServer {
        TestServer::start_from(arguments, environment, Vec::new(), |_| cove_path())
    }

    /// With another command; `prepare` sets up the directory and returns the program's path.
    pub fn start_by(words: Vec<OsString>, prepare: impl FnOnce(&Path) -> PathBuf) -> TestServer {
        TestServer::start_from(&[], &[], words, prepare)
    }

    /// With everything that it keeps in this directory, which the test looks after.
    pub fn start_on(data: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> TestServer {
        let mut server = TestServer::prepared(arguments, environment, Vec::new(), |_| cove_path());
        server.elsewhere = Some(data.to_owned());
        server.launch();
        server
    }

    fn start_from(
        arguments: &[&str],
        environment: &[(&str, &str)],
        words: Vec<OsString>,
        prepare: impl FnOnce(&Path) -> PathBuf,
    ) -> TestServer {
        let mut server = TestServer::prepared(arguments, environment, words, prepare);
        server.launch();
        server
    }

    fn prepared(
        arguments: &[&str],
        environment: &[(&str, &str)],
        mut words: Vec<OsString>,
        prepare: impl FnOnce(&Path) -> PathBuf,
    ) -> TestServer {
        let directory = tempfile::Builder::new().prefix("cove-test-").tempdir().expect("make a directory");
        let leaks = LeakCheck::new(directory.path());
        words.push(prepare(directory.path()).into());
        TestServer {
            words,
            child: None,
            elsewhere: None,
            address: "127.0.0.1:0".into(),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            environment: owned(environment),
            leaks: Some(leaks),
            directory,
        }
    }

    fn launch(&mut self) {
        let said = self.spawn();
        self.address = until_some("the server's address", LIMIT, || {
            self.fail_if_ended();
            let text = fs::read_to_string(&said).ok()?;
            let (_, rest) = text.split_once("http://")?;
            let end = rest.find(|c: char| c.is_whitespace() || c == '/')?;
            Some(rest[..end].to_owned())
        });
        until_some("/healthz", LIMIT, || {
            self.fail_if_ended();
            http::request(&self.address, "GET", "/healthz", &[], None).ok().filter(|answer| answer.status == 200)
        });
    }

    /// Returns the file that its stdout goes to.
    fn spawn(&mut self) -> PathBuf {
        let open = |path: PathBuf| File::options().create(true).append(true).open(path).expect("open a log");
        // The address is read from its output: each start has a file of its own; the log continues.
        let said = self.directory.path().join("stdout");
        let _ = fs::remove_file(&said);
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        command.args(["serve", "--listen", &self.address, "--data"]).arg(self.data()).args(&self.arguments);
        without_settings(&mut command);
        command.env("COVE_API_KEY", KEY).env("NO_COLOR", "1").env_remove("COVE_URL").env_remove("COVE_DATA");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(open(said.clone())).stderr(open(self.log_path()));
        self.child = Some(command.spawn().expect("start cove serve"));
        said
    }

    fn fail_if_ended(&mut self) {
        let child = self.child.as_mut().expect("a server was started");
        if let Some(status) = child.try_wait().expect("ask for its end") {
            panic!("cove serve ended with {status}:\n{}", self.log());
        }
    }

    pub fn data(&self) -> PathBuf {
        self.elsewhere.clone().unwrap_or_else(|| self.directory.path().join("data"))
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn key(&self) -> &'static str {
        KEY
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server runs").id()
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// All that the server wrote to stderr, over all its lives.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// SIGKILL: no orderly end. Sandboxes live on.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("kill the server");
            child.wait().expect("wait for the server");
        }
    }

    /// SIGTERM, and an orderly end within the limit.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            rustix::process::kill_process(pid_of(&child), Signal::TERM).expect("signal the server");
            let ended = wait_within(&mut child, LIMIT);
            assert!(ended.is_some(), "cove serve did not end on SIGTERM:\n{}", self.log());
        }
    }

    /// The same data and the same address again.
    pub fn restart(&mut self) {
        self.kill();
        self.launch();
    }

    /// As [`TestServer::restart`], with other variables.
    pub fn restart_in(&mut self, environment: &[(&str, &str)]) {
        self.environment = owned(environment);
        self.restart();
    }

    /// Started and killed again after a moment, ready or not.
    pub fn kill_while_starting(&mut self, after: Duration) {
        self.kill();
        self.spawn();
        std::thread::sleep(after);
        self.kill();
    }

    /// For threads of a test's own.
    pub fn api(&self) -> Api {
        Api { address: self.address.clone() }
    }

    /// After a failure: removes what is left, or it would disturb other tests.
    fn clear(&self) {
        let begun = std::time::Instant::now();
        while !crate::reboot::clear(&self.data()) && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The program as a client of this server.
    pub fn cove<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Cove {
        let home = self.directory.path().join("client");
        Cove::new(&home).env("COVE_URL", self.url()).env("COVE_API_KEY", KEY).args(arguments)
    }

    /// A request with the first key; `body` goes as JSON.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        self.api()
            .json(method, path, &[], body)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}; the server's log:\n{}", self.log()))
    }

    fn remove_all_sandboxes(&self) -> io::Result<()> {
        let api = self.api();
        loop {
            let list = api.json("GET", "/api/sandboxes?limit=1000", &[], None)?.json();
            let sandboxes = list["items"].as_array().cloned().unwrap_or_default();
            for id in sandboxes.iter().filter_map(|sandbox| sandbox["id"].as_str()) {
                api.json("DELETE", &format!("/api/sandboxes/{id}"), &[], None)?;
            }
            if list["next_cursor"].is_null() {
                return Ok(());
            }
        }
    }
}

/// Requests with the first key, to a server that may have ended.
#[derive(Debug, Clone)]
pub struct Api {
    pub address: String,
}

impl Api {
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&[u8]>) -> io::Result<Answer> {
        let authorization = format!("Bearer {KEY}");
        let mut all = vec![("authorization", authorization.as_str())];
        all.extend_from_slice(headers);
        http::request(&self.address, method, path, &all, body)
    }

    pub fn json(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>) -> io::Result<Answer> {
        let bytes = body.map(|value| value.to_string().into_bytes());
        let mut all = headers.to_vec();
        if bytes.is_some() {
            all.push(("content-type", "application/json"));
        }
        self.send(method, path, &all, bytes.as_deref())
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the server's log ---\n{}", tail(&self.log(), 60));
        }
        if self.child.is_none() {
            // The test killed the server: another start cleans up its sandboxes, unless the server itself failed.
            if std::thread::panicking() {
                self.clear();
                return;
            }
            self.launch();
        }
        if let Err(error) = self.remove_all_sandboxes() {
            eprintln!("remove the sandboxes of a test: {error}");
        }
        if std::thread::panicking() {
            if let Some(mut child) = self.child.take() {
                let _ = rustix::process::kill_process(pid_of(&child), Signal::TERM);
                let _ = wait_within(&mut child, Duration::from_secs(10));
            }
            self.clear();
        } else {
            self.stop();
            // Shown only if the leak check fails: the place to begin.
            let trouble = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
            self.log().lines().filter(trouble).for_each(|line| eprintln!("{line}"));
        }
        drop(self.leaks.take());
    }
}

fn owned(environment: &[(&str, &str)]) -> Vec<(String, String)> {
    environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<_> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// A directory for tests that need no server, with its own check.
pub struct TestDirectory {
    leaks: Option<LeakCheck>,
    directory: TempDir,
}

impl TestDirectory {
    #[expect(clippy::new_without_default, reason = "it makes a directory: not a default value")]
    pub fn new() -> TestDirectory {
        let directory = tempfile::Builder::new().prefix("cove-test-").tempdir().expect("make a directory");
        TestDirectory { leaks: Some(LeakCheck::new(directory.path())), directory }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    pub fn cove<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Cove {
        Cove::new(&self.data()).args(arguments)
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        drop(self.leaks.take());
    }
}
