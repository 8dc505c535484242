//! Directories and what is known of files.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use cove_protocol::file::{Entry, FileKind};
use cove_protocol::{Event, Reply, Request};
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Body, Params, Path, within};
use super::files::{FileQuery, parse_mode};
use crate::clock::{Timestamp, from_millisecond};
use crate::guest::{Guest, GuestError, Item};
use crate::{App, Error};

/// Entries that one answer holds at most.
const MOST: usize = 100_000;

#[derive(Debug, Clone, Copy, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    Other,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct EntryView {
    name: String,
    path: String,
    kind: EntryKind,
    size: u64,
    /// Permissions, octal.
    mode: String,
    owner: String,
    group: String,
    #[schema(value_type = String, format = DateTime)]
    modified_at: Timestamp,
    /// Where a symlink points.
    target: Option<String>,
}

impl From<Entry> for EntryView {
    fn from(entry: Entry) -> Self {
        EntryView {
            name: entry.name,
            path: entry.path,
            kind: match entry.kind {
                FileKind::File => EntryKind::File,
                FileKind::Directory => EntryKind::Directory,
                FileKind::Symlink => EntryKind::Symlink,
                FileKind::Other => EntryKind::Other,
            },
            size: entry.size,
            mode: format!("{:04o}", entry.mode),
            owner: entry.owner,
            group: entry.group,
            modified_at: from_millisecond(entry.modified_ms),
            target: entry.target,
        }
    }
}

/// All entries that a streaming request brings.
pub async fn entries(guest: &Guest, request: &Request) -> Result<Vec<EntryView>, Error> {
    let mut operation = guest.open(request).await?.1.gathered();
    let mut all = Vec::new();
    while let Some(item) = operation.from.next().await? {
        if let Item::Event(Event::Entries { entries }) = item {
            all.extend(entries.into_iter().map(EntryView::from));
        }
        if all.len() > MOST {
            return Err(Error::invalid("path", format!("more than {MOST} entries; ask for less")));
        }
    }
    Ok(all)
}

async fn entry(guest: &Guest, request: &Request) -> Result<Json<EntryView>, ApiError> {
    match guest.call(request).await? {
        Reply::Entry { entry } | Reply::Made { entry, .. } => Ok(Json(entry.into())),
        other => Err(Error::from(GuestError::Protocol(format!("answered {other:?}"))).into()),
    }
}

/// So many levels of directories are listed at most.
pub const DEEPEST: u32 = 64;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// Absolute, or relative to the user's home, which it is where absent.
    path: Option<String>,
    user: Option<String>,
    /// 1 is the directory itself.
    #[param(minimum = 1, maximum = 64)]
    depth: Option<u32>,
}

/// List a directory
#[utoipa::path(get, path = "/sandboxes/{id}/files", tag = "files",
    params(("id" = String, Path, description = "id or name"), ListQuery),
    responses((status = 200, description = "What it holds", body = Vec<EntryView>)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<ListQuery>,
) -> Result<Json<Vec<EntryView>>, ApiError> {
    let (_, guest) = app.reach(&caller, &id).await?;
    let path = query.path.unwrap_or_else(|| "~".into());
    let request = Request::List { path, user: query.user, depth: within("depth", query.depth, 1, DEEPEST)? };
    Ok(Json(entries(&guest, &request).await?))
}

/// Look at a file
#[utoipa::path(get, path = "/sandboxes/{id}/files/stat", tag = "files",
    params(("id" = String, Path, description = "id or name"), FileQuery),
    responses((status = 200, description = "What is known of it", body = EntryView)))]
pub async fn stat(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<FileQuery>,
) -> Result<Json<EntryView>, ApiError> {
    let (_, guest) = app.reach(&caller, &id).await?;
    entry(&guest, &Request::Stat { path: query.path, user: query.user, follow: false }).await
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DirectoryBody {
    path: String,
    user: Option<String>,
    /// Octal such as `755`.
    mode: Option<String>,
}

/// Make a directory, with its parents
#[utoipa::path(post, path = "/sandboxes/{id}/files/directory", tag = "files", request_body = DirectoryBody,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "It is there", body = EntryView)))]
pub async fn make_directory(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<DirectoryBody>,
) -> Result<Json<EntryView>, ApiError> {
    let mode = body.mode.as_deref().map(parse_mode).transpose()?;
    let (_, guest) = app.reach(&caller, &id).await?;
    entry(&guest, &Request::MakeDirectory { path: body.path, user: body.user, mode }).await
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveBody {
    from: String,
    to: String,
    user: Option<String>,
}

/// Move or rename a file
#[utoipa::path(post, path = "/sandboxes/{id}/files/move", tag = "files", request_body = MoveBody,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Moved", body = EntryView)))]
pub async fn rename(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<MoveBody>,
) -> Result<Json<EntryView>, ApiError> {
    let (_, guest) = app.reach(&caller, &id).await?;
    entry(&guest, &Request::Move { from: body.from, to: body.to, user: body.user }).await
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct RemoveQuery {
    path: String,
    user: Option<String>,
    /// A directory with all it holds.
    recursive: Option<bool>,
}

/// Remove a file or a directory
#[utoipa::path(delete, path = "/sandboxes/{id}/files", tag = "files",
    params(("id" = String, Path, description = "id or name"), RemoveQuery),
    responses((status = 204, description = "Removed")))]
pub async fn remove(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<RemoveQuery>,
) -> Result<StatusCode, ApiError> {
    let (_, guest) = app.reach(&caller, &id).await?;
    let recursive = query.recursive.unwrap_or(false);
    guest.call(&Request::Remove { path: query.path, user: query.user, recursive }).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AttributesBody {
    path: String,
    user: Option<String>,
    /// Octal such as `755`.
    mode: Option<String>,
    /// A name or number.
    owner: Option<String>,
    group: Option<String>,
}

/// Set permissions, owner and group
#[utoipa::path(patch, path = "/sandboxes/{id}/files/attributes", tag = "files", request_body = AttributesBody,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Set", body = EntryView)))]
pub async fn set_attributes(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<AttributesBody>,
) -> Result<Json<EntryView>, ApiError> {
    let mode = body.mode.as_deref().map(parse_mode).transpose()?;
    let (_, guest) = app.reach(&caller, &id).await?;
    let request =
        Request::SetAttributes { path: body.path, user: body.user, mode, owner: body.owner, group: body.group };
    entry(&guest, &request).await
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SymlinkBody {
    path: String,
    target: String,
    user: Option<String>,
}

/// Make a symlink
#[utoipa::path(post, path = "/sandboxes/{id}/files/symlink", tag = "files", request_body = SymlinkBody,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Made", body = EntryView)))]
pub async fn symlink(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<SymlinkBody>,
) -> Result<Json<EntryView>, ApiError> {
    let (_, guest) = app.reach(&caller, &id).await?;
    entry(&guest, &Request::Symlink { path: body.path, target: body.target, user: body.user }).await
}
