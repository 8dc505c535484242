//! Whether files are what was written down.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Body, Path};
use crate::check::{Check, Of};
use crate::{App, Error};

#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CheckBody {
    /// Sandboxes, by id or name, with their layers and volumes.
    sandboxes: Vec<String>,
    /// All sandboxes, templates, snapshots and volumes of the organisation. With an operator's key also what lies on the
    /// servers and is nobody's.
    all: bool,
}

/// Check files
///
/// Compares the files of paused and stopped sandboxes with the manifests of their durable pauses and stops, and their layers
/// with theirs: what is missing, added, changed or unreadable is named. What has no manifest is read. Of a running sandbox only
/// the layers are checked. Whatever the database names must be there. Nothing is changed. Goes on in the background, one check
/// of an organisation at a time; ask for it until it is `done` or `failed`.
#[utoipa::path(post, path = "/checks", tag = "checks", request_body = CheckBody,
    responses((status = 202, description = "Begun", body = Check)))]
pub async fn begin(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Body(body): Body<CheckBody>,
) -> Result<(StatusCode, Json<Check>), ApiError> {
    let of = match (body.all, body.sandboxes) {
        (true, sandboxes) if sandboxes.is_empty() => Of::All,
        (true, _) => return Err(Error::invalid("all", "name sandboxes, or ask for all").into()),
        (false, sandboxes) => Of::Sandboxes(sandboxes),
    };
    Ok((StatusCode::ACCEPTED, Json(app.begin_check(&caller, of).await?)))
}

/// Read a check
///
/// How far it is, and what it found. Kept for a day after its end.
#[utoipa::path(get, path = "/checks/{id}", tag = "checks", params(("id" = String, Path)),
    responses((status = 200, description = "The check", body = Check)))]
pub async fn read(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<Json<Check>, ApiError> {
    Ok(Json(app.check(&caller, &id).await?))
}
