//! Warm pools.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Body, Path};
use crate::App;
use crate::pool::Pool;

/// List warm pools
#[utoipa::path(get, path = "/pools", tag = "pools",
    responses((status = 200, description = "With hits and misses", body = Vec<Pool>)))]
pub async fn list(State(app): State<App>, Authenticated(caller): Authenticated) -> Result<Json<Vec<Pool>>, ApiError> {
    Ok(Json(app.list_pools(&caller).await?))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolBody {
    /// How many should be ready.
    #[schema(maximum = 10000)]
    size: u32,
}

/// Keep sandboxes of a template ready
#[utoipa::path(put, path = "/pools/{template}", tag = "pools", request_body = PoolBody,
    params(("template" = String, Path)),
    responses((status = 200, description = "The pool; it fills in the background", body = Pool)))]
pub async fn set(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(template): Path<String>,
    Body(body): Body<PoolBody>,
) -> Result<Json<Pool>, ApiError> {
    Ok(Json(app.set_pool(&caller, &template, body.size).await?))
}

/// Remove a warm pool
#[utoipa::path(delete, path = "/pools/{template}", tag = "pools", params(("template" = String, Path)),
    responses((status = 204, description = "Its members are destroyed in the background")))]
pub async fn delete(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(template): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.delete_pool(&caller, &template).await?;
    Ok(StatusCode::NO_CONTENT)
}
