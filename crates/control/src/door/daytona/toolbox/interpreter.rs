//! Code that keeps its variables: contexts over REST, cells over WebSocket.
//!
//! The first frame of the socket is the cell; every frame back is JSON with all keys. Python's client ends on the
//! close, TypeScript's on the `completed` message: both are always sent.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::Path;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};

use super::websocket::{self, FAILED, NORMAL};
use super::{Machine, READ, WRITE};
use crate::border::{self, Refused};
use crate::door::daytona::body::Lenient;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::table::Table;
use crate::interpreter::{Cell, CellEvent, Context, ContextId, InterpreterError, Language, NewContext};

const DEFAULT: &str = "default";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// Close codes of this socket.
const MALFORMED: u16 = 1002;
const REFUSED: u16 = 1008;
const TIMED_OUT: u16 = 4008;

pub fn table() -> Table<()> {
    Table::new()
        .get("/process/interpreter/context", READ, list)
        .post("/process/interpreter/context", WRITE, create)
        .delete("/process/interpreter/context/{id}", WRITE, remove)
        .get("/process/interpreter/execute", WRITE, execute)
}

impl From<InterpreterError> for Problem {
    fn from(error: InterpreterError) -> Self {
        let message = error.to_string();
        match error {
            InterpreterError::Guest(error) => error.into(),
            InterpreterError::NoSuchContext(_) => Problem::not_found(message),
            InterpreterError::UnknownLanguage(_)
            | InterpreterError::NoDirectory(_)
            | InterpreterError::ClosedDirectory(_) => Problem::bad_request(message),
            InterpreterError::NoProgram(_) => Problem::not_offered(message),
        }
    }
}

fn view(context: &Context, machine: &Machine) -> Value {
    json!({
        "id": context.id.0,
        "cwd": context.cwd.clone().or_else(|| machine.cwd.clone()).unwrap_or_else(|| "~".into()),
        "createdAt": crate::clock::from_millisecond(context.created_at_ms).to_string(),
        "active": true,
        "language": context.language.to_string(),
    })
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Wanted {
    cwd: Option<String>,
    language: Option<String>,
}

async fn create(Extension(machine): Extension<Machine>, Lenient(body): Lenient<Wanted>) -> Answer<Json<Value>> {
    let language = match body.language.as_deref().filter(|language| !language.is_empty()) {
        Some(language) => language.parse::<Language>()?,
        None => Language::Python,
    };
    let cwd = body.cwd.filter(|cwd| !cwd.is_empty()).map(|cwd| machine.path(&cwd)).or_else(|| machine.cwd.clone());
    let new = NewContext { language: Some(language), cwd, ..NewContext::default() };
    let context = machine.app.interpreter().create(&machine.sandbox.id, &machine.guest, new).await?;
    Ok(Json(view(&context, &machine)))
}

/// Those that were asked for; the default one goes without saying.
async fn list(Extension(machine): Extension<Machine>) -> Answer<Json<Value>> {
    let contexts = machine.app.interpreter().list(&machine.guest).await?;
    let views: Vec<Value> =
        contexts.iter().filter(|context| !context.id.is_default()).map(|context| view(context, &machine)).collect();
    Ok(Json(json!({ "contexts": views })))
}

async fn remove(Extension(machine): Extension<Machine>, Path((id,)): Path<(String,)>) -> Answer<Json<Value>> {
    if id == DEFAULT {
        return Err(Problem::bad_request("the default context cannot be deleted"));
    }
    machine.app.interpreter().delete(&machine.guest, &ContextId(id)).await?;
    Ok(Json(json!({ "message": "context deleted" })))
}

async fn execute(Extension(machine): Extension<Machine>, headers: HeaderMap, upgrade: WebSocketUpgrade) -> Response {
    websocket::choose(upgrade, &headers).on_upgrade(move |socket| run(machine, socket))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Asked {
    #[serde(default)]
    code: String,
    #[serde(default)]
    context_id: Option<String>,
    #[serde(default)]
    envs: Option<BTreeMap<String, String>>,
    /// Seconds; 0 is none.
    #[serde(default)]
    timeout: Option<f64>,
}

async fn run(machine: Machine, mut socket: WebSocket) {
    let asked = loop {
        match socket.recv().await {
            Some(Ok(Message::Text(text))) => break border::read::<Asked>(text.into()).await,
            Some(Ok(Message::Binary(bytes))) => break border::read::<Asked>(bytes).await,
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Close(_)) | Err(_)) | None => return,
        }
    };
    let asked = match asked {
        Ok(asked) => asked,
        Err(Refused::Malformed(_)) => {
            return websocket::close(socket, MALFORMED, "the first message must be JSON with code".into()).await;
        }
        Err(Refused::Excess(excess)) => {
            let reason = excess.to_string().chars().take(100).collect();
            return websocket::close(socket, MALFORMED, reason).await;
        }
    };
    if asked.code.is_empty() {
        return websocket::close(socket, REFUSED, "code is required".into()).await;
    }
    let timeout = match asked.timeout {
        None => Some(DEFAULT_TIMEOUT),
        Some(seconds) if seconds > 0.0 => Some(Duration::from_secs_f64(seconds.min(1e9))),
        Some(_) => None,
    };
    let context = asked.context_id.filter(|id| !id.is_empty() && id != DEFAULT).map(ContextId);
    let cell =
        Cell { context, env: asked.envs.unwrap_or_default(), timeout, ..Cell::new(Language::Python, asked.code) };
    let started = tokio::time::Instant::now();
    let mut events = match machine.app.interpreter().execute(&machine.sandbox, &machine.guest, cell).await {
        Ok(events) => events,
        Err(InterpreterError::NoSuchContext(id)) => {
            return websocket::close(socket, REFUSED, format!("context not found: {id}")).await;
        }
        Err(error) => {
            let reason = Problem::from(error).message.chars().take(100).collect();
            return websocket::close(socket, FAILED, reason).await;
        }
    };
    let mut interrupted = false;
    loop {
        tokio::select! {
            event = events.recv() => {
                let Some(event) = event else { break };
                interrupted |= matches!(&event, CellEvent::Error(error) if is_interruption(&error.name));
                if let Some(frame) = frame(event)
                    && !websocket::text(&mut socket, frame.to_string()).await
                {
                    // Dropping the events interrupts the cell.
                    return;
                }
            }
            message = socket.recv() => match message {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => {}
            },
        }
    }
    let late = timeout.is_some_and(|limit| started.elapsed() >= limit);
    let word = if interrupted { "interrupted" } else { "completed" };
    websocket::text(&mut socket, spoken("control", word, "", "", "").to_string()).await;
    let (code, reason) = if interrupted && late { (TIMED_OUT, "execution timed out") } else { (NORMAL, "") };
    websocket::close(socket, code, reason.into()).await;
}

fn is_interruption(name: &str) -> bool {
    matches!(name, "KeyboardInterrupt" | "TimeoutError" | "Timeout" | "ExecutionTimeout")
}

fn spoken(kind: &str, text: &str, name: &str, value: &str, traceback: &str) -> Value {
    json!({ "type": kind, "text": text, "name": name, "value": value, "traceback": traceback })
}

/// This dialect has no results beside text: the value of the last expression is printed, as a shell would.
fn frame(event: CellEvent) -> Option<Value> {
    match event {
        CellEvent::Stdout { text } => Some(spoken("stdout", &text, "", "", "")),
        CellEvent::Stderr { text } => Some(spoken("stderr", &text, "", "", "")),
        CellEvent::Error(error) => Some(spoken("error", "", &error.name, &error.value, &error.traceback)),
        CellEvent::Result(result) => {
            let text = result.data.get("text/plain").and_then(Value::as_str)?;
            Some(spoken("stdout", &format!("{text}\n"), "", "", ""))
        }
        CellEvent::Started { .. } | CellEvent::Done => None,
    }
}
