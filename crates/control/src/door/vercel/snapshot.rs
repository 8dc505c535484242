//! Snapshots: templates that were captured of a sandbox.

use axum::Json;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::By;
use super::body::Strict;
use super::error::{Answer, Refusal};
use super::find::{Listing, inside};
use super::naming::session_of;
use super::view;
use crate::build::Build;
use crate::snapshot::NewSnapshot;
use crate::template::{Kind, Overview, Record};
use crate::{App, Caller, Error};

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Asked {
    /// Milliseconds; 0 is never.
    expiration: Option<u64>,
}

/// Captures the files, and ends the session: as the original does.
pub async fn create(
    State(app): State<App>,
    By(caller): By,
    Path(session): Path<String>,
    Strict(asked): Strict<Asked>,
) -> Answer<Json<Value>> {
    if asked.expiration.is_some_and(|expiration| expiration > 0) {
        return Err(Refusal::bad("expiration: snapshots are kept until they are deleted; send 0 or nothing"));
    }
    let (sandbox, _) = inside(&app, &caller, &session).await?;
    let (record, build) = app.create_snapshot(&caller, sandbox.id.as_str(), NewSnapshot::default()).await?;
    let stopped = app.stop(&caller, sandbox.id.as_str()).await?;
    let snapshot = view_of(&record, Some(&build), &session_of(&sandbox));
    Ok(Json(json!({"snapshot": snapshot, "session": view::session(&stopped)})))
}

fn view_of(record: &Record, build: Option<&Build>, session: &str) -> Value {
    let mut view = json!({
        "id": record.id,
        "sourceSessionId": session,
        "region": view::REGION,
        "status": if record.deleted_at.is_some() { "deleted" } else { "created" },
        "sizeBytes": build.map_or(0, |build| build.bytes),
        "createdAt": record.created_at.as_millisecond(),
        "updatedAt": record.updated_at.as_millisecond(),
    });
    if let Some(used) = build.and_then(|build| build.last_used_at) {
        view["lastUsedAt"] = json!(used.as_millisecond());
    }
    view
}

/// The session that a snapshot was captured of, as well as it is still known.
async fn session(app: &App, caller: &Caller, record: &Record) -> String {
    let Some(source) = record.source_sandbox.as_deref() else { return String::new() };
    match app.sandbox_even_destroyed(caller, source).await {
        Ok(sandbox) => session_of(&sandbox),
        Err(_) => format!("sbx_{source}0"),
    }
}

async fn told(app: &App, caller: &Caller, overview: &Overview) -> Value {
    let session = session(app, caller, &overview.record).await;
    view_of(&overview.record, overview.current.as_ref(), &session)
}

pub async fn list(State(app): State<App>, By(caller): By, Query(listing): Query<Listing>) -> Answer<Json<Value>> {
    let sandbox = match listing.name() {
        None => None,
        Some(name) => match app.sandbox(&caller, name).await {
            Ok(sandbox) => Some(sandbox.id.to_string()),
            Err(Error::NotFound { .. }) => {
                return Ok(Json(json!({"snapshots": [], "pagination": {"count": 0, "next": null}})));
            }
            Err(error) => return Err(error.into()),
        },
    };
    let limit = u32::try_from(listing.limit()?).unwrap_or(u32::MAX);
    let page = app.list_snapshots(&caller, sandbox.as_deref(), None, (listing.cursor(), limit)).await?;
    let mut snapshots = Vec::new();
    for overview in &page.items {
        snapshots.push(told(&app, &caller, overview).await);
    }
    let pagination = json!({"count": snapshots.len(), "next": page.next});
    Ok(Json(json!({"snapshots": snapshots, "pagination": pagination})))
}

async fn found(app: &App, caller: &Caller, id: &str) -> Answer<Overview> {
    let missing = || Error::not_found("snapshot", id);
    let overview = app.template_overview(caller, id).await.map_err(|error| match error {
        Error::NotFound { .. } | Error::Invalid { .. } => missing(),
        error => error,
    })?;
    let own = overview.record.kind == Kind::Snapshot && overview.record.organisation == caller.organisation;
    if own { Ok(overview) } else { Err(missing().into()) }
}

pub async fn show(State(app): State<App>, By(caller): By, Path(id): Path<String>) -> Answer<Json<Value>> {
    let overview = found(&app, &caller, &id).await?;
    Ok(Json(json!({"snapshot": told(&app, &caller, &overview).await})))
}

/// What was made from it keeps its files.
pub async fn delete(State(app): State<App>, By(caller): By, Path(id): Path<String>) -> Answer<Json<Value>> {
    let overview = found(&app, &caller, &id).await?;
    let mut snapshot = told(&app, &caller, &overview).await;
    app.delete_snapshot(&caller, &overview.record.id).await?;
    snapshot["status"] = json!("deleted");
    Ok(Json(json!({"snapshot": snapshot})))
}

pub async fn no_tree() -> Refusal {
    Refusal::not_offered(
        "the tree of snapshots is not offered; `cove snapshot ls` and the native API's lineage have it",
    )
}
