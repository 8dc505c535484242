//! The audit log.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Params, within};
use crate::App;
use crate::audit::Entry;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// Older than this number.
    before: Option<i64>,
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// Read the audit log
#[utoipa::path(get, path = "/audit", tag = "audit", params(AuditQuery),
    responses((status = 200, description = "Newest first", body = Vec<Entry>)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Params(query): Params<AuditQuery>,
) -> Result<Json<Vec<Entry>>, ApiError> {
    Ok(Json(app.list_audit(&caller, query.before, within("limit", query.limit, 100, 1000)?).await?))
}
