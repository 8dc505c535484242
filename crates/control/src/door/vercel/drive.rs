//! Drives: storage that outlives sandboxes. They are volumes, by their names.

use axum::Json;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::By;
use super::body::Strict;
use super::error::Answer;
use super::find::Listing;
use super::view::REGION;
use crate::volume::{NewVolume, Volume, VolumeFilter};
use crate::{App, Error};

fn view(volume: &Volume) -> Value {
    json!({
        "id": volume.id,
        "name": volume.name,
        "projectId": volume.organisation,
        "region": REGION,
        "maxSizeBytes": volume.size_limit,
        "createdAt": volume.created_at.as_millisecond(),
        "updatedAt": volume.updated_at.as_millisecond(),
    })
}

pub async fn list(State(app): State<App>, By(caller): By, Query(listing): Query<Listing>) -> Answer<Json<Value>> {
    let mut all = app.list_volumes(&caller, VolumeFilter::Existing).await?;
    all.retain(|volume| volume.name.starts_with(listing.name_prefix()));
    let (items, pagination) = listing.page(all)?;
    let drives: Vec<Value> = items.iter().map(view).collect();
    Ok(Json(json!({"drives": drives, "pagination": pagination})))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Asked {
    #[serde(rename = "projectId")]
    _project: Option<String>,
    #[serde(rename = "region")]
    _region: Option<String>,
    max_size_bytes: Option<u64>,
}

/// The drive of that name; made where it is not there.
pub async fn ensure(
    State(app): State<App>,
    By(caller): By,
    Path(name): Path<String>,
    Strict(asked): Strict<Asked>,
) -> Answer<Json<Value>> {
    let found = match app.volume(&caller, &name).await {
        Err(Error::NotFound { .. }) => {
            let new = NewVolume { name, size: asked.max_size_bytes, ..NewVolume::default() };
            app.create_volume(&caller, new).await?
        }
        found => found?,
    };
    Ok(Json(json!({"drive": view(&found)})))
}

pub async fn delete(State(app): State<App>, By(caller): By, Path(name): Path<String>) -> Answer<Json<Value>> {
    let volume = app.volume(&caller, &name).await?;
    app.delete_volume(&caller, volume.id.as_str()).await?;
    Ok(Json(json!({"drive": view(&volume)})))
}
