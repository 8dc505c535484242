//! Processes over a WebSocket: start one or join one, see its output as it comes, feed it, steer it.
//!
//! ```text
//!   client ─ text   {"start": {…}} or {"attach": {"pid": 7, "from": 0}}      first, once
//!   server ─ text   {"type": "started", "pid": 7, "output_start": 0}
//!   server ─ binary one byte (1 stdout, 2 stderr, 3 terminal), then output
//!   client ─ binary input
//!   client ─ text   {"type": "resize", "rows": 40, "columns": 120} · {"type": "signal", "signal": 15} · {"type": "end_input"}
//!   server ─ text   {"type": "lost", "bytes": 9} · {"type": "exited", "exit": {…}} · {"type": "error", "code": …, "message": …}
//! ```
//!
//! Closing the socket leaves the process running; it can be joined again at any byte of its output.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use cove_protocol::process::{Selector, Stdio};
use cove_protocol::{Control, Event, Reply, Request};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use serde::Deserialize;
use serde_json::json;

use super::auth::Authenticated;
use super::error::ApiError;
use super::exec::{ExecBody, ExitView, Size};
use super::extract::Path;
use crate::border::{self, Refused};
use crate::door::websocket::{SHORT, bounded};
use crate::guest::{Guest, GuestError, Item, Receiver, Sender};
use crate::sandbox::Sandbox;
use crate::{App, Error};

/// The first message.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Opening {
    Start(Box<ExecBody>),
    Attach(Join),
}

/// Which process to join, and from where.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Join {
    pid: Option<u32>,
    tag: Option<String>,
    /// The first byte of output wanted; only what comes from now on where absent.
    from: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Steer {
    Resize(Size),
    Signal {
        signal: i32,
        #[serde(default)]
        group: bool,
    },
    EndInput,
}

/// Start or join a process, streaming (WebSocket)
///
/// The first message is `{"start": {…}}` (as the body of exec; `terminal` makes it a terminal) or
/// `{"attach": {"pid": 7, "from": 0}}`. Output comes as binary messages whose first byte is the stream (1 stdout,
/// 2 stderr, 3 terminal); input goes as binary messages. Closing leaves the process running.
#[utoipa::path(get, path = "/sandboxes/{id}/exec/stream", tag = "processes",
    params(("id" = String, Path, description = "id or name")),
    responses((status = 101, description = "A WebSocket"), (status = 426, description = "Not a WebSocket")))]
pub async fn exec_stream(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let (sandbox, guest) = app.reach(&caller, &id).await?;
    let upgrade = upgrade.map_err(|_| Error::invalid("upgrade", "this call is a WebSocket"))?;
    Ok(bounded(upgrade, SHORT).on_upgrade(move |socket| async move { converse(app, sandbox, guest, socket).await }))
}

async fn converse(app: App, sandbox: Sandbox, guest: Guest, mut socket: WebSocket) {
    let opened = match open(&guest, &mut socket).await {
        Ok(Some(opened)) => opened,
        Ok(None) => return,
        Err(error) => {
            let message = json!({"type": "error", "code": error.code(), "message": error.to_string()});
            // The client may be gone already.
            let _gone = socket.send(Message::Text(message.to_string().into())).await;
            return;
        }
    };
    let (pid, output_start, from, to) = opened;
    let (mut out, mut incoming) = socket.split();
    let started = json!({"type": "started", "pid": pid, "output_start": output_start});
    if out.send(Message::Text(started.to_string().into())).await.is_err() {
        return;
    }
    let speaking = async {
        if let Err(error) = speak(from, &mut out).await {
            refuse(&mut out, &error).await;
        }
    };
    let hearing = listen(&app, &sandbox, &mut incoming, to);
    let nonsense = tokio::select! {
        () = speaking => None,
        heard = hearing => heard.err(),
        () = keep_awake(&app, &sandbox) => None,
        () = app.ending().cancelled() => None,
    };
    if let Some(error) = nonsense {
        refuse(&mut out, &error).await;
    }
    let _gone = out.send(Message::Close(None)).await;
    // A connection that is closed on input which nobody read is reset, and a reset can overtake the last words.
    let _silent = tokio::time::timeout(FAREWELL, async { while let Some(Ok(_)) = incoming.next().await {} }).await;
}

/// How long a client may take to hang up after the last word.
const FAREWELL: Duration = Duration::from_secs(2);

async fn refuse(out: &mut SplitSink<WebSocket, Message>, error: &Error) {
    let message = json!({"type": "error", "code": error.code(), "message": error.to_string()});
    // The client may be gone already.
    let _gone = out.send(Message::Text(message.to_string().into())).await;
}

/// Carries what the client says into the sandbox until it leaves or says what cannot be understood. A command that has
/// ended takes no more input: that is no reason to hang up on its last words, which may still be on their way.
async fn listen(app: &App, sandbox: &Sandbox, incoming: &mut SplitStream<WebSocket>, to: Sender) -> Result<(), Error> {
    let mut to = Some(to);
    while let Some(Ok(message)) = incoming.next().await {
        app.touch(&sandbox.id);
        let word = match message {
            Message::Close(_) => return Ok(()),
            Message::Ping(_) | Message::Pong(_) => continue,
            Message::Binary(bytes) => Word::Input(bytes),
            Message::Text(text) => Word::Steer(border::parse(text.as_bytes()).map_err(malformed)?),
        };
        if let Some(sender) = &mut to
            && pass_on(word, sender).await.is_err()
        {
            to = None;
        }
    }
    Ok(())
}

/// Somebody who watches uses the sandbox.
async fn keep_awake(app: &App, sandbox: &Sandbox) {
    loop {
        tokio::time::sleep(Duration::from_secs(30)).await;
        app.touch(&sandbox.id);
    }
}

type Opened = (u32, u64, Receiver, Sender);

async fn open(guest: &Guest, socket: &mut WebSocket) -> Result<Option<Opened>, Error> {
    let request = loop {
        match socket.recv().await {
            Some(Ok(Message::Text(text))) => break opening(&text)?,
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(_)) => {
                return Err(Error::invalid("message", "the first message is {\"start\": …} or {\"attach\": …}"));
            }
            Some(Err(_)) | None => return Ok(None),
        }
    };
    let (reply, operation) = guest.open(&request).await?;
    let Reply::Started { pid, output_start } = reply else {
        return Err(Error::internal(format!("start answered {reply:?}")));
    };
    let (from, to) = operation.split();
    Ok(Some((pid, output_start, from, to)))
}

fn opening(text: &str) -> Result<Request, Error> {
    let opening: Opening = border::parse(text.as_bytes()).map_err(malformed)?;
    match opening {
        Opening::Start(body) => {
            let stdio = body.terminal.map_or(Stdio::Piped, |size| Stdio::Terminal(size.into()));
            Ok(Request::Start(body.spec(stdio)?))
        }
        Opening::Attach(join) => {
            let process = match (join.pid, join.tag) {
                (Some(pid), None) => Selector::Pid(pid),
                (None, Some(tag)) => Selector::Tag(tag),
                _ => return Err(Error::invalid("attach", "give either `pid` or `tag`")),
            };
            Ok(Request::Attach { process, from: join.from })
        }
    }
}

fn malformed(refused: Refused) -> Error {
    match refused {
        Refused::Excess(excess) => excess.into(),
        Refused::Malformed(reason) => Error::invalid("message", reason),
    }
}

async fn speak(mut from: Receiver, out: &mut SplitSink<WebSocket, Message>) -> Result<(), Error> {
    while let Some(item) = from.next().await? {
        let message = match item {
            Item::Stdout(bytes) => binary(1, &bytes),
            Item::Stderr(bytes) => binary(2, &bytes),
            Item::Pty(bytes) => binary(3, &bytes),
            Item::Event(Event::Exited { exit }) => {
                Message::Text(json!({"type": "exited", "exit": ExitView::from(exit)}).to_string().into())
            }
            Item::Event(Event::Lost { bytes }) => {
                Message::Text(json!({"type": "lost", "bytes": bytes}).to_string().into())
            }
            Item::Event(_) | Item::Data(_) => continue,
        };
        if out.send(message).await.is_err() {
            break;
        }
    }
    Ok(())
}

fn binary(stream: u8, bytes: &[u8]) -> Message {
    let mut message = Vec::with_capacity(bytes.len() + 1);
    message.push(stream);
    message.extend_from_slice(bytes);
    Message::Binary(message.into())
}

enum Word {
    Input(Bytes),
    Steer(Steer),
}

async fn pass_on(word: Word, to: &mut Sender) -> Result<(), GuestError> {
    match word {
        Word::Input(bytes) => to.stdin(&bytes).await,
        Word::Steer(Steer::Resize(size)) => to.control(&Control::Resize { size: size.into() }).await,
        Word::Steer(Steer::Signal { signal, group }) => to.control(&Control::Signal { signal, group }).await,
        Word::Steer(Steer::EndInput) => to.end().await,
    }
}
