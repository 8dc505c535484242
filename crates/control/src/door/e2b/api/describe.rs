//! Sandboxes as the dialect tells of them.

use axum::extract::State;
use serde_json::{Value, json};

use super::super::envd;
use super::super::error::ApiError;
use super::super::facts::Facts;
use super::{By, Id, domain, find};
use crate::clock::Timestamp;
use crate::sandbox::{self, Expiry, Sandbox};
use crate::{App, Caller, Scope};

/// Long dead in the dialect, and required.
const CLIENT: &str = "cove";

/// The two states that the dialect knows.
pub fn state(state: sandbox::State) -> &'static str {
    use sandbox::State::*;
    match state {
        Creating | Starting | Running | Resuming | Pausing => "running",
        Paused | Stopping | Stopped | Archiving | Archived | Restoring | Failed | Destroying | Destroyed => "paused",
    }
}

/// The states that a filter by one of the two means.
pub fn states(word: &str) -> Option<Vec<sandbox::State>> {
    let known = ["running", "paused"].contains(&word);
    known.then(|| {
        let gone = [sandbox::State::Destroying, sandbox::State::Destroyed];
        sandbox::State::ALL.into_iter().filter(|each| state(*each) == word && !gone.contains(each)).collect()
    })
}

/// The answer of create, connect and resume.
pub fn handle(sandbox: &Sandbox, domain: &str) -> Value {
    let facts = Facts::of(sandbox);
    let mut told = json!({
        "templateID": sandbox.template,
        "sandboxID": sandbox.id,
        "clientID": CLIENT,
        "alias": sandbox.template,
        "envdVersion": envd::VERSION,
        "domain": domain,
        // The code interpreter's client shows no other token when it works on contexts.
        "trafficAccessToken": (facts.secure || !sandbox.public).then_some(&sandbox.traffic_token),
    });
    if facts.secure {
        told["envdAccessToken"] = json!(sandbox.access_token);
    }
    told
}

/// One of a list.
pub fn listed(sandbox: &Sandbox) -> Value {
    const MIB: u64 = 1 << 20;
    let mut told = json!({
        "templateID": sandbox.template,
        "alias": sandbox.template,
        "sandboxID": sandbox.id,
        "clientID": CLIENT,
        "startedAt": sandbox.created_at,
        "endAt": end(sandbox),
        "cpuCount": sandbox.limits.cpus.ceil() as u64,
        "memoryMB": sandbox.limits.memory / MIB,
        "diskSizeMB": sandbox.limits.disk.unwrap_or(0) / MIB,
        "metadata": sandbox.labels,
        "state": state(sandbox.state),
        "envdVersion": envd::VERSION,
    });
    let mounts = Facts::of(sandbox).volume_mounts;
    if !mounts.is_empty() {
        told["volumeMounts"] = json!(mounts);
    }
    told
}

/// The token acts inside the sandbox: who may only look is not told.
fn detail(sandbox: &Sandbox, caller: &Caller, domain: &str) -> Value {
    let facts = Facts::of(sandbox);
    let mut told = listed(sandbox);
    told["domain"] = json!(domain);
    if facts.secure && caller.may(Scope::Write) {
        told["envdAccessToken"] = json!(sandbox.access_token);
    }
    if let Some(allowed) = facts.allow_internet_access {
        told["allowInternetAccess"] = json!(allowed);
    }
    if let Some(network) = facts.network {
        told["network"] = network;
    }
    told["lifecycle"] = json!({
        "onTimeout": if sandbox.timers.at_deadline == Expiry::Destroy { "kill" } else { "pause" },
        "autoResume": sandbox.timers.auto_resume,
    });
    match sandbox.state {
        sandbox::State::Paused => told["pauseMode"] = json!("full"),
        sandbox::State::Stopped | sandbox::State::Archived => told["pauseMode"] = json!("filesystem"),
        _ => {}
    }
    told
}

/// The dialect wants an end: one that is asleep ended when it fell asleep, one without a deadline never does.
fn end(sandbox: &Sandbox) -> Timestamp {
    match (state(sandbox.state), sandbox.timers.deadline) {
        ("paused", _) => sandbox.state_since,
        (_, Some(deadline)) => deadline,
        (_, None) => Timestamp::from_second(253_402_214_400).unwrap_or(Timestamp::MAX),
    }
}

pub async fn one(
    State(app): State<App>,
    By(caller): By,
    Id(id): Id,
    request: http::Request<axum::body::Body>,
) -> Result<axum::Json<Value>, ApiError> {
    let sandbox = find(&app, &caller, &id).await?;
    Ok(axum::Json(detail(&sandbox, &caller, &domain(&app, request.headers(), request.uri()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_living_state_belongs_to_one_of_the_two_words() {
        let both = [states("running").unwrap(), states("paused").unwrap()].concat();
        assert_eq!(both.len(), sandbox::State::ALL.len() - 2);
        assert_eq!(states("sleeping"), None);
    }
}
