//! Tags: words that lead to one of a template's builds.
//!
//! The last assignment of each tag is known, not those before it; the dialect's history of a tag has one entry here.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{StatusCode, Uri};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::error::ApiError;
use super::super::query::Query;
use super::create::template_name;
use super::templates::{build_id, own};
use super::{By, body};
use crate::template::Tag;
use crate::{App, Caller, random};

const GROUPS: usize = 25;
const GROUPS_MAX: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Assign {
    target: String,
    tags: Vec<String>,
}

/// The tags lead to the build that the target leads to.
pub async fn assign(State(app): State<App>, By(caller): By, bytes: Bytes) -> Result<Response, ApiError> {
    let wanted: Assign = body(bytes).await?;
    own(&app, &caller, &template_name(&wanted.target)?).await?;
    let (tags, build) = app.assign_tags(&caller, &wanted.target, wanted.tags).await?;
    let told = json!({ "tags": tags, "buildID": build.id });
    Ok((StatusCode::CREATED, axum::Json(told)).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    name: String,
    tags: Vec<String>,
}

/// The builds stay.
pub async fn remove(State(app): State<App>, By(caller): By, bytes: Bytes) -> Result<StatusCode, ApiError> {
    let wanted: Remove = body(bytes).await?;
    own(&app, &caller, &template_name(&wanted.name)?).await?;
    app.remove_tags(&caller, &wanted.name, wanted.tags).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The newest first. A built-in template has one.
pub async fn list(
    State(app): State<App>,
    By(caller): By,
    Path(id): Path<String>,
) -> Result<axum::Json<Value>, ApiError> {
    let tags = tags(&app, &caller, &id).await?;
    let told = |tag: &Tag| json!({ "tag": tag.tag, "buildID": tag.build, "createdAt": tag.at });
    Ok(axum::Json(tags.iter().map(told).collect()))
}

pub async fn count(
    State(app): State<App>,
    By(caller): By,
    Path(id): Path<String>,
) -> Result<axum::Json<Value>, ApiError> {
    Ok(axum::Json(json!({ "total": tags(&app, &caller, &id).await?.len() })))
}

pub async fn exists(
    State(app): State<App>,
    By(caller): By,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<axum::Json<Value>, ApiError> {
    let query = Query::of(&uri);
    let asked = query.get("tag").filter(|tag| !tag.is_empty()).ok_or_else(|| ApiError::bad("tag: a tag is needed"))?;
    let tag = asked.trim().to_lowercase();
    let exists = tags(&app, &caller, &id).await?.iter().any(|known| known.tag == tag);
    Ok(axum::Json(json!({ "exists": exists, "normalizedTag": tag })))
}

/// Tags with what they lead to, in pages.
pub async fn groups(
    State(app): State<App>,
    By(caller): By,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<axum::Json<Value>, ApiError> {
    let query = Query::of(&uri);
    let number = |name: &str, usual: usize| match query.get(name).filter(|text| !text.is_empty()).map(str::parse) {
        None => Ok(usual),
        Some(Ok(number)) if (1..=GROUPS_MAX).contains(&number) => Ok(number),
        Some(_) => Err(ApiError::bad(format!("{name} must be 1 to {GROUPS_MAX}"))),
    };
    number("assignmentLimit", 6)?;
    let limit = number("tagsLimit", GROUPS)?;
    let first = match query.get("tagsCursor").filter(|text| !text.is_empty()).map(str::parse::<usize>) {
        None => 0,
        Some(Ok(first)) => first,
        Some(Err(_)) => return Err(ApiError::bad("tagsCursor: not one that this call gave")),
    };
    let mut tags = tags(&app, &caller, &id).await?;
    let search = query.get("search").unwrap_or_default().to_lowercase();
    tags.retain(|tag| tag.tag.contains(&search));
    match query.get("sort").filter(|word| !word.is_empty()) {
        None | Some("latest_desc") => tags.sort_by(|a, b| b.at.cmp(&a.at).then_with(|| a.tag.cmp(&b.tag))),
        Some("latest_asc") => tags.sort_by(|a, b| a.at.cmp(&b.at).then_with(|| a.tag.cmp(&b.tag))),
        Some("name_asc") => tags.sort_by(|a, b| a.tag.cmp(&b.tag)),
        Some("name_desc") => tags.sort_by(|a, b| b.tag.cmp(&a.tag)),
        Some(other) => {
            let known = "latest_desc, latest_asc, name_asc, name_desc";
            return Err(ApiError::bad(format!("sort: '{other}' is not one of {known}")));
        }
    }
    let mut told = Vec::new();
    for tag in tags.iter().skip(first).take(limit) {
        let assignment = assignment(&app, tag).await?;
        told.push(json!({ "tag": tag.tag, "assignments": [assignment], "hasMore": false }));
    }
    let next = first.saturating_add(limit);
    let next = (next < tags.len()).then(|| next.to_string());
    Ok(axum::Json(json!({ "tags": told, "nextCursor": next })))
}

/// What a tag leads to.
pub async fn assignments(
    State(app): State<App>,
    By(caller): By,
    Path((id, tag)): Path<(String, String)>,
) -> Result<axum::Json<Value>, ApiError> {
    let tag = tag.trim().to_lowercase();
    let tags = tags(&app, &caller, &id).await?;
    let data = match tags.iter().find(|known| known.tag == tag) {
        Some(tag) => vec![assignment(&app, tag).await?],
        None => Vec::new(),
    };
    Ok(axum::Json(json!({ "data": data, "nextCursor": Value::Null })))
}

async fn assignment(app: &App, tag: &Tag) -> Result<Value, ApiError> {
    let build = app.store().build(&tag.build).await?;
    Ok(json!({
        "assignmentID": assignment_id(tag),
        "buildID": tag.build,
        "assignedAt": tag.at,
        "buildCreatedAt": build.as_ref().map_or(tag.at, |build| build.created_at),
        "buildFinishedAt": build.and_then(|build| build.finished_at),
    }))
}

/// Derived, so that it stays the same.
fn assignment_id(tag: &Tag) -> String {
    use sha2::{Digest, Sha256};
    let digest: [u8; 32] = Sha256::digest(format!("{}\n{}\n{}", tag.tag, tag.build, tag.at)).into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    random::uuid_from(bytes)
}

async fn tags(app: &App, caller: &Caller, id: &str) -> Result<Vec<Tag>, ApiError> {
    let name = template_name(id)?;
    match app.template(caller, &name).await {
        Ok(template) if template.organisation.is_none() => {
            let at = template.built_at.unwrap_or(app.installed_at().await?);
            Ok(vec![Tag { tag: crate::template::DEFAULT_TAG.into(), build: build_id(&template), at }])
        }
        _ => {
            let record = own(app, caller, &name).await?;
            Ok(app.template_tags(caller, &record.id).await?.1)
        }
    }
}
