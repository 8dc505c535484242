//! Snapshots, checkpoints and the way back to them.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::builds::BuildView;
use super::error::ApiError;
use super::extract::{Body, OptionalBody, Params, Path, within};
use super::view::SandboxView;
use crate::build::{Build, Origin};
use crate::clock::Timestamp;
use crate::snapshot::{NewSnapshot, Rule};
use crate::template::{Kind, Overview, Record, Tag};
use crate::{App, Error};

/// A sandbox's files, frozen in time.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SnapshotView {
    id: String,
    /// What it is started from by; the id where it has no name.
    name: String,
    /// The sandbox that it was taken of.
    sandbox: Option<String>,
    /// The newest capture under this name.
    build: Option<String>,
    /// How many captures it has.
    builds: u64,
    /// Words that lead to its captures.
    tags: Vec<Tag>,
    note: Option<String>,
    /// Bytes that its sandbox had written.
    bytes: u64,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

impl SnapshotView {
    fn of(record: &Record, build: Option<&Build>, tags: Vec<Tag>, builds: u64) -> SnapshotView {
        SnapshotView {
            id: record.id.clone(),
            name: record.title().to_owned(),
            sandbox: build.and_then(|build| build.source_sandbox.clone()).or_else(|| record.source_sandbox.clone()),
            build: build.map(|build| build.id.clone()),
            builds,
            tags,
            note: build.and_then(|build| build.note.clone()),
            bytes: build.map_or(0, |build| build.bytes),
            created_at: build.map_or(record.created_at, |build| build.created_at),
        }
    }
}

impl From<Overview> for SnapshotView {
    fn from(overview: Overview) -> Self {
        let build = overview.current.or(overview.newest);
        SnapshotView::of(&overview.record, build.as_ref(), overview.tags, overview.builds)
    }
}

#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SnapshotBody {
    /// `name` or `name:tag`. A snapshot of yours that has the name gets another capture; without a name it is found by
    /// its id.
    name: Option<String>,
    /// A word about it.
    note: Option<String>,
}

/// Take a snapshot of a sandbox
///
/// All its files, as they are at one moment. A running sandbox is frozen for milliseconds and goes on. Start sandboxes
/// from it as from a template, roll the sandbox back to it, or keep it: it outlives its sandbox. Processes, memory and
/// volumes are no part of it.
#[utoipa::path(post, path = "/sandboxes/{id}/snapshots", tag = "snapshots", request_body = Option<SnapshotBody>,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 201, description = "Taken", body = SnapshotView)))]
pub async fn create(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    OptionalBody(body): OptionalBody<SnapshotBody>,
) -> Result<(StatusCode, Json<SnapshotView>), ApiError> {
    let new = NewSnapshot { name: body.name, note: body.note, door: serde_json::Value::Null };
    let (record, build) = app.create_snapshot(&caller, &id, new).await?;
    let overview = app.template_overview(&caller, &record.id).await?;
    let view = SnapshotView::of(&overview.record, Some(&build), overview.tags, overview.builds);
    Ok((StatusCode::CREATED, Json(view)))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct SnapshotQuery {
    /// Of this sandbox alone, by id.
    sandbox: Option<String>,
    /// The beginning of the name.
    name: Option<String>,
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// From the page before.
    cursor: Option<String>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SnapshotPage {
    items: Vec<SnapshotView>,
    /// For the page after; absent on the last.
    next_cursor: Option<String>,
}

/// List snapshots
#[utoipa::path(get, path = "/snapshots", tag = "snapshots", params(SnapshotQuery),
    responses((status = 200, description = "Newest first", body = SnapshotPage)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Params(query): Params<SnapshotQuery>,
) -> Result<Json<SnapshotPage>, ApiError> {
    let page = (query.cursor.as_deref(), within("limit", query.limit, 100, 1000)?);
    let listed = app.list_snapshots(&caller, query.sandbox.as_deref(), query.name.as_deref(), page).await?;
    Ok(Json(SnapshotPage { items: listed.items.into_iter().map(Into::into).collect(), next_cursor: listed.next }))
}

/// Read a snapshot
#[utoipa::path(get, path = "/snapshots/{name}", tag = "snapshots",
    params(("name" = String, Path, description = "id or name")),
    responses((status = 200, description = "The snapshot", body = SnapshotView)))]
pub async fn read(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(name): Path<String>,
) -> Result<Json<SnapshotView>, ApiError> {
    let overview = app.template_overview(&caller, &name).await.map_err(|error| match error {
        Error::NotFound { .. } => Error::not_found("snapshot", &name),
        error => error,
    })?;
    // Another's that is public is a template to everybody else.
    match overview.record.kind {
        Kind::Snapshot if overview.record.organisation == caller.organisation => Ok(Json(overview.into())),
        Kind::Snapshot | Kind::Built | Kind::Checkpoints => Err(Error::not_found("snapshot", &name).into()),
    }
}

/// Delete a snapshot
///
/// With a tag or a build after a colon that capture alone. What was started from it keeps its files.
#[utoipa::path(delete, path = "/snapshots/{name}", tag = "snapshots",
    params(("name" = String, Path, description = "id or name, with `:tag` or `:BUILD`")),
    responses((status = 204, description = "Deleted")))]
pub async fn delete(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.delete_snapshot(&caller, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What a sandbox can be rolled back to.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct CheckpointView {
    /// Names it in a rollback.
    id: String,
    origin: Origin,
    /// A word about it; of an automatic one the command that it was made before.
    note: Option<String>,
    /// Bytes that the sandbox had written.
    bytes: u64,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

impl From<Build> for CheckpointView {
    fn from(build: Build) -> Self {
        CheckpointView {
            id: build.id,
            origin: build.origin,
            note: build.note,
            bytes: build.bytes,
            created_at: build.created_at,
        }
    }
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct CheckpointQuery {
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// List what a sandbox can be rolled back to
///
/// Its checkpoints, its snapshots, and what rollbacks replaced.
#[utoipa::path(get, path = "/sandboxes/{id}/checkpoints", tag = "snapshots",
    params(("id" = String, Path, description = "id or name"), CheckpointQuery),
    responses((status = 200, description = "Newest first", body = Vec<CheckpointView>)))]
pub async fn checkpoints(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<CheckpointQuery>,
) -> Result<Json<Vec<CheckpointView>>, ApiError> {
    let limit = within("limit", query.limit, 100, 1000)?;
    Ok(Json(app.list_checkpoints(&caller, &id, limit).await?.into_iter().map(Into::into).collect()))
}

#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointBody {
    /// A word about it.
    note: Option<String>,
}

/// Make a checkpoint
///
/// As a snapshot, but of the sandbox: no list of snapshots shows it, and it goes with its sandbox.
#[utoipa::path(post, path = "/sandboxes/{id}/checkpoints", tag = "snapshots", request_body = Option<CheckpointBody>,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 201, description = "Made", body = CheckpointView)))]
pub async fn checkpoint(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    OptionalBody(body): OptionalBody<CheckpointBody>,
) -> Result<(StatusCode, Json<CheckpointView>), ApiError> {
    let made = app.checkpoint(&caller, &id, body.note).await?;
    Ok((StatusCode::CREATED, Json(made.into())))
}

/// Make checkpoints by a rule
///
/// From now on one before each command; those that the rule does not keep are removed.
#[utoipa::path(put, path = "/sandboxes/{id}/checkpoints", tag = "snapshots", request_body = Rule,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Set", body = SandboxView)))]
pub async fn set_rule(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(rule): Body<Rule>,
) -> Result<Json<SandboxView>, ApiError> {
    Ok(Json(app.set_checkpoints(&caller, &id, Some(rule)).await?.into()))
}

/// Make no more checkpoints
///
/// Those that are there stay.
#[utoipa::path(delete, path = "/sandboxes/{id}/checkpoints", tag = "snapshots",
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Set", body = SandboxView)))]
pub async fn drop_rule(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<Json<SandboxView>, ApiError> {
    Ok(Json(app.set_checkpoints(&caller, &id, None).await?.into()))
}

#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RollbackBody {
    /// A checkpoint's id, or a snapshot's name or id; the newest checkpoint or snapshot where absent.
    snapshot: Option<String>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct RolledBack {
    sandbox: SandboxView,
    /// What the sandbox had before: roll back to it to undo this.
    replaced: BuildView,
}

/// Roll a sandbox back
///
/// Its processes end, its files are again what they were, and it starts anew if it ran. It keeps its id, name, network
/// and volumes.
#[utoipa::path(post, path = "/sandboxes/{id}/rollback", tag = "snapshots", request_body = Option<RollbackBody>,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Done", body = RolledBack)))]
pub async fn rollback(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    OptionalBody(body): OptionalBody<RollbackBody>,
) -> Result<Json<RolledBack>, ApiError> {
    let (sandbox, replaced) = app.rollback_sandbox(&caller, &id, body.snapshot.as_deref()).await?;
    Ok(Json(RolledBack { sandbox: sandbox.into(), replaced: replaced.into() }))
}
