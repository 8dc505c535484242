//! Processes that the host started.
//!
//! ```text
//!   connection threads                     the supervisor
//!   start ─▶ vfork, register ──────────▶ epoll: output readable ─▶ pump ─▶ Output ─┐
//!   stream ◀──────────── woken by eventfd ◀──────────────────────────────────────┘
//!     └─ a reader that lags by WINDOW pauses the pump: the process waits, nothing is lost
//!                                          SIGCHLD ─▶ reaped ─▶ pipes drained ─▶ exit published
//! ```
//!
//! A process ends twice: the kernel reaps it, and then its pipes run dry. Only then is the exit reported, so that no
//! reader sees the exit before the last byte. Children that it left behind may keep the pipes open for ever: the guest
//! reads the bytes that were in them at the end, later ones only for [`GRACE`]; after that it drops what still comes,
//! so that a daemon left behind is not killed by a broken pipe.

pub mod copy;
pub mod environment;
pub mod input;
pub mod list;
pub mod memory;
pub mod output;
pub mod signal;
pub mod start;
pub mod stream;
pub mod table;
pub mod wait;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cove_protocol::process::{Command, Exit, Info};
use cove_sys::program::Started;
use rustix::event::epoll;
use rustix::io::{Errno, ioctl_fionread};

use output::{Account, KEPT, Output, Piece, Stream};

/// How far a reader may lag before the process has to wait for it.
const WINDOW: u64 = 512 << 10;

/// How long children left behind may write to the pipes before the exit is reported.
pub const GRACE: Duration = Duration::from_millis(100);

/// What the host asked for, as it is listed later.
pub struct Asked {
    pub command: Command,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
    pub user: Option<String>,
    pub tag: Option<String>,
    pub terminal: bool,
    pub started_at_ms: u64,
}

pub struct Process {
    /// Never used twice, unlike the pid.
    pub id: u64,
    pub pid: u32,
    /// Its process group when it began. Its first member is gone: the process itself leads none.
    pub group: u32,
    pub asked: Asked,
    /// The kernel has taken the pid back. Set under the table's lock, and signals are sent under it: a signal never
    /// meets a stranger with the same number.
    pub reaped: AtomicBool,
    pub timed_out: AtomicBool,
    /// The host has sent it a SIGKILL.
    pub killed: AtomicBool,
    /// The kernel's count of out-of-memory kills when it began.
    kills_before: Option<u64>,
    /// How to have it copied, where it can be.
    pub original: Option<copy::Original>,
    state: Mutex<State>,
}

struct State {
    output: Output,
    sources: [Option<Source>; 2],
    readers: Vec<Reader>,
    next_reader: u64,
    input: Input,
    terminal: Option<Arc<OwnedFd>>,
    reaped: Option<(Exit, Instant)>,
    exit: Option<Exit>,
}

struct Source {
    stream: Stream,
    file: Arc<OwnedFd>,
    paused: bool,
    /// Bytes that were in the pipe when the process ended.
    owed: u64,
}

/// Where standard input goes.
#[derive(Clone)]
pub enum Input {
    None,
    Open(Arc<OwnedFd>),
    Closed,
}

/// Someone who follows the process: woken through an eventfd when there is something to see.
struct Reader {
    key: u64,
    /// The next byte wanted; `None` for one who only waits for the end.
    position: Option<u64>,
    wake: Arc<OwnedFd>,
}

/// What a reader finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    Bytes(Stream, usize),
    Lost(u64),
    Exited(Exit),
    Nothing,
}

/// What the files of a fresh process are to the guest.
pub struct Ends {
    pub sources: [Option<(Stream, OwnedFd)>; 2],
    pub input: Option<OwnedFd>,
    pub terminal: Option<Arc<OwnedFd>>,
    pub original: Option<copy::Original>,
}

impl Process {
    pub fn new(
        id: u64,
        started: Started,
        asked: Asked,
        ends: Ends,
        kills_before: Option<u64>,
        account: Account,
    ) -> Self {
        let Ends { sources, input, terminal, original } = ends;
        let mut sources = sources
            .map(|end| end.map(|(stream, file)| Source { stream, file: Arc::new(file), paused: false, owed: 0 }));
        if let Some(terminal) = &terminal {
            let file = Arc::clone(terminal);
            sources = [Some(Source { stream: Stream::Terminal, file, paused: false, owed: 0 }), None];
        }
        let input = match (input, &terminal) {
            (Some(pipe), _) => Input::Open(Arc::new(pipe)),
            (None, Some(terminal)) => Input::Open(Arc::clone(terminal)),
            (None, None) => Input::None,
        };
        Process {
            id,
            pid: started.pid,
            group: started.group,
            asked,
            reaped: AtomicBool::new(false),
            timed_out: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            kills_before,
            original,
            state: Mutex::new(State {
                output: Output::on(account),
                sources,
                readers: Vec::new(),
                next_reader: 0,
                input,
                terminal,
                reaped: None,
                exit: None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the output under the supervisor's eyes.
    pub fn watch(&self, epoll: &OwnedFd) -> Result<(), Errno> {
        let state = self.state();
        for (index, source) in state.sources.iter().enumerate() {
            if let Some(source) = source {
                epoll::add(epoll, &source.file, token(self.id, index), epoll::EventFlags::IN)?;
            }
        }
        Ok(())
    }

    /// Reads what one stream has, once. The buffer is the supervisor's, which has made room for all of it.
    pub fn pump(&self, index: usize, epoll: &OwnedFd, buffer: &mut [u8]) {
        let mut state = self.state();
        let state = &mut *state;
        let Some(source) = state.sources.get_mut(index).and_then(Option::as_mut) else { return };
        if source.paused {
            return;
        }
        match rustix::io::read(&*source.file, &mut *buffer) {
            Ok(count @ 1..) => {
                source.owed = source.owed.saturating_sub(count as u64);
                if state.exit.is_none() {
                    state.output.append(source.stream, buffer.get(..count).unwrap_or_default());
                    let needed = state.slowest();
                    state.output.trim(KEPT, needed);
                    if state.output.end() - needed.min(state.output.end()) >= WINDOW {
                        state.pause(epoll);
                    }
                    state.wake_readers();
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // End of the pipe; a terminal whose other side is closed says EIO.
            Ok(0) | Err(_) => {
                let _ = epoll::delete(epoll, &source.file);
                if let Some(place) = state.sources.get_mut(index) {
                    *place = None;
                }
            }
        }
        self.publish(state);
    }

    /// The kernel has reaped it. Returns when to look again whether its pipes are dry, if they are not.
    pub fn reaped(&self, mut exit: Exit, kills: &memory::Kills) -> Option<Instant> {
        exit.timed_out = self.timed_out.load(Ordering::SeqCst);
        exit.out_of_memory = memory::is_suspicious(&exit)
            && !self.killed.load(Ordering::SeqCst)
            && self.kills_before.is_some_and(|before| kills.count().is_some_and(|now| now > before));
        let deadline = Instant::now() + GRACE;
        let mut state = self.state();
        let state = &mut *state;
        for source in state.sources.iter_mut().flatten() {
            source.owed = ioctl_fionread(&*source.file).unwrap_or(0);
        }
        state.reaped = Some((exit, deadline));
        state.input = match state.input {
            Input::None => Input::None,
            _ => Input::Closed,
        };
        self.publish(state);
        state.exit.is_none().then_some(deadline)
    }

    /// Reports the exit if nothing delays it any more. Call it again when the grace is over.
    pub fn settle(&self) {
        self.publish(&mut self.state());
    }

    fn publish(&self, state: &mut State) {
        let Some((exit, deadline)) = state.reaped else { return };
        if state.exit.is_some() {
            return;
        }
        let closed = state.sources.iter().all(Option::is_none);
        let dry = state.sources.iter().flatten().all(|source| source.owed == 0);
        if closed || (dry && Instant::now() >= deadline) {
            state.exit = Some(exit);
            state.terminal = None;
            state.wake_readers();
        }
    }

    pub fn exit(&self) -> Option<Exit> {
        self.state().exit
    }

    pub fn input(&self) -> Input {
        self.state().input.clone()
    }

    /// Closes standard input for all writers once the last write under way is done.
    pub fn close_input(&self) {
        let mut state = self.state();
        if let Input::Open(_) = state.input {
            state.input = Input::Closed;
        }
    }

    pub fn terminal(&self) -> Option<Arc<OwnedFd>> {
        self.state().terminal.clone()
    }

    /// Joins at `position`, or at the end where `None`.
    pub fn join(&self, position: Option<u64>, wake: Arc<OwnedFd>) -> (u64, u64) {
        let mut state = self.state();
        let end = state.output.end();
        let position = position.map_or(end, |position| position.min(end));
        (state.add_reader(Some(position), wake), position)
    }

    /// Waits for the end alone.
    pub fn await_exit(&self, wake: Arc<OwnedFd>) -> u64 {
        self.state().add_reader(None, wake)
    }

    /// The next thing for a reader, copied into its buffer; moves the reader on, and the process where it had waited.
    pub fn take(&self, key: u64, epoll: &OwnedFd, buffer: &mut [u8]) -> Found {
        let mut state = self.state();
        let state = &mut *state;
        let exit = state.exit;
        let ended = || exit.map_or(Found::Nothing, Found::Exited);
        let Some(reader) = state.readers.iter_mut().find(|reader| reader.key == key) else { return Found::Nothing };
        let Some(position) = reader.position else { return ended() };
        let found = match state.output.read(position, buffer.len()) {
            Piece::Bytes { stream, bytes } => {
                if let Some(place) = buffer.get_mut(..bytes.len()) {
                    place.copy_from_slice(bytes);
                }
                reader.position = Some(position + bytes.len() as u64);
                Found::Bytes(stream, bytes.len())
            }
            Piece::Gap { next } => {
                reader.position = Some(next);
                Found::Lost(next - position)
            }
            Piece::None => return ended(),
        };
        state.resume(self.id, epoll);
        found
    }

    /// Leaves; a process that waited for this reader runs on.
    pub fn leave(&self, key: u64, epoll: &OwnedFd) {
        let mut state = self.state();
        state.readers.retain(|reader| reader.key != key);
        state.resume(self.id, epoll);
    }

    /// Drops old output down to `limit` where nobody reads.
    pub fn shrink(&self, limit: usize) {
        let mut state = self.state();
        let needed = state.slowest();
        state.output.trim(limit, needed);
    }

    /// Whether children left behind still have its pipes.
    pub fn lingers(&self) -> bool {
        self.state().sources.iter().any(Option::is_some)
    }

    pub fn info(&self) -> Info {
        let state = self.state();
        let Asked { command, env, cwd, user, tag, terminal, started_at_ms } = &self.asked;
        Info {
            pid: self.pid,
            tag: tag.clone(),
            command: command.clone(),
            env: env.clone(),
            cwd: cwd.clone(),
            user: user.clone(),
            terminal: *terminal,
            started_at_ms: *started_at_ms,
            exit: state.exit,
            output_end: state.output.end(),
            output_start: state.output.start(),
        }
    }
}

impl State {
    fn add_reader(&mut self, position: Option<u64>, wake: Arc<OwnedFd>) -> u64 {
        let key = self.next_reader;
        self.next_reader += 1;
        self.readers.push(Reader { key, position, wake });
        key
    }

    /// The oldest byte that a reader still wants.
    fn slowest(&self) -> u64 {
        self.readers.iter().filter_map(|reader| reader.position).min().unwrap_or(u64::MAX)
    }

    fn wake_readers(&self) {
        for reader in &self.readers {
            // Full only when it has not been read for 2^64 wakes: awake it is then.
            let _ = rustix::io::write(&*reader.wake, &1u64.to_ne_bytes());
        }
    }

    fn pause(&mut self, epoll: &OwnedFd) {
        for source in self.sources.iter_mut().flatten() {
            if !source.paused {
                source.paused = epoll::delete(epoll, &source.file).is_ok();
            }
        }
    }

    fn resume(&mut self, id: u64, epoll: &OwnedFd) {
        let lag = self.output.end().saturating_sub(self.slowest());
        // Half a window of room, so that the pump does not stop and go with every frame.
        if lag > WINDOW / 2 {
            return;
        }
        for (index, source) in self.sources.iter_mut().enumerate() {
            if let Some(source) = source
                && source.paused
            {
                source.paused = epoll::add(epoll, &source.file, token(id, index), epoll::EventFlags::IN).is_err();
            }
        }
    }
}

/// How the supervisor finds process and stream again; 0 and 1 are its own.
fn token(id: u64, index: usize) -> epoll::EventData {
    epoll::EventData::new_u64((id << 1) | index as u64)
}
