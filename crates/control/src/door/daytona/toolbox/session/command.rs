//! One command of a session: started, looked at, spoken to.

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use cove_protocol::process::{Command, Info, OnDisconnect, Selector, Spec, Stdio};
use cove_protocol::{Event, Reply, Request};
use serde::Deserialize;
use serde_json::{Value, json};

use super::journal::{self, Journal};
use super::{Machine, command_tag, end_relay, find, read_journal, session_tag, tagged};
use crate::door::daytona::body::Lenient;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::daytona::sdk::OutputShape;
use crate::door::daytona::toolbox::output::{self, Chunk, Log};
use crate::guest::{GuestError, Item, Receiver};
use crate::lines::{self, Lines};

/// Set on a relay whose input must not show in its log.
const QUIET: &str = "COVE_INPUT_ECHO_OFF";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Execution {
    #[serde(default)]
    command: String,
    #[serde(default)]
    run_async: Option<bool>,
    /// What `runAsync` was called before.
    #[serde(default, rename = "async")]
    in_background: Option<bool>,
    #[serde(default)]
    suppress_input_echo: Option<bool>,
}

fn session_ended(session: &str) -> Problem {
    Problem::gone("SESSION_ENDED", format!("the shell of session {session} has ended; create a new session"))
}

pub async fn execute(
    Extension(machine): Extension<Machine>,
    Path((session,)): Path<(String,)>,
    headers: HeaderMap,
    Lenient(body): Lenient<Execution>,
) -> Answer<Response> {
    if body.command.trim().is_empty() {
        return Err(Problem::bad_request("command is required"));
    }
    let (shell, _) = find(&machine, &session).await?;
    if shell.exit.is_some() {
        return Err(session_ended(&session));
    }
    let id = crate::random::hex(12);
    let waits = !(body.run_async.unwrap_or(false) || body.in_background.unwrap_or(false));
    let relay = start_relay(&machine, &command_tag(&session, &id), waits, body.suppress_input_echo).await?;
    // From before the command is known to the shell, so that its end cannot be missed.
    let attach = Request::Attach { process: Selector::Pid(shell.pid), from: Some(shell.output_end) };
    let (_, watch) = machine.guest.open(&attach).await?;

    let line = format!("{id} {relay} {}\n", journal::escape(&body.command));
    let feed = feed(machine.clone(), session.clone(), shell.pid, line);
    if !waits {
        // A shell that is busy takes only so much; the caller does not wait for it.
        tokio::spawn(feed);
        return Ok((StatusCode::ACCEPTED, Json(json!({ "cmdId": id }))).into_response());
    }
    let (mut from, _to) = watch.split();
    let (fed, ended) = tokio::join!(feed, wait_for(&mut from, &id));
    let code = match (fed, ended?) {
        (_, Some(code)) => code,
        (Err(problem), None) => return Err(problem),
        (Ok(()), None) => return Err(session_ended(&session)),
    };
    let log = finished_log(&machine, relay).await?;
    Ok(Json(match OutputShape::wanted(&headers) {
        OutputShape::Together => {
            json!({ "cmdId": id, "output": String::from_utf8_lossy(&log.together()), "exitCode": code })
        }
        OutputShape::Marked => {
            json!({ "cmdId": id, "output": String::from_utf8_lossy(&log.marked()), "exitCode": code })
        }
        OutputShape::Apart => json!({
            "cmdId": id,
            "output": String::from_utf8_lossy(&log.marked()),
            "stdout": log.stdout(),
            "stderr": log.stderr(),
            "exitCode": code,
        }),
    })
    .into_response())
}

/// The process whose pipes the command will run on. It does nothing itself.
async fn start_relay(machine: &Machine, tag: &str, waits: bool, quiet: Option<bool>) -> Answer<u32> {
    let mut spec = Spec::new(Command::Argv(vec!["sleep".into(), i32::MAX.to_string()]));
    // A command that its caller waits for finds its input at the end.
    spec.stdio = if waits { Stdio::Closed } else { Stdio::Piped };
    spec.tag = Some(tag.to_owned());
    spec.on_disconnect = OnDisconnect::Keep;
    if quiet == Some(true) {
        spec.env.insert(QUIET.into(), "1".into());
    }
    match machine.guest.open(&Request::Start(spec)).await?.0 {
        Reply::Started { pid, .. } => Ok(pid),
        other => Err(super::unexpected(&other)),
    }
}

/// Whole lines only, one after another: two writers must not mix theirs.
async fn feed(machine: Machine, session: String, shell: u32, line: String) -> Answer<()> {
    let lock = machine.desk.line(format!("{}/{session}", machine.id));
    let _one_at_a_time = lock.lock().await;
    let mut operation = machine.guest.send(&Request::Input { process: Selector::Pid(shell) }).await?;
    operation.to.stdin(line.as_bytes()).await?;
    operation.to.end().await?;
    operation.reply().await?;
    Ok(())
}

/// A command as the shell notes it: its text, escaped, and a little more.
const LONGEST_LINE: usize = 96 << 20;

/// Follows the journal until the command's end is noted, or the shell ends: then the command's code is the shell's.
async fn wait_for(from: &mut Receiver, id: &str) -> Answer<Option<i32>> {
    let mut journal = Journal::default();
    let mut lines = Lines::of_at_most(LONGEST_LINE);
    while let Some(item) = from.next().await? {
        match item {
            Item::Stdout(bytes) => {
                let said = lines.take(&bytes).map_err(|too_long| GuestError::Protocol(too_long.to_string()))?;
                for line in lines::each(&said) {
                    let line = String::from_utf8_lossy(line);
                    if line.split(' ').nth(1) == Some(id) {
                        journal.read(line.trim_end());
                        // Whatever else the shell says of it.
                        journal.commands.truncate(1);
                    }
                }
                if let Some(code) = journal.find(id).and_then(|command| command.code) {
                    return Ok(Some(code));
                }
            }
            Item::Event(Event::Exited { exit }) => return Ok(journal.find(id).map(|_| exit.status())),
            _ => {}
        }
    }
    Ok(None)
}

/// The whole log of a command that has ended; its relay is ended with it if the shell could not.
async fn finished_log(machine: &Machine, relay: u32) -> Answer<Log> {
    let by_pid = Selector::Pid(relay);
    let _ =
        machine.guest.call(&Request::Signal { process: by_pid.clone(), signal: super::SIGKILL, group: false }).await;
    let (_, mut operation) = machine.guest.open(&Request::Attach { process: by_pid, from: Some(0) }).await?;
    let mut log = Log::default();
    let collect = async {
        while let Some(item) = operation.from.next().await? {
            if matches!(item, Item::Event(Event::Exited { .. })) {
                break;
            }
            if let Some(chunk) = Chunk::of(item) {
                log.push(chunk);
            }
        }
        Ok::<(), GuestError>(())
    };
    // What the command left in the background may hold the pipes open; it is not waited for.
    if let Ok(collected) = tokio::time::timeout(super::GRACE, collect).await {
        collected?;
    }
    Ok(log)
}

/// What is known of a command: its entry in the journal, the shell it belongs to, the relay with its log.
pub struct Found {
    pub shell: Info,
    pub journal: Journal,
    pub relay: Option<Info>,
}

pub async fn find_command(machine: &Machine, session: &str, command: &str) -> Answer<Found> {
    let (shell, processes) = find(machine, session).await?;
    let journal = read_journal(machine, &shell).await?;
    let relay = tagged(&processes, &command_tag(session, command));
    if journal.find(command).is_none() && relay.is_none() {
        let message = format!("command not found: {command} in session {session}");
        return Err(Problem::daemon(StatusCode::NOT_FOUND, "PROCESS_NOT_FOUND", message));
    }
    Ok(Found { shell, journal, relay })
}

impl Found {
    /// Absent while the command runs or waits for its turn.
    pub fn code(&self, command: &str) -> Option<i32> {
        let shell = self.shell.exit.map(|exit| exit.status());
        match self.journal.find(command) {
            Some(entry) => entry.code(shell),
            None => shell,
        }
    }
}

pub async fn show(
    Extension(machine): Extension<Machine>,
    Path((session, command)): Path<(String, String)>,
) -> Answer<Json<Value>> {
    let found = find_command(&machine, &session, &command).await?;
    let code = found.code(&command);
    if let (Some(_), Some(relay)) = (code, &found.relay) {
        end_relay(&machine, relay).await;
    }
    let text = found.journal.find(&command).map(|entry| entry.text.clone()).unwrap_or_default();
    let mut view = json!({ "id": command, "command": text });
    if let Some(code) = code {
        view["exitCode"] = code.into();
    }
    Ok(Json(view))
}

/// What a command has written so far, all of it once it has ended.
pub async fn log(machine: &Machine, session: &str, command: &str) -> Answer<Log> {
    let found = find_command(machine, session, command).await?;
    match (found.code(command), found.relay) {
        (Some(_), Some(relay)) => finished_log(machine, relay.pid).await,
        (None, Some(relay)) => Ok(output::so_far(&machine.guest, &relay).await?),
        (_, None) => Ok(Log::default()),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Typed {
    data: String,
}

pub async fn input(
    Extension(machine): Extension<Machine>,
    Path((session, command)): Path<(String, String)>,
    Lenient(body): Lenient<Typed>,
) -> Answer<StatusCode> {
    let found = find_command(&machine, &session, &command).await?;
    if found.shell.exit.is_some() {
        return Err(session_ended(&session));
    }
    let running = found
        .relay
        .filter(|relay| relay.exit.is_none() && found.journal.find(&command).is_none_or(|c| c.code.is_none()));
    let Some(relay) = running else {
        return Err(Problem::gone("COMMAND_ALREADY_COMPLETED", format!("command {command} has ended")));
    };
    let mut data = body.data.into_bytes();
    if data.last() != Some(&b'\n') {
        data.push(b'\n');
    }
    if !relay.env.contains_key(QUIET) {
        echo(&machine, &relay, &data).await?;
    }
    let mut operation = machine.guest.send(&Request::Input { process: Selector::Pid(relay.pid) }).await?;
    operation.to.stdin(&data).await?;
    operation.to.end().await?;
    operation.reply().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Shows the input in the command's log, as a terminal would.
async fn echo(machine: &Machine, relay: &Info, data: &[u8]) -> Answer<()> {
    let script = "exec cat >/proc/\"$1\"/fd/1";
    let argv = ["/bin/sh", "-c", script, "sh", &relay.pid.to_string()].map(String::from).to_vec();
    let mut spec = Spec::new(Command::Argv(argv));
    spec.stdio = Stdio::Piped;
    spec.on_disconnect = OnDisconnect::Kill;
    let (reply, mut operation) = machine.guest.open(&Request::Start(spec)).await?;
    operation.to.stdin(data).await?;
    operation.to.end().await?;
    output::to_the_end(&mut operation.from).await?;
    if let Reply::Started { pid, .. } = reply {
        let _ = machine.guest.call(&Request::Forget { process: Selector::Pid(pid) }).await;
    }
    Ok(())
}

/// The session's shell, to wait for its end.
pub fn shell_selector(session: &str) -> Selector {
    Selector::Tag(session_tag(session))
}
