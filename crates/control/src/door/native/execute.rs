//! Code and files of a session, by the session's id alone.

use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use cove_protocol::file::WriteMode;
use cove_protocol::{Reply, Request};
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Body, Params, Path, within};
use super::tree::{DEEPEST, EntryView, entries};
use crate::guest::GuestError;
use crate::interpreter::cell::{CellError, CellResult};
use crate::session::{Artifact, Execution};
use crate::{App, Error};

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecuteBody {
    session_id: String,
    code: String,
    /// `python` (the default), `javascript`, `typescript` or `bash`. Variables stay from call to call.
    language: Option<String>,
    timeout_seconds: Option<f64>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ExecuteResult {
    stdout: String,
    stderr: String,
    /// Values that the code showed, by MIME type.
    results: Vec<CellResult>,
    /// What was kept of this call.
    artifacts: Vec<Artifact>,
    error: Option<CellError>,
    /// 0, or 1 where the code raised.
    exit_code: i32,
}

/// Execute code in a session
///
/// Runs to its end even if the client goes away; the session's stream tells the rest.
#[utoipa::path(post, path = "/execute", tag = "sessions", request_body = ExecuteBody,
    responses((status = 200, description = "It has ended", body = ExecuteResult)))]
pub async fn execute(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Body(body): Body<ExecuteBody>,
) -> Result<Json<ExecuteResult>, ApiError> {
    let timeout = seconds(body.timeout_seconds)?;
    let execution = Execution { code: body.code, language: body.language, timeout };
    let done = app.execute(&caller, &body.session_id, execution).await?;
    Ok(Json(ExecuteResult {
        exit_code: done.exit_code(),
        stdout: done.stdout,
        stderr: done.stderr,
        results: done.results,
        artifacts: done.artifacts,
        error: done.error,
    }))
}

pub fn seconds(timeout: Option<f64>) -> Result<Option<std::time::Duration>, Error> {
    match timeout {
        None => Ok(None),
        Some(seconds) if seconds.is_finite() && seconds > 0.0 && seconds < 1e9 => {
            Ok(Some(std::time::Duration::from_secs_f64(seconds)))
        }
        Some(_) => Err(Error::invalid("timeout_seconds", "must be greater than 0")),
    }
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct FilesQuery {
    /// The home of the sandbox's user where absent.
    path: Option<String>,
    #[param(minimum = 1, maximum = 64)]
    depth: Option<u32>,
}

/// List a session's files
#[utoipa::path(get, path = "/files/{session_id}", tag = "sessions", params(("session_id" = String, Path), FilesQuery),
    responses((status = 200, description = "What the directory holds", body = Vec<EntryView>)))]
pub async fn list_files(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(session_id): Path<String>,
    Params(query): Params<FilesQuery>,
) -> Result<Json<Vec<EntryView>>, ApiError> {
    let session = app.open_session(&caller, &session_id).await?;
    let (_, guest) = app.reach(&caller, &session.sandbox).await?;
    let path = query.path.unwrap_or_else(|| "~".into());
    let request = Request::List { path, user: None, depth: within("depth", query.depth, 1, DEEPEST)? };
    Ok(Json(entries(&guest, &request).await?))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteBody {
    session_id: String,
    path: String,
    /// Text.
    content: Option<String>,
    /// Bytes, in place of `content`.
    content_base64: Option<String>,
}

/// Write a file of a session
#[utoipa::path(post, path = "/files", tag = "sessions", request_body = WriteBody,
    responses((status = 200, description = "Written", body = EntryView)))]
pub async fn write_file(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Body(body): Body<WriteBody>,
) -> Result<Json<EntryView>, ApiError> {
    let bytes = match (body.content, body.content_base64) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(text)) => base64::engine::general_purpose::STANDARD
            .decode(text)
            .map_err(|error| Error::invalid("content_base64", error.to_string()))?,
        _ => return Err(Error::invalid("content", "give either `content` or `content_base64`").into()),
    };
    let session = app.open_session(&caller, &body.session_id).await?;
    let (_, guest) = app.reach(&caller, &session.sandbox).await?;
    let request = Request::Write { path: body.path, user: None, how: WriteMode::Replace, mode: None, parents: true };
    let mut operation = guest.send(&request).await?;
    operation.to.data(&bytes).await?;
    operation.to.end().await?;
    match operation.reply().await? {
        Reply::Entry { entry } => Ok(Json(entry.into())),
        other => Err(Error::from(GuestError::Protocol(format!("write answered {other:?}"))).into()),
    }
}
