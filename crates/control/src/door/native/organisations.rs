//! Organisations and their maxima.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Body, Params, Path};
use super::keys::ForceQuery;
use crate::App;
use crate::clock::Timestamp;
use crate::key::{Organisation, Quota};

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct OrganisationView {
    id: String,
    name: String,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    quota: Quota,
    /// Sandboxes with processes now.
    running_sandboxes: u64,
    sandboxes: u64,
    /// Bytes that the disks of its sandboxes may hold together now.
    disk_bytes: u64,
}

fn view(app: &App, organisation: Organisation) -> OrganisationView {
    let counts = app.ledger().of(&organisation.id);
    OrganisationView {
        id: organisation.id,
        name: organisation.name,
        created_at: organisation.created_at,
        quota: organisation.quota,
        running_sandboxes: counts.running,
        sandboxes: counts.all,
        disk_bytes: counts.disk,
    }
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateOrganisation {
    /// 2 to 63 lower-case letters, digits and '-'.
    id: String,
    name: Option<String>,
}

/// Create an organisation (operators)
#[utoipa::path(post, path = "/organisations", tag = "organisations", request_body = CreateOrganisation,
    responses((status = 201, description = "Made", body = OrganisationView)))]
pub async fn create(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Body(body): Body<CreateOrganisation>,
) -> Result<(StatusCode, Json<OrganisationView>), ApiError> {
    let name = body.name.unwrap_or_else(|| body.id.clone());
    let made = app.create_organisation(&caller, &body.id, &name).await?;
    Ok((StatusCode::CREATED, Json(view(&app, made))))
}

/// List organisations
///
/// Your own; all of them for operators.
#[utoipa::path(get, path = "/organisations", tag = "organisations",
    responses((status = 200, description = "Those that you may see", body = Vec<OrganisationView>)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
) -> Result<Json<Vec<OrganisationView>>, ApiError> {
    let all = app.list_organisations(&caller).await?;
    Ok(Json(all.into_iter().map(|organisation| view(&app, organisation)).collect()))
}

/// Read an organisation
#[utoipa::path(get, path = "/organisations/{id}", tag = "organisations", params(("id" = String, Path)),
    responses((status = 200, description = "With its maxima and what is in use", body = OrganisationView)))]
pub async fn read(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<Json<OrganisationView>, ApiError> {
    let found = app.organisation(&caller, &id).await?;
    Ok(Json(view(&app, found)))
}

/// Delete an organisation (operators)
///
/// Its keys and the tokens of its volumes open nothing from then on, and what they opened ends. An organisation that has
/// sandboxes is refused with 409. So is one that has templates, snapshots or volumes, unless `force` deletes them with it.
#[utoipa::path(delete, path = "/organisations/{id}", tag = "organisations", params(("id" = String, Path), ForceQuery),
    responses((status = 204, description = "It is gone"),
        (status = 409, description = "It has something; the message says what")))]
pub async fn delete(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<ForceQuery>,
) -> Result<StatusCode, ApiError> {
    app.delete_organisation(&caller, &id, query.force()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Set an organisation's maxima (operators)
#[utoipa::path(put, path = "/organisations/{id}/quota", tag = "organisations", request_body = Quota,
    params(("id" = String, Path)),
    responses((status = 200, description = "Set", body = OrganisationView)))]
pub async fn set_quota(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<Quota>,
) -> Result<Json<OrganisationView>, ApiError> {
    let set = app.set_quota(&caller, &id, body).await?;
    Ok(Json(view(&app, set)))
}
