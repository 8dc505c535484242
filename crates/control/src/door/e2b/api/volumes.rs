//! Volumes. Their content has routes of its own (`volume_content.rs`), with a token that these give out.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::error::ApiError;
use super::{By, body};
use crate::volume::{NewVolume, State as Phase, Volume, VolumeFilter};
use crate::{App, Caller, Error, Scope};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    name: String,
}

pub async fn create(State(app): State<App>, By(caller): By, bytes: Bytes) -> Result<Response, ApiError> {
    let wanted: Wanted = body(bytes).await?;
    match app.create_volume(&caller, NewVolume { name: wanted.name, ..NewVolume::default() }).await {
        Ok(volume) => Ok((StatusCode::CREATED, axum::Json(with_token(&volume, &caller))).into_response()),
        // The dialect calls a name that is taken a wrong request.
        Err(Error::Conflict(message)) => Err(ApiError::bad(message)),
        Err(error) => Err(error.into()),
    }
}

pub async fn list(State(app): State<App>, By(caller): By) -> Result<axum::Json<Value>, ApiError> {
    let all = app.list_volumes(&caller, VolumeFilter::Existing).await?;
    let there = all.iter().filter(|volume| volume.state == Phase::Ready);
    Ok(axum::Json(there.map(|volume| json!({ "volumeID": volume.id, "name": volume.name })).collect()))
}

pub async fn one(
    State(app): State<App>,
    By(caller): By,
    Path(id): Path<String>,
) -> Result<axum::Json<Value>, ApiError> {
    let volume = app.volume(&caller, &id).await?;
    Ok(axum::Json(with_token(&volume, &caller)))
}

pub async fn remove(State(app): State<App>, By(caller): By, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    app.delete_volume(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The token changes files: who may only look gets an empty one.
fn with_token(volume: &Volume, caller: &Caller) -> Value {
    let token = if caller.may(Scope::Write) { volume.token.as_str() } else { "" };
    json!({ "volumeID": volume.id, "name": volume.name, "token": token })
}
