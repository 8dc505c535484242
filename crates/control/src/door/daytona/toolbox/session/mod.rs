//! Sessions: a shell that stays, and commands run in it one after another.
//!
//! Everything lives in the guest, so that sessions outlast the server:
//!
//! ```text
//!   session   one shell, tag daytona-session:ID, running driver.sh
//!               stdin   ◀── "command-id relay-pid escaped-command"          one line for each command
//!               stdout  ──▶ "+ command-id relay-pid escaped-command"        the journal: what began …
//!                           "- command-id exit-code"                        … and how it ended
//!   relay     one idle process for each command, tag daytona-command:SESSION:ID
//!               its stdin, stdout, stderr are the guest's pipes; the shell opens them as /proc/PID/fd/{0,1,2}
//!               and runs the command on them; when the command has ended the shell ends the relay
//! ```
//!
//! So a command's output, also of what it left in the background, is a log of its own that anybody can attach to,
//! input reaches the command and not the shell, and the shell keeps its directory, variables and functions.

mod command;
mod follow;
mod journal;

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use cove_protocol::process::{Command, Info, Selector, Spec, Stdio};
use cove_protocol::{Reply, Request};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

use super::files::unexpected;
use super::{Machine, READ, WRITE, output};
use crate::door::daytona::body::Lenient;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::table::Table;
use crate::heavy;
use journal::Journal;

const DRIVER: &str = include_str!("driver.sh");

/// Bash where the template has it, else what it has.
const LAUNCH: &str =
    "if command -v bash >/dev/null; then exec bash -c \"$1\" cove-session; fi; exec sh -c \"$1\" cove-session";

const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;
const GRACE: Duration = Duration::from_secs(5);

/// The session every sandbox has, for a start command.
const ENTRYPOINT: &str = "entrypoint";

pub fn table() -> Table<()> {
    Table::new()
        .get("/process/session", READ, list)
        .post("/process/session", WRITE, create)
        .get("/process/session/entrypoint", READ, entrypoint)
        .get("/process/session/entrypoint/logs", READ, follow::entrypoint_logs)
        .get("/process/session/{session}", READ, show)
        .delete("/process/session/{session}", WRITE, delete)
        .post("/process/session/{session}/exec", WRITE, command::execute)
        .get("/process/session/{session}/command/{command}", READ, command::show)
        .get("/process/session/{session}/command/{command}/logs", READ, follow::logs)
        .post("/process/session/{session}/command/{command}/input", WRITE, command::input)
}

fn session_tag(session: &str) -> String {
    format!("daytona-session:{session}")
}

fn command_tag(session: &str, command: &str) -> String {
    format!("daytona-command:{session}:{command}")
}

async fn processes(machine: &Machine) -> Answer<Vec<Info>> {
    match machine.guest.call(&Request::Processes).await? {
        Reply::Processes { processes } => Ok(processes),
        other => Err(unexpected(&other)),
    }
}

/// The newest bearer of a tag.
fn tagged(processes: &[Info], tag: &str) -> Option<Info> {
    let bearers = processes.iter().filter(|process| process.tag.as_deref() == Some(tag));
    bearers.max_by_key(|process| (process.exit.is_none(), process.started_at_ms, process.pid)).cloned()
}

/// A session's shell, with all processes as they were at the same moment.
async fn find(machine: &Machine, session: &str) -> Answer<(Info, Vec<Info>)> {
    let processes = processes(machine).await?;
    match tagged(&processes, &session_tag(session)) {
        Some(shell) => Ok((shell, processes)),
        None => {
            Err(Problem::daemon(StatusCode::NOT_FOUND, "PROCESS_NOT_FOUND", format!("session not found: {session}")))
        }
    }
}

async fn read_journal(machine: &Machine, shell: &Info) -> Answer<Journal> {
    let log = output::so_far(&machine.guest, shell).await?;
    let text = log.stdout();
    Ok(heavy::run(text.len(), heavy::SMALL, move || Journal::parse(&text)).await)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewSession {
    #[serde(default)]
    session_id: String,
}

async fn create(Extension(machine): Extension<Machine>, Lenient(body): Lenient<NewSession>) -> Answer<StatusCode> {
    let session = body.session_id;
    if session.is_empty() || session.len() > 200 || session.contains(|c: char| c.is_control() || c == '/') {
        return Err(Problem::bad_request("sessionId is required, at most 200 characters, without slashes"));
    }
    if session == ENTRYPOINT {
        return Err(Problem::bad_request("the session name entrypoint is reserved"));
    }
    let line = machine.desk.line(format!("{}/{session}", machine.id));
    let _one_at_a_time = line.lock().await;
    if tagged(&processes(&machine).await?, &session_tag(&session)).is_some() {
        return Err(Problem::conflict(format!("session already exists: {session}")));
    }
    let argv = ["/bin/sh", "-c", LAUNCH, "sh", DRIVER].map(String::from).to_vec();
    let mut spec = Spec::new(Command::Argv(argv));
    spec.stdio = Stdio::Piped;
    spec.cwd = machine.cwd.clone();
    spec.tag = Some(session_tag(&session));
    machine.guest.open(&Request::Start(spec)).await?;
    Ok(StatusCode::CREATED)
}

fn view(session: &str, journal: &Journal, shell: &Info) -> Value {
    let ended = shell.exit.map(|exit| exit.status());
    json!({ "sessionId": session, "commands": journal.commands.iter().map(|c| c.view(ended)).collect::<Vec<_>>() })
}

async fn list(Extension(machine): Extension<Machine>) -> Answer<Json<Vec<Value>>> {
    let processes = processes(&machine).await?;
    let mut sessions = Vec::new();
    for shell in &processes {
        let Some(session) = shell.tag.as_deref().and_then(|tag| tag.strip_prefix("daytona-session:")) else { continue };
        if tagged(&processes, &session_tag(session)).is_some_and(|newest| newest.pid == shell.pid) {
            sessions.push(view(session, &read_journal(&machine, shell).await?, shell));
        }
    }
    Ok(Json(sessions))
}

async fn show(Extension(machine): Extension<Machine>, Path((session,)): Path<(String,)>) -> Answer<Json<Value>> {
    let (shell, _) = find(&machine, &session).await?;
    Ok(Json(view(&session, &read_journal(&machine, &shell).await?, &shell)))
}

async fn entrypoint() -> Json<Value> {
    Json(json!({ "sessionId": ENTRYPOINT, "commands": [] }))
}

async fn delete(Extension(machine): Extension<Machine>, Path((session,)): Path<(String,)>) -> Answer<StatusCode> {
    let (shell, processes) = find(&machine, &session).await?;
    let selector = || Selector::Pid(shell.pid);
    if shell.exit.is_none() {
        // Without job control all that the shell runs is in its group.
        let signal = |signal| Request::Signal { process: selector(), signal, group: true };
        let _ = machine.guest.call(&signal(SIGTERM)).await;
        let wait = Request::Wait { process: selector() };
        if tokio::time::timeout(GRACE, machine.guest.call(&wait)).await.is_err() {
            machine.guest.call(&signal(SIGKILL)).await?;
            machine.guest.call(&wait).await?;
        }
    }
    let commands = command_tag(&session, "");
    for relay in processes.iter().filter(|p| p.tag.as_deref().is_some_and(|tag| tag.starts_with(&commands))) {
        end_relay(&machine, relay).await;
        let _ = machine.guest.call(&Request::Forget { process: Selector::Pid(relay.pid) }).await;
    }
    machine.guest.call(&Request::Forget { process: selector() }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends a relay whose command has ended; one that is gone already is as good.
async fn end_relay(machine: &Machine, relay: &Info) {
    if relay.exit.is_none() {
        let process = Selector::Pid(relay.pid);
        let _ = machine.guest.call(&Request::Signal { process: process.clone(), signal: SIGKILL, group: false }).await;
        let _ = tokio::time::timeout(GRACE, machine.guest.call(&Request::Wait { process })).await;
    }
}

/// Logs in the shape that the client can read.
fn shaped(log: &output::Log, headers: &HeaderMap) -> Response {
    use crate::door::daytona::sdk::OutputShape;
    match OutputShape::wanted(headers) {
        OutputShape::Apart => Json(json!({
            "output": String::from_utf8_lossy(&log.marked()),
            "stdout": log.stdout(),
            "stderr": log.stderr(),
        }))
        .into_response(),
        OutputShape::Marked => String::from_utf8_lossy(&log.marked()).into_owned().into_response(),
        OutputShape::Together => String::from_utf8_lossy(&log.together()).into_owned().into_response(),
    }
}
