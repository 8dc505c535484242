//! What can be changed on a sandbox while it lives.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Body, Path, maybe};
use super::view::SandboxView;
use crate::App;
use crate::clock::Timestamp;
use crate::sandbox::change::Visibility;
use crate::sandbox::{Expiry, IdleMeasure, LimitsChange, NetworkPolicy, TimersChange};

type One = Result<Json<SandboxView>, ApiError>;

/// Timers. What is absent stays as it is; `null` switches a timer off.
#[derive(Debug, Default, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TimersBody {
    /// Seconds from now to the end of its lifetime.
    #[serde(deserialize_with = "maybe")]
    #[schema(value_type = Option<u64>, maximum = 1892160000)]
    lifetime_seconds: Option<Option<u64>>,
    /// The end of its lifetime itself.
    #[serde(deserialize_with = "maybe")]
    #[schema(value_type = Option<String>, format = DateTime)]
    deadline: Option<Option<Timestamp>>,
    at_deadline: Option<Expiry>,
    /// Seconds without activity after which it is put away; 15 minutes unless the operator says otherwise.
    #[serde(deserialize_with = "maybe")]
    #[schema(value_type = Option<u64>, maximum = 1892160000)]
    idle_seconds: Option<Option<u64>>,
    at_idle: Option<Expiry>,
    /// What counts as activity.
    idle_measure: Option<IdleMeasure>,
    /// Seconds after the stop.
    #[serde(deserialize_with = "maybe")]
    #[schema(value_type = Option<u64>, maximum = 1892160000)]
    archive_after_seconds: Option<Option<u64>>,
    /// Seconds after the stop.
    #[serde(deserialize_with = "maybe")]
    #[schema(value_type = Option<u64>, maximum = 1892160000)]
    delete_after_seconds: Option<Option<u64>>,
    /// A stop is a destroy.
    ephemeral: Option<bool>,
    /// A call or a preview request wakes it; a call with a key of scope `read` does not.
    auto_resume: Option<bool>,
}

impl From<TimersBody> for TimersChange {
    fn from(body: TimersBody) -> Self {
        TimersChange {
            lifetime_seconds: body.lifetime_seconds,
            deadline: body.deadline,
            at_deadline: body.at_deadline,
            idle_seconds: body.idle_seconds,
            at_idle: body.at_idle,
            idle_measure: body.idle_measure,
            archive_after_seconds: body.archive_after_seconds,
            delete_after_seconds: body.delete_after_seconds,
            ephemeral: body.ephemeral,
            auto_resume: body.auto_resume,
        }
    }
}

/// Set timers
#[utoipa::path(patch, path = "/sandboxes/{id}/timers", tag = "sandboxes", request_body = TimersBody,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Set", body = SandboxView)))]
pub async fn timers(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<TimersBody>,
) -> One {
    Ok(Json(app.set_timers(&caller, &id, body.into()).await?.into()))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LabelsBody {
    labels: BTreeMap<String, String>,
}

/// Replace the labels
#[utoipa::path(put, path = "/sandboxes/{id}/labels", tag = "sandboxes", request_body = LabelsBody,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Replaced", body = SandboxView)))]
pub async fn labels(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<LabelsBody>,
) -> One {
    Ok(Json(app.set_labels(&caller, &id, body.labels).await?.into()))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NameBody {
    /// `null` takes the name away.
    name: Option<String>,
}

/// Rename a sandbox
#[utoipa::path(put, path = "/sandboxes/{id}/name", tag = "sandboxes", request_body = NameBody,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Renamed", body = SandboxView)))]
pub async fn name(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<NameBody>,
) -> One {
    Ok(Json(app.rename(&caller, &id, body.name).await?.into()))
}

/// Resize a sandbox
///
/// Processors and memory at once, while it runs. A disk can grow but not shrink.
#[utoipa::path(patch, path = "/sandboxes/{id}/limits", tag = "sandboxes", request_body = LimitsChange,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Resized", body = SandboxView)))]
pub async fn limits(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<LimitsChange>,
) -> One {
    Ok(Json(app.resize(&caller, &id, body).await?.into()))
}

/// Replace the network policy
///
/// Counts for new connections at once.
#[utoipa::path(put, path = "/sandboxes/{id}/network", tag = "sandboxes", request_body = NetworkPolicy,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Replaced", body = SandboxView)))]
pub async fn network(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<NetworkPolicy>,
) -> One {
    Ok(Json(app.set_network(&caller, &id, body).await?.into()))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VisibilityBody {
    /// Previews need no token.
    public: bool,
}

/// Say who may see its ports
#[utoipa::path(put, path = "/sandboxes/{id}/visibility", tag = "sandboxes", request_body = VisibilityBody,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "Set", body = SandboxView)))]
pub async fn visibility(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<VisibilityBody>,
) -> One {
    let visibility = if body.public { Visibility::Public } else { Visibility::Private };
    Ok(Json(app.set_public(&caller, &id, visibility).await?.into()))
}

/// Tokens that open this sandbox alone.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Tokens {
    /// Files and processes.
    access_token: String,
    /// Ports.
    traffic_token: String,
}

/// Read the sandbox's own tokens
#[utoipa::path(get, path = "/sandboxes/{id}/tokens", tag = "sandboxes",
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "The tokens", body = Tokens)))]
pub async fn tokens(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<Json<Tokens>, ApiError> {
    let sandbox = app.sandbox(&caller, &id).await?;
    Ok(Json(Tokens { access_token: sandbox.access_token, traffic_token: sandbox.traffic_token }))
}

/// Make new tokens
///
/// The old ones, and every URL that carries them, open nothing from now on.
#[utoipa::path(post, path = "/sandboxes/{id}/tokens", tag = "sandboxes",
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "The new tokens", body = Tokens)))]
pub async fn rotate_tokens(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<Json<Tokens>, ApiError> {
    let sandbox = app.rotate_tokens(&caller, &id).await?;
    Ok(Json(Tokens { access_token: sandbox.access_token, traffic_token: sandbox.traffic_token }))
}
