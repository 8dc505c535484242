//! Calls of the dialect that this server does not serve: a clear word instead of a missing route.

use axum::response::{IntoResponse, Response};
use http::StatusCode;

use super::super::error::plain;
use super::By;

pub async fn secrets(By(_): By) -> Response {
    plain(StatusCode::NOT_IMPLEMENTED, "this server does not serve secrets yet")
}

/// What cannot be made is nowhere: a list of them is empty.
pub async fn none(By(_): By) -> Response {
    axum::Json(serde_json::json!([])).into_response()
}
