//! Calls of the dialect that this server does not serve: a clear word instead of a missing route.

use axum::extract::{OriginalUri, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;

use super::super::error::{ApiError, plain};
use super::{By, Id, find};
use crate::App;

/// Snapshots and forks of a sandbox: 404 first where it is not the caller's.
pub async fn of_sandbox(
    State(app): State<App>,
    By(caller): By,
    Id(id): Id,
    OriginalUri(uri): OriginalUri,
) -> Result<Response, ApiError> {
    find(&app, &caller, &id).await?;
    let what = if uri.path().ends_with("/fork") { "forks" } else { "snapshots" };
    Ok(not_served(&format!("{what} of a sandbox")))
}

pub async fn builds(By(_): By) -> Response {
    not_served("template builds")
}

pub async fn volumes(By(_): By) -> Response {
    not_served("volumes")
}

pub async fn secrets(By(_): By) -> Response {
    not_served("secrets")
}

/// What cannot be made is nowhere: a list of them is empty.
pub async fn none(By(_): By) -> Response {
    axum::Json(serde_json::json!([])).into_response()
}

pub async fn no_snapshots(By(_): By) -> Response {
    axum::Json(serde_json::json!([])).into_response()
}

fn not_served(what: &str) -> Response {
    plain(StatusCode::NOT_IMPLEMENTED, &format!("this server does not serve {what} yet"))
}
