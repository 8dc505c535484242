//! Templates as the dialect lists them.

use axum::extract::{Path, State};
use http::StatusCode;
use serde_json::{Value, json};

use super::super::envd;
use super::super::error::ApiError;
use super::By;
use super::create::template_name;
use crate::App;
use crate::clock::Timestamp;
use crate::template::Template;

pub async fn list(State(app): State<App>, By(caller): By) -> Result<axum::Json<Vec<Value>>, ApiError> {
    let templates = app.list_templates(&caller).await?;
    let installed = app.installed_at().await?;
    Ok(axum::Json(templates.iter().map(|template| tell(template, installed)).collect()))
}

/// Those that every installation has.
pub async fn defaults(State(app): State<App>, By(caller): By) -> Result<axum::Json<Value>, ApiError> {
    let templates = app.list_templates(&caller).await?;
    let installed = app.installed_at().await?;
    let built_in = templates.iter().filter(|template| template.organisation.is_none());
    let built_in: Vec<_> = built_in.map(|template| tell(template, installed)).collect();
    Ok(axum::Json(json!({ "templates": built_in })))
}

pub async fn one(
    State(app): State<App>,
    By(caller): By,
    Path(id): Path<String>,
) -> Result<axum::Json<Value>, ApiError> {
    let template = app.template(&caller, &template_name(&id)?).await?;
    let mut told = tell(&template, app.installed_at().await?);
    told["builds"] = json!([]);
    Ok(axum::Json(told))
}

pub async fn by_alias(
    State(app): State<App>,
    By(caller): By,
    Path(alias): Path<String>,
) -> Result<axum::Json<Value>, ApiError> {
    let template = app.template(&caller, &template_name(&alias)?).await?;
    Ok(axum::Json(json!({ "templateID": template.id, "public": template.organisation.is_none() })))
}

pub async fn tags(
    State(app): State<App>,
    By(caller): By,
    Path(id): Path<String>,
) -> Result<axum::Json<Value>, ApiError> {
    let template = app.template(&caller, &template_name(&id)?).await?;
    let made = template.built_at.unwrap_or(app.installed_at().await?);
    Ok(axum::Json(json!([{ "tag": "default", "buildID": build_id(&template), "createdAt": made }])))
}

/// Also how clients delete a snapshot.
pub async fn remove(State(app): State<App>, By(caller): By, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    let template = app.template(&caller, &template_name(&id)?).await?;
    match template.organisation {
        None => Err(ApiError::new(StatusCode::FORBIDDEN, format!("template '{id}' is built in"))),
        Some(_) => Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, "templates cannot be deleted here yet")),
    }
}

/// A build has an id in the dialect: derived from the template, so that it stays the same.
fn build_id(template: &Template) -> String {
    use sha2::{Digest, Sha256};
    let digest = hex::encode(Sha256::digest(template.id.as_bytes()));
    format!("{}-{}-4{}-8{}-{}", &digest[..8], &digest[8..12], &digest[13..16], &digest[17..20], &digest[20..32])
}

/// One that needs no building is as old as the installation; one that is not built yet is waiting for it.
fn tell(template: &Template, installed: Timestamp) -> Value {
    const MIB: u64 = 1 << 20;
    let made = template.built_at.unwrap_or(installed);
    let mut names = vec![template.name.clone()];
    names.extend(template.aliases.iter().cloned());
    json!({
        "templateID": template.id,
        "buildID": build_id(template),
        "cpuCount": template.limits.cpus.ceil() as u64,
        "memoryMB": template.limits.memory / MIB,
        "diskSizeMB": template.limits.disk.unwrap_or(0) / MIB,
        "public": template.organisation.is_none(),
        "aliases": names,
        "names": names,
        "createdAt": made,
        "updatedAt": made,
        "createdBy": Value::Null,
        "lastSpawnedAt": Value::Null,
        "spawnCount": 0,
        "buildCount": u8::from(template.built_at.is_some()),
        "envdVersion": envd::VERSION,
        "buildStatus": if template.is_ready() { "ready" } else { "waiting" },
        "isDefault": template.organisation.is_none(),
        "description": template.note.as_ref().unwrap_or(&template.description),
    })
}
