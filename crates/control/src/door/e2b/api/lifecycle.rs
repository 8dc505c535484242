//! The end, the sleep and the clock of a sandbox.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cove_protocol::Request;
use http::{HeaderMap, StatusCode, Uri};
use serde::Deserialize;

use super::super::error::ApiError;
use super::{By, Id, body, describe, domain, find};
use crate::clock::{Timestamp, after};
use crate::sandbox::{Expiry, Sandbox, State as Life, TimersChange};
use crate::{App, Caller, Error};

/// What a client gets that says nothing, in seconds.
const CONNECT_TIMEOUT: i64 = 300;
const RESUME_TIMEOUT: i64 = 15;

/// How long the daemon of a sandbox may take to show that it works.
const HEALTHY_WITHIN: Duration = Duration::from_secs(5);

/// The state is written before a process is touched, so a stream that breaks finds the sandbox gone already.
pub async fn kill(State(app): State<App>, By(caller): By, Id(id): Id) -> Result<StatusCode, ApiError> {
    find(&app, &caller, &id).await?;
    app.destroy(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Connect {
    timeout: Option<i64>,
    memory: Option<bool>,
}

/// Gives a running sandbox more time, never less; wakes one that sleeps.
pub async fn connect(
    State(app): State<App>,
    By(caller): By,
    Id(id): Id,
    uri: Uri,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, ApiError> {
    let wanted: Connect = body(bytes).await?;
    let seconds = positive(wanted.timeout.unwrap_or(CONNECT_TIMEOUT))?;
    let sandbox = settled(&app, &caller, &id).await?;
    let (status, sandbox) = if sandbox.state == Life::Running {
        let deadline = after(app.now(), seconds);
        let sandbox = match sandbox.timers.deadline {
            Some(current) if current >= deadline => sandbox,
            _ => set_deadline(&app, &caller, &id, Some(deadline), Some(seconds)).await?,
        };
        (StatusCode::OK, sandbox)
    } else {
        (StatusCode::CREATED, wake(&app, &caller, &sandbox, seconds, wanted.memory).await?)
    };
    let told = describe::handle(&sandbox, &domain(&app, &headers, &uri));
    Ok((status, axum::Json(told)).into_response())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Resume {
    timeout: Option<i64>,
    auto_pause: Option<bool>,
    memory: Option<bool>,
}

/// The oldest clients' way to wake a sandbox; one that runs is a conflict.
pub async fn resume(
    State(app): State<App>,
    By(caller): By,
    Id(id): Id,
    uri: Uri,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, ApiError> {
    let wanted: Resume = body(bytes).await?;
    let seconds = positive(wanted.timeout.unwrap_or(RESUME_TIMEOUT))?;
    let sandbox = settled(&app, &caller, &id).await?;
    if sandbox.state == Life::Running {
        return Err(ApiError::new(StatusCode::CONFLICT, format!("sandbox {id} is running already")));
    }
    let sandbox = wake(&app, &caller, &sandbox, seconds, wanted.memory).await?;
    if let Some(auto_pause) = wanted.auto_pause {
        let at_deadline = if auto_pause { Expiry::Pause } else { Expiry::Destroy };
        app.set_timers(&caller, &id, TimersChange { at_deadline: Some(at_deadline), ..Default::default() }).await?;
    }
    let told = describe::handle(&sandbox, &domain(&app, &headers, &uri));
    Ok((StatusCode::CREATED, axum::Json(told)).into_response())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Pause {
    memory: Option<bool>,
    /// Refuse where the daemon inside does not answer, rather than freeze one that may not come back.
    require_healthy_guest: Option<bool>,
}

/// With its memory it freezes; without it, only its files remain.
pub async fn pause(State(app): State<App>, By(caller): By, Id(id): Id, bytes: Bytes) -> Result<StatusCode, ApiError> {
    let wanted: Pause = body(bytes).await?;
    let sandbox = settled(&app, &caller, &id).await?;
    if describe::state(sandbox.state) == "paused" {
        return Err(ApiError::new(StatusCode::CONFLICT, format!("Sandbox {id} is already paused")));
    }
    if wanted.require_healthy_guest == Some(true) {
        answers(&app, &sandbox).await?;
    }
    // A client that hangs up half-way must not leave it running without a deadline.
    let worker = app.clone();
    app.detached(async move { sleep(&worker, &caller, &sandbox, wanted.memory).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Whether the daemon inside does what it is asked.
async fn answers(app: &App, sandbox: &Sandbox) -> Result<(), ApiError> {
    let (_, guest) = app.reach_into(sandbox.clone()).await?;
    let ask = Request::Stat { path: "/".into(), user: None, follow: true };
    match tokio::time::timeout(HEALTHY_WITHIN, guest.call(&ask)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(ApiError::unresponsive(sandbox.id.as_str())),
    }
}

/// A sandbox that sleeps has no deadline. Lifted first, or it could strike in between.
async fn sleep(app: &App, caller: &Caller, sandbox: &Sandbox, memory: Option<bool>) -> Result<(), Error> {
    let id = sandbox.id.as_str();
    set_deadline(app, caller, id, None, None).await?;
    let slept = match memory {
        Some(false) => app.stop(caller, id).await,
        Some(true) | None => app.pause(caller, id).await,
    };
    if slept.is_err() {
        set_deadline(app, caller, id, sandbox.timers.deadline, None).await?;
    }
    slept.map(drop)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Timeout {
    timeout: i64,
}

/// From now; zero and less is over at once.
pub async fn timeout(State(app): State<App>, By(caller): By, Id(id): Id, bytes: Bytes) -> Result<StatusCode, ApiError> {
    let wanted: Timeout = body(bytes).await?;
    let sandbox = find(&app, &caller, &id).await?;
    if describe::state(sandbox.state) == "paused" {
        return Err(ApiError::no_sandbox(&id));
    }
    let seconds = u64::try_from(wanted.timeout).unwrap_or(0);
    // The length is what a sandbox gets that wakes by itself: being told to end now is not such a length.
    let length = (seconds > 0).then_some(seconds);
    set_deadline(&app, &caller, &id, Some(after(app.now(), seconds)), length).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Refresh {
    duration: Option<i64>,
}

/// The oldest keep-alive: only ever extends.
pub async fn refresh(State(app): State<App>, By(caller): By, Id(id): Id, bytes: Bytes) -> Result<StatusCode, ApiError> {
    let wanted: Refresh = body(bytes).await?;
    let sandbox = find(&app, &caller, &id).await?;
    let seconds = u64::try_from(wanted.duration.unwrap_or(RESUME_TIMEOUT)).unwrap_or(0).max(15);
    let deadline = after(app.now(), seconds);
    if sandbox.timers.deadline.is_some_and(|current| current < deadline) {
        set_deadline(&app, &caller, &id, Some(deadline), None).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// With a deadline again. A client that hangs up half-way must not leave a sleeper that its deadline ends.
async fn wake(
    app: &App,
    caller: &Caller,
    sandbox: &Sandbox,
    seconds: u64,
    memory: Option<bool>,
) -> Result<Sandbox, ApiError> {
    let (worker, caller, sandbox) = (app.clone(), caller.clone(), sandbox.clone());
    Ok(app.detached(async move { rouse(&worker, &caller, &sandbox, seconds, memory).await }).await?)
}

async fn rouse(
    app: &App,
    caller: &Caller,
    sandbox: &Sandbox,
    seconds: u64,
    memory: Option<bool>,
) -> Result<Sandbox, Error> {
    let id = sandbox.id.as_str();
    set_deadline(app, caller, id, Some(after(app.now(), seconds)), Some(seconds)).await?;
    let woken = match (sandbox.state, memory) {
        (Life::Paused, Some(false)) => match app.stop(caller, id).await {
            Ok(_) => app.start(caller, id).await,
            Err(error) => Err(error),
        },
        (Life::Paused, _) => app.resume(caller, id).await,
        _ => app.start(caller, id).await,
    };
    if woken.is_err() {
        set_deadline(app, caller, id, None, None).await?;
    }
    woken
}

async fn set_deadline(
    app: &App,
    caller: &Caller,
    id: &str,
    deadline: Option<Timestamp>,
    length: Option<u64>,
) -> Result<Sandbox, Error> {
    let change =
        TimersChange { lifetime_seconds: length.map(Some), deadline: Some(deadline), ..TimersChange::default() };
    app.set_timers(caller, id, change).await
}

/// The sandbox once nobody is at work on it.
async fn settled(app: &App, caller: &Caller, id: &str) -> Result<Sandbox, ApiError> {
    let sandbox = find(app, caller, id).await?;
    if !sandbox.state.is_in_transition() {
        return Ok(sandbox);
    }
    app.settled(&sandbox.id).await?;
    find(app, caller, id).await
}

fn positive(seconds: i64) -> Result<u64, ApiError> {
    match u64::try_from(seconds) {
        Ok(seconds) if seconds > 0 => Ok(seconds),
        _ => Err(ApiError::bad("Timeout must be greater than 0")),
    }
}
