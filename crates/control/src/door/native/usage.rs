//! What the organisation used and what it cost.

use axum::Json;
use axum::extract::State;

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::Params;
use super::insight::Between;
use crate::App;
use crate::usage::Report;

/// Usage and cost
///
/// Metered to the millisecond, priced by the operator's table; by sandbox and by owner. The last 30 days where no time
/// is given.
#[utoipa::path(get, path = "/usage", tag = "usage", params(Between),
    responses((status = 200, description = "What was used", body = Report)))]
pub async fn report(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Params(between): Params<Between>,
) -> Result<Json<Report>, ApiError> {
    Ok(Json(app.usage(&caller, None, between.from, between.to).await?))
}
