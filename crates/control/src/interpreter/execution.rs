//! One cell from start to end: a task that owns the connection, watches the clock and the client.

use std::sync::Arc;
use std::time::Duration;

use cove_protocol::process::{Exit, Selector};
use cove_protocol::{Control, Event, Request};
use serde::Deserialize;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::cell::{CellError, CellResult, SANDBOX_GONE};
use super::events::{self, Events, Scales, Weighed};
use super::typescript::Typescript;
use super::{Cell, CellEvent, Context, Joined, Language, bash, driver};
use crate::border::shape;
use crate::guest::{Guest, GuestError, Item, Operation, Receiver};
use crate::heavy;
use crate::lines::{self, Lines};
use crate::provider::{Handle, Provider};
use crate::sandbox::cause::Cause;

pub const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

/// A cell that was interrupted and does not end by itself within this time loses its context.
const YIELD_WITHIN: Duration = Duration::from_secs(4);
/// From an interrupt on, what is said waits only so long for a client that does not read: the end of the cell is behind it.
const HEARD_WITHIN: Duration = Duration::from_secs(2);
/// The longest line a driver may send; its own limit for one value is half of this.
const MAX_LINE: usize = 40 << 20;
/// What the values of one line may weigh (see [`shape::weigh`]): a table of a million cells.
const MOST_VALUES: usize = 1_000_000;
/// Bytes of memory that a value takes, about.
const VALUE: usize = 64;

/// Puts the cell to the context and streams what happens.
pub fn run(joined: Joined, cell: Cell) -> Events {
    let (to, told) = events::channel();
    tokio::spawn(async move {
        let Joined { guest, memory, types, context, pid, starting, operation } = joined;
        let mut execution = Execution { guest, memory, types, context, pid, starting, to, timed_out: None };
        execution.run(operation, cell).await;
        // The receiver may be gone; then nobody waits for this.
        let _ = execution.to.send((CellEvent::Done, None)).await;
    });
    told
}

/// Whom to ask what the memory of the sandbox came to.
pub struct Memory {
    pub handle: Handle,
    /// Absent where it is not configured.
    pub provider: Option<Arc<dyn Provider>>,
}

impl Memory {
    /// The host's account, in words: the sandbox itself does not know its limit nor who was largest.
    async fn account(&self) -> Option<String> {
        let ended = self.provider.as_ref()?.shortage(&self.handle).await?;
        Some(Cause::ended(&ended, jiff::Timestamp::now()).message)
    }
}

/// Who takes the types off a cell, and at whose cost.
pub struct Types {
    pub typescript: Typescript,
    pub organisation: String,
}

struct Execution {
    guest: Guest,
    memory: Memory,
    types: Types,
    context: Context,
    /// Of the context, when the cell was put to it.
    pid: u32,
    /// Held by whoever starts a context of the sandbox.
    starting: Arc<Mutex<()>>,
    to: mpsc::Sender<Weighed>,
    /// The time limit, once it has struck.
    timed_out: Option<Duration>,
}

/// How the reading of a cell's events ended.
enum End {
    Done,
    Died(Option<Exit>, String),
    Broken(String),
}

impl Execution {
    async fn run(&mut self, operation: Operation, mut cell: Cell) {
        if self.context.language == Language::TypeScript {
            match self.types.typescript.strip(&self.types.organisation, &cell.code).await {
                Ok(javascript) => cell.code = javascript,
                Err(message) => return self.fail(CellError::new("SyntaxError", message)).await,
            }
        }
        let id = hex::encode(rand::random::<[u8; 8]>());
        let (from, mut to) = operation.split();
        if let Err(error) = to.stdin(&driver::request(&self.context.language, &id, &cell)).await {
            self.fail(CellError::new("ContextDied", format!("the cell could not be sent: {error}"))).await;
            return;
        }
        let (lines_to, mut lines) = mpsc::channel(1);
        let unheard = CancellationToken::new();
        let language = self.context.language.clone();
        let reader = Reader { id, language, to: lines_to, scales: Scales::new(), unheard: unheard.clone() };
        let reading = tokio::spawn(reader.read(from));

        let deadline = cell.timeout.map(|limit| (Instant::now() + limit, limit));
        let mut interrupted_at: Option<Instant> = None;
        let client = self.to.clone();
        // An event that the client has no room for yet. The clock goes on while it waits.
        let mut waiting: Option<Weighed> = None;
        loop {
            let strike = interrupted_at.map_or(deadline.map(|(at, _)| at), |at| Some(at + YIELD_WITHIN));
            let patience = interrupted_at.map(|at| at + HEARD_WITHIN);
            if unheard.is_cancelled()
                && let Some(event) = waiting.take()
            {
                let _ = client.try_send(event);
            }
            tokio::select! {
                event = lines.recv(), if waiting.is_none() => match event {
                    Some(event) => waiting = Some(event),
                    None => break,
                },
                room = client.reserve(), if waiting.is_some() => {
                    let event = waiting.take();
                    // Without a room the receiver is gone.
                    if let (Ok(room), Some(event)) = (room, event) {
                        room.send(event);
                    }
                }
                () = wait_until(patience), if !unheard.is_cancelled() => unheard.cancel(),
                () = wait_until(strike) => {
                    if interrupted_at.is_some() {
                        let control = Control::Signal { signal: SIGKILL, group: true };
                        let _ = to.control(&control).await;
                        interrupted_at = Some(Instant::now() + Duration::from_secs(3600));
                    } else {
                        self.timed_out = deadline.map(|(_, limit)| limit);
                        interrupted_at = Some(Instant::now());
                        let _ = to.control(&Control::Signal { signal: SIGINT, group: true }).await;
                    }
                }
                () = client.closed(), if interrupted_at.is_none() => {
                    interrupted_at = Some(Instant::now());
                    let _ = to.control(&Control::Signal { signal: SIGINT, group: true }).await;
                }
            }
        }
        let end = reading.await.unwrap_or_else(|error| End::Broken(error.to_string()));
        self.conclude(end, interrupted_at.is_some()).await;
    }

    async fn conclude(&mut self, end: End, interrupted: bool) {
        match end {
            End::Done => {
                if let Some(limit) = self.timed_out {
                    let told = format!("the cell ran longer than {} s and was interrupted", limit.as_secs_f32());
                    self.fail(CellError::new("TimeoutError", told)).await;
                }
            }
            End::Died(..) if self.guest.call(&Request::Ping).await.is_err() => {
                self.fail(CellError::new(SANDBOX_GONE, "the sandbox went away while the cell ran")).await;
            }
            End::Died(exit, words) => {
                let account = match exit {
                    Some(Exit { out_of_memory: true, .. }) => self.memory.account().await,
                    _ => None,
                };
                let error = death(&self.context, exit, interrupted, self.timed_out, account, &words);
                // The client may take its time; the context does not wait for it.
                tokio::join!(self.revive(), self.fail(error));
            }
            End::Broken(reason) => {
                let error = CellError::new("ContextDied", format!("{reason}; its context was ended"));
                let anew = async {
                    if let Ok(Some(found)) = super::context::lookup(&self.guest, &self.context.id).await {
                        let kill = Request::Signal { process: Selector::Pid(found.pid), signal: SIGKILL, group: true };
                        let _ = timeout(YIELD_WITHIN, self.guest.call(&kill)).await;
                    }
                    self.revive().await;
                };
                tokio::join!(anew, self.fail(error));
            }
        }
    }

    /// A context that died starts anew under its name, empty, so that the next cell finds it. A cell that was quicker has
    /// started it already: of two the newer would take over, and the other's variables would be lost.
    async fn revive(&self) {
        let _starting = self.starting.lock().await;
        let found = super::context::lookup(&self.guest, &self.context.id).await;
        if found.is_ok_and(|found| found.is_some_and(|found| found.pid != self.pid)) {
            return;
        }
        if let Err(error) = driver::start(&self.guest, &self.context).await {
            tracing::debug!(context = %self.context.id, %error, "context could not be started anew");
        }
    }

    async fn fail(&self, error: CellError) {
        let _ = self.to.send((CellEvent::Error(error), None)).await;
    }
}

async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Why a context's process is gone, in words that lead somewhere.
fn death(
    context: &Context,
    exit: Option<Exit>,
    interrupted: bool,
    timed_out: Option<Duration>,
    account: Option<String>,
    words: &str,
) -> CellError {
    let restarted = format!("the {} context was started anew and its variables are gone", context.language);
    if let Some(limit) = timed_out {
        return CellError::new(
            "TimeoutError",
            format!("the cell ran longer than {} s and did not heed the interrupt; {restarted}", limit.as_secs_f32()),
        );
    }
    if interrupted {
        return CellError::new("KeyboardInterrupt", format!("the cell did not heed the interrupt; {restarted}"));
    }
    let (name, value) = match exit {
        Some(Exit { out_of_memory: true, .. }) => {
            let account = account.unwrap_or_else(|| "the sandbox ran out of memory".into());
            ("OutOfMemory", format!("{account}: the interpreter was killed"))
        }
        Some(Exit { signal: Some(signal), .. }) => {
            ("ContextDied", format!("the interpreter was ended by signal {signal}"))
        }
        Some(exit) => ("SystemExit", format!("the interpreter exited with code {}", exit.status())),
        None => ("ContextDied", "the connection to the interpreter was lost".to_owned()),
    };
    CellError { name: name.into(), value: format!("{value}; {restarted}"), traceback: words.to_owned() }
}

/// Reads a driver's lines and turns those of one cell into events.
struct Reader {
    id: String,
    language: Language,
    to: mpsc::Sender<Weighed>,
    scales: Scales,
    /// The client does not read: what finds no room is dropped.
    unheard: CancellationToken,
}

/// A driver's line.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line {
    Ready,
    Started { count: u64 },
    Stdout { text: String },
    Stderr { text: String },
    Result(CellResult),
    Error(CellError),
    Done,
}

#[derive(Deserialize)]
struct Addressed<'a> {
    #[serde(borrow)]
    cell: Option<std::borrow::Cow<'a, str>>,
}

impl Reader {
    async fn read(self, from: Receiver) -> End {
        match self.language {
            Language::Bash => self.read_bash(from).await,
            _ => self.read_lines(from).await,
        }
    }

    async fn read_lines(self, mut from: Receiver) -> End {
        let (mut lines, mut words) = (Lines::of_at_most(MAX_LINE), String::new());
        loop {
            match from.next().await {
                Ok(Some(Item::Stdout(bytes))) => {
                    let whole = match lines.take(&bytes) {
                        Ok(whole) => whole,
                        Err(too_long) => return End::Broken(format!("the interpreter sent {too_long}")),
                    };
                    for line in lines::each(&whole) {
                        if let Some(end) = self.line(line).await {
                            return end;
                        }
                    }
                }
                Ok(Some(Item::Stderr(bytes))) => keep_last(&mut words, &bytes),
                Ok(Some(Item::Event(Event::Exited { exit }))) => return End::Died(Some(exit), words),
                Ok(Some(_)) => {}
                Ok(None) => return End::Died(None, words),
                Err(GuestError::Protocol(reason)) => return End::Broken(reason),
                Err(_) => return End::Died(None, words),
            }
        }
    }

    /// One line: an event of this cell is passed on, another cell's is not ours to tell. A line that is no event was
    /// written by the user's code to a descriptor that is not its own.
    async fn line(&self, line: &[u8]) -> Option<End> {
        let (line, weight) = if line.len() <= heavy::SMALL {
            read(line, &self.id)?
        } else {
            let (line, id) = (line.to_vec(), self.id.clone());
            heavy::run(line.len(), heavy::SMALL, move || read(&line, &id)).await?
        };
        let event = match line {
            Line::Done => return Some(End::Done),
            Line::Ready => return None,
            Line::Started { count } => CellEvent::Started { count },
            Line::Stdout { text } => CellEvent::Stdout { text },
            Line::Stderr { text } => CellEvent::Stderr { text },
            Line::Result(result) => CellEvent::Result(result),
            Line::Error(error) => CellEvent::Error(error),
        };
        self.tell(event, weight).await;
        None
    }

    /// Nobody may be listening any more.
    async fn tell(&self, event: CellEvent, bytes: usize) {
        let weighed = tokio::select! {
            biased;
            weighed = self.scales.weigh(event, bytes) => weighed,
            () = self.unheard.cancelled() => return,
        };
        let _ = self.to.send(weighed).await;
    }

    async fn read_bash(self, mut from: Receiver) -> End {
        let (mut out, mut err) = (bash::Stream::new(&self.id), bash::Stream::new(&self.id));
        self.tell(CellEvent::Started { count: 1 }, 0).await;
        while out.status.is_none() || err.status.is_none() {
            let event = match from.next().await {
                Ok(Some(Item::Stdout(bytes))) => {
                    let text = out.take(&bytes);
                    (!text.is_empty()).then_some((text.len(), CellEvent::Stdout { text }))
                }
                Ok(Some(Item::Stderr(bytes))) => {
                    let text = err.take(&bytes);
                    (!text.is_empty()).then_some((text.len(), CellEvent::Stderr { text }))
                }
                Ok(Some(Item::Event(Event::Exited { exit }))) => return End::Died(Some(exit), String::new()),
                Ok(Some(_)) => None,
                Ok(None) | Err(_) => return End::Died(None, String::new()),
            };
            if let Some((bytes, event)) = event {
                self.tell(event, bytes).await;
            }
        }
        if let Some(code) = out.status.as_deref().filter(|&code| code != "0") {
            self.tell(CellEvent::Error(CellError::new("ExitCode", format!("exit status {code}"))), 0).await;
        }
        End::Done
    }
}

/// A line of this cell, and about how many bytes of memory it takes. One with more values than a result may have becomes
/// an error that says so: it is judged before it is parsed.
fn read(line: &[u8], cell: &str) -> Option<(Line, usize)> {
    let addressed = serde_json::from_slice::<Addressed<'_>>(line).ok()?;
    if addressed.cell.as_deref() != Some(cell) {
        return None;
    }
    match shape::weigh(line, MOST_VALUES) {
        Ok(values) => Some((serde_json::from_slice(line).ok()?, line.len().max(values * VALUE))),
        Err(excess) => {
            let problem = format!("the result was dropped: {}; write it to a file, or show less of it", excess.problem);
            Some((Line::Error(CellError::new("ResultTooLarge", problem)), 0))
        }
    }
}

/// Keeps the last few kilobytes of what the interpreter itself said: its dying words.
fn keep_last(words: &mut String, bytes: &[u8]) {
    const KEPT: usize = 4096;
    words.push_str(&String::from_utf8_lossy(bytes));
    if words.len() > KEPT {
        let cut = (words.len() - KEPT..words.len()).find(|&at| words.is_char_boundary(at)).unwrap_or(0);
        words.drain(..cut);
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use cove_protocol::{Frame, Kind, Reply, frame};
    use tokio::io::DuplexStream;

    use super::*;
    use crate::guest::{Connect, Pipe};

    /// A guest that has one connection to give.
    struct Once(std::sync::Mutex<Option<DuplexStream>>);

    #[async_trait]
    impl Connect for Once {
        async fn connect(&self) -> Result<Box<dyn Pipe>, GuestError> {
            let pipe = self.0.lock().unwrap().take();
            Ok(Box::new(pipe.ok_or(GuestError::Unreachable("gone".into()))?))
        }
    }

    /// A Python that prints until it is interrupted, and then ends its cell. Tells every signal.
    async fn prints_until_interrupted(pipe: DuplexStream, signals: mpsc::UnboundedSender<i32>) {
        let (mut from, mut to) = tokio::io::split(pipe);
        frame::read_async(&mut from).await.unwrap();
        let started = Frame::json(Kind::Reply, &Reply::Started { pid: 1, output_start: 0 });
        frame::write_async(&mut to, started.kind, &started.payload).await.unwrap();
        let cell = frame::read_async(&mut from).await.unwrap().unwrap().payload;
        let id = serde_json::from_slice::<serde_json::Value>(&cell).unwrap()["cell"].clone();
        let interrupted = CancellationToken::new();
        let told = interrupted.clone();
        tokio::spawn(async move {
            while let Ok(Some(frame)) = frame::read_async(&mut from).await {
                if let Ok(Control::Signal { signal, .. }) = frame.parse() {
                    told.cancel();
                    let _ = signals.send(signal);
                }
            }
        });
        let line = |event: &str| format!("{}\n", serde_json::json!({"cell": id, "event": event, "text": "x"}));
        while !interrupted.is_cancelled() {
            frame::write_async(&mut to, Kind::Stdout, line("stdout").as_bytes()).await.unwrap();
        }
        frame::write_async(&mut to, Kind::Stdout, line("done").as_bytes()).await.unwrap();
        std::future::pending::<()>().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_does_not_stop_the_clock() {
        let (ours, theirs) = tokio::io::duplex(4096);
        let (signals, mut signalled) = mpsc::unbounded_channel();
        tokio::spawn(prints_until_interrupted(theirs, signals));
        let guest = Guest::new(Arc::new(Once(std::sync::Mutex::new(Some(ours)))));
        let (_, operation) = guest.open(&Request::Ping).await.unwrap();
        let memory = Memory { handle: Handle::new("a"), provider: None };
        let limit = Duration::from_secs(5);
        let cell = Cell { timeout: Some(limit), ..Cell::new(Language::Python, "while True: print('x')") };
        let types = Types { typescript: Typescript::default(), organisation: "org".into() };
        let context = Context::default_of(&Language::Python);
        let starting = Arc::default();
        let mut events = run(Joined { guest, memory, types, context, pid: 1, starting, operation }, cell);

        let began = Instant::now();
        let signal = timeout(Duration::from_secs(3600), signalled.recv()).await;
        assert_eq!(signal, Ok(Some(SIGINT)), "the cell runs for ever");
        assert!(began.elapsed() < limit * 2, "{:?}", began.elapsed());
        let killed = timeout(Duration::from_secs(60), signalled.recv()).await;
        assert!(killed.is_err(), "it heeded the interrupt, and its context was ended: {killed:?}");

        let mut last = None;
        while let Some(event) = events.recv().await {
            match event {
                CellEvent::Done => break,
                event => last = Some(event),
            }
        }
        assert!(matches!(&last, Some(CellEvent::Error(error)) if error.name == "TimeoutError"), "{last:?}");
    }

    /// A guest whose interpreter dies at its cell. By then another cell has started the context again, as process 2.
    #[derive(Clone, Default)]
    struct Restarted {
        starts: Arc<std::sync::atomic::AtomicUsize>,
    }

    #[async_trait]
    impl Connect for Restarted {
        async fn connect(&self) -> Result<Box<dyn Pipe>, GuestError> {
            let (ours, theirs) = tokio::io::duplex(1 << 20);
            tokio::spawn(self.clone().serve(theirs));
            Ok(Box::new(ours))
        }
    }

    impl Restarted {
        async fn serve(self, pipe: DuplexStream) {
            let (mut from, mut to) = tokio::io::split(pipe);
            let request: Request = frame::read_async(&mut from).await.unwrap().unwrap().parse().unwrap();
            let reply = match &request {
                Request::Ping => Reply::Pong { version: cove_protocol::VERSION, uptime_ms: 1 },
                Request::Processes => Reply::Processes { processes: vec![living(2)] },
                Request::Start(_) => {
                    self.starts.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    Reply::Started { pid: 3, output_start: 0 }
                }
                _ => Reply::Started { pid: 1, output_start: 0 },
            };
            let reply = Frame::json(Kind::Reply, &reply);
            frame::write_async(&mut to, reply.kind, &reply.payload).await.unwrap();
            if matches!(request, Request::Attach { .. }) {
                let _cell = frame::read_async(&mut from).await.unwrap();
                let exit = Exit { code: Some(1), signal: None, timed_out: false, out_of_memory: false };
                let ended = Frame::json(Kind::Event, &Event::Exited { exit });
                frame::write_async(&mut to, ended.kind, &ended.payload).await.unwrap();
            }
            std::future::pending::<()>().await;
        }
    }

    fn living(pid: u32) -> cove_protocol::process::Info {
        cove_protocol::process::Info {
            pid,
            tag: Some(Context::default_of(&Language::Python).tag()),
            command: cove_protocol::process::Command::Argv(vec!["python3".into()]),
            env: Default::default(),
            cwd: None,
            user: None,
            terminal: false,
            started_at_ms: 1,
            exit: None,
            output_end: 0,
            output_start: 0,
        }
    }

    #[tokio::test]
    async fn a_context_that_another_cell_has_started_again_is_not_started_twice() {
        let restarted = Restarted::default();
        let guest = Guest::new(Arc::new(restarted.clone()));
        let attach = Request::Attach { process: Selector::Pid(1), from: None };
        let (_, operation) = guest.open(&attach).await.unwrap();
        let memory = Memory { handle: Handle::new("a"), provider: None };
        let types = Types { typescript: Typescript::default(), organisation: "org".into() };
        let (context, starting) = (Context::default_of(&Language::Python), Arc::default());
        let joined = Joined { guest, memory, types, context, pid: 1, starting, operation };
        let mut events = run(joined, Cell::new(Language::Python, "import os; os._exit(1)"));
        let mut told = Vec::new();
        while let Some(event) = events.recv().await {
            told.push(event);
        }
        let died = matches!(&told[..], [CellEvent::Error(error), CellEvent::Done] if error.name == "SystemExit");
        assert!(died, "{told:?}");
        assert_eq!(restarted.starts.load(std::sync::atomic::Ordering::SeqCst), 0, "it lives already");
    }
}
