//! One act on many sandboxes.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Body, Path};
use crate::App;
use crate::sandbox::State as Life;
use crate::upkeep::{Act, Choice, Mode, Upkeep};

/// What is to be done, and with which sandboxes: all that is given must hold.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpkeepBody {
    act: Act,
    /// Only those that were not used for so many days.
    #[serde(default)]
    idle_days: Option<u32>,
    /// Only those that were made so many days ago, or longer.
    #[serde(default)]
    age_days: Option<u32>,
    /// Only this owner's.
    #[serde(default)]
    owner: Option<String>,
    /// Only those with all of these labels.
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// Only those of this template.
    #[serde(default)]
    template: Option<String>,
    /// Only those whose name begins with this.
    #[serde(default)]
    name: Option<String>,
    /// Only those at this provider.
    #[serde(default)]
    provider: Option<String>,
    /// Only those in one of these states.
    #[serde(default)]
    states: Vec<Life>,
    /// All of the organisation; said on purpose, where nothing else is said.
    #[serde(default)]
    all: bool,
    /// Nothing is done, and what would be done is reported. True unless you say otherwise.
    #[serde(default = "yes")]
    dry_run: bool,
}

fn yes() -> bool {
    true
}

/// Do something with many sandboxes
///
/// Goes on in the background, also after a restart, one of an organisation at a time; ask for it until it is `done` or
/// `failed`. Without `"dry_run": false` nothing is done.
#[utoipa::path(post, path = "/upkeep", tag = "upkeep", request_body = UpkeepBody,
    responses((status = 202, description = "Begun", body = Upkeep)))]
pub async fn begin(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Body(body): Body<UpkeepBody>,
) -> Result<(StatusCode, Json<Upkeep>), ApiError> {
    let choice = Choice {
        labels: body.labels,
        owner: body.owner,
        template: body.template,
        name: body.name,
        provider: body.provider,
        states: body.states,
        idle_days: body.idle_days,
        age_days: body.age_days,
        all: body.all,
    };
    let mode = if body.dry_run { Mode::DryRun } else { Mode::Real };
    Ok((StatusCode::ACCEPTED, Json(app.begin_upkeep(&caller, body.act, choice, mode).await?)))
}

/// Read upkeep
///
/// How far it is, and what became of each sandbox. Kept for a day after its end.
#[utoipa::path(get, path = "/upkeep/{id}", tag = "upkeep", params(("id" = String, Path)),
    responses((status = 200, description = "As it is now", body = Upkeep)))]
pub async fn read(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<Json<Upkeep>, ApiError> {
    Ok(Json(app.upkeep(&caller, &id).await?))
}
