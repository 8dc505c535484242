//! A volume's files, without a sandbox. Paths begin at the volume's top; no symbolic link is followed.

use axum::Json;
use axum::body::Body as Stream;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tokio_util::io::ReaderStream;

use super::auth::Authenticated;
use super::builds::reader;
use super::error::ApiError;
use super::extract::{Body, Params, Path, within};
use super::files::parse_mode;
use super::tree::DEEPEST;
use crate::clock::{Timestamp, from_millisecond};
use crate::volume::{Entry, EntryKind, Owner, WriteFile};
use crate::{App, Scope};

/// Bytes that are read at a time.
const CHUNK: usize = 256 << 10;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct VolumeEntryView {
    name: String,
    /// From the volume's top: begins with a slash.
    path: String,
    kind: EntryKind,
    size: u64,
    /// Permissions, octal.
    mode: String,
    /// A number, as sandboxes see it.
    uid: u32,
    gid: u32,
    #[schema(value_type = String, format = DateTime)]
    modified_at: Timestamp,
    /// Where a symlink points.
    target: Option<String>,
}

impl From<Entry> for VolumeEntryView {
    fn from(entry: Entry) -> Self {
        VolumeEntryView {
            name: entry.name,
            path: entry.path,
            kind: entry.kind,
            size: entry.size,
            mode: format!("{:04o}", entry.mode & 0o7777),
            uid: entry.uid,
            gid: entry.gid,
            modified_at: from_millisecond(entry.modified_ms),
            target: entry.target,
        }
    }
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct PathQuery {
    /// From the volume's top.
    path: String,
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// From the volume's top, which it is where absent.
    path: Option<String>,
    /// 1 is the directory itself.
    #[param(minimum = 1, maximum = 64)]
    depth: Option<u32>,
}

/// List a directory of a volume
#[utoipa::path(get, path = "/volumes/{id}/files", tag = "volumes",
    params(("id" = String, Path, description = "id or name"), ListQuery),
    responses((status = 200, description = "What it holds", body = Vec<VolumeEntryView>)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<ListQuery>,
) -> Result<Json<Vec<VolumeEntryView>>, ApiError> {
    let files = app.volume_files(&caller, &id, Scope::Read).await?;
    let depth = within("depth", query.depth, 1, DEEPEST)?;
    let entries = files.list(query.path.as_deref().unwrap_or("/"), depth).await?;
    Ok(Json(entries.into_iter().map(Into::into).collect()))
}

/// Look at a file of a volume
#[utoipa::path(get, path = "/volumes/{id}/files/stat", tag = "volumes",
    params(("id" = String, Path, description = "id or name"), PathQuery),
    responses((status = 200, description = "What is known of it", body = VolumeEntryView)))]
pub async fn stat(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<PathQuery>,
) -> Result<Json<VolumeEntryView>, ApiError> {
    let files = app.volume_files(&caller, &id, Scope::Read).await?;
    Ok(Json(files.stat(&query.path).await?.into()))
}

/// Read a file of a volume
///
/// Streamed.
#[utoipa::path(get, path = "/volumes/{id}/files/content", tag = "volumes",
    params(("id" = String, Path, description = "id or name"), PathQuery),
    responses((status = 200, description = "The file", body = Vec<u8>, content_type = "application/octet-stream")))]
pub async fn read(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<PathQuery>,
) -> Result<Response, ApiError> {
    let files = app.volume_files(&caller, &id, Scope::Read).await?;
    let (entry, file) = files.read(&query.path).await?;
    // Never more than was announced: a sandbox may write to it meanwhile. One that becomes shorter breaks the body off.
    let body = Stream::from_stream(ReaderStream::with_capacity(tokio::io::AsyncReadExt::take(file, entry.size), CHUNK));
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, entry.size.to_string()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    Ok((headers, body).into_response())
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct WriteQuery {
    /// From the volume's top.
    path: String,
    /// Permissions, octal such as `755`; those of the file that it replaces, or 644, where absent.
    mode: Option<String>,
    /// Numbers, as sandboxes see them; their default user where absent.
    uid: Option<u32>,
    gid: Option<u32>,
    /// Make missing directories; true unless told otherwise.
    parents: Option<bool>,
    /// 409 where it is there.
    only_new: Option<bool>,
}

/// Write a file of a volume
///
/// The body is the content, streamed. Put in its place in one step at the end: a reader sees the old or the new.
#[utoipa::path(put, path = "/volumes/{id}/files/content", tag = "volumes",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    params(("id" = String, Path, description = "id or name"), WriteQuery),
    responses((status = 200, description = "Written", body = VolumeEntryView)))]
pub async fn write(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<WriteQuery>,
    body: Stream,
) -> Result<Json<VolumeEntryView>, ApiError> {
    let mode = query.mode.as_deref().map(parse_mode).transpose()?;
    let how = WriteFile {
        owner: Owner { uid: query.uid, gid: query.gid, mode },
        parents: query.parents.unwrap_or(true),
        only_new: query.only_new.unwrap_or(false),
    };
    let files = app.volume_files(&caller, &id, Scope::Write).await?;
    Ok(Json(files.write(&query.path, how, reader(body)).await?.into()))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeDirectoryBody {
    path: String,
    /// Octal such as `755`.
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    uid: Option<u32>,
    #[serde(default)]
    gid: Option<u32>,
}

/// Make a directory in a volume, with its parents
#[utoipa::path(post, path = "/volumes/{id}/files/directory", tag = "volumes", request_body = VolumeDirectoryBody,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "It is there", body = VolumeEntryView)))]
pub async fn make_directory(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<VolumeDirectoryBody>,
) -> Result<Json<VolumeEntryView>, ApiError> {
    let mode = body.mode.as_deref().map(parse_mode).transpose()?;
    let files = app.volume_files(&caller, &id, Scope::Write).await?;
    let owner = Owner { uid: body.uid, gid: body.gid, mode };
    Ok(Json(files.make_directory(&body.path, owner, true).await?.into()))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeMoveBody {
    from: String,
    to: String,
}

/// Move or rename a file of a volume
#[utoipa::path(post, path = "/volumes/{id}/files/move", tag = "volumes", request_body = VolumeMoveBody,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Moved", body = VolumeEntryView)))]
pub async fn rename(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<VolumeMoveBody>,
) -> Result<Json<VolumeEntryView>, ApiError> {
    let files = app.volume_files(&caller, &id, Scope::Write).await?;
    Ok(Json(files.rename(&body.from, &body.to).await?.into()))
}

/// Remove a file or a directory of a volume
///
/// A directory with all it holds.
#[utoipa::path(delete, path = "/volumes/{id}/files", tag = "volumes",
    params(("id" = String, Path, description = "id or name"), PathQuery),
    responses((status = 204, description = "Removed")))]
pub async fn remove(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<PathQuery>,
) -> Result<StatusCode, ApiError> {
    let files = app.volume_files(&caller, &id, Scope::Write).await?;
    files.remove(&query.path).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeAttributesBody {
    path: String,
    /// Octal such as `755`.
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    uid: Option<u32>,
    #[serde(default)]
    gid: Option<u32>,
}

/// Set permissions, owner and group in a volume
#[utoipa::path(patch, path = "/volumes/{id}/files/attributes", tag = "volumes", request_body = VolumeAttributesBody,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Set", body = VolumeEntryView)))]
pub async fn set_attributes(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<VolumeAttributesBody>,
) -> Result<Json<VolumeEntryView>, ApiError> {
    let mode = body.mode.as_deref().map(parse_mode).transpose()?;
    let files = app.volume_files(&caller, &id, Scope::Write).await?;
    let owner = Owner { uid: body.uid, gid: body.gid, mode };
    Ok(Json(files.set_attributes(&body.path, owner).await?.into()))
}
