//! The command in the foreground: keyboard, screen, signals and time limit on one side, the guest on the other.
//!
//! ```text
//!   stdin ──▶ ┐                        ┌ Stdin frames ──▶
//!             │   one thread, poll(2)  │                   guest
//!  stdout ◀── ┤   nothing blocks       ├ ◀── Stdout, Stderr, Pty, Exited
//!  stderr ◀── │                        │
//! signals ──▶ ┘                        └ errands: Signal requests on connections of their own
//! ```
//!
//! Each side is read only while the other takes: a slow reader of our output slows the command, as a pipe would.
//! Signals go on connections of their own because the first may be stuffed with input that the command never reads.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use cove_engine::Engine;
use cove_protocol::frame::BULK;
use cove_protocol::process::{Exit, Selector, Spec, Stdio};
use cove_protocol::{Control, Event, Failure, Frame, FrameError, Kind, Reply, Request};
use cove_sys::signal::Signals;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

use super::connection::Connection;
use crate::client::transcript::Transcript;
use crate::terminal::{self, Raw};

/// The signals that the loop reads instead of dying by them.
pub const SIGNALS: [Signal; 7] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::WINCH, Signal::CONT, Signal::TSTP];

/// A pipe that polls writable takes this much without blocking (PIPE_BUF, pipe(7)).
const WRITE_AT_ONCE: usize = 4096;

/// How long a command may take to end after SIGTERM.
const GRACE_AFTER_TIMEOUT: Duration = Duration::from_secs(2);
const GRACE_AFTER_TERM: Duration = Duration::from_secs(10);
const GRACE_AFTER_HANGUP: Duration = Duration::from_secs(2);

/// How long a command may take without threads of the engine.
const A_MOMENT: Duration = Duration::from_millis(20);

/// How the command came to its end, as far as this side knows.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Exited(Exit),
    /// The guest would not start it.
    Refused(Failure),
    TimedOut,
    /// A signal to us that the command did not heed in time, or a second Ctrl-C.
    Interrupted(i32),
    /// The reader of our output went away.
    BrokenPipe,
    /// The guest went away first: the sandbox has ended.
    Lost(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    Closed,
    Forwarded,
}

pub struct Foreground<'a> {
    socket: &'a Path,
    connection: Connection,
    signals: &'a Signals,
    raw: Option<Raw>,
    input: Input,
    pid: Option<u32>,
    /// What stdout or stderr has not taken yet; while there is any, the guest is not read.
    pending: Option<(Stream, Vec<u8>)>,
    exit: Option<Exit>,
    /// The guest said that nothing follows.
    complete: bool,
    ends: Ends,
    /// Open until the command ends: a close could overtake the request.
    errands: Vec<Connection>,
    /// Where its output goes instead of the screen.
    kept: Option<&'a mut Transcript>,
    /// The engine settles when the command takes longer than a moment.
    settles: Option<(Instant, &'a Engine)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Stdout,
    Stderr,
}

/// When and why the command is ended from this side.
struct Ends {
    /// `--timeout`, then the end of the grace after it.
    at: Option<Instant>,
    because: Option<Because>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Because {
    Timeout,
    Signal(i32),
}

impl<'a> Foreground<'a> {
    /// Asks the guest to start the command, with the terminal in raw mode if it gets one.
    pub fn start(
        socket: &'a Path,
        signals: &'a Signals,
        command: Spec,
        input: Input,
        timeout: Option<Duration>,
    ) -> io::Result<Foreground<'a>> {
        let with_terminal = matches!(command.stdio, Stdio::Terminal(_));
        let connection = Connection::open(socket, &Request::Start(command)).map_err(while_we("reach the sandbox"))?;
        let raw = match with_terminal && io::stdin().is_terminal() {
            true => Some(Raw::enter().map_err(while_we("set up the terminal"))?),
            false => None,
        };
        Ok(Foreground {
            socket,
            connection,
            signals,
            raw,
            input,
            pid: None,
            pending: None,
            exit: None,
            complete: false,
            ends: Ends { at: timeout.map(|timeout| Instant::now() + timeout), because: None },
            errands: Vec::new(),
            kept: None,
            settles: None,
        })
    }

    /// For an engine of our own: while the guest starts the command it lets go of what it no longer needs, and it settles when the
    /// command takes longer than a moment.
    pub fn settling(mut self, engine: &'a Engine) -> Foreground<'a> {
        engine.retire();
        self.settles = Some((Instant::now() + A_MOMENT, engine));
        self
    }

    /// Keeps the output for later instead of showing it.
    pub fn keeping(mut self, transcript: Option<&'a mut Transcript>) -> Foreground<'a> {
        self.kept = transcript;
        self
    }

    /// Until the command has ended and all it said is written.
    pub fn run(mut self) -> io::Result<Outcome> {
        loop {
            if let Some(outcome) = self.step()? {
                return Ok(outcome);
            }
        }
    }

    fn step(&mut self) -> io::Result<Option<Outcome>> {
        let ready = self.wait()?;
        if ready.signals
            && let Some(outcome) = self.take_signals()?
        {
            return Ok(Some(outcome));
        }
        if let Some(outcome) = self.check_time()? {
            return Ok(Some(outcome));
        }
        if let Some((_, engine)) = self.settles.take_if(|(at, _)| Instant::now() >= *at) {
            engine.settle().map_err(io::Error::other)?;
        }
        if ready.output
            && let Err(error) = self.write_output()
        {
            let gone = error.kind() == io::ErrorKind::BrokenPipe;
            return if gone { Ok(Some(Outcome::BrokenPipe)) } else { Err(error) };
        }
        if ready.guest_takes {
            self.connection.flush().map_err(while_we("talk to the sandbox"))?;
        }
        if ready.input {
            self.read_input()?;
        }
        if ready.guest_says {
            self.connection.fill().map_err(while_we("hear the sandbox"))?;
        }
        while self.pending.is_none() {
            match self.connection.next() {
                Ok(Some(frame)) => match self.take(&frame) {
                    Ok(None) => {}
                    Ok(done) => return Ok(done),
                    Err(error) => return Ok(Some(Outcome::Lost(error.to_string()))),
                },
                Ok(None) => break,
                Err(error) => return Ok(Some(Outcome::Lost(error.to_string()))),
            }
        }
        Ok(self.outcome())
    }

    /// The end, once everything is written.
    fn outcome(&self) -> Option<Outcome> {
        if self.pending.is_some() || !(self.complete || self.connection.is_closed()) {
            return None;
        }
        Some(match (self.exit, self.ends.because) {
            (Some(exit), _) if exit.timed_out => Outcome::TimedOut,
            (Some(_), Some(Because::Timeout)) => Outcome::TimedOut,
            (Some(exit), _) => Outcome::Exited(exit),
            (None, Some(Because::Timeout)) => Outcome::TimedOut,
            (None, Some(Because::Signal(signal))) => Outcome::Interrupted(signal),
            (None, None) => Outcome::Lost("its connection closed".into()),
        })
    }

    fn take(&mut self, frame: &Frame) -> Result<Option<Outcome>, FrameError> {
        match frame.kind {
            Kind::Reply => {
                if let Reply::Started { pid, .. } = frame.parse()? {
                    self.pid = Some(pid);
                    // A Ctrl-C that was faster than the start.
                    if let Some(Because::Signal(signal)) = self.ends.because
                        && let Some(signal) = Signal::from_named_raw(signal)
                    {
                        self.send(signal);
                    }
                    // The window may have changed between the measurement and the start.
                    self.resize();
                }
            }
            Kind::Failure => return Ok(Some(Outcome::Refused(frame.parse()?))),
            Kind::Stdout | Kind::Stderr if self.kept.is_some() => {
                let stream = if frame.kind == Kind::Stderr { 2 } else { 1 };
                if let Some(kept) = &mut self.kept {
                    kept.hear(stream, &frame.payload);
                }
            }
            Kind::Stdout | Kind::Pty => self.pending = Some((Stream::Stdout, frame.payload.clone())),
            Kind::Stderr => self.pending = Some((Stream::Stderr, frame.payload.clone())),
            Kind::Event => {
                if let Event::Exited { exit } = frame.parse()? {
                    self.exit = Some(exit);
                }
            }
            Kind::End => self.complete = true,
            got => return Err(FrameError::Unexpected { expected: "stream", got }),
        }
        if self.pending.as_ref().is_some_and(|(_, bytes)| bytes.is_empty()) {
            self.pending = None;
        }
        Ok(None)
    }

    fn write_output(&mut self) -> io::Result<()> {
        let Some((stream, bytes)) = &mut self.pending else { return Ok(()) };
        let chunk = &bytes[..bytes.len().min(WRITE_AT_ONCE)];
        // Straight to the descriptor: the standard library's buffer would hold back prompts.
        let written = match stream {
            Stream::Stdout => rustix::io::write(io::stdout(), chunk),
            Stream::Stderr => rustix::io::write(io::stderr(), chunk),
        };
        match written {
            Ok(count) => drop(bytes.drain(..count)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(while_we("write the command's output")(error.into())),
        }
        if bytes.is_empty() {
            self.pending = None;
        }
        Ok(())
    }

    fn read_input(&mut self) -> io::Result<()> {
        let mut buffer = [0u8; BULK];
        match rustix::io::read(io::stdin(), &mut buffer) {
            Ok(0) => self.end_input(),
            Ok(count) => {
                self.connection.queue(Frame::new(Kind::Stdin, &buffer[..count]));
                self.connection.flush().map_err(while_we("talk to the sandbox"))?;
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            // EIO: the terminal went away, or we are in the background of one that does not want readers.
            Err(rustix::io::Errno::IO) => self.end_input(),
            Err(error) => return Err(while_we("read standard input")(error.into())),
        }
        Ok(())
    }

    fn end_input(&mut self) {
        self.input = Input::Closed;
        self.connection.queue(Frame::end());
    }

    fn take_signals(&mut self) -> io::Result<Option<Outcome>> {
        while let Some(received) = self.signals.next().map_err(while_we("take signals"))? {
            match Signal::from_named_raw(received.signal) {
                Some(Signal::WINCH) => self.resize(),
                Some(Signal::CONT) => {
                    if let Some(raw) = &self.raw {
                        raw.apply().map_err(while_we("set up the terminal"))?;
                    }
                    self.resize();
                }
                Some(Signal::TSTP) => self.stop_ourselves()?,
                Some(signal) => {
                    let again = self.ends.because == Some(Because::Signal(signal.as_raw()));
                    if again && signal == Signal::INT {
                        return Ok(Some(Outcome::Interrupted(signal.as_raw())));
                    }
                    self.pass_on(signal);
                }
                None => {}
            }
        }
        Ok(None)
    }

    /// Ctrl-Z outside a terminal of the sandbox's own: we stop as any program would, with the terminal as it was.
    fn stop_ourselves(&self) -> io::Result<()> {
        if let Some(raw) = &self.raw {
            raw.restore().map_err(while_we("restore the terminal"))?;
        }
        Ok(rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?)
    }

    fn pass_on(&mut self, signal: Signal) {
        self.send(signal);
        self.ends.because.get_or_insert(Because::Signal(signal.as_raw()));
        let grace = match signal {
            Signal::TERM => GRACE_AFTER_TERM,
            Signal::HUP => GRACE_AFTER_HANGUP,
            // The person sits there and can press again.
            _ => return,
        };
        let until = Instant::now() + grace;
        self.ends.at = Some(self.ends.at.map_or(until, |at| at.min(until)));
    }

    fn send(&mut self, signal: Signal) {
        let Some(pid) = self.pid else { return };
        let request = Request::Signal { process: Selector::Pid(pid), signal: signal.as_raw(), group: true };
        // A guest that takes no connection is ended when the grace is over.
        if let Ok(errand) = Connection::open(self.socket, &request) {
            self.errands.push(errand);
        }
    }

    fn resize(&mut self) {
        if self.raw.is_some()
            && let Some(size) = terminal::size()
        {
            self.connection.queue(Frame::json(Kind::Control, &Control::Resize { size }));
        }
    }

    /// Ends what has run out of time: first by asking, then by giving up on the sandbox.
    fn check_time(&mut self) -> io::Result<Option<Outcome>> {
        if self.ends.at.is_none_or(|at| Instant::now() < at) {
            return Ok(None);
        }
        Ok(match self.ends.because {
            None => {
                self.ends.because = Some(Because::Timeout);
                self.ends.at = Some(Instant::now() + GRACE_AFTER_TIMEOUT);
                self.send(Signal::TERM);
                None
            }
            Some(Because::Timeout) => Some(Outcome::TimedOut),
            Some(Because::Signal(signal)) => Some(Outcome::Interrupted(signal)),
        })
    }

    fn wait(&mut self) -> io::Result<Ready> {
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let mut guest = PollFlags::empty();
        if self.pending.is_none() && !self.connection.is_closed() {
            guest |= PollFlags::IN;
        }
        if self.connection.has_more_to_send() {
            guest |= PollFlags::OUT;
        }
        let output: Option<BorrowedFd<'_>> = self.pending.as_ref().map(|(stream, _)| match stream {
            Stream::Stdout => stdout.as_fd(),
            Stream::Stderr => stderr.as_fd(),
        });
        let wants_input = self.input == Input::Forwarded && self.pid.is_some() && self.connection.takes_more();
        let mut fds = vec![PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN)];
        // Without any event asked for, poll still reports a hang-up, at once and every time.
        let guest_at = (!guest.is_empty()).then(|| {
            fds.push(PollFd::from_borrowed_fd(self.connection.as_fd(), guest));
            fds.len() - 1
        });
        let input_at = wants_input.then(|| {
            fds.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
            fds.len() - 1
        });
        let output_at = output.map(|fd| {
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::OUT));
            fds.len() - 1
        });
        let next = self.ends.at.into_iter().chain(self.settles.map(|(at, _)| at)).min();
        let timeout = next.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened = |at: Option<usize>| at.is_some_and(|at| !fds[at].revents().is_empty());
        let guest = guest_at.map_or(PollFlags::empty(), |at| fds[at].revents());
        Ok(Ready {
            signals: happened(Some(0)),
            guest_says: self.pending.is_none() && guest.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR),
            guest_takes: guest.contains(PollFlags::OUT),
            input: happened(input_at),
            output: happened(output_at),
        })
    }
}

/// The same error with what was being done: the system's own name nothing.
fn while_we(did: &'static str) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{did}: {error}"))
}

struct Ready {
    signals: bool,
    guest_says: bool,
    guest_takes: bool,
    input: bool,
    output: bool,
}
