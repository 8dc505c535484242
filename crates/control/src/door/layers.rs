//! Layers for other servers of the same store, and for nobody else: to all others there is nothing here.

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use cove_protocol::LayerId;
use serde::Deserialize;
use tokio_util::io::ReaderStream;

use super::entrance::SentOn;
use super::native::error::ApiError;
use crate::{App, Error};

/// Bytes of one piece.
const PIECE: usize = 64 << 10;

#[derive(Deserialize)]
pub struct Asked {
    /// Which of this server's providers has it.
    provider: String,
}

/// The body ends with a digest of all before it.
pub async fn send(
    State(app): State<App>,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
    request: Request,
) -> Result<Response, ApiError> {
    let unknown = || Error::not_found("layer", &id);
    if request.extensions().get::<SentOn>().is_none() {
        return Err(unknown().into());
    }
    let layer: LayerId = id.parse().map_err(|_| unknown())?;
    let pieces = ReaderStream::with_capacity(app.send_layer(layer, &asked.provider).await?, PIECE);
    let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
    Ok((kind, Body::from_stream(pieces)).into_response())
}
