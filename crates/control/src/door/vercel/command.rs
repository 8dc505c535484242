//! Commands: programs with their arguments, whose output comes line by line as JSON.
//!
//! A command is a process of the guest with a tag: the guest keeps its output, so logs begin at the beginning whenever they
//! are asked for, on whichever server.

use std::collections::BTreeMap;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use cove_protocol::process::{Command, Exit, Info, OnDisconnect, Selector, Spec, Stdio};
use cove_protocol::{Event, Reply, Request};
use futures::stream;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::Strict;
use super::change::Nothing;
use super::error::{Answer, Refusal};
use super::find::inside;
use super::naming::{new_command, tag_of};
use super::text::Text;
use super::view::cwd;
use super::{By, person};
use crate::guest::{Guest, GuestError, Item, Operation, Receiver, Sender};
use crate::sandbox::Sandbox;
use crate::{App, Error};

/// The SDK compares it whole.
const LINES: &str = "application/x-ndjson";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    command: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    env: Option<BTreeMap<String, String>>,
    #[serde(default)]
    sudo: Option<bool>,
    #[serde(default)]
    wait: Option<bool>,
    #[serde(default)]
    logs: Option<bool>,
    /// Milliseconds.
    #[serde(default)]
    timeout: Option<u64>,
}

/// What the body says too.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct AlsoAsked {
    #[serde(rename = "wait")]
    _wait: Option<String>,
    #[serde(rename = "logs")]
    _logs: Option<String>,
}

/// A command as the dialect shows it.
struct Shown<'a> {
    id: &'a str,
    session: &'a str,
    words: &'a [String],
    cwd: &'a str,
    started_at_ms: u64,
}

impl Shown<'_> {
    fn view(&self, exit: Option<Exit>, duration: Option<u64>) -> Value {
        let (name, args) = self.words.split_first().map_or(("", &[][..]), |(name, args)| (name.as_str(), args));
        let mut command = json!({
            "id": self.id,
            "name": name,
            "args": args,
            "cwd": self.cwd,
            "sessionId": self.session,
            "exitCode": exit.map(|exit| exit.status()),
            "startedAt": self.started_at_ms,
        });
        if let Some(duration) = duration {
            command["durationMs"] = json!(duration);
        }
        json!({ "command": command })
    }
}

/// Starts a command. Whoever waits gets its output as it comes and its end; the others the command alone, which goes on.
pub async fn run(
    State(app): State<App>,
    By(caller): By,
    Path(session): Path<String>,
    Query(_): Query<AlsoAsked>,
    Strict(asked): Strict<Asked>,
) -> Answer<Response> {
    if asked.command.is_empty() {
        return Err(Refusal::bad("command: the name of a program"));
    }
    let (sandbox, guest) = inside(&app, &caller, &session).await?;
    let (id, waits) = (new_command(), asked.wait.unwrap_or(false));
    let words: Vec<String> = std::iter::once(asked.command).chain(asked.args).collect();
    let place = asked.cwd.unwrap_or_else(|| cwd(&sandbox).to_owned());
    let mut spec = Spec::new(Command::Argv(words.clone()));
    spec.env = asked.env.unwrap_or_default();
    spec.cwd = Some(place.clone());
    spec.user = Some(if asked.sudo.unwrap_or(false) { person::ROOT.to_owned() } else { sandbox.user.clone() });
    spec.tag = tag_of(&id);
    spec.timeout_ms = asked.timeout.filter(|timeout| *timeout > 0);
    spec.on_disconnect = OnDisconnect::Keep;
    // Who waits has nothing to say; who does not may say something later.
    spec.stdio = if waits { Stdio::Closed } else { Stdio::Piped };
    let begun = Instant::now();
    let (_, operation) = guest.open(&Request::Start(spec)).await?;
    let started_at_ms = u64::try_from(app.now().as_millisecond()).unwrap_or_default();
    let shown = |exit, duration| {
        Shown { id: &id, session: &session, words: &words, cwd: &place, started_at_ms }.view(exit, duration)
    };
    if !waits {
        return Ok(Json(shown(None, None)).into_response());
    }
    let first = line(&shown(None, None));
    let wants_logs = asked.logs.unwrap_or(false);
    let (id, session, words, place) = (id.clone(), session.clone(), words.clone(), place.clone());
    let last = move |exit: Exit| {
        let duration = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let shown = Shown { id: &id, session: &session, words: &words, cwd: &place, started_at_ms };
        line(&shown.view(Some(exit), Some(duration)))
    };
    Ok(lines(Some(first), operation, wants_logs, Some(Box::new(last))))
}

type Last = Box<dyn FnOnce(Exit) -> Bytes + Send>;

fn line(value: &Value) -> Bytes {
    format!("{value}\n").into()
}

/// What a process prints, as lines, and what is said at its end.
fn lines(first: Option<Bytes>, operation: Operation, logs: bool, last: Option<Last>) -> Response {
    let (from, to) = operation.split();
    let flow = Flow { from, _to: to, logs, last, out: Text::default(), err: Text::default(), exit: None, over: false };
    let begin = stream::iter(first.map(Ok::<Bytes, std::convert::Infallible>));
    let rest = stream::unfold(flow, Flow::next);
    let body = Body::from_stream(futures::StreamExt::chain(begin, rest));
    ([(header::CONTENT_TYPE, LINES), (header::CACHE_CONTROL, "no-store")], body).into_response()
}

struct Flow {
    from: Receiver,
    /// Held: without it the guest takes us for gone.
    _to: Sender,
    logs: bool,
    last: Option<Last>,
    out: Text,
    err: Text,
    exit: Option<Exit>,
    over: bool,
}

impl Flow {
    async fn next(mut self) -> Option<(Result<Bytes, std::convert::Infallible>, Flow)> {
        loop {
            if self.over {
                return None;
            }
            let said = match self.from.next().await {
                Ok(Some(Item::Stdout(bytes) | Item::Pty(bytes))) => self.say("stdout", &bytes),
                Ok(Some(Item::Stderr(bytes))) => self.say("stderr", &bytes),
                Ok(Some(Item::Event(Event::Exited { exit }))) => {
                    self.exit = Some(exit);
                    None
                }
                Ok(Some(Item::Event(Event::Lost { bytes }))) if self.logs => {
                    Some(line(&json!({"stream": "stderr", "data": format!("[{bytes} bytes are no longer kept]\n")})))
                }
                Ok(Some(Item::Event(_) | Item::Data(_))) => None,
                Ok(None) => Some(self.ended()),
                Err(error) => {
                    self.over = true;
                    let data = json!({"code": "stream_ended", "message": error.to_string()});
                    Some(line(&json!({"stream": "error", "data": data})))
                }
            };
            if let Some(said) = said.filter(|said| !said.is_empty()) {
                return Some((Ok(said), self));
            }
        }
    }

    fn say(&mut self, stream: &str, bytes: &[u8]) -> Option<Bytes> {
        let text = if stream == "stdout" { &mut self.out } else { &mut self.err };
        let data = text.take(bytes);
        (self.logs && !data.is_empty()).then(|| line(&json!({"stream": stream, "data": data})))
    }

    fn ended(&mut self) -> Bytes {
        self.over = true;
        let mut said = Vec::new();
        for (stream, rest) in [("stdout", self.out.rest()), ("stderr", self.err.rest())] {
            if self.logs && !rest.is_empty() {
                said.extend_from_slice(&line(&json!({"stream": stream, "data": rest})));
            }
        }
        if let (Some(last), Some(exit)) = (self.last.take(), self.exit) {
            said.extend_from_slice(&last(exit));
        }
        said.into()
    }
}

/// The process of a command.
async fn found(guest: &Guest, command: &str) -> Answer<Info> {
    let missing = || Refusal::from(Error::not_found("command", command));
    let tag = tag_of(command).ok_or_else(missing)?;
    match guest.call(&Request::Processes).await? {
        Reply::Processes { processes } => {
            processes.into_iter().rev().find(|process| process.tag.as_ref() == Some(&tag)).ok_or_else(missing)
        }
        other => Err(GuestError::Protocol(format!("processes answered {other:?}")).into()),
    }
}

fn told(info: &Info, command: &str, session: &str, sandbox: &Sandbox) -> Value {
    let words = match &info.command {
        Command::Argv(words) => words.clone(),
        Command::Shell(text) => vec![text.clone()],
    };
    let place = info.cwd.as_deref().unwrap_or_else(|| cwd(sandbox));
    let shown = Shown { id: command, session, words: &words, cwd: place, started_at_ms: info.started_at_ms };
    shown.view(info.exit, None)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Showing {
    wait: Option<String>,
}

/// A command; once it has ended, where that is asked for.
pub async fn show(
    State(app): State<App>,
    By(caller): By,
    Path((session, command)): Path<(String, String)>,
    Query(showing): Query<Showing>,
) -> Answer<Json<Value>> {
    let (sandbox, guest) = inside(&app, &caller, &session).await?;
    let mut info = found(&guest, &command).await?;
    if showing.wait.as_deref() == Some("true") && info.exit.is_none() {
        // However long that takes: no time limit of an ordinary answer.
        let mut operation = guest.send(&Request::Wait { process: Selector::Pid(info.pid) }).await?;
        if let Reply::Exited { exit } = operation.reply().await? {
            info.exit = Some(exit);
        }
    }
    Ok(Json(told(&info, &command, &session, &sandbox)))
}

/// All that a command has printed, and what it prints until its end.
pub async fn logs(
    State(app): State<App>,
    By(caller): By,
    Path((session, command)): Path<(String, String)>,
) -> Answer<Response> {
    let (_, guest) = inside(&app, &caller, &session).await?;
    let info = found(&guest, &command).await?;
    let attach = Request::Attach { process: Selector::Pid(info.pid), from: Some(0) };
    let (_, operation) = guest.open(&attach).await?;
    Ok(lines(None, operation, true, None))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kill {
    #[serde(default)]
    signal: Option<i32>,
}

const SIGTERM: i32 = 15;

/// Sends a signal to the command and all that it started. One that has ended is told as it is.
pub async fn kill(
    State(app): State<App>,
    By(caller): By,
    Path((session, command)): Path<(String, String)>,
    Strict(Kill { signal }): Strict<Kill>,
) -> Answer<Json<Value>> {
    let signal = signal.unwrap_or(SIGTERM);
    if !(1..=64).contains(&signal) {
        return Err(Refusal::bad("signal: 1 to 64"));
    }
    let (sandbox, guest) = inside(&app, &caller, &session).await?;
    let info = found(&guest, &command).await?;
    if info.exit.is_none() {
        let kill = Request::Signal { process: Selector::Pid(info.pid), signal, group: true };
        match guest.call(&kill).await {
            Err(GuestError::Failed(failure)) if failure.kind == cove_protocol::FailureKind::WrongState => {}
            done => drop(done?),
        }
    }
    let info = found(&guest, &command).await?;
    Ok(Json(told(&info, &command, &session, &sandbox)))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Said {
    /// Base64.
    data: Option<String>,
    /// Where in all input the bytes belong: they are taken as they come, so nothing else is offered.
    offset: Option<u64>,
    close: Option<bool>,
}

/// Bytes for a command that was started without waiting for it.
pub async fn input(
    State(app): State<App>,
    By(caller): By,
    Path((session, command)): Path<(String, String)>,
    Strict(said): Strict<Said>,
) -> Answer<Json<Value>> {
    let bytes = BASE64_STANDARD.decode(said.data.unwrap_or_default()).map_err(|_| Refusal::bad("data: not base64"))?;
    let _in_order = said.offset;
    let (_, guest) = inside(&app, &caller, &session).await?;
    let process = Selector::Pid(found(&guest, &command).await?.pid);
    if !bytes.is_empty() {
        let mut operation = guest.send(&Request::Input { process: process.clone() }).await?;
        // A guest that refused has closed already: its reason is the reply, not the broken pipe.
        if operation.to.stdin(&bytes).await.is_ok() {
            let _refused = operation.to.end().await;
        }
        operation.reply().await?;
    }
    if said.close.unwrap_or(false) {
        guest.call(&Request::CloseStdin { process }).await?;
    }
    Ok(Json(json!({"bytesWritten": bytes.len()})))
}

pub async fn no_terminal(
    State(app): State<App>,
    By(caller): By,
    Path(session): Path<String>,
    Strict(Nothing {}): Strict<Nothing>,
) -> Answer<Json<Value>> {
    inside(&app, &caller, &session).await?;
    Err(Refusal::not_offered(
        "terminals are not offered by this dialect; `cove shell`, or the native API's exec with a terminal, has them",
    ))
}
