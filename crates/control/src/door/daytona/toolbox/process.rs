//! One command, or one program's text, run to its end.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use axum::{Extension, Json};
use cove_protocol::process::{Command, OnDisconnect, Selector, Spec, Stdio};
use cove_protocol::{Failure, FailureKind, Reply, Request};
use serde::Deserialize;
use serde_json::{Value, json};

use super::charts::Mark;
use super::{Machine, WRITE, output, typescript};
use crate::door::daytona::body::Lenient;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::table::Table;
use crate::guest::GuestError;

pub fn table() -> Table<()> {
    Table::new().post("/process/execute", WRITE, execute).post("/process/code-run", WRITE, run_code)
}

/// Bash where the template has it, else what it has, to run `$1`.
const SHELL: &str = "exec 2>&1; if command -v bash >/dev/null; then exec bash -c \"$1\"; fi; exec sh -c \"$1\"";

/// For a command too long to be an argument: it comes by standard input and is read whole before it runs, so that it
/// cannot eat its own text.
const READ_AND_RUN: &str = "c=$(cat; printf x); eval \"${c%x}\" </dev/null";

/// The longest command that is passed as an argument; the kernel takes 128 KiB.
const LONGEST_ARGUMENT: usize = 100 << 10;

/// Both streams go to one pipe, so that their order is the real one.
const MERGED: &str = "exec 2>&1; exec \"$@\"";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Execution {
    #[serde(default)]
    command: String,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default, alias = "env")]
    envs: Option<BTreeMap<String, String>>,
    /// Seconds; absent or 0 is none.
    #[serde(default)]
    timeout: Option<f64>,
}

async fn execute(Extension(machine): Extension<Machine>, Lenient(body): Lenient<Execution>) -> Answer<Json<Value>> {
    if body.command.trim().is_empty() {
        return Err(Problem::bad_request("command is required"));
    }
    if body.command.contains('\0') {
        return Err(Problem::bad_request("command holds a NUL byte"));
    }
    let command = match typescript::Command::of(&body.command) {
        Some(command) => match command.without_compiler(|code| typescript::without_types(&machine, code)).await {
            Ok(command) => command,
            Err(said) => return Ok(Json(json!({ "exitCode": 1, "result": said }))),
        },
        None => body.command,
    };
    let short = command.len() <= LONGEST_ARGUMENT;
    let line = if short { command.as_str() } else { READ_AND_RUN };
    let mut spec = spec(&machine, &[SHELL, "sh", line], body.cwd, body.envs.unwrap_or_default(), body.timeout)?;
    spec.stdio = if short { Stdio::Closed } else { Stdio::Piped };
    let input = if short { &[] } else { command.as_bytes() };
    let (code, result) = run(&machine, spec, input).await?;
    Ok(Json(json!({ "exitCode": code, "result": result })))
}

fn spec(
    machine: &Machine,
    script: &[&str],
    cwd: Option<String>,
    env: BTreeMap<String, String>,
    timeout: Option<f64>,
) -> Answer<Spec> {
    for name in env.keys() {
        let fits =
            name.bytes().enumerate().all(|(i, b)| b == b'_' || b.is_ascii_alphabetic() || i > 0 && b.is_ascii_digit());
        if name.is_empty() || !fits {
            return Err(Problem::bad_request(format!("{name:?} is not the name of an environment variable")));
        }
    }
    let argv = ["/bin/sh", "-c"].iter().chain(script).map(|word| word.to_string()).collect();
    let mut spec = Spec::new(Command::Argv(argv));
    spec.env = env;
    spec.cwd = cwd.filter(|cwd| !cwd.is_empty()).map(|cwd| machine.path(&cwd)).or_else(|| machine.cwd.clone());
    spec.stdio = Stdio::Piped;
    spec.timeout_ms = timeout.filter(|seconds| *seconds > 0.0).map(|seconds| (seconds * 1000.0) as u64);
    // Nobody can ask for the result any more.
    spec.on_disconnect = OnDisconnect::Kill;
    Ok(spec)
}

async fn run(machine: &Machine, spec: Spec, input: &[u8]) -> Answer<(i32, String)> {
    let timeout = spec.timeout_ms;
    let piped = spec.stdio == Stdio::Piped;
    let (reply, operation) = match machine.guest.open(&Request::Start(spec)).await {
        Ok(started) => started,
        // It was never started: the original tells that as a result.
        Err(GuestError::Failed(Failure { kind: FailureKind::NotFound | FailureKind::NotADirectory, message })) => {
            return Ok((-1, message));
        }
        Err(error) => return Err(error.into()),
    };
    let (mut from, mut to) = operation.split();
    let feed = async {
        if piped {
            to.stdin(input).await?;
            to.end().await?;
        }
        Ok::<(), GuestError>(())
    };
    let (_, read) = tokio::join!(feed, output::to_the_end(&mut from));
    let (log, exit) = read?;
    if let Reply::Started { pid, .. } = reply {
        // Its output has been handed over; nobody will attach.
        let _ = machine.guest.call(&Request::Forget { process: Selector::Pid(pid) }).await;
    }
    let exit = exit.ok_or_else(|| GuestError::Protocol("a process ended without an exit".into()))?;
    if exit.timed_out {
        let message =
            format!("command execution timeout: not done within {} s", timeout.unwrap_or_default() as f64 / 1e3);
        return Err(Problem::daemon(StatusCode::REQUEST_TIMEOUT, "PROCESS_EXECUTION_TIMEOUT", message));
    }
    Ok((exit.status(), String::from_utf8_lossy(&log.together()).into_owned()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Code {
    code: String,
    #[serde(default)]
    language: Option<String>,
    #[serde(default)]
    argv: Option<Vec<String>>,
    #[serde(default, alias = "env")]
    envs: Option<BTreeMap<String, String>>,
    #[serde(default)]
    timeout: Option<f64>,
}

async fn run_code(Extension(machine): Extension<Machine>, Lenient(body): Lenient<Code>) -> Answer<Json<Value>> {
    let language = body.language.as_deref().unwrap_or("python");
    // Types are taken off here, so the template needs nothing but node.
    let code = match language {
        "typescript" => match typescript::without_types(&machine, body.code).await {
            Ok(code) => code,
            Err(said) => return Ok(Json(json!({ "exitCode": 1, "result": said }))),
        },
        _ => body.code,
    };
    let mark = Mark::wanted(language, &code);
    let marked: Vec<&str>;
    let script: &[&str] = match language {
        "python" => match &mark {
            Some(mark) => {
                marked = [MERGED, "sh", "python3"].into_iter().chain(mark.words()).collect();
                &marked
            }
            None => &[MERGED, "sh", "python3", "-u", "-"],
        },
        "typescript" if typescript::is_module(&code) => &[MERGED, "sh", "node", "--input-type=module", "-"],
        "javascript" | "typescript" => &[MERGED, "sh", "node", "-"],
        other => {
            return Err(Problem::bad_request(format!("language {other:?} is not python, javascript or typescript")));
        }
    };
    let mut spec = spec(&machine, script, None, body.envs.unwrap_or_default(), body.timeout)?;
    if let Command::Argv(argv) = &mut spec.command {
        argv.extend(body.argv.unwrap_or_default());
    }
    let Some(mark) = mark else {
        let (code, result) = run(&machine, spec, code.as_bytes()).await?;
        return Ok(Json(json!({ "exitCode": code, "result": result })));
    };
    let (code, output) = run(&machine, spec, &Mark::input(&code)).await?;
    let (result, charts) = mark.part(&output);
    Ok(Json(json!({ "exitCode": code, "result": result, "artifacts": { "charts": charts } })))
}
