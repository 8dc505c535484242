//! A file's bytes, streamed both ways: nothing is held here but the piece on its way.

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, http};
use cove_protocol::file::{Entry, FileKind, WriteMode};
use cove_protocol::{Reply, Request};
use futures::StreamExt as _;
use serde::Deserialize;

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Params, Path};
use super::tree::EntryView;
use crate::guest::{Guest, GuestError, Item, Operation};
use crate::{App, Error};

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct FileQuery {
    /// Absolute, or relative to the user's home.
    pub path: String,
    /// Whose rights count; the sandbox's default user where absent.
    pub user: Option<String>,
}

/// Read a file
///
/// Streamed; `Range: bytes=…` gives a part.
#[utoipa::path(get, path = "/sandboxes/{id}/files/content", tag = "files",
    params(("id" = String, Path, description = "id or name"), FileQuery,
        ("Range" = Option<String>, Header, description = "one range of bytes")),
    responses((status = 200, description = "The file", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, description = "A part of it", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 416, description = "No such part")))]
pub async fn read(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<FileQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let (_, guest) = app.reach(&caller, &id).await?;
    let entry = stat(&guest, &query).await?;
    let range =
        headers.get(header::RANGE).and_then(|value| value.to_str().ok()).and_then(|text| parse_range(text, entry.size));
    let (status, offset, length) = match range {
        None => (StatusCode::OK, 0, None),
        Some(Ok((first, last))) => (StatusCode::PARTIAL_CONTENT, first, Some(last - first + 1)),
        Some(Err(Unsatisfiable)) => {
            let size = format!("bytes */{}", entry.size);
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, [(header::CONTENT_RANGE, size)]).into_response());
        }
    };
    let request = Request::Read { path: query.path.clone(), user: query.user, offset, length };
    let (reply, operation) = guest.open(&request).await?;
    // The file as it was opened: it may have changed since the look.
    let Reply::Entry { entry } = reply else {
        return Err(Error::from(GuestError::Protocol(format!("read answered {reply:?}"))).into());
    };
    let mut builder = http::Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "application/octet-stream")
        .header(header::ACCEPT_RANGES, "bytes")
        .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    match length {
        Some(length) => {
            let range = format!("bytes {offset}-{}/{}", offset + length - 1, entry.size);
            builder = builder.header(header::CONTENT_RANGE, range).header(header::CONTENT_LENGTH, length);
        }
        None if entry.size > 0 => builder = builder.header(header::CONTENT_LENGTH, entry.size),
        // Files of /proc say 0 and have content.
        None => {}
    }
    builder.body(download(operation)).map_err(|error| Error::internal(error).into())
}

async fn stat(guest: &Guest, query: &FileQuery) -> Result<Entry, Error> {
    let request = Request::Stat { path: query.path.clone(), user: query.user.clone(), follow: true };
    match guest.call(&request).await? {
        Reply::Entry { entry } if entry.kind == FileKind::Directory => {
            Err(Error::invalid("path", format!("{} is a directory; get its archive or list it", query.path)))
        }
        Reply::Entry { entry } => Ok(entry),
        other => Err(GuestError::Protocol(format!("stat answered {other:?}")).into()),
    }
}

/// Data frames as a body. One that breaks off breaks the body off: half must not pass for the whole.
pub fn download(operation: Operation) -> Body {
    let stream = futures::stream::unfold(Some(operation), |state| async move {
        let mut operation = state?;
        loop {
            return match operation.from.next().await {
                Ok(Some(Item::Data(bytes))) => Some((Ok(Bytes::from(bytes)), Some(operation))),
                Ok(Some(_)) => continue,
                Ok(None) => None,
                Err(error) => Some((Err(std::io::Error::other(error)), None)),
            };
        }
    });
    Body::from_stream(stream)
}

/// A body as data frames; the guest's answer when all is there. A client that breaks off leaves the old file.
pub async fn upload(guest: &Guest, request: &Request, body: Body) -> Result<Reply, Error> {
    let mut operation = guest.send(request).await?;
    let mut stream = body.into_data_stream();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| Error::invalid("body", format!("broke off: {error}")))?;
        if let Err(broken) = operation.to.data(&chunk).await {
            // The guest refused meanwhile: its reason is the better one.
            return match operation.reply().await {
                Err(GuestError::Failed(failure)) => Err(GuestError::Failed(failure).into()),
                _ => Err(broken.into()),
            };
        }
    }
    operation.to.end().await?;
    Ok(operation.reply().await?)
}

#[derive(Debug, Clone, Copy, Default, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Put in its place in one step at the end: a reader sees the old or the new.
    #[default]
    Replace,
    /// 409 where it is there.
    Create,
    Append,
    /// From `offset` on.
    At,
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct WriteQuery {
    /// Absolute, or relative to the user's home.
    path: String,
    user: Option<String>,
    how: Option<How>,
    offset: Option<u64>,
    /// Permissions of a new file, octal such as `755`.
    mode: Option<String>,
    /// Make missing directories; true unless told otherwise.
    parents: Option<bool>,
}

/// Write a file
///
/// The body is the content, streamed; of any size.
#[utoipa::path(put, path = "/sandboxes/{id}/files/content", tag = "files",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    params(("id" = String, Path, description = "id or name"), WriteQuery),
    responses((status = 200, description = "Written", body = EntryView)))]
pub async fn write(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<WriteQuery>,
    body: Body,
) -> Result<Json<EntryView>, ApiError> {
    let how = match query.how.unwrap_or_default() {
        How::Replace => WriteMode::Replace,
        How::Create => WriteMode::Create,
        How::Append => WriteMode::Append,
        How::At => WriteMode::At(query.offset.ok_or_else(|| Error::invalid("offset", "needed with how=at"))?),
    };
    let mode = query.mode.as_deref().map(parse_mode).transpose()?;
    let (_, guest) = app.reach(&caller, &id).await?;
    let request =
        Request::Write { path: query.path, user: query.user, how, mode, parents: query.parents.unwrap_or(true) };
    match upload(&guest, &request, body).await? {
        Reply::Entry { entry } => Ok(Json(entry.into())),
        other => Err(Error::from(GuestError::Protocol(format!("write answered {other:?}"))).into()),
    }
}

pub fn parse_mode(text: &str) -> Result<u32, Error> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| Error::invalid("mode", "octal permissions such as 755"))
}

#[derive(Debug, PartialEq, Eq)]
struct Unsatisfiable;

/// One range of a file (RFC 9110, 14.1.2). An invalid range is ignored, as the RFC says.
fn parse_range(text: &str, size: u64) -> Option<Result<(u64, u64), Unsatisfiable>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let (first, last) = match (first.trim(), last.trim()) {
        ("", suffix) => {
            let length: u64 = suffix.parse().ok()?;
            if length == 0 || size == 0 {
                return Some(Err(Unsatisfiable));
            }
            (size.saturating_sub(length), size - 1)
        }
        (first, "") => (first.parse().ok()?, size.saturating_sub(1)),
        (first, last) => {
            let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
            if last < first {
                return None;
            }
            (first, last.min(size.saturating_sub(1)))
        }
    };
    if first >= size { Some(Err(Unsatisfiable)) } else { Some(Ok((first, last))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_rfc_says() {
        assert_eq!(parse_range("bytes=0-4", 10), Some(Ok((0, 4))));
        assert_eq!(parse_range("bytes=5-", 10), Some(Ok((5, 9))));
        assert_eq!(parse_range("bytes=-3", 10), Some(Ok((7, 9))));
        assert_eq!(parse_range("bytes=5-99", 10), Some(Ok((5, 9))));
        assert_eq!(parse_range("bytes=10-", 10), Some(Err(Unsatisfiable)));
        assert_eq!(parse_range("bytes=4-2", 10), None);
        assert_eq!(parse_range("lines=1-2", 10), None);
    }
}
