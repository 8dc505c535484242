//! Background work, to be seen.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Params, within};
use crate::job::{Job, JobState};
use crate::{App, Scope};

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct JobQuery {
    state: Option<JobState>,
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// List background jobs
///
/// Of your organisation; of all for operators.
#[utoipa::path(get, path = "/jobs", tag = "jobs", params(JobQuery),
    responses((status = 200, description = "Newest first", body = Vec<Job>)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Params(query): Params<JobQuery>,
) -> Result<Json<Vec<Job>>, ApiError> {
    let organisation = (!caller.may(Scope::Operator)).then_some(caller.organisation.as_str());
    Ok(Json(app.store().jobs(organisation, query.state, within("limit", query.limit, 100, 1000)?).await?))
}
