//! A guest of one's own and a host's side of the protocol, blocking.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Program, Stdio};
use std::time::{Duration, Instant};

use cove_protocol::frame::{self, Frame};
use cove_protocol::process::{Command, Exit, Selector, Spec};
use cove_protocol::{Control, Event, Failure, Kind, Reply, Request};
use tempfile::TempDir;

/// Nothing in these stories takes longer, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A running guest; its end ends all it started.
pub struct Guest {
    child: Child,
    socket: PathBuf,
    /// A directory for the story's files.
    pub room: TempDir,
}

impl Guest {
    pub fn start() -> Guest {
        Guest::start_with("{}", &[])
    }

    pub fn start_with(configuration: &str, arguments: &[&str]) -> Guest {
        Guest::start_by(Program::new(env!("CARGO_BIN_EXE_cove-guest")), configuration, arguments)
    }

    /// As PID 1 of a namespace of its own.
    pub fn start_as_first() -> Guest {
        let mut program = Program::new("unshare");
        program.args(["--pid", "--fork", "--mount-proc", "--kill-child", env!("CARGO_BIN_EXE_cove-guest")]);
        Guest::start_by(program, "{}", &[])
    }

    fn start_by(mut program: Program, configuration: &str, arguments: &[&str]) -> Guest {
        let room = tempfile::tempdir().unwrap();
        let socket = room.path().join("guest.sock");
        let child = program
            .arg("--socket")
            .arg(&socket)
            .args(arguments)
            .env("COVE_GUEST", configuration)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until("the socket is there", || UnixStream::connect(&socket).is_ok());
        Guest { child, socket, room }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn connect(&self) -> Host {
        let socket = UnixStream::connect(&self.socket).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Host { socket }
    }

    /// Sends the request and leaves the answer to be read.
    pub fn send(&self, request: &Request) -> Host {
        let mut host = self.connect();
        host.send_json(Kind::Request, request);
        host
    }

    pub fn call(&self, request: &Request) -> Result<Reply, Failure> {
        self.send(request).reply()
    }

    /// Sends the request, takes the reply and leaves the stream open.
    pub fn open(&self, request: &Request) -> (Reply, Host) {
        let mut host = self.send(request);
        (host.reply().unwrap(), host)
    }

    /// Runs a shell line to its end.
    pub fn shell(&self, line: &str) -> Seen {
        self.run(Spec::new(Command::Shell(line.into())))
    }

    pub fn run(&self, spec: Spec) -> Seen {
        let (_, mut host) = self.open(&Request::Start(spec));
        host.rest()
    }

    pub fn spawn(&self, spec: Spec) -> (u32, Host) {
        match self.open(&Request::Start(spec)) {
            (Reply::Started { pid, .. }, host) => (pid, host),
            other => panic!("{:?}", other.0),
        }
    }

    pub fn wait_for(&self, process: Selector) -> Exit {
        match self.call(&Request::Wait { process }) {
            Ok(Reply::Exited { exit }) => exit,
            other => panic!("{other:?}"),
        }
    }

    pub fn path(&self, name: &str) -> String {
        self.room.path().join(name).to_str().unwrap().to_owned()
    }

    /// A value of the guest's `/proc/PID/status`, in KiB or as a plain number.
    pub fn status(&self, key: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the guest's own end and tells its exit code.
    pub fn ended(&mut self) -> Option<i32> {
        let mut code = None;
        wait_until("the guest ends", || match self.child.try_wait().unwrap() {
            Some(status) => {
                code = status.code();
                true
            }
            None => false,
        });
        code
    }

    pub fn let_go_of_leash(&mut self) {
        drop(self.child.stdin.take());
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if self.is_running() {
            if let Ok(socket) = UnixStream::connect(&self.socket) {
                let mut host = Host { socket };
                host.send_json(Kind::Request, &Request::Shutdown { grace_ms: 0 });
                let _ = host.reply();
            }
            let until = Instant::now() + Duration::from_secs(10);
            while self.is_running() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(2));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The host's side of one connection.
pub struct Host {
    pub socket: UnixStream,
}

/// All that came of a stream.
#[derive(Debug, Default, PartialEq)]
pub struct Seen {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub pty: Vec<u8>,
    pub data: Vec<u8>,
    pub lost: u64,
    pub events: Vec<Event>,
    pub exit: Option<Exit>,
}

impl Seen {
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    pub fn code(&self) -> Option<i32> {
        self.exit.unwrap().code
    }

    fn add(&mut self, frame: Frame) {
        match frame.kind {
            Kind::Stdout => self.stdout.extend(frame.payload),
            Kind::Stderr => self.stderr.extend(frame.payload),
            Kind::Pty => self.pty.extend(frame.payload),
            Kind::Data => self.data.extend(frame.payload),
            Kind::Event => match frame.parse().unwrap() {
                Event::Exited { exit } => self.exit = Some(exit),
                Event::Lost { bytes } => self.lost += bytes,
                event => self.events.push(event),
            },
            other => panic!("unexpected {other:?}: {}", String::from_utf8_lossy(&frame.payload)),
        }
    }
}

impl Host {
    pub fn send_json(&mut self, kind: Kind, message: &impl serde::Serialize) {
        frame::write_json(&mut self.socket, kind, message).unwrap();
    }

    pub fn send(&mut self, kind: Kind, bytes: &[u8]) {
        frame::write(&mut self.socket, kind, bytes).unwrap();
    }

    pub fn stdin(&mut self, bytes: &[u8]) {
        self.send(Kind::Stdin, bytes);
    }

    pub fn control(&mut self, control: &Control) {
        self.send_json(Kind::Control, control);
    }

    pub fn end(&mut self) {
        self.send(Kind::End, &[]);
    }

    pub fn frame(&mut self) -> Option<Frame> {
        frame::read(&mut self.socket).unwrap()
    }

    pub fn reply(&mut self) -> Result<Reply, Failure> {
        let frame = self.frame().expect("an answer before the close");
        match frame.kind {
            Kind::Reply => Ok(frame.parse().unwrap()),
            Kind::Failure => Err(frame.parse().unwrap()),
            other => panic!("unexpected {other:?}"),
        }
    }

    /// Everything up to End.
    pub fn rest(&mut self) -> Seen {
        let mut seen = Seen::default();
        loop {
            let frame = self.frame().expect("End before the close");
            if frame.kind == Kind::End {
                return seen;
            }
            seen.add(frame);
        }
    }

    /// Reads until `enough` says so.
    pub fn until(&mut self, enough: impl Fn(&Seen) -> bool) -> Seen {
        let mut seen = Seen::default();
        while !enough(&seen) {
            let frame = frame::read(&mut self.socket).unwrap_or_else(|error| panic!("{error} after {seen:?}"));
            let frame = frame.expect("more before the close");
            assert_ne!(frame.kind, Kind::End, "ended early: {seen:?}");
            seen.add(frame);
        }
        seen
    }
}

pub fn argv(words: &[&str]) -> Spec {
    Spec::new(Command::Argv(words.iter().map(|word| (*word).to_owned()).collect()))
}

pub fn shell(line: &str) -> Spec {
    Spec::new(Command::Shell(line.into()))
}

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
