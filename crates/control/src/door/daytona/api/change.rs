//! Changing a sandbox that stays where it is. All answer 200 with the whole sandbox, which every SDK can read.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::create::{self, Intervals};
use crate::Caller;
use crate::door::daytona::Door;
use crate::door::daytona::admit::Authenticated;
use crate::door::daytona::body::Lenient;
use crate::door::daytona::origin::Origin;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::daytona::view;
use crate::sandbox::change::Visibility;

type One = Answer<Json<Value>>;

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub struct Labels {
    labels: BTreeMap<String, String>,
}

pub async fn labels(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
    Lenient(body): Lenient<Labels>,
) -> One {
    Ok(Json(view::sandbox(&door.app.set_labels(&caller, &id, body.labels).await?, &origin)))
}

async fn intervals(door: Door, caller: Caller, origin: Origin, id: &str, intervals: Intervals) -> One {
    let change = create::timers(&intervals)?;
    Ok(Json(view::sandbox(&door.app.set_timers(&caller, id, change).await?, &origin)))
}

pub async fn auto_stop(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path((id, minutes)): Path<(String, i64)>,
) -> One {
    intervals(door, caller, origin, &id, Intervals { stop: Some(minutes), ..Intervals::default() }).await
}

pub async fn auto_pause(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path((id, minutes)): Path<(String, i64)>,
) -> One {
    // Off means that neither happens.
    let wanted = match minutes {
        0 => Intervals { stop: Some(0), ..Intervals::default() },
        minutes => Intervals { pause: Some(minutes), ..Intervals::default() },
    };
    intervals(door, caller, origin, &id, wanted).await
}

pub async fn auto_archive(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path((id, minutes)): Path<(String, i64)>,
) -> One {
    intervals(door, caller, origin, &id, Intervals { archive: Some(minutes), ..Intervals::default() }).await
}

pub async fn auto_delete(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path((id, minutes)): Path<(String, i64)>,
) -> One {
    intervals(door, caller, origin, &id, Intervals { delete: Some(minutes), ..Intervals::default() }).await
}

pub async fn time_to_live(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path((id, minutes)): Path<(String, i64)>,
) -> One {
    intervals(door, caller, origin, &id, Intervals { lifetime: Some(minutes), ..Intervals::default() }).await
}

pub async fn public(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path((id, is_public)): Path<(String, bool)>,
) -> One {
    let visibility = if is_public { Visibility::Public } else { Visibility::Private };
    Ok(Json(view::sandbox(&door.app.set_public(&caller, &id, visibility).await?, &origin)))
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub struct Size {
    cpu: Option<f64>,
    memory: Option<f64>,
    disk: Option<f64>,
}

pub async fn resize(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
    Lenient(body): Lenient<Size>,
) -> One {
    let limits = create::limits(body.cpu, body.memory, body.disk)?;
    if limits.is_empty() {
        return Err(Problem::bad_request("a resize names cpu, memory or disk"));
    }
    Ok(Json(view::sandbox(&door.app.resize(&caller, &id, limits).await?, &origin)))
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Network {
    network_block_all: Option<bool>,
    network_allow_list: Option<String>,
    domain_allow_list: Option<String>,
}

pub async fn network(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
    Lenient(body): Lenient<Network>,
) -> One {
    let policy = create::network(body.network_block_all, body.network_allow_list, body.domain_allow_list)?
        .ok_or_else(|| Problem::bad_request("name networkBlockAll, networkAllowList or domainAllowList"))?;
    Ok(Json(view::sandbox(&door.app.set_network(&caller, &id, policy).await?, &origin)))
}

/// What was going on; here every kind counts the same.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Activity {
    #[serde(rename = "activityType")]
    _kind: Option<String>,
}

/// The SDK sends a content type and no body, and wants 201 and nothing.
pub async fn activity(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Lenient(_): Lenient<Activity>,
) -> Answer<StatusCode> {
    let sandbox = door.app.sandbox(&caller, &id).await?;
    door.app.touch(&sandbox.id);
    Ok(StatusCode::CREATED)
}
