//! Start, stop, pause, resume, archive, recover: one call each.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{OptionalBody, Path};
use super::view::SandboxView;
use crate::App;

type One = Result<Json<SandboxView>, ApiError>;

#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RestBody {
    /// Whether all files are written out and a manifest of them is kept, which `POST /checks` compares them with: every name
    /// with its mode, owner, time, attributes, links, holes and the SHA-256 of its data. Takes as long as reading the files
    /// does. As the server is configured where absent.
    durable: Option<bool>,
}

/// Start a sandbox
///
/// Stopped, archived and failed ones get their processes anew on the files they had; a paused one goes on. Answers when it runs.
#[utoipa::path(post, path = "/sandboxes/{id}/start", tag = "sandboxes",
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Done", body = SandboxView)))]
pub async fn start(State(app): State<App>, Authenticated(caller): Authenticated, Path(id): Path<String>) -> One {
    Ok(Json(app.start(&caller, &id).await?.into()))
}

/// Stop a sandbox
///
/// Processes get SIGTERM and five seconds, then SIGKILL. Files stay. An ephemeral sandbox is destroyed. One that is stopped
/// already gets the manifest that it has not.
#[utoipa::path(post, path = "/sandboxes/{id}/stop", tag = "sandboxes", request_body = Option<RestBody>,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Done", body = SandboxView)))]
pub async fn stop(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    OptionalBody(body): OptionalBody<RestBody>,
) -> One {
    Ok(Json(app.stop_durably(&caller, &id, body.durable.into()).await?.into()))
}

/// Pause a sandbox
///
/// Processes are frozen in memory: they go on where they were as long as the machine stays up. After a reboot the sandbox is
/// stopped, with its files. One that is paused already gets the manifest that it has not.
#[utoipa::path(post, path = "/sandboxes/{id}/pause", tag = "sandboxes", request_body = Option<RestBody>,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Done", body = SandboxView)))]
pub async fn pause(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    OptionalBody(body): OptionalBody<RestBody>,
) -> One {
    Ok(Json(app.pause_durably(&caller, &id, body.durable.into()).await?.into()))
}

/// Resume a paused sandbox
#[utoipa::path(post, path = "/sandboxes/{id}/resume", tag = "sandboxes",
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Done", body = SandboxView)))]
pub async fn resume(State(app): State<App>, Authenticated(caller): Authenticated, Path(id): Path<String>) -> One {
    Ok(Json(app.resume(&caller, &id).await?.into()))
}

/// Archive a stopped sandbox
///
/// Its files go to the object store and off the machine; a start brings them back.
#[utoipa::path(post, path = "/sandboxes/{id}/archive", tag = "sandboxes",
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Done", body = SandboxView)))]
pub async fn archive(State(app): State<App>, Authenticated(caller): Authenticated, Path(id): Path<String>) -> One {
    Ok(Json(app.archive(&caller, &id).await?.into()))
}

/// Recover a failed sandbox
///
/// Tries the start again.
#[utoipa::path(post, path = "/sandboxes/{id}/recover", tag = "sandboxes",
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Done", body = SandboxView)))]
pub async fn recover(State(app): State<App>, Authenticated(caller): Authenticated, Path(id): Path<String>) -> One {
    Ok(Json(app.recover(&caller, &id).await?.into()))
}

/// Note activity
///
/// Puts the idle timer back; nothing else happens.
#[utoipa::path(post, path = "/sandboxes/{id}/touch", tag = "sandboxes",
    params(("id" = String, Path, description = "id or name")),
    responses((status = 204, description = "Noted")))]
pub async fn touch(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let sandbox = app.sandbox(&caller, &id).await?;
    app.touch(&sandbox.id);
    Ok(StatusCode::NO_CONTENT)
}
