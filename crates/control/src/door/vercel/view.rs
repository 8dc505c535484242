//! A sandbox, its session and its routes as this dialect shows them. Times are milliseconds since 1970.

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use serde_json::{Map, Value, json};

use super::memory::Memory;
use super::naming::{begun, name_of, session_of};
use super::{network, person};
use crate::App;
use crate::door::native::preview::base_url;
use crate::provider::Access;
use crate::sandbox::{Sandbox, State};

/// There is one.
pub const REGION: &str = "local";

/// What a session lives where nobody said how long, in milliseconds.
pub const TIMEOUT: u64 = 300_000;

/// How the caller reached us, for routes.
pub struct Origin {
    scheme: String,
    /// With its colon, where it is not the scheme's own.
    port: String,
    domain: String,
}

impl Origin {
    pub fn of(app: &App, headers: &HeaderMap) -> Origin {
        let base = base_url(app, headers);
        let (scheme, authority) = base.split_once("://").unwrap_or(("http", base.as_str()));
        let port = authority.rsplit_once(':').map(|(_, port)| format!(":{port}")).unwrap_or_default();
        // A domain may bring a port of its own.
        let domain = app.config().domain.clone();
        let port = if domain.contains(':') { String::new() } else { port };
        Origin { scheme: scheme.to_owned(), port, domain }
    }

    fn route(&self, sandbox: &Sandbox, port: u16) -> Value {
        let subdomain = format!("{port}-{}", sandbox.id);
        let url = format!("{}://{subdomain}.{}{}", self.scheme, self.domain, self.port);
        json!({"url": url, "subdomain": subdomain, "port": port})
    }
}

impl FromRequestParts<App> for Origin {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Self::Rejection> {
        Ok(Origin::of(app, &parts.headers))
    }
}

/// The dialect's word for a state. What sleeps is stopped here: there is no pause.
pub fn status(state: State) -> &'static str {
    match state {
        State::Creating | State::Starting | State::Resuming | State::Restoring => "pending",
        State::Running => "running",
        State::Pausing | State::Stopping | State::Destroying => "stopping",
        State::Paused | State::Stopped | State::Archiving | State::Archived | State::Destroyed => "stopped",
        State::Failed => "failed",
    }
}

fn processors(sandbox: &Sandbox) -> u64 {
    sandbox.limits.cpus.ceil().max(1.0) as u64
}

/// In mebibytes.
fn memory(sandbox: &Sandbox) -> u64 {
    sandbox.limits.memory >> 20
}

pub fn cwd(sandbox: &Sandbox) -> &str {
    sandbox.cwd.as_deref().unwrap_or(person::CWD)
}

pub fn sandbox(sandbox: &Sandbox) -> Value {
    let remembered = Memory::of(sandbox);
    let changed = sandbox.updated_at.map_or(sandbox.state_since, |at| at.max(sandbox.state_since));
    let mut view = json!({
        "name": name_of(sandbox),
        "persistent": !sandbox.timers.ephemeral,
        "region": REGION,
        "vcpus": processors(sandbox),
        "memory": memory(sandbox),
        "timeout": remembered.timeout.unwrap_or(TIMEOUT),
        "networkPolicy": network::view(&sandbox.network),
        "createdAt": sandbox.created_at.as_millisecond(),
        "updatedAt": changed.as_millisecond(),
        "currentSessionId": session_of(sandbox),
        "status": status(sandbox.state),
        "statusUpdatedAt": sandbox.state_since.as_millisecond(),
        "cwd": cwd(sandbox),
        "tags": sandbox.labels,
    });
    if let Some(deadline) = sandbox.timers.deadline {
        view["expiresAt"] = json!(deadline.as_millisecond());
    }
    if let Some(runtime) = remembered.runtime {
        view["runtime"] = json!(runtime);
    }
    if let Some(image) = remembered.image {
        view["image"] = json!(image);
    }
    if let Some(snapshot) = remembered.snapshot {
        view["currentSnapshotId"] = json!(snapshot);
    }
    if !sandbox.volumes.is_empty() {
        let mounts = sandbox.volumes.iter().map(|mount| {
            let mode = match mount.access {
                Access::ReadOnly => "read-only",
                Access::ReadWrite => "read-write",
            };
            (mount.target.clone(), json!({"drive": mount.volume, "mode": mode}))
        });
        view["mounts"] = mounts.collect::<Map<String, Value>>().into();
    }
    view
}

pub fn session(sandbox: &Sandbox) -> Value {
    let remembered = Memory::of(sandbox);
    let (created, begun) = (sandbox.created_at.as_millisecond(), begun(sandbox));
    // From its beginning to the end that it has now.
    let left = sandbox.timers.deadline.map(|deadline| deadline.as_millisecond().saturating_sub(begun).max(0));
    let timeout = left.and_then(|left| u64::try_from(left).ok()).or(remembered.timeout).unwrap_or(TIMEOUT);
    let mut view = json!({
        "id": session_of(sandbox),
        "memory": memory(sandbox),
        "vcpus": processors(sandbox),
        "region": REGION,
        "timeout": timeout,
        "status": status(sandbox.state),
        "requestedAt": created.max(begun),
        "startedAt": begun,
        "createdAt": begun,
        "updatedAt": sandbox.state_since.as_millisecond(),
        "cwd": cwd(sandbox),
        "networkPolicy": network::view(&sandbox.network),
    });
    if let Some(runtime) = remembered.runtime {
        view["runtime"] = json!(runtime);
    }
    if let Some(snapshot) = remembered.snapshot {
        view["sourceSnapshotId"] = json!(snapshot);
    }
    if status(sandbox.state) == "stopped" {
        let stopped = sandbox.state_since.as_millisecond();
        view["stoppedAt"] = json!(stopped);
        view["duration"] = json!(stopped.saturating_sub(begun).max(0));
    }
    view
}

pub fn routes(sandbox: &Sandbox, origin: &Origin) -> Value {
    Memory::of(sandbox).ports.iter().map(|port| origin.route(sandbox, *port)).collect()
}

/// All of it.
pub fn whole(sandbox: &Sandbox, origin: &Origin) -> Value {
    json!({"sandbox": self::sandbox(sandbox), "session": session(sandbox), "routes": routes(sandbox, origin)})
}
