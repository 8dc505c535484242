//! Looking at a sandbox: metrics, explanation, ports, cost.

use axum::Json;
use axum::extract::State;
use cove_protocol::{Reply, Request};
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Params, Path};
use crate::clock::Timestamp;
use crate::guest::GuestError;
use crate::sandbox::explain::Explanation;
use crate::sandbox::metrics::Sample;
use crate::usage::Report;
use crate::{App, Error};

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Between {
    #[param(value_type = Option<String>, format = DateTime)]
    pub from: Option<Timestamp>,
    #[param(value_type = Option<String>, format = DateTime)]
    pub to: Option<Timestamp>,
}

/// Metrics of a sandbox, with history
///
/// Every few seconds of the last hour, one a minute before that for as long as the operator keeps them (a week unless
/// told otherwise); the last is of this moment while it runs.
#[utoipa::path(get, path = "/sandboxes/{id}/metrics", tag = "sandboxes",
    params(("id" = String, Path, description = "id or name"), Between),
    responses((status = 200, description = "Samples, oldest first", body = Vec<Sample>)))]
pub async fn metrics(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(between): Params<Between>,
) -> Result<Json<Vec<Sample>>, ApiError> {
    Ok(Json(app.metrics(&caller, &id, between.from, between.to).await?))
}

/// Explain a sandbox's state: cause, evidence, remedy
///
/// Also of one that is gone, by its id.
#[utoipa::path(get, path = "/sandboxes/{id}/explain", tag = "sandboxes",
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Why it is as it is", body = Explanation)))]
pub async fn explain(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<Json<Explanation>, ApiError> {
    Ok(Json(app.explain(&caller, &id).await?))
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct PortView {
    port: u16,
    address: String,
    pid: Option<u32>,
    process: Option<String>,
}

/// List the ports that something listens on
#[utoipa::path(get, path = "/sandboxes/{id}/ports", tag = "ports",
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Listening ports", body = Vec<PortView>)))]
pub async fn ports(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<Json<Vec<PortView>>, ApiError> {
    let (_, guest) = app.reach(&caller, &id).await?;
    match guest.call(&Request::Ports).await? {
        Reply::Ports { ports } => {
            let view = |port: cove_protocol::message::Port| PortView {
                port: port.port,
                address: port.address,
                pid: port.pid,
                process: port.process,
            };
            Ok(Json(ports.into_iter().map(view).collect()))
        }
        other => Err(Error::Guest(GuestError::Protocol(format!("ports answered {other:?}"))).into()),
    }
}

/// What a sandbox used and cost
#[utoipa::path(get, path = "/sandboxes/{id}/usage", tag = "usage",
    params(("id" = String, Path, description = "id or name"), Between),
    responses((status = 200, description = "Seconds and cost", body = Report)))]
pub async fn usage(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(between): Params<Between>,
) -> Result<Json<Report>, ApiError> {
    Ok(Json(app.usage(&caller, Some(&id), between.from, between.to).await?))
}
