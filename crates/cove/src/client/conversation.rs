//! A process of a sandbox over a WebSocket: the common part of `exec`, `shell` and `logs`.
//!
//! Input, output and signals each have a task of their own, so that a command that does not read its input still shows
//! its output. Signals travel as requests beside the socket: the socket may be full of input. The terminal's size has a
//! place of its own in the queue ([`carry`]), and is measured again once the command has started: no change of it is
//! lost, whenever it comes.

use std::io::{self, Write};
use std::net::SocketAddr;

use cove_protocol::process::TerminalSize;
use futures::{Sink, SinkExt, StreamExt};
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use super::Client;
use super::sandbox::path;
use super::transcript::Transcript;
use crate::complaint::{Complaint, code, doing};
use crate::interrupt::interrupted_by;
use crate::terminal::{self, Raw};

/// What comes from the person's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    Closed,
    Forwarded,
    /// The person only watches: neither input nor signals reach the process, and it outlives them.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The process has ended.
    Exit,
    /// How many bytes have been shown.
    Bytes(u64),
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Word {
    Started { pid: u32 },
    Lost { bytes: u64 },
    Exited { exit: Exit },
    Error { message: String },
}

#[derive(Debug, Clone, Deserialize)]
pub struct Exit {
    pub status: i32,
    #[serde(default)]
    pub timed_out: bool,
    #[serde(default)]
    pub out_of_memory: bool,
}

/// Where the process's output goes.
#[derive(Debug)]
pub enum Output<'a> {
    Shown,
    Kept(&'a mut Transcript),
}

impl Output<'_> {
    fn started(&mut self, pid: u32) {
        if let Output::Kept(transcript) = self {
            transcript.pid = Some(pid);
        }
    }

    fn hear(&mut self, stream: u8, bytes: &[u8]) -> io::Result<()> {
        match self {
            Output::Shown => show(stream, bytes),
            Output::Kept(transcript) => {
                transcript.hear(stream, bytes);
                Ok(())
            }
        }
    }

    fn lose(&mut self, bytes: u64) {
        match self {
            Output::Shown => crate::render::say(&format!("cove: {bytes} bytes of output are no longer kept")),
            Output::Kept(transcript) => transcript.lose(bytes),
        }
    }

    fn end(&mut self, exit: &Exit, sandbox: &str) -> u8 {
        if let Output::Kept(transcript) = self {
            transcript.end(exit);
        }
        report(exit, sandbox)
    }
}

/// Opens the stream with `opening` and stays until the end. Returns the command's exit code.
pub async fn converse(
    client: &Client,
    sandbox: &str,
    opening: Value,
    input: Input,
    until: Until,
    mut output: Output<'_>,
) -> Result<u8, Complaint> {
    let socket = connect(client, &format!("{}/exec/stream", path(sandbox)?)).await?;
    let with_terminal = opening.pointer("/start/terminal").is_some();
    let (mut to, mut from) = socket.split();
    let lost = || Complaint::failed("the connection to the server was lost").with_code(code::ENGINE);
    // Before raw mode: a signal that ended us there would leave the terminal in it.
    let mut signals = Signals::new().map_err(doing("catch signals"))?;
    let _raw = if with_terminal { Some(Raw::enter().map_err(doing("set up the terminal"))?) } else { None };
    to.send(text(&opening)).await.map_err(|_| lost())?;
    let (queue, queued) = mpsc::channel::<Message>(4);
    let (window, changes) = watch::channel(None);
    tokio::spawn(carry(to, queued, changes));
    let measure = || {
        if let (true, Some(size)) = (with_terminal, terminal::size()) {
            window.send_replace(Some(size));
        }
    };
    let (mut pid, mut shown, mut interrupted) = (None, 0u64, false);
    let watches = input == Input::None;
    let mut input = Some(input);
    loop {
        tokio::select! {
            message = from.next() => match message {
                Some(Ok(Message::Binary(bytes))) => {
                    let Some((&stream, bytes)) = bytes.split_first() else { continue };
                    shown += bytes.len() as u64;
                    if let Err(error) = output.hear(stream, bytes) {
                        if error.kind() == io::ErrorKind::BrokenPipe {
                            // As SIGPIPE would, had the command written to the pipe itself.
                            if !watches {
                                pass_on(client, sandbox, pid, 13).await;
                            }
                            return Ok(141);
                        }
                        return Err(doing("write the command's output")(error));
                    }
                    if matches!(until, Until::Bytes(wanted) if shown >= wanted) {
                        return Ok(0);
                    }
                }
                Some(Ok(Message::Text(word))) => match parse(&word)? {
                    Word::Started { pid: started } => {
                        pid = Some(started);
                        output.started(started);
                        // It may have changed between the first measurement and the start.
                        measure();
                        match input.take() {
                            Some(Input::Forwarded) => feed(queue.clone()),
                            Some(Input::Closed) if !with_terminal => {
                                queue.send(text(&json!({ "type": "end_input" }))).await.map_err(|_| lost())?;
                            }
                            _ => {}
                        }
                    }
                    Word::Lost { bytes } => output.lose(bytes),
                    Word::Exited { exit } => return Ok(output.end(&exit, sandbox)),
                    Word::Error { message } => return Err(refused(&message)),
                },
                Some(Ok(Message::Close(_))) | None => return Err(lost()),
                Some(Ok(_)) => {}
                Some(Err(_)) => return Err(lost()),
            },
            number = signals.next() => match number {
                SIGWINCH => measure(),
                number if watches => return Err(interrupted_by(number)),
                number => {
                    pass_on(client, sandbox, pid, number).await;
                    if interrupted || number == SIGHUP {
                        return u8::try_from(128 + number).map_err(|_| lost());
                    }
                    interrupted = number == SIGINT;
                }
            },
        }
    }
}

/// Takes messages to the server, one after the other. The terminal's size overtakes input that waits, and is not dropped
/// because much does; of several changes the last counts.
async fn carry(
    mut to: impl Sink<Message> + Unpin,
    mut queued: mpsc::Receiver<Message>,
    mut window: watch::Receiver<Option<TerminalSize>>,
) {
    loop {
        let message = tokio::select! {
            biased;
            Ok(()) = window.changed() => {
                let Some(size) = *window.borrow_and_update() else { continue };
                text(&json!({ "type": "resize", "rows": size.rows, "columns": size.columns }))
            }
            message = queued.recv() => match message {
                Some(message) => message,
                None => return,
            },
        };
        if to.send(message).await.is_err() {
            return;
        }
    }
}

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGWINCH: i32 = 28;

struct Signals(Vec<(i32, Signal)>);

impl Signals {
    fn new() -> io::Result<Signals> {
        let numbers = [SIGHUP, SIGINT, 3, 15, SIGWINCH];
        let open = |number| Ok((number, signal(SignalKind::from_raw(number))?));
        numbers.into_iter().map(open).collect::<io::Result<_>>().map(Signals)
    }

    async fn next(&mut self) -> i32 {
        let waits = self.0.iter_mut().map(|(number, signal)| {
            Box::pin(async move {
                signal.recv().await;
                *number
            })
        });
        futures::future::select_all(waits).await.0
    }
}

type Socket = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<TcpStream>>;

async fn connect(client: &Client, path: &str) -> Result<Socket, Complaint> {
    let url = format!("{}/api{path}", client.url.replacen("http", "ws", 1));
    let mut request = url.into_client_request().map_err(|error| Complaint::usage(format!("COVE_URL: {error}")))?;
    if let Some(key) = &client.key {
        let value = format!("Bearer {key}").parse().map_err(|_| Complaint::usage("COVE_API_KEY is not a valid key"))?;
        request.headers_mut().insert("authorization", value);
    }
    let opened = match local_address(&client.url) {
        Some(addresses) => match TcpStream::connect(&addresses[..]).await {
            Ok(stream) => tokio_tungstenite::client_async_tls(request, stream).await,
            Err(error) => Err(error.into()),
        },
        None => tokio_tungstenite::connect_async(request).await,
    };
    match opened {
        Ok((socket, _)) => Ok(socket),
        // A plain request gets the server's sentence: it answers the same.
        Err(SocketError::Http(_)) => match client.send(client.request(Method::GET, path)).await {
            Err(complaint) => Err(complaint),
            Ok(response) => Err(Complaint::failed(format!("the server answered {} to a WebSocket", response.status()))),
        },
        Err(error) => Err(super::unreachable::complaint(&client.url, &error.to_string())),
    }
}

/// For a name below `localhost`, which not every resolver knows.
fn local_address(url: &str) -> Option<[SocketAddr; 2]> {
    let url = reqwest::Url::parse(url).ok()?;
    let port = url.port_or_known_default()?;
    let host = url.host_str().filter(|host| super::is_local_name(host))?;
    (host != "localhost").then(|| super::LOOPBACK.map(|address| SocketAddr::new(address, port)))
}

/// Reads standard input on a thread of its own, which ends with the program.
fn feed(queue: mpsc::Sender<Message>) {
    tokio::spawn(async move {
        let mut stdin = tokio::io::stdin();
        let mut buffer = vec![0u8; 32 << 10];
        loop {
            let message = match stdin.read(&mut buffer).await {
                Ok(count @ 1..) => Message::Binary(buffer[..count].to_vec().into()),
                Ok(0) | Err(_) => text(&json!({ "type": "end_input" })),
            };
            let ended = matches!(message, Message::Text(_));
            if queue.send(message).await.is_err() || ended {
                return;
            }
        }
    });
}

async fn pass_on(client: &Client, sandbox: &str, pid: Option<u32>, signal: i32) {
    let (Some(pid), Ok(path)) = (pid, path(sandbox)) else { return };
    let request = client.request(Method::POST, &format!("{path}/processes/{pid}/signal"));
    // If the process has ended meanwhile, there is nothing to do.
    let _ = client.send(request.json(&json!({ "signal": signal, "group": true }))).await;
}

fn show(stream: u8, bytes: &[u8]) -> io::Result<()> {
    if stream == 2 {
        return io::stderr().lock().write_all(bytes);
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

fn report(exit: &Exit, sandbox: &str) -> u8 {
    if exit.timed_out {
        crate::render::say("cove: ended by --timeout");
        return code::TIMED_OUT;
    }
    if exit.out_of_memory {
        crate::render::say("cove: out of memory");
        crate::render::say(&format!("hint: `cove explain {sandbox}` shows how much there was"));
    }
    u8::try_from(exit.status & 0xff).unwrap_or(code::FAILED)
}

fn refused(message: &str) -> Complaint {
    Complaint::engine(message).with_code(program_code(message).unwrap_or(code::ENGINE))
}

/// The exit code where it is the program itself that cannot be run: the guest names the step, then what the kernel said.
pub fn program_code(message: &str) -> Option<u8> {
    match message.strip_prefix("run ") {
        None => None,
        Some(rest) if rest.ends_with(": no such file or directory") => Some(code::NOT_FOUND),
        Some(_) => Some(code::NOT_EXECUTABLE),
    }
}

fn parse(word: &str) -> Result<Word, Complaint> {
    serde_json::from_str(word).map_err(|error| {
        Complaint::failed(format!("unexpected message from the server: {error}"))
            .hint("does the server have the same version as this program?")
    })
}

fn text(value: &Value) -> Message {
    Message::Text(value.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_size_is_never_lost_behind_input_that_waits() {
        let (sink, mut heard) = futures::channel::mpsc::channel::<Message>(0);
        let (queue, queued) = mpsc::channel(4);
        let (window, changes) = watch::channel(None);
        tokio::spawn(carry(sink, queued, changes));
        // Nobody takes anything, until not even the queue does.
        let mut waiting = 0;
        let key = || queue.send(Message::Binary(vec![b'x'].into()));
        while tokio::time::timeout(std::time::Duration::from_millis(100), key()).await.is_ok() {
            waiting += 1;
        }
        assert!(waiting >= 4, "{waiting}");
        for columns in [90, 100, 132] {
            window.send_replace(Some(TerminalSize { rows: 50, columns }));
        }
        drop(queue);
        let mut words = Vec::new();
        while let Some(message) = heard.next().await {
            match message {
                Message::Text(word) => words.push((waiting, serde_json::from_str::<Value>(&word).unwrap())),
                _ => waiting -= 1,
            }
        }
        let last = json!({ "type": "resize", "rows": 50, "columns": 132 });
        assert_eq!(words.len(), 1, "{words:?}");
        assert!(words[0].0 >= 4 && words[0].1 == last, "it went before what waited in the queue: {words:?}");
        assert_eq!(waiting, 0);
    }
}
