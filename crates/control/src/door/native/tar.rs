//! Whole directories as tar archives, streamed.

use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use cove_protocol::Request;

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Params, Path};
use super::files::{FileQuery, download as body_of, upload as send};
use crate::App;

/// Get a directory as a tar archive
#[utoipa::path(get, path = "/sandboxes/{id}/files/tar", tag = "files",
    params(("id" = String, Path, description = "id or name"), FileQuery),
    responses((status = 200, description = "The archive", body = Vec<u8>, content_type = "application/x-tar")))]
pub async fn download(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<FileQuery>,
) -> Result<Response, ApiError> {
    let (_, guest) = app.reach(&caller, &id).await?;
    let (_, operation) = guest.open(&Request::TarOut { path: query.path, user: query.user }).await?;
    Ok(([(header::CONTENT_TYPE, "application/x-tar")], body_of(operation)).into_response())
}

/// Unpack a tar archive into a directory
#[utoipa::path(put, path = "/sandboxes/{id}/files/tar", tag = "files",
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    params(("id" = String, Path, description = "id or name"), FileQuery),
    responses((status = 204, description = "Unpacked")))]
pub async fn upload(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<FileQuery>,
    body: Body,
) -> Result<StatusCode, ApiError> {
    let (_, guest) = app.reach(&caller, &id).await?;
    send(&guest, &Request::TarIn { path: query.path, user: query.user }, body).await?;
    Ok(StatusCode::NO_CONTENT)
}
