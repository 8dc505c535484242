//! Ids that a sandbox had elsewhere.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::Path;
use crate::App;

/// Let a sandbox answer to another id
///
/// An id that it had at another service or server. It is found by it at every door, as by its own; names and ids of other
/// sandboxes come first.
#[utoipa::path(put, path = "/sandboxes/{id}/aliases/{alias}", tag = "sandboxes",
    params(("id" = String, Path, description = "id or name"), ("alias" = String, Path)),
    responses((status = 204, description = "It answers to it")))]
pub async fn add(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path((id, alias)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    app.add_alias(&caller, &id, &alias).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the other ids of a sandbox
#[utoipa::path(get, path = "/sandboxes/{id}/aliases", tag = "sandboxes",
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Ids that it had elsewhere", body = Vec<String>)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<Json<Vec<String>>, ApiError> {
    Ok(Json(app.aliases(&caller, &id).await?))
}
