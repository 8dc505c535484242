//! Files of sandboxes that nobody is known to own.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Body, Path};
use super::view::SandboxView;
use crate::App;
use crate::sandbox::orphan::{Adoption, Orphan};

/// List orphans (operators)
///
/// Sandboxes on this server's machine that the database does not know: the power went before their row was on the disk, or the
/// database is an older one. Their processes are ended and their files are kept for `orphans.keep_days`.
#[utoipa::path(get, path = "/orphans", tag = "orphans",
    responses((status = 200, description = "Oldest first", body = Vec<Orphan>)))]
pub async fn list(State(app): State<App>, Authenticated(caller): Authenticated) -> Result<Json<Vec<Orphan>>, ApiError> {
    Ok(Json(app.orphans(&caller).await?))
}

#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Adopt {
    /// Whose it becomes; your own organisation's where absent.
    #[schema(max_length = 63)]
    organisation: Option<String>,
    #[schema(max_length = 128)]
    name: Option<String>,
}

/// Adopt an orphan (operators)
///
/// It becomes a stopped sandbox with the files that it has, the limits that it had, and no network.
#[utoipa::path(post, path = "/orphans/{id}/adopt", tag = "orphans", params(("id" = String, Path)),
    request_body = Adopt, responses((status = 200, description = "Adopted", body = SandboxView)))]
pub async fn adopt(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<Adopt>,
) -> Result<Json<SandboxView>, ApiError> {
    let adoption = Adoption { organisation: body.organisation, name: body.name };
    let adopted = app.adopt_orphan(&caller, &id, adoption).await?;
    Ok(Json(SandboxView::of(&app, adopted)))
}

/// Remove an orphan (operators)
///
/// Its files go for good.
#[utoipa::path(delete, path = "/orphans/{id}", tag = "orphans", params(("id" = String, Path)),
    responses((status = 204, description = "It is gone")))]
pub async fn remove(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.remove_orphan(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
