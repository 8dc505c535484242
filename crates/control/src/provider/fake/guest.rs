//! A guest in this process: speaks the protocol over a pipe in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use cove_protocol::frame::{self, read_async, write_async};
use cove_protocol::process::{Command, Selector};
use cove_protocol::{Control, Event, Failure, FailureKind, Frame, Kind, Reply, Request, VERSION};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};

use super::files::{Files, absolute};
use super::process::Process;
use super::shell;
use crate::guest::{Connect, GuestError, Item, Pipe};
use crate::provider::Order;

pub struct FakeGuest {
    files: Mutex<Files>,
    env: Mutex<BTreeMap<String, String>>,
    processes: Mutex<Vec<Arc<Process>>>,
    next_pid: AtomicU32,
}

/// Connects to a guest, if it runs.
pub struct Link(pub Option<Arc<FakeGuest>>);

#[async_trait]
impl Connect for Link {
    async fn connect(&self) -> Result<Box<dyn Pipe>, GuestError> {
        let Some(guest) = &self.0 else { return Err(GuestError::Unreachable("not running".into())) };
        let (ours, theirs) = tokio::io::duplex(256 << 10);
        let guest = Arc::clone(guest);
        tokio::spawn(async move { guest.serve(theirs).await });
        Ok(Box::new(ours))
    }
}

type Outcome = Result<(), frame::FrameError>;

struct Line {
    from: ReadHalf<DuplexStream>,
    to: WriteHalf<DuplexStream>,
}

impl Line {
    async fn reply(&mut self, reply: Result<Reply, Failure>) -> Outcome {
        let frame = match reply {
            Ok(reply) => Frame::json(Kind::Reply, &reply),
            Err(failure) => Frame::json(Kind::Failure, &failure),
        };
        write_async(&mut self.to, frame.kind, &frame.payload).await
    }

    async fn event(&mut self, event: &Event) -> Outcome {
        let frame = Frame::json(Kind::Event, event);
        write_async(&mut self.to, frame.kind, &frame.payload).await
    }

    async fn end(&mut self) -> Outcome {
        write_async(&mut self.to, Kind::End, &[]).await
    }

    /// All bytes up to the End; `None` where the host went away before it.
    async fn upload(&mut self) -> Result<Option<Vec<u8>>, frame::FrameError> {
        let mut whole = Vec::new();
        while let Some(frame) = read_async(&mut self.from).await? {
            match frame.kind {
                Kind::Data | Kind::Stdin => whole.extend(frame.payload),
                Kind::End => return Ok(Some(whole)),
                _ => return Ok(None),
            }
        }
        Ok(None)
    }
}

impl FakeGuest {
    pub fn new(order: &Order, files: Files) -> Arc<Self> {
        Arc::new(FakeGuest {
            files: Mutex::new(files),
            env: Mutex::new(order.env.clone()),
            processes: Mutex::default(),
            next_pid: AtomicU32::new(2),
        })
    }

    pub fn end_processes(&self) {
        for process in self.processes.lock().expect("no panic while held").drain(..) {
            process.signal(9);
        }
    }

    pub fn running_processes(&self) -> usize {
        let processes = self.processes.lock().expect("no panic while held");
        processes.iter().filter(|process| process.info().exit.is_none()).count()
    }

    pub fn bytes_in_files(&self) -> u64 {
        self.files().bytes()
    }

    pub fn save_files(&self) -> Vec<u8> {
        serde_json::to_vec(&*self.files()).expect("files are plain data")
    }

    pub fn load_files(&self, saved: &[u8]) -> Result<(), String> {
        *self.files() = serde_json::from_slice(saved).map_err(|error| error.to_string())?;
        Ok(())
    }

    pub fn copy_of_files(&self) -> Files {
        // Memory is no part of what is captured.
        let mut files = self.files().clone();
        files.forget_below("/dev/shm");
        files
    }

    /// Returns what it had.
    pub fn exchange_files(&self, files: Files) -> Files {
        std::mem::replace(&mut *self.files(), files)
    }

    /// Where there is a list of users, others are unknown.
    fn check_user(&self, user: Option<&str>) -> Result<(), Failure> {
        let Ok(users) = self.files().read("/etc/passwd") else { return Ok(()) };
        let users = String::from_utf8_lossy(&users).into_owned();
        let known = |user: &str| user == "root" || users.lines().any(|line| line.split(':').next() == Some(user));
        match user {
            Some(user) if !known(user) => Err(Failure::new(FailureKind::UnknownUser, format!("no user {user:?}"))),
            _ => Ok(()),
        }
    }

    fn files(&self) -> std::sync::MutexGuard<'_, Files> {
        self.files.lock().expect("no panic while held")
    }

    fn find(&self, selector: &Selector) -> Result<Arc<Process>, Failure> {
        let processes = self.processes.lock().expect("no panic while held");
        let found = processes.iter().rev().find(|process| match selector {
            Selector::Pid(pid) => process.info().pid == *pid,
            Selector::Tag(tag) => process.info().tag.as_ref() == Some(tag),
            Selector::Living(tag) => process.info().tag.as_ref() == Some(tag) && process.info().exit.is_none(),
        });
        found.cloned().ok_or_else(|| Failure::new(FailureKind::NotFound, format!("process {selector:?} not found")))
    }

    async fn serve(self: Arc<Self>, pipe: DuplexStream) {
        let (from, to) = tokio::io::split(pipe);
        let mut line = Line { from, to };
        if let Ok(Some(frame)) = read_async(&mut line.from).await
            && let Ok(request) = frame.parse::<Request>()
        {
            // An error here means that the host hung up.
            let _ = self.answer(request, line).await;
        }
    }

    async fn answer(&self, request: Request, mut line: Line) -> Outcome {
        match request {
            Request::Ping => line.reply(Ok(Reply::Pong { version: VERSION, uptime_ms: 1 })).await,
            Request::Configure { env, .. } => {
                if let Some(env) = env {
                    *self.env.lock().expect("no panic while held") = env;
                }
                line.reply(Ok(Reply::Done)).await
            }
            Request::Start(spec) if self.check_user(spec.user.as_deref()).is_err() => {
                line.reply(self.check_user(spec.user.as_deref()).map(|()| Reply::Done)).await
            }
            Request::Start(spec) => {
                let command = match &spec.command {
                    Command::Argv(words) => match words.as_slice() {
                        [shell, flag, line] if shell.ends_with("sh") && flag == "-c" => line.clone(),
                        words => words.join(" "),
                    },
                    Command::Shell(text) => text.clone(),
                };
                let mut env = self.env.lock().expect("no panic while held").clone();
                env.extend(spec.env.clone());
                let cwd = spec.cwd.clone().unwrap_or_else(|| "/home/user".into());
                let deeds = shell::plan(&command, &env, &cwd, &mut self.files());
                let process = Process::start(self.next_pid.fetch_add(1, Ordering::SeqCst), &spec, deeds);
                self.processes.lock().expect("no panic while held").push(Arc::clone(&process));
                line.reply(Ok(Reply::Started { pid: process.info().pid, output_start: 0 })).await?;
                follow(process, 0, line).await
            }
            Request::Attach { process, from } => match self.find(&process) {
                Err(failure) => line.reply(Err(failure)).await,
                Ok(process) => {
                    let first = if from.is_some() { 0 } else { process.pieces() };
                    line.reply(Ok(Reply::Started { pid: process.info().pid, output_start: 0 })).await?;
                    follow(process, first, line).await
                }
            },
            Request::Processes => {
                let processes =
                    self.processes.lock().expect("no panic while held").iter().map(|process| process.info()).collect();
                line.reply(Ok(Reply::Processes { processes })).await
            }
            Request::Signal { process, signal, .. } => {
                let found = self.find(&process).map(|process| process.signal(signal));
                line.reply(found.map(|()| Reply::Done)).await
            }
            Request::Input { process } => {
                let bytes = line.upload().await?.unwrap_or_default();
                let reply = self.find(&process).and_then(|process| {
                    let taken = process.input(bytes);
                    if taken {
                        Ok(Reply::Done)
                    } else {
                        Err(Failure::new(FailureKind::WrongState, "no input is taken"))
                    }
                });
                line.reply(reply).await
            }
            Request::CloseStdin { process } => {
                let reply = self.find(&process).map(|process| process.close_input());
                line.reply(reply.map(|()| Reply::Done)).await
            }
            Request::Resize { process, .. } => line.reply(self.find(&process).map(|_| Reply::Done)).await,
            Request::Wait { process } => match self.find(&process) {
                Err(failure) => line.reply(Err(failure)).await,
                Ok(process) => {
                    let mut news = process.news.subscribe();
                    loop {
                        if let Some(exit) = process.info().exit {
                            return line.reply(Ok(Reply::Exited { exit })).await;
                        }
                        if news.changed().await.is_err() {
                            return Ok(());
                        }
                    }
                }
            },
            Request::Forget { process } => {
                let reply = self.find(&process).map(|found| {
                    let mut processes = self.processes.lock().expect("no panic while held");
                    processes.retain(|process| !Arc::ptr_eq(process, &found));
                });
                line.reply(reply.map(|()| Reply::Done)).await
            }
            Request::Stat { path, .. } => {
                let reply = self.files().stat(&absolute(&path)).map(|entry| Reply::Entry { entry });
                line.reply(reply).await
            }
            Request::List { path, depth, .. } => {
                let entries = self.files().list(&absolute(&path), depth);
                entries_of(entries, line).await
            }
            Request::Find { path, pattern, .. } => {
                let all = self.files().list(&absolute(&path), u32::MAX);
                let wanted = pattern.replace('*', "");
                entries_of(all.map(|all| all.into_iter().filter(|entry| entry.name.contains(&wanted)).collect()), line)
                    .await
            }
            Request::Read { path, offset, length, .. } => {
                let path = absolute(&path);
                let read = {
                    let files = self.files();
                    files.read(&path).and_then(|content| Ok((files.stat(&path)?, content)))
                };
                match read {
                    Err(failure) => line.reply(Err(failure)).await,
                    Ok((entry, content)) => {
                        line.reply(Ok(Reply::Entry { entry })).await?;
                        let from = (offset as usize).min(content.len());
                        let to = length.map_or(content.len(), |length| (from + length as usize).min(content.len()));
                        for chunk in content[from..to].chunks(frame::BULK) {
                            write_async(&mut line.to, Kind::Data, chunk).await?;
                        }
                        line.end().await
                    }
                }
            }
            Request::Write { path, how, mode, parents, .. } => {
                let Some(content) = line.upload().await? else { return Ok(()) };
                let written = self.files().write(&absolute(&path), content, how, mode, parents);
                line.reply(written.map(|entry| Reply::Entry { entry })).await
            }
            Request::MakeDirectory { path, .. } => {
                let path = absolute(&path);
                let made = {
                    let mut files = self.files();
                    files
                        .make_directory(&path)
                        .and_then(|existed| Ok(Reply::Made { entry: files.stat(&path)?, existed }))
                };
                line.reply(made).await
            }
            Request::Move { from, to, .. } => {
                let moved = self.files().rename(&absolute(&from), &absolute(&to));
                line.reply(moved.map(|entry| Reply::Entry { entry })).await
            }
            Request::Remove { path, recursive, .. } => {
                let removed = self.files().remove(&absolute(&path), recursive);
                line.reply(removed.map(|()| Reply::Done)).await
            }
            Request::SetAttributes { path, mode, .. } => {
                let path = absolute(&path);
                let set = match mode {
                    Some(mode) => self.files().set_mode(&path, mode),
                    None => self.files().stat(&path),
                };
                line.reply(set.map(|entry| Reply::Entry { entry })).await
            }
            Request::Grep { path, pattern, .. } => {
                let mut matches = Vec::new();
                for (path, content) in self.files().all_below(&absolute(&path)) {
                    for (number, text) in String::from_utf8_lossy(&content).lines().enumerate() {
                        if text.contains(&pattern) {
                            let text = text.to_owned();
                            matches.push(cove_protocol::file::Match {
                                path: path.clone(),
                                line: number as u64 + 1,
                                text,
                            });
                        }
                    }
                }
                line.reply(Ok(Reply::Done)).await?;
                line.event(&Event::Matches { matches }).await?;
                line.end().await
            }
            Request::Symlink { path, target, .. } => {
                let linked = self.files().symlink(&absolute(&path), &target);
                line.reply(linked.map(|entry| Reply::Entry { entry })).await
            }
            Request::TarIn { path, .. } => {
                let Some(bytes) = line.upload().await? else { return Ok(()) };
                let unpacked = self.files().unpack(&absolute(&path), &bytes);
                line.reply(unpacked.map(|()| Reply::Done)).await
            }
            Request::TarOut { path, .. } => {
                let packed = self.files().pack(&absolute(&path));
                match packed {
                    Err(failure) => line.reply(Err(failure)).await,
                    Ok(bytes) => {
                        line.reply(Ok(Reply::Done)).await?;
                        for chunk in bytes.chunks(frame::BULK) {
                            write_async(&mut line.to, Kind::Data, chunk).await?;
                        }
                        line.end().await
                    }
                }
            }
            Request::Ports => line.reply(Ok(Reply::Ports { ports: Vec::new() })).await,
            Request::Usage => line.reply(Ok(Reply::Usage { usage: Default::default() })).await,
            Request::Dial { port } => {
                line.reply(Ok(Reply::Done)).await?;
                let mut to = line.to;
                let mut from = line.from;
                if port == 80 {
                    return show_request(&mut from, &mut to).await;
                }
                // Whatever else listens repeats what it hears.
                tokio::io::copy(&mut from, &mut to).await?;
                Ok(())
            }
            Request::Shutdown { .. } => {
                self.end_processes();
                line.reply(Ok(Reply::Done)).await
            }
            other => {
                let failure = Failure::new(FailureKind::Unsupported, format!("the fake guest cannot {other:?}"));
                line.reply(Err(failure)).await
            }
        }
    }
}

/// A web server whose page is the head of the request that it was sent, and which sets whatever cookies the request's
/// `X-Set-Cookie` lines say.
async fn show_request(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> Outcome {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < 64 << 10 {
        let mut byte = [0];
        if from.read(&mut byte).await? == 0 {
            return Ok(());
        }
        head.extend(byte);
    }
    let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n", head.len()).into_bytes();
    for line in head.split(|byte| *byte == b'\n') {
        if let Some(cookie) = line.strip_prefix(b"X-Set-Cookie: ") {
            answer.extend([b"Set-Cookie: ", cookie, b"\n"].concat());
        }
    }
    answer.extend(b"\r\n");
    answer.extend(&head);
    to.write_all(&answer).await?;
    Ok(())
}

async fn entries_of(entries: Result<Vec<cove_protocol::file::Entry>, Failure>, mut line: Line) -> Outcome {
    match entries {
        Err(failure) => line.reply(Err(failure)).await,
        Ok(entries) => {
            line.reply(Ok(Reply::Done)).await?;
            line.event(&Event::Entries { entries }).await?;
            line.end().await
        }
    }
}

/// Sends output as it comes, takes input, reports the exit.
async fn follow(process: Arc<Process>, first: usize, line: Line) -> Outcome {
    let Line { mut from, to } = line;
    let mut line = Line { from: tokio::io::split(tokio::io::duplex(1).0).0, to };
    let hears = Arc::clone(&process);
    let reader = tokio::spawn(async move {
        while let Ok(Some(frame)) = read_async(&mut from).await {
            match frame.kind {
                Kind::Stdin => {
                    hears.input(frame.payload);
                }
                Kind::End => hears.close_input(),
                Kind::Control => {
                    if let Ok(Control::Signal { signal, .. }) = frame.parse() {
                        hears.signal(signal);
                    }
                }
                _ => return,
            }
        }
    });
    let mut news = process.news.subscribe();
    let mut sent = first;
    let told: Outcome = async {
        loop {
            news.borrow_and_update();
            let exit = process.info().exit;
            for item in process.output_after(sent) {
                sent += 1;
                let (kind, bytes) = match &item {
                    Item::Stdout(bytes) => (Kind::Stdout, bytes),
                    Item::Stderr(bytes) => (Kind::Stderr, bytes),
                    Item::Pty(bytes) => (Kind::Pty, bytes),
                    Item::Data(_) | Item::Event(_) => continue,
                };
                for chunk in bytes.chunks(frame::BULK) {
                    write_async(&mut line.to, kind, chunk).await?;
                }
            }
            if let Some(exit) = exit {
                line.event(&Event::Exited { exit }).await?;
                return line.end().await;
            }
            if news.changed().await.is_err() {
                return Ok(());
            }
        }
    }
    .await;
    reader.abort();
    told
}
