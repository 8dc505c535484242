//! Processes that a service runs for us: their output as it comes, and how they ended.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use cove_protocol::frame::read_async;
use cove_protocol::process::{Command, Exit, Info, OnDisconnect, Selector, Spec, Stdio};
use cove_protocol::{Control, Event, Failure, FailureKind, Kind, Reply};
use futures::StreamExt as _;
use tokio::sync::watch;

use super::{Deputy, Line, Outcome, Stop};
use crate::provider::remote::service::{Input, Piece, Run, Running};

/// Output of one process that is kept for readers who come later.
const KEPT: usize = 4 << 20;

/// Finished processes that are kept.
const FINISHED: usize = 256;

/// As the kernel numbers them.
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// All of them, the newest last.
#[derive(Default)]
pub struct Table {
    processes: Mutex<VecDeque<Arc<Process>>>,
    next: AtomicU32,
}

pub struct Process {
    pid: u32,
    spec: Spec,
    /// The service's name for it.
    service: String,
    started_at_ms: u64,
    state: Mutex<State>,
    /// Counts what has happened.
    news: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    pieces: VecDeque<(Kind, Bytes)>,
    /// Where in all output the first of the pieces begins.
    start: u64,
    end: u64,
    exit: Option<Exit>,
    timed_out: bool,
    signal: Option<i32>,
}

impl Table {
    pub fn list(&self) -> Vec<Info> {
        self.processes.lock().expect("no panic while held").iter().map(|process| process.info()).collect()
    }

    pub fn find(&self, selector: &Selector) -> Result<Arc<Process>, Failure> {
        let processes = self.processes.lock().expect("no panic while held");
        let found = processes.iter().rev().find(|process| match selector {
            Selector::Pid(pid) => process.pid == *pid,
            Selector::Tag(tag) => process.spec.tag.as_ref() == Some(tag),
            Selector::Living(tag) => process.spec.tag.as_ref() == Some(tag) && process.exit().is_none(),
        });
        found.cloned().ok_or_else(|| {
            let named = match selector {
                Selector::Pid(pid) => pid.to_string(),
                Selector::Tag(tag) | Selector::Living(tag) => format!("{tag:?}"),
            };
            Failure::new(FailureKind::NotFound, format!("process {named} not found"))
        })
    }

    pub fn forget(&self, selector: &Selector) -> Result<(), Failure> {
        let found = self.find(selector)?;
        if found.exit().is_none() {
            return Err(Failure::new(FailureKind::WrongState, format!("process {} has not ended", found.pid)));
        }
        self.processes.lock().expect("no panic while held").retain(|process| !Arc::ptr_eq(process, &found));
        Ok(())
    }

    fn add(&self, spec: Spec, service: String) -> Arc<Process> {
        let mut processes = self.processes.lock().expect("no panic while held");
        let finished = processes.iter().filter(|process| process.exit().is_some()).count();
        if finished >= FINISHED
            && let Some(oldest) = processes.iter().position(|process| process.exit().is_some())
        {
            processes.remove(oldest);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let process = Arc::new(Process {
            pid: 1000 + self.next.fetch_add(1, Ordering::SeqCst),
            spec,
            service,
            started_at_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            state: Mutex::default(),
            news: watch::Sender::new(0),
        });
        processes.push_back(Arc::clone(&process));
        process
    }
}

impl Process {
    fn info(&self) -> Info {
        let state = self.state.lock().expect("no panic while held");
        Info {
            pid: self.pid,
            tag: self.spec.tag.clone(),
            command: self.spec.command.clone(),
            env: self.spec.env.clone(),
            cwd: self.spec.cwd.clone(),
            user: self.spec.user.clone(),
            terminal: false,
            started_at_ms: self.started_at_ms,
            exit: state.exit,
            output_end: state.end,
            output_start: state.start,
        }
    }

    fn exit(&self) -> Option<Exit> {
        self.state.lock().expect("no panic while held").exit
    }

    pub async fn wait(&self) -> Exit {
        let mut news = self.news.subscribe();
        loop {
            if let Some(exit) = self.exit() {
                return exit;
            }
            // The sender is in this process's own keeping.
            let _ = news.changed().await;
        }
    }

    fn say(&self, kind: Kind, bytes: Bytes) {
        let mut state = self.state.lock().expect("no panic while held");
        state.end += bytes.len() as u64;
        state.pieces.push_back((kind, bytes));
        while state.end - state.start > KEPT as u64
            && let Some((_, dropped)) = state.pieces.pop_front()
        {
            state.start += dropped.len() as u64;
        }
        drop(state);
        self.news.send_modify(|count| *count += 1);
    }

    fn finish(&self, code: Option<i32>) {
        let mut state = self.state.lock().expect("no panic while held");
        if state.exit.is_none() {
            let signal = match code {
                // As shells and most services put it.
                Some(code) if code > 128 && state.signal == Some(code - 128) => state.signal,
                Some(-1) | None => Some(state.signal.unwrap_or(SIGKILL)),
                Some(_) => None,
            };
            let code = if signal.is_some() { None } else { code };
            state.exit = Some(Exit { code, signal, timed_out: state.timed_out, out_of_memory: false });
        }
        drop(state);
        self.news.send_modify(|count| *count += 1);
    }

    /// What comes at or after a place in the output, and the place after it.
    fn after(&self, place: u64) -> (Vec<(Kind, Bytes)>, u64, u64) {
        let state = self.state.lock().expect("no panic while held");
        let lost = state.start.saturating_sub(place);
        let (mut at, mut found) = (state.start, Vec::new());
        for (kind, bytes) in &state.pieces {
            let next = at + bytes.len() as u64;
            if next > place {
                let skipped = usize::try_from(place.saturating_sub(at)).unwrap_or(usize::MAX);
                found.push((*kind, bytes.slice(skipped.min(bytes.len())..)));
            }
            at = next;
        }
        (found, state.end, lost)
    }
}

impl Deputy {
    pub(super) async fn start(self: &Arc<Self>, spec: Spec, line: &mut Line) -> Outcome {
        match spec.stdio {
            Stdio::Closed | Stdio::Piped => {}
            Stdio::Terminal(_) => return Err(self.cannot("open a terminal")),
            Stdio::Socket => return Err(self.cannot("start an interpreter ahead")),
        }
        if spec.copy_of.is_some() {
            return Err(Failure::new(FailureKind::NotFound, "no process to copy").into());
        }
        let configuration = self.configuration();
        let words = match &spec.command {
            Command::Argv(words) => words.clone(),
            Command::Shell(text) => {
                let shell = r#"if [ -x /bin/bash ]; then exec /bin/bash -l -c "$1"; else exec /bin/sh -c "$1"; fi"#;
                ["sh", "-c", shell, "cove", text].map(str::to_owned).to_vec()
            }
        };
        let mut env = configuration.env;
        env.extend(spec.env.clone());
        let run = Run {
            words,
            env,
            cwd: spec.cwd.clone().or(configuration.cwd),
            user: spec.user.clone().or(configuration.user),
            input: spec.stdio == Stdio::Piped,
        };
        let Running { process: service, pieces } = self.service.run(&self.name, &run).await?;
        let (timeout, on_disconnect) = (spec.timeout_ms, spec.on_disconnect);
        let process = self.processes.add(spec, service);
        self.watch(Arc::clone(&process), pieces);
        if let Some(timeout) = timeout {
            self.end_after(Arc::clone(&process), Duration::from_millis(timeout));
        }
        line.reply(&Reply::Started { pid: process.pid, output_start: 0 }).await?;
        let followed = self.follow(&process, 0, line).await;
        if followed.is_err() && on_disconnect == OnDisconnect::Kill && process.exit().is_none() {
            self.end(&process, SIGKILL).await?;
        }
        followed
    }

    pub(super) async fn attach(self: &Arc<Self>, selector: &Selector, from: Option<u64>, line: &mut Line) -> Outcome {
        let process = self.processes.find(selector)?;
        let place = from.unwrap_or_else(|| process.info().output_end);
        line.reply(&Reply::Started { pid: process.pid, output_start: place }).await?;
        self.follow(&process, place, line).await
    }

    /// Takes in what the service tells of it, whoever listens.
    fn watch(
        &self,
        process: Arc<Process>,
        mut pieces: futures::stream::BoxStream<'static, Result<Piece, super::Trouble>>,
    ) {
        tokio::spawn(async move {
            while let Some(piece) = pieces.next().await {
                match piece {
                    Ok(Piece::Out(bytes)) => process.say(Kind::Stdout, bytes),
                    Ok(Piece::Err(bytes)) => process.say(Kind::Stderr, bytes),
                    Ok(Piece::Exited(code)) => return process.finish(Some(code)),
                    Err(trouble) => {
                        process.say(Kind::Stderr, format!("cove: {trouble}\n").into());
                        break;
                    }
                }
            }
            process.finish(None);
        });
    }

    fn end_after(self: &Arc<Self>, process: Arc<Process>, limit: Duration) {
        let deputy = Arc::clone(self);
        tokio::spawn(async move {
            if tokio::time::timeout(limit, process.wait()).await.is_err() {
                process.state.lock().expect("no panic while held").timed_out = true;
                if let Err(Stop::Failed(failure)) = deputy.end(&process, SIGKILL).await {
                    tracing::debug!(sandbox = %deputy.name, %failure, "end a command whose time is over");
                }
            }
        });
    }

    /// Sends output as it comes and hears what the host says, until the process or the host is gone.
    async fn follow(&self, process: &Arc<Process>, place: u64, line: &mut Line) -> Outcome {
        let Line { from, to } = line;
        let hear = async {
            while let Ok(Some(frame)) = read_async(from).await {
                let done = match frame.kind {
                    Kind::Stdin => self.feed(process, Input::Bytes(frame.payload.into())).await,
                    Kind::End => self.feed(process, Input::End).await,
                    Kind::Control => match frame.parse() {
                        Ok(Control::Signal { signal, .. }) => self.end(process, signal).await,
                        Ok(Control::Resize { .. }) | Err(_) => Ok(()),
                    },
                    _ => return,
                };
                // The process may have ended meanwhile: its exit says so.
                if let Err(Stop::Failed(failure)) = done {
                    tracing::debug!(sandbox = %self.name, %failure, "what the host said was not taken");
                }
                if frame.kind == Kind::End {
                    // The host has said all, and reads on.
                    std::future::pending::<()>().await;
                }
            }
        };
        let tell = tell(process, place, to);
        tokio::select! {
            told = tell => told,
            () = hear => Err(Stop::Gone),
        }
    }

    pub(super) async fn signal(&self, selector: &Selector, signal: i32) -> Outcome {
        let process = self.processes.find(selector)?;
        if process.exit().is_some() {
            return Err(Failure::new(FailureKind::WrongState, format!("process {} has ended", process.pid)).into());
        }
        self.end(&process, signal).await
    }

    async fn end(&self, process: &Process, signal: i32) -> Outcome {
        if [SIGINT, SIGKILL, SIGTERM].contains(&signal) {
            process.state.lock().expect("no panic while held").signal = Some(signal);
        }
        Ok(self.service.signal(&self.name, &process.service, signal).await?)
    }

    pub(super) async fn input(&self, selector: &Selector, bytes: Bytes) -> Outcome {
        let process = self.processes.find(selector)?;
        self.feed(&process, Input::Bytes(bytes)).await
    }

    pub(super) async fn close_input(&self, selector: &Selector) -> Outcome {
        let process = self.processes.find(selector)?;
        self.feed(&process, Input::End).await
    }

    async fn feed(&self, process: &Process, input: Input) -> Outcome {
        if process.spec.stdio != Stdio::Piped {
            // An end of what was never open is no news.
            return match input {
                Input::End => Ok(()),
                Input::Bytes(_) => {
                    Err(Failure::new(FailureKind::WrongState, format!("process {} takes no input", process.pid)).into())
                }
            };
        }
        Ok(self.service.input(&self.name, &process.service, input).await?)
    }
}

async fn tell(process: &Process, mut place: u64, to: &mut tokio::io::WriteHalf<tokio::io::DuplexStream>) -> Outcome {
    use cove_protocol::Frame;
    use cove_protocol::frame::{BULK, write_async};

    let mut news = process.news.subscribe();
    loop {
        news.borrow_and_update();
        // Before the output: what came before the end is told before it.
        let exit = process.exit();
        let (pieces, next, lost) = process.after(place);
        if lost > 0 {
            let frame = Frame::json(Kind::Event, &Event::Lost { bytes: lost });
            write_async(to, frame.kind, &frame.payload).await?;
        }
        for (kind, bytes) in pieces {
            for piece in bytes.chunks(BULK) {
                write_async(to, kind, piece).await?;
            }
        }
        place = place.max(next);
        if let Some(exit) = exit {
            let frame = Frame::json(Kind::Event, &Event::Exited { exit });
            write_async(to, frame.kind, &frame.payload).await?;
            return Ok(write_async(to, Kind::End, &[]).await?);
        }
        // The sender is the process's own.
        let _ = news.changed().await;
    }
}
