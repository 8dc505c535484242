//! Changing a sandbox: its end, its time, its network, its size.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::Strict;
use super::create::{Mounted, Resources};
use super::error::{Answer, Refusal};
use super::find::of_session;
use super::memory::Memory;
use super::naming::session_of;
use super::view::{self, Origin};
use super::{By, create, network};
use crate::clock::{Timestamp, from_millisecond};
use crate::door::known::says_something;
use crate::sandbox::change::Visibility;
use crate::sandbox::{Sandbox, State as Life, TimersChange};
use crate::{App, Caller, Error};

/// Nothing at all.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nothing {}

/// Ends a session. A sandbox that was to keep nothing goes with it.
pub async fn stop(
    State(app): State<App>,
    By(caller): By,
    Path(session): Path<String>,
    Strict(Nothing {}): Strict<Nothing>,
) -> Answer<Json<Value>> {
    let sandbox = of_session(&app, &caller, &session).await?;
    if session_of(&sandbox) != session {
        return Err(Refusal::over(&session));
    }
    let stopped = match view::status(sandbox.state) {
        "stopped" => sandbox,
        _ => app.stop(&caller, sandbox.id.as_str()).await?,
    };
    Ok(Json(json!({"session": view::session(&stopped), "sandbox": view::sandbox(&stopped)})))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extension {
    /// Milliseconds.
    duration: u64,
}

/// Moves the end of a session.
pub async fn extend(
    State(app): State<App>,
    By(caller): By,
    Path(session): Path<String>,
    Strict(Extension { duration }): Strict<Extension>,
) -> Answer<Json<Value>> {
    let sandbox = running(&app, &caller, &session).await?;
    let now = sandbox.timers.deadline.unwrap_or_else(|| app.now());
    let then = later(now, duration)?;
    let change = TimersChange { deadline: Some(Some(then)), ..TimersChange::default() };
    let changed = app.set_timers(&caller, sandbox.id.as_str(), change).await?;
    Ok(Json(json!({"session": view::session(&changed)})))
}

fn later(from: Timestamp, milliseconds: u64) -> Answer<Timestamp> {
    let most = crate::sandbox::timers::LONGEST_SECONDS * 1000;
    if milliseconds == 0 || milliseconds > most {
        return Err(Refusal::bad(format!("duration: 1 to {most} milliseconds")));
    }
    Ok(from_millisecond(from.as_millisecond().saturating_add(i64::try_from(milliseconds).unwrap_or(i64::MAX))))
}

/// The sandbox of a session that goes on.
async fn running(app: &App, caller: &Caller, session: &str) -> Answer<Sandbox> {
    let sandbox = of_session(app, caller, session).await?;
    if session_of(&sandbox) != session || sandbox.state != Life::Running {
        return Err(Refusal::over(session));
    }
    Ok(sandbox)
}

pub async fn network(
    State(app): State<App>,
    By(caller): By,
    Path(session): Path<String>,
    Strict(asked): Strict<network::Asked>,
) -> Answer<Json<Value>> {
    let sandbox = running(&app, &caller, &session).await?;
    let changed = app.set_network(&caller, sandbox.id.as_str(), asked.policy()?).await?;
    Ok(Json(json!({"session": view::session(&changed)})))
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Update {
    persistent: Option<bool>,
    resources: Option<Resources>,
    timeout: Option<u64>,
    network_policy: Option<network::Asked>,
    network_id: Option<Value>,
    tags: Option<BTreeMap<String, String>>,
    ports: Option<Vec<u16>>,
    snapshot_expiration: Option<Value>,
    keep_last_snapshots: Option<Value>,
    current_snapshot_id: Option<Value>,
    #[serde(rename = "region")]
    _region: Option<String>,
    failover_regions: Option<Value>,
    mounts: Option<BTreeMap<String, Mounted>>,
}

/// What is named changes; the rest stays.
pub async fn update(
    State(app): State<App>,
    By(caller): By,
    Path(name): Path<String>,
    origin: Origin,
    Strict(update): Strict<Update>,
) -> Answer<Json<Value>> {
    if says_something(update.current_snapshot_id.as_ref()) {
        return Err(Refusal::not_offered("currentSnapshotId: make a sandbox from the snapshot instead"));
    }
    if update.mounts.is_some() {
        return Err(Refusal::bad("mounts: drives are mounted when a sandbox is made"));
    }
    let asked = create::Asked::of_change(update.ports.clone(), update.timeout, update.resources, update.tags.clone())
        .with_unserved(
            update.network_id,
            update.snapshot_expiration,
            update.keep_last_snapshots,
            update.failover_regions,
        );
    asked.refuse_what_is_not_offered()?;
    asked.check_counts()?;
    let (limits, _) = (asked.limits()?, asked.seconds()?);
    let policy = update.network_policy.map(network::Asked::policy).transpose()?;
    let mut sandbox = app.sandbox(&caller, &name).await?;
    let id = sandbox.id.to_string();
    if let Some(persistent) = update.persistent {
        let change = TimersChange { ephemeral: Some(!persistent), ..TimersChange::default() };
        sandbox = app.set_timers(&caller, &id, change).await?;
    }
    if let Some(tags) = update.tags {
        sandbox = app.set_labels(&caller, &id, tags).await?;
    }
    if let Some(policy) = policy {
        sandbox = app.set_network(&caller, &id, policy).await?;
    }
    if !limits.is_empty() {
        sandbox = app.resize(&caller, &id, limits).await?;
    }
    if update.ports.is_some() || update.timeout.is_some() {
        let remember = |sandbox: &Sandbox| {
            let mut remembered = Memory::of(sandbox);
            remembered.ports = update.ports.clone().unwrap_or(remembered.ports);
            remembered.timeout = update.timeout.or(remembered.timeout);
            Ok::<Value, Error>(remembered.into_note(&sandbox.door))
        };
        sandbox = app.change_door(&caller, &id, remember).await?;
    }
    if let Some(ports) = &update.ports {
        let visibility = if ports.is_empty() { Visibility::Private } else { Visibility::Public };
        sandbox = app.set_public(&caller, &id, visibility).await?;
    }
    Ok(Json(json!({"sandbox": view::sandbox(&sandbox), "routes": view::routes(&sandbox, &origin)})))
}

/// Of snapshots nothing is deleted with it: each has its own end.
pub async fn delete(State(app): State<App>, By(caller): By, Path(name): Path<String>) -> Answer<Json<Value>> {
    let sandbox = app.sandbox(&caller, &name).await?;
    let gone = app.destroy(&caller, sandbox.id.as_str()).await?;
    // As it was called: its name is free again.
    let mut told = view::sandbox(&gone);
    told["name"] = json!(super::naming::name_of(&sandbox));
    Ok(Json(json!({"sandbox": told})))
}
