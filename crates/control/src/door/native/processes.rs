//! Processes that were started through the API: list, look, wait, signal, feed, forget.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::http::StatusCode;
use cove_protocol::process::{Command, Info, Selector};
use cove_protocol::{Reply, Request};
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::error::ApiError;
use super::exec::ExitView;
use super::extract::{Body, Path};
use crate::clock::{Timestamp, from_millisecond};
use crate::guest::{Guest, GuestError};
use crate::{App, Error};

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ProcessView {
    pid: u32,
    tag: Option<String>,
    /// The words of a command, or one shell line.
    command: Vec<String>,
    /// Whether `command` is a line for the shell.
    shell: bool,
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    user: Option<String>,
    terminal: bool,
    #[schema(value_type = String, format = DateTime)]
    started_at: Timestamp,
    /// Absent while it runs.
    exit: Option<ExitView>,
    /// The oldest byte of output still kept.
    output_start: u64,
    /// Bytes of output so far.
    output_end: u64,
}

impl From<Info> for ProcessView {
    fn from(info: Info) -> Self {
        let (command, shell) = match info.command {
            Command::Argv(words) => (words, false),
            Command::Shell(line) => (vec![line], true),
        };
        ProcessView {
            pid: info.pid,
            tag: info.tag,
            command,
            shell,
            env: info.env,
            cwd: info.cwd,
            user: info.user,
            terminal: info.terminal,
            started_at: from_millisecond(info.started_at_ms as i64),
            exit: info.exit.map(Into::into),
            output_start: info.output_start,
            output_end: info.output_end,
        }
    }
}

/// A number is a pid, anything else a tag.
fn selector(text: &str) -> Selector {
    text.parse().map_or_else(|_| Selector::Tag(text.to_owned()), Selector::Pid)
}

async fn all(guest: &Guest) -> Result<Vec<Info>, Error> {
    match guest.call(&Request::Processes).await? {
        Reply::Processes { processes } => Ok(processes),
        other => Err(GuestError::Protocol(format!("processes answered {other:?}")).into()),
    }
}

/// List processes
#[utoipa::path(get, path = "/sandboxes/{id}/processes", tag = "processes",
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Running ones, and finished ones that are remembered", body = Vec<ProcessView>)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<Json<Vec<ProcessView>>, ApiError> {
    let (_, guest) = app.reach(&caller, &id).await?;
    Ok(Json(all(&guest).await?.into_iter().map(Into::into).collect()))
}

/// Read a process
#[utoipa::path(get, path = "/sandboxes/{id}/processes/{process}", tag = "processes",
    params(("id" = String, Path, description = "id or name"), ("process" = String, Path, description = "pid or tag")),
    responses((status = 200, description = "As it is now", body = ProcessView)))]
pub async fn read(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path((id, process)): Path<(String, String)>,
) -> Result<Json<ProcessView>, ApiError> {
    let (_, guest) = app.reach(&caller, &id).await?;
    let wanted = selector(&process);
    let found = all(&guest).await?.into_iter().rev().find(|info| match &wanted {
        Selector::Pid(pid) => info.pid == *pid,
        Selector::Tag(tag) | Selector::Living(tag) => info.tag.as_ref() == Some(tag),
    });
    Ok(Json(found.ok_or_else(|| Error::not_found("process", process))?.into()))
}

/// Forget a finished process and its output
#[utoipa::path(delete, path = "/sandboxes/{id}/processes/{process}", tag = "processes",
    params(("id" = String, Path, description = "id or name"), ("process" = String, Path, description = "pid or tag")),
    responses((status = 204, description = "Forgotten")))]
pub async fn forget(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path((id, process)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let (_, guest) = app.reach(&caller, &id).await?;
    guest.call(&Request::Forget { process: selector(&process) }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Wait for a process to end
///
/// Answers when it has; a client that gives up can ask again.
#[utoipa::path(get, path = "/sandboxes/{id}/processes/{process}/wait", tag = "processes",
    params(("id" = String, Path, description = "id or name"), ("process" = String, Path, description = "pid or tag")),
    responses((status = 200, description = "It has ended", body = ExitView)))]
pub async fn wait(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path((id, process)): Path<(String, String)>,
) -> Result<Json<ExitView>, ApiError> {
    let (_, guest) = app.reach(&caller, &id).await?;
    let mut operation = guest.send(&Request::Wait { process: selector(&process) }).await?;
    match operation.reply().await? {
        Reply::Exited { exit } => Ok(Json(exit.into())),
        other => Err(Error::from(GuestError::Protocol(format!("wait answered {other:?}"))).into()),
    }
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalBody {
    /// The signal's number: 15 asks to end, 9 ends.
    #[schema(minimum = 1, maximum = 64)]
    signal: i32,
    /// To the whole process group.
    #[serde(default)]
    group: bool,
}

/// Send a signal
#[utoipa::path(post, path = "/sandboxes/{id}/processes/{process}/signal", tag = "processes", request_body = SignalBody,
    params(("id" = String, Path, description = "id or name"), ("process" = String, Path, description = "pid or tag")),
    responses((status = 204, description = "Sent")))]
pub async fn signal(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path((id, process)): Path<(String, String)>,
    Body(body): Body<SignalBody>,
) -> Result<StatusCode, ApiError> {
    if !(1..=64).contains(&body.signal) {
        return Err(Error::invalid("signal", "a number from 1 to 64").into());
    }
    let (_, guest) = app.reach(&caller, &id).await?;
    guest.call(&Request::Signal { process: selector(&process), signal: body.signal, group: body.group }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Write to a process's standard input or terminal
///
/// The body is the bytes, streamed.
#[utoipa::path(post, path = "/sandboxes/{id}/processes/{process}/input", tag = "processes",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    params(("id" = String, Path, description = "id or name"), ("process" = String, Path, description = "pid or tag")),
    responses((status = 204, description = "Written")))]
pub async fn input(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path((id, process)): Path<(String, String)>,
    body: HttpBody,
) -> Result<StatusCode, ApiError> {
    let (_, guest) = app.reach(&caller, &id).await?;
    let mut operation = guest.send(&Request::Input { process: selector(&process) }).await?;
    let mut stream = body.into_data_stream();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| Error::invalid("body", error.to_string()))?;
        operation.to.stdin(&chunk).await?;
    }
    operation.to.end().await?;
    operation.reply().await?;
    Ok(StatusCode::NO_CONTENT)
}
