//! Terminals: a shell on a pseudo-terminal that outlives the connections to it.
//!
//! Server to client: binary frames are the terminal's bytes, text frames are JSON about it (`connected`, `exited`,
//! `error`). Client to server: every frame is typed. Each is a process of the guest with a tag, so any number of
//! clients may be attached and a server that restarts finds it again.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Query};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cove_protocol::process::{Command, Exit, Info, Selector, Spec, Stdio, TerminalSize};
use cove_protocol::{Event, Reply, Request};
use futures::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};

use super::files::unexpected;
use super::websocket::{self, EXIT_CONTROL, FAILED, NORMAL, TERMINAL_ENV};
use super::{Machine, READ, WRITE};
use crate::border;
use crate::door::daytona::body::Lenient;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::table::Table;
use crate::guest::{Item, Operation};

const TAG: &str = "daytona-pty:";
const MOST_PER_SANDBOX: usize = 1000;
const DEFAULT_SIZE: TerminalSize = TerminalSize { rows: 24, columns: 80 };
const SIGKILL: i32 = 9;

/// What a client typed before it left may take so long to reach a shell that is busy.
const FLUSH_WITHIN: Duration = Duration::from_secs(5);

/// An interactive login shell: bash where the template has it.
const SHELL: &str = "if command -v bash >/dev/null; then exec bash -i -l; fi; exec sh -i -l";

pub fn table() -> Table<()> {
    Table::new()
        .get("/process/pty", READ, list)
        .post("/process/pty", WRITE, create)
        .get("/process/pty/create-connect", WRITE, create_and_connect)
        .get("/process/pty/{id}", READ, show)
        .delete("/process/pty/{id}", WRITE, kill)
        .post("/process/pty/{id}/resize", WRITE, resize)
        .get("/process/pty/{id}/connect", WRITE, connect)
}

/// The terminals whose shell runs; one that has exited is gone, and its name is free again.
async fn running(machine: &Machine) -> Answer<Vec<(String, Info)>> {
    let Reply::Processes { processes } = machine.guest.call(&Request::Processes).await? else {
        return Err(Problem::bad_request("the sandbox gave no answer about its processes"));
    };
    let named = |info: Info| Some((info.tag.as_deref()?.strip_prefix(TAG)?.to_owned(), info));
    Ok(processes.into_iter().filter(|info| info.exit.is_none()).filter_map(named).collect())
}

async fn find(machine: &Machine, id: &str) -> Answer<Info> {
    let found = running(machine).await?.into_iter().find(|(name, _)| name == id);
    found.map(|(_, info)| info).ok_or_else(|| Problem::not_found(format!("PTY session not found: {id}")))
}

fn key(machine: &Machine, id: &str) -> String {
    format!("{}/{id}", machine.id)
}

fn view(machine: &Machine, id: &str, info: &Info) -> Value {
    let size = machine.desk.size(&key(machine, id)).unwrap_or(DEFAULT_SIZE);
    json!({
        "id": id,
        "cwd": info.cwd.clone().or_else(|| machine.cwd.clone()).unwrap_or_else(|| "~".into()),
        "envs": info.env,
        "cols": size.columns,
        "rows": size.rows,
        "createdAt": crate::clock::from_millisecond(info.started_at_ms as i64).to_string(),
        "active": true,
        "lazyStart": false,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewTerminal {
    #[serde(default)]
    id: String,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    envs: Option<BTreeMap<String, String>>,
    #[serde(default)]
    cols: Option<u16>,
    #[serde(default)]
    rows: Option<u16>,
    /// Whether the shell may wait for its first client. It does not: what it prints is kept from the beginning, so that
    /// the client sees the same.
    #[serde(default, rename = "lazyStart")]
    _lazy_start: Option<bool>,
    /// How a browser shows its right, where these stand in a query.
    #[serde(default, rename = "DAYTONA_SANDBOX_AUTH_KEY")]
    _token: Option<String>,
}

fn size(columns: u16, rows: u16) -> Answer<TerminalSize> {
    let fits = 1..=1000;
    if !fits.contains(&columns) || !fits.contains(&rows) {
        return Err(Problem::bad_request("cols and rows must be between 1 and 1000"));
    }
    Ok(TerminalSize { rows, columns })
}

async fn start(machine: &Machine, wanted: NewTerminal) -> Answer<Operation> {
    if wanted.id.is_empty() || wanted.id.len() > 200 || wanted.id.contains(|c: char| c.is_control() || c == '/') {
        return Err(Problem::bad_request("id is required, at most 200 characters, without slashes"));
    }
    let lock = machine.desk.line(format!("{}/pty/{}", machine.id, wanted.id));
    let _one_at_a_time = lock.lock().await;
    let running = running(machine).await?;
    if running.iter().any(|(name, _)| *name == wanted.id) {
        return Err(Problem::conflict(format!("PTY session already exists: {}", wanted.id)));
    }
    if running.len() >= MOST_PER_SANDBOX {
        return Err(Problem::bad_request(format!("a sandbox has at most {MOST_PER_SANDBOX} PTY sessions")));
    }
    let size = size(wanted.cols.unwrap_or(DEFAULT_SIZE.columns), wanted.rows.unwrap_or(DEFAULT_SIZE.rows))?;
    let mut spec = Spec::new(Command::Argv(["/bin/sh", "-c", SHELL].map(String::from).to_vec()));
    spec.env = wanted.envs.unwrap_or_default();
    spec.env.entry("TERM".into()).or_insert_with(|| "xterm-256color".into());
    spec.cwd = wanted.cwd.filter(|cwd| !cwd.is_empty()).map(|cwd| machine.path(&cwd)).or_else(|| machine.cwd.clone());
    spec.stdio = Stdio::Terminal(size);
    spec.tag = Some(format!("{TAG}{}", wanted.id));
    let (reply, operation) = machine.guest.open(&Request::Start(spec)).await?;
    match reply {
        Reply::Started { .. } => machine.desk.set_size(key(machine, &wanted.id), size),
        other => return Err(unexpected(&other)),
    }
    Ok(operation)
}

async fn list(Extension(machine): Extension<Machine>) -> Answer<Json<Value>> {
    let running = running(&machine).await?;
    let sessions: Vec<Value> = running.iter().map(|(id, info)| view(&machine, id, info)).collect();
    Ok(Json(json!({ "sessions": sessions })))
}

async fn create(
    Extension(machine): Extension<Machine>,
    Lenient(wanted): Lenient<NewTerminal>,
) -> Answer<(StatusCode, Json<Value>)> {
    let id = wanted.id.clone();
    start(&machine, wanted).await?;
    Ok((StatusCode::CREATED, Json(json!({ "sessionId": id }))))
}

async fn show(Extension(machine): Extension<Machine>, Path((id,)): Path<(String,)>) -> Answer<Json<Value>> {
    Ok(Json(view(&machine, &id, &find(&machine, &id).await?)))
}

async fn kill(Extension(machine): Extension<Machine>, Path((id,)): Path<(String,)>) -> Answer<Json<Value>> {
    let info = find(&machine, &id).await?;
    let process = Selector::Pid(info.pid);
    machine.guest.call(&Request::Signal { process: process.clone(), signal: SIGKILL, group: true }).await?;
    machine.guest.call(&Request::Wait { process }).await?;
    machine.desk.forget_size(&key(&machine, &id));
    Ok(Json(json!({ "message": "PTY session deleted" })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewSize {
    cols: u16,
    rows: u16,
}

async fn resize(
    Extension(machine): Extension<Machine>,
    Path((id,)): Path<(String,)>,
    Lenient(wanted): Lenient<NewSize>,
) -> Answer<Json<Value>> {
    let size = size(wanted.cols, wanted.rows)?;
    let info = find(&machine, &id).await.map_err(|problem| match problem.status {
        StatusCode::NOT_FOUND => Problem::gone("GONE", format!("PTY session {id} has ended")),
        _ => problem,
    })?;
    machine.guest.call(&Request::Resize { process: Selector::Pid(info.pid), size }).await?;
    machine.desk.set_size(key(&machine, &id), size);
    Ok(Json(view(&machine, &id, &info)))
}

async fn connect(
    Extension(machine): Extension<Machine>,
    Path((id,)): Path<(String,)>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Response {
    let goodbye = Goodbye::wanted(&headers);
    // Always upgraded: the SDKs read the reason from a message.
    websocket::choose(upgrade, &headers).on_upgrade(move |mut socket| async move {
        let attached = match find(&machine, &id).await {
            Ok(info) => {
                let attach = Request::Attach { process: Selector::Pid(info.pid), from: Some(info.output_start) };
                machine.guest.open(&attach).await.map_err(Problem::from)
            }
            Err(problem) => Err(problem),
        };
        match attached {
            Ok((_, operation)) => converse(machine, id, socket, operation, goodbye).await,
            Err(problem) => {
                let error = format!("Failed to connect to PTY session: {}", problem.message);
                websocket::text(
                    &mut socket,
                    json!({ "type": "control", "status": "error", "error": error }).to_string(),
                )
                .await;
                websocket::close(socket, FAILED, String::new()).await;
            }
        }
    })
}

async fn create_and_connect(
    Extension(machine): Extension<Machine>,
    Query(mut wanted): Query<NewTerminal>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Answer<Response> {
    let offered = websocket::offered(&headers);
    if let Some(envs) = offered.iter().find_map(|token| token.strip_prefix(TERMINAL_ENV)) {
        let decoded = URL_SAFE_NO_PAD.decode(envs).ok().and_then(|json| border::parse(&json).ok());
        wanted.envs =
            Some(decoded.ok_or_else(|| Problem::bad_request("the environment in the subprotocol is not JSON"))?);
    }
    // Before the upgrade, where a refusal is still a status.
    let id = wanted.id.clone();
    let operation = start(&machine, wanted).await?;
    let goodbye = Goodbye::wanted(&headers);
    Ok(websocket::choose(upgrade, &headers).on_upgrade(move |socket| converse(machine, id, socket, operation, goodbye)))
}

/// Whether the end is told in a message as well as in the close.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goodbye {
    Told,
    CloseAlone,
}

impl Goodbye {
    fn wanted(headers: &HeaderMap) -> Self {
        let offered = websocket::offered(headers).iter().any(|token| token == EXIT_CONTROL);
        let header = headers.contains_key(EXIT_CONTROL);
        if offered || header { Goodbye::Told } else { Goodbye::CloseAlone }
    }
}

/// What is typed goes by a connection of its own, whose end is acknowledged: a client that types and leaves at once has
/// typed all the same.
async fn converse(machine: Machine, id: String, mut socket: WebSocket, operation: Operation, goodbye: Goodbye) {
    if !websocket::text(&mut socket, json!({ "type": "control", "status": "connected" }).to_string()).await {
        return;
    }
    let (mut to_client, mut from_client) = socket.split();
    let (mut from_guest, _) = operation.split();
    let typing = async {
        let process = Selector::Tag(format!("{TAG}{id}"));
        let Ok(mut input) = machine.guest.send(&Request::Input { process }).await else { return };
        while let Some(Ok(message)) = from_client.next().await {
            let typed = match message {
                Message::Binary(bytes) => bytes,
                Message::Text(text) => text.into(),
                Message::Ping(_) | Message::Pong(_) => continue,
                Message::Close(_) => break,
            };
            // A terminal that has ended takes no more; its goodbye may still be on its way.
            if input.to.stdin(&typed).await.is_err() {
                while let Some(Ok(_)) = from_client.next().await {}
                return;
            }
        }
        if input.to.end().await.is_ok() {
            let _ = tokio::time::timeout(FLUSH_WITHIN, input.reply()).await;
        }
    };
    let showing = async {
        loop {
            match from_guest.next().await {
                Ok(Some(Item::Pty(bytes))) => {
                    if to_client.send(Message::Binary(bytes.into())).await.is_err() {
                        return;
                    }
                }
                Ok(Some(Item::Event(Event::Exited { exit }))) => {
                    return say_goodbye(&mut to_client, exit, goodbye).await;
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => {
                    return websocket::close(&mut to_client, FAILED, "the sandbox has gone".into()).await;
                }
            }
        }
    };
    // The terminal stays when the client leaves.
    tokio::select! {
        () = typing => {}
        () = showing => {}
    }
}

async fn say_goodbye(mut to_client: impl SinkExt<Message> + Unpin, exit: Exit, goodbye: Goodbye) {
    let told = departure(exit);
    if goodbye == Goodbye::Told {
        let mut message = told.clone();
        message["type"] = "control".into();
        message["status"] = "exited".into();
        let _ = to_client.send(Message::Text(message.to_string().into())).await;
    }
    let code = if exit.status() == 0 { NORMAL } else { FAILED };
    websocket::close(to_client, code, told.to_string()).await;
}

fn departure(exit: Exit) -> Value {
    let status = exit.status();
    let reason = match status {
        0 => return json!({ "exitCode": 0 }),
        130 => "Ctrl+C".to_owned(),
        137 => "SIGKILL".to_owned(),
        143 => "SIGTERM".to_owned(),
        _ => exit.signal.map_or("non-zero exit".to_owned(), |signal| format!("signal {signal}")),
    };
    json!({ "exitCode": status, "exitReason": reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminals_end_is_told_in_words() {
        let exit = |code, signal| Exit { code, signal, timed_out: false, out_of_memory: false };
        assert_eq!(departure(exit(Some(0), None)), json!({ "exitCode": 0 }));
        assert_eq!(departure(exit(Some(3), None)), json!({ "exitCode": 3, "exitReason": "non-zero exit" }));
        assert_eq!(departure(exit(None, Some(9))), json!({ "exitCode": 137, "exitReason": "SIGKILL" }));
        assert_eq!(departure(exit(None, Some(1))), json!({ "exitCode": 129, "exitReason": "signal 1" }));
    }
}
