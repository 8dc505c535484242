//! Volumes: named storage that outlives sandboxes.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Body, Params, Path};
use crate::App;
use crate::clock::Timestamp;
use crate::provider::Limit;
use crate::volume::{NewVolume, State as VolumeState, Volume, VolumeFilter};

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct VolumeView {
    id: String,
    name: String,
    state: VolumeState,
    /// Bytes that it may hold.
    size: u64,
    /// `disk` where nothing holds `size`, because the server runs without root. Told by `read` and `create`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unheld: Vec<String>,
    /// Bytes that it holds. Reported by `read` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    used: Option<u64>,
    /// Sandboxes that have it. Reported by `read` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    sandboxes: Option<Vec<String>>,
    provider: String,
    /// The server that has its files.
    server: String,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    /// When a sandbox last got it.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_used_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    deleted_at: Option<Timestamp>,
}

impl From<Volume> for VolumeView {
    fn from(volume: Volume) -> Self {
        VolumeView {
            id: volume.id.to_string(),
            name: volume.name,
            state: volume.state,
            size: volume.size_limit,
            unheld: Vec::new(),
            used: None,
            sandboxes: None,
            provider: volume.provider,
            server: volume.server,
            created_at: volume.created_at,
            updated_at: volume.updated_at,
            last_used_at: volume.last_used_at,
            deleted_at: volume.deleted_at,
        }
    }
}

impl VolumeView {
    /// With what does not hold.
    fn of(app: &App, volume: Volume) -> VolumeView {
        let disk = Limit::Disk.to_string();
        let unheld = app.unheld(&volume.provider).into_iter().filter(|limit| *limit == disk).collect();
        VolumeView { unheld, ..volume.into() }
    }
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeBody {
    /// Unique in the organisation while the volume is there.
    name: String,
    /// Bytes that it may hold; 10 GiB where absent. Refused where nothing holds it.
    #[serde(default)]
    size: Option<u64>,
    /// Where it is kept; the server's default where absent.
    #[serde(default)]
    provider: Option<String>,
}

/// Create a volume
///
/// Mount it in any number of sandboxes (`volumes` at their creation). It stays when they go.
#[utoipa::path(post, path = "/volumes", tag = "volumes", request_body = VolumeBody,
    responses((status = 201, description = "It is there", body = VolumeView)))]
pub async fn create(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Body(body): Body<VolumeBody>,
) -> Result<(StatusCode, Json<VolumeView>), ApiError> {
    let new = NewVolume { name: body.name, size: body.size, provider: body.provider };
    let made = app.create_volume(&caller, new).await?;
    Ok((StatusCode::CREATED, Json(VolumeView::of(&app, made))))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct VolumeQuery {
    /// Those that are gone, too.
    deleted: Option<bool>,
}

/// List volumes
#[utoipa::path(get, path = "/volumes", tag = "volumes", params(VolumeQuery),
    responses((status = 200, description = "All of the organisation", body = Vec<VolumeView>)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Params(query): Params<VolumeQuery>,
) -> Result<Json<Vec<VolumeView>>, ApiError> {
    let filter = if query.deleted.unwrap_or(false) { VolumeFilter::WithDeleted } else { VolumeFilter::Existing };
    let volumes = app.list_volumes(&caller, filter).await?;
    Ok(Json(volumes.into_iter().map(|volume| VolumeView::of(&app, volume)).collect()))
}

/// Read a volume
///
/// With what it holds, and which sandboxes have it.
#[utoipa::path(get, path = "/volumes/{id}", tag = "volumes",
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "As it is now", body = VolumeView)))]
pub async fn read(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<Json<VolumeView>, ApiError> {
    let volume = app.volume(&caller, &id).await?;
    let used = match volume.state {
        VolumeState::Ready => Some(app.volume_usage(&volume).await?.bytes),
        VolumeState::Creating | VolumeState::Deleting | VolumeState::Deleted => None,
    };
    let sandboxes = Some(app.store().sandboxes_with_volume(&volume.id).await?);
    Ok(Json(VolumeView { used, sandboxes, ..VolumeView::of(&app, volume) }))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeVolume {
    /// Bytes that it may hold.
    size: u64,
}

/// Resize a volume
///
/// At once, also while sandboxes use it. It cannot become smaller than what it holds.
#[utoipa::path(patch, path = "/volumes/{id}", tag = "volumes", request_body = ResizeVolume,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Resized", body = VolumeView)))]
pub async fn resize(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<ResizeVolume>,
) -> Result<Json<VolumeView>, ApiError> {
    Ok(Json(app.resize_volume(&caller, &id, body.size).await?.into()))
}

/// Delete a volume
///
/// With all its files. Refused while a sandbox has it, running or not.
#[utoipa::path(delete, path = "/volumes/{id}", tag = "volumes",
    params(("id" = String, Path, description = "id or name")),
    responses((status = 204, description = "Nothing remains")))]
pub async fn delete(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.delete_volume(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
