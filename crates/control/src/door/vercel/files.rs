//! Files: a compressed archive in, single files out.

use std::io::Write as _;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cove_protocol::{Failure, FailureKind, Reply, Request};
use flate2::write::GzDecoder;
use futures::{Stream, StreamExt as _, stream};
use serde::Deserialize;
use serde_json::{Value, json};

use super::By;
use super::body::Strict;
use super::error::{Answer, Refusal};
use super::find::inside;
use super::view::cwd;
use crate::App;
use crate::guest::{Guest, GuestError, Item, Operation};
use crate::sandbox::Sandbox;

/// Compressed input is fed to the decoder in pieces of this size, so that a bomb fills no memory before the guest's disk
/// limit stops it.
const COMPRESSED_PIECE: usize = 4 << 10;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    path: String,
    #[serde(default)]
    cwd: Option<String>,
}

impl Place {
    /// Relative to a directory, which is the sandbox's own where none is named.
    fn absolute(&self, sandbox: &Sandbox) -> Answer<String> {
        if self.path.is_empty() {
            return Err(Refusal::bad("path: must not be empty"));
        }
        if self.path.starts_with('/') {
            return Ok(self.path.clone());
        }
        let below = self.cwd.as_deref().unwrap_or_else(|| cwd(sandbox));
        Ok(format!("{}/{}", below.trim_end_matches('/'), self.path))
    }
}

/// One directory, in one that is there.
pub async fn make_directory(
    State(app): State<App>,
    By(caller): By,
    Path(session): Path<String>,
    Strict(place): Strict<Place>,
) -> Answer<Json<Value>> {
    let (sandbox, guest) = inside(&app, &caller, &session).await?;
    let path = place.absolute(&sandbox)?;
    let user = Some(sandbox.user.clone());
    let parent = path.trim_end_matches('/').rsplit_once('/').map_or("/", |(parent, _)| parent);
    let parent = if parent.is_empty() { "/" } else { parent };
    guest.call(&Request::Stat { path: parent.to_owned(), user: user.clone(), follow: true }).await?;
    match guest.call(&Request::MakeDirectory { path: path.clone(), user, mode: None }).await? {
        Reply::Made { existed: true, .. } => {
            let message = format!("make {path}: it is there already");
            Err(GuestError::Failed(Failure::new(FailureKind::AlreadyExists, message)).into())
        }
        _ => Ok(Json(json!({}))),
    }
}

/// A `tar.gz` that is unpacked below the directory of `x-cwd`.
pub async fn write(
    State(app): State<App>,
    By(caller): By,
    Path(session): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Json<Value>> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let kind = text(header::CONTENT_TYPE.as_str());
    if kind.split(';').next().unwrap_or_default().trim() != "application/gzip" {
        return Err(Refusal::bad(format!("content type {kind:?}: send a tar archive as application/gzip")));
    }
    let (sandbox, guest) = inside(&app, &caller, &session).await?;
    let below = match text("x-cwd") {
        place if place.is_empty() => cwd(&sandbox).to_owned(),
        place if place.starts_with('/') => place,
        place => return Err(Refusal::bad(format!("x-cwd: {place:?} is no absolute path"))),
    };
    let request = Request::TarIn { path: below, user: Some(sandbox.user.clone()) };
    let pieces = body.into_data_stream().map(|piece| piece.map_err(|error| error.to_string()));
    send_archive(&guest, &request, pieces).await?;
    Ok(Json(json!({})))
}

/// Unpacks a compressed archive as it comes.
pub async fn send_archive(
    guest: &Guest,
    request: &Request,
    pieces: impl Stream<Item = Result<Bytes, String>>,
) -> Answer<()> {
    let mut operation = guest.send(request).await?;
    let mut decoder = GzDecoder::new(Vec::new());
    let mut pieces = std::pin::pin!(pieces);
    let wrong = |reason: &dyn std::fmt::Display| Refusal::bad(format!("the archive is not read: {reason}"));
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| wrong(&error))?;
        for part in piece.chunks(COMPRESSED_PIECE) {
            decoder.write_all(part).map_err(|error| wrong(&error))?;
            let plain = std::mem::take(decoder.get_mut());
            if !plain.is_empty() && operation.to.data(&plain).await.is_err() {
                // The guest refused, and says why.
                operation.reply().await?;
                return Err(Refusal::from(GuestError::Unreachable("it took no more of the archive".into())));
            }
        }
    }
    decoder.try_finish().map_err(|error| wrong(&error))?;
    let rest = std::mem::take(decoder.get_mut());
    if operation.to.data(&rest).await.is_ok() {
        let _refused = operation.to.end().await;
    }
    operation.reply().await?;
    Ok(())
}

pub async fn read(
    State(app): State<App>,
    By(caller): By,
    Path(session): Path<String>,
    Strict(place): Strict<Place>,
) -> Answer<Response> {
    let (sandbox, guest) = inside(&app, &caller, &session).await?;
    let path = place.absolute(&sandbox)?;
    let request = Request::Read { path, user: Some(sandbox.user), offset: 0, length: None };
    let (_, operation) = guest.open(&request).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], bytes_of(operation)).into_response())
}

/// A file as it comes. One that is cut off ends the answer without its end, so that nobody takes a part for the whole.
fn bytes_of(operation: Operation) -> Body {
    let (from, to) = operation.split();
    Body::from_stream(stream::unfold(Some((from, to)), |halves| async move {
        let (mut from, to) = halves?;
        loop {
            match from.next().await {
                Ok(Some(Item::Data(bytes))) => return Some((Ok(Bytes::from(bytes)), Some((from, to)))),
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(error) => return Some((Err(error), None)),
            }
        }
    }))
}
