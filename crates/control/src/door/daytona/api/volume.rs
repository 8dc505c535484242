//! Volumes: storage that sandboxes share and that outlives them.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Error;
use crate::door::daytona::Door;
use crate::door::daytona::admit::Authenticated;
use crate::door::daytona::body::Lenient;
use crate::door::daytona::problem::Answer;
use crate::door::daytona::query::Pairs;
use crate::volume::{NewVolume, State as Life, Volume, VolumeFilter};

fn state(state: Life) -> &'static str {
    match state {
        Life::Creating => "creating",
        Life::Ready => "ready",
        Life::Deleting => "deleting",
        Life::Deleted => "deleted",
    }
}

fn view(volume: &Volume) -> Value {
    json!({
        "id": volume.id,
        "name": volume.name,
        "organizationId": volume.organisation,
        "state": state(volume.state),
        "createdAt": volume.created_at.to_string(),
        "updatedAt": volume.updated_at.to_string(),
        "lastUsedAt": volume.last_used_at.map(|at| at.to_string()),
        "errorReason": null,
    })
}

pub async fn list(State(door): State<Door>, Authenticated(caller): Authenticated, pairs: Pairs) -> Answer<Json<Value>> {
    let filter = match pairs.switch("includeDeleted")? {
        Some(true) => VolumeFilter::WithDeleted,
        _ => VolumeFilter::Existing,
    };
    let all = door.app.list_volumes(&caller, filter).await?;
    Ok(Json(all.iter().map(view).collect()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct New {
    name: String,
}

/// Answers when the volume is ready, so that no client needs to wait.
pub async fn create(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    Lenient(body): Lenient<New>,
) -> Answer<Json<Value>> {
    let new = NewVolume { name: body.name, ..NewVolume::default() };
    Ok(Json(view(&door.app.create_volume(&caller, new).await?)))
}

pub async fn show(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Answer<Json<Value>> {
    Ok(Json(view(&door.app.volume(&caller, &id).await?)))
}

pub async fn show_by_name(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    Path(name): Path<String>,
) -> Answer<Json<Value>> {
    let volume = door.app.volume(&caller, &name).await?;
    if volume.name != name {
        return Err(Error::not_found("volume", name).into());
    }
    Ok(Json(view(&volume)))
}

pub async fn delete(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    door.app.delete_volume(&caller, &id).await?;
    Ok(StatusCode::OK)
}
