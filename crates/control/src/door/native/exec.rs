//! One command from start to end.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cove_protocol::process::{Command, Exit, OnDisconnect, Spec, Stdio, TerminalSize};
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Body, Path};
use crate::sandbox::exec::{run_to_end, start_in_background};
use crate::{App, Error};

/// A command and how to run it.
#[derive(Debug, Clone, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExecBody {
    /// A program and its arguments. Either this or `shell`.
    #[serde(deserialize_with = "words")]
    pub command: Option<Vec<String>>,
    /// A line for the sandbox's shell.
    pub shell: Option<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
    pub user: Option<String>,
    /// What the command reads; its standard input is empty where absent.
    pub stdin: Option<String>,
    /// Killed after this time.
    pub timeout_seconds: Option<f64>,
    /// A name to find the process by later.
    pub tag: Option<String>,
    /// Start it and answer at once; it goes on, and reads `stdin` as it likes.
    pub background: bool,
    /// Give output as base64 as well, for what is no text.
    pub base64: bool,
    /// A terminal of this size (streaming only).
    pub terminal: Option<Size>,
}

#[derive(Debug, Clone, Copy, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Size {
    #[schema(minimum = 1)]
    pub rows: u16,
    #[schema(minimum = 1)]
    pub columns: u16,
}

impl From<Size> for TerminalSize {
    fn from(size: Size) -> Self {
        TerminalSize { rows: size.rows, columns: size.columns }
    }
}

/// The words of a command. Who sends a line means the shell, and is told where that goes.
fn words<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    use serde::de::Error as _;
    use serde_json::Value;
    match Option::<Value>::deserialize(from)? {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(_)) => {
            Err(D::Error::custom("`command` is a list of words; a line for the shell goes into `shell`"))
        }
        Some(words) => match serde_json::from_value(words) {
            Ok(words) => Ok(Some(words)),
            Err(error) => Err(D::Error::custom(format!("`command`: {error}"))),
        },
    }
}

impl ExecBody {
    pub fn spec(&self, stdio: Stdio) -> Result<Spec, Error> {
        let command = match (&self.command, &self.shell) {
            (Some(words), None) if !words.is_empty() => Command::Argv(words.clone()),
            (None, Some(line)) if !line.is_empty() => Command::Shell(line.clone()),
            _ => return Err(Error::invalid("command", "give either `command` (a list of words) or `shell` (a line)")),
        };
        let timeout_ms = match self.timeout_seconds {
            None => None,
            Some(seconds) if seconds.is_finite() && seconds > 0.0 && seconds < 1e9 => Some((seconds * 1000.0) as u64),
            Some(_) => return Err(Error::invalid("timeout_seconds", "must be greater than 0")),
        };
        Ok(Spec {
            command,
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            user: self.user.clone(),
            stdio,
            tag: self.tag.clone(),
            copy_of: None,
            timeout_ms,
            on_disconnect: OnDisconnect::Keep,
        })
    }
}

#[derive(Debug, Clone, Copy, Serialize, utoipa::ToSchema)]
pub struct ExitView {
    /// As a shell reports it: the code, or 128 + signal.
    pub status: i32,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub timed_out: bool,
    /// The kernel's out-of-memory killer ended a process of the sandbox while this one ran.
    pub out_of_memory: bool,
}

impl From<Exit> for ExitView {
    fn from(exit: Exit) -> Self {
        ExitView {
            status: exit.status(),
            code: exit.code,
            signal: exit.signal,
            timed_out: exit.timed_out,
            out_of_memory: exit.out_of_memory,
        }
    }
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ExecResult {
    pid: u32,
    /// What is no UTF-8 is shown as �.
    stdout: String,
    stderr: String,
    /// Where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
    /// Bytes of output beyond 8 MiB a stream, which were not kept.
    dropped: u64,
    /// Absent where it goes on in the background.
    exit: Option<ExitView>,
}

/// Run a command
///
/// Answers with its whole output when it has ended; for output as it comes use the stream.
#[utoipa::path(post, path = "/sandboxes/{id}/exec", tag = "processes", request_body = ExecBody,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "It has ended, or goes on in the background", body = ExecResult)))]
pub async fn exec(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<ExecBody>,
) -> Result<Json<ExecResult>, ApiError> {
    let stdio = if body.stdin.is_some() { Stdio::Piped } else { Stdio::Closed };
    let spec = body.spec(stdio)?;
    let (_, guest) = app.reach(&caller, &id).await?;
    if body.background {
        let pid = start_in_background(&guest, spec, body.stdin.map(String::into_bytes)).await?;
        return Ok(Json(ExecResult {
            pid,
            stdout: String::new(),
            stderr: String::new(),
            stdout_base64: None,
            stderr_base64: None,
            dropped: 0,
            exit: None,
        }));
    }
    let output = run_to_end(&guest, spec, body.stdin.as_deref().map(str::as_bytes)).await?;
    Ok(Json(ExecResult {
        pid: output.pid,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        stdout_base64: body.base64.then(|| STANDARD.encode(&output.stdout)),
        stderr_base64: body.base64.then(|| STANDARD.encode(&output.stderr)),
        dropped: output.dropped,
        exit: Some(output.exit.into()),
    }))
}
