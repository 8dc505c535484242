//! What a sandbox is: its home, its work directory, its ports.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use axum::extract::Path;
use axum::response::Response;
use axum::routing::{any, get, post};
use axum::{Extension, Json, Router};
use cove_protocol::{Reply, Request};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Machine;
use super::files::unexpected;
use crate::door::daytona::body::Lenient;
use crate::door::daytona::forward;
use crate::door::daytona::problem::{Answer, Problem};

pub fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/user-home-dir", get(home))
        .route("/project-dir", get(work_directory))
        .route("/work-dir", get(work_directory))
        .route("/version", get(version))
        .route("/system/metrics", get(measurements))
        .route("/env", post(set_env))
        .route("/proxy/{port}/{*path}", any(proxy))
        .route("/port", get(ports))
        .route("/port/{port}/in-use", get(port_in_use))
        .route("/lsp/{*call}", any(no_language_servers))
        .route("/computeruse/{*call}", any(no_desktop))
        .route("/init", post(|| async { Json(json!({ "message": "ready" })) }))
}

async fn absolute(machine: &Machine, path: &str) -> Answer<String> {
    match machine.guest.call(&Request::Stat { path: path.into(), user: None, follow: true }).await? {
        Reply::Entry { entry } => Ok(entry.path),
        other => Err(unexpected(&other)),
    }
}

async fn home(Extension(machine): Extension<Machine>) -> Answer<Json<Value>> {
    Ok(Json(json!({ "dir": absolute(&machine, "~").await? })))
}

async fn work_directory(Extension(machine): Extension<Machine>) -> Answer<Json<Value>> {
    let directory = match &machine.cwd {
        Some(cwd) => cwd.clone(),
        None => absolute(&machine, "~").await?,
    };
    Ok(Json(json!({ "dir": directory })))
}

async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// How long apart the two looks are that make a rate of use.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// From the host's own accounts, which the sandbox cannot forge.
async fn measurements(Extension(machine): Extension<Machine>) -> Answer<Json<Value>> {
    let Machine { app, sandbox, .. } = &machine;
    let provider = app.provider(&sandbox.provider)?;
    let look = || async { provider.usage(&sandbox.id).await.map_err(crate::Error::from) };
    let (first, began) = (look().await?, Instant::now());
    tokio::time::sleep(BETWEEN_LOOKS).await;
    let (usage, elapsed) = (look().await?, began.elapsed());
    let busy = usage.cpu_ns.saturating_sub(first.cpu_ns) as f64 / elapsed.as_nanos() as f64;
    let disk = usage.disk_limit.or(sandbox.limits.disk).unwrap_or(0);
    let now = app.now();
    Ok(Json(json!({
        "cpuCount": sandbox.limits.cpus.ceil().max(1.0) as u64,
        "cpuUsedPct": 100.0 * busy / sandbox.limits.cpus,
        "memTotal": sandbox.limits.memory,
        "memUsed": usage.memory,
        "memCache": usage.memory_cache,
        "diskTotal": disk,
        "diskUsed": usage.disk,
        "diskFree": disk.saturating_sub(usage.disk),
        "timestamp": now.to_string(),
        "timestampUnix": now.as_second(),
    })))
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct EnvChange {
    set: BTreeMap<String, String>,
    unset: Vec<String>,
    unset_value_prefix: Option<String>,
}

/// What processes started from now on inherit, also after a restart.
async fn set_env(Extension(machine): Extension<Machine>, Lenient(body): Lenient<EnvChange>) -> Answer<Json<Value>> {
    let change = move |env: &mut BTreeMap<String, String>| {
        let prefix = body.unset_value_prefix.as_deref().filter(|prefix| !prefix.is_empty());
        env.retain(|name, value| !body.unset.contains(name) && !prefix.is_some_and(|prefix| value.starts_with(prefix)));
        env.extend(body.set.clone());
    };
    let env = machine.app.change_env(&machine.sandbox.id, change).await?.env;
    let request = Request::Configure { env: Some(env), default_user: None, default_cwd: None };
    machine.guest.call(&request).await?;
    Ok(Json(json!({ "message": "environment updated" })))
}

async fn proxy(
    Extension(machine): Extension<Machine>,
    Path((port, _)): Path<(u16, String)>,
    mut request: axum::extract::Request,
) -> Answer<Response> {
    // The path as it was written: what is encoded stays so.
    let own = format!("/proxy/{port}");
    let text = request.uri().to_string();
    let rest = text.strip_prefix(&own).unwrap_or("/").to_owned();
    *request.uri_mut() = rest.parse().map_err(|_| Problem::bad_request("the path cannot be passed on"))?;
    forward::to_port(&machine.guest, port, "", request).await
}

async fn listening(machine: &Machine) -> Answer<Vec<u16>> {
    match machine.guest.call(&Request::Ports).await? {
        Reply::Ports { ports } => {
            let mut ports: Vec<u16> = ports.into_iter().map(|port| port.port).collect();
            ports.sort_unstable();
            ports.dedup();
            Ok(ports)
        }
        other => Err(unexpected(&other)),
    }
}

async fn ports(Extension(machine): Extension<Machine>) -> Answer<Json<Value>> {
    Ok(Json(json!({ "ports": listening(&machine).await? })))
}

async fn port_in_use(Extension(machine): Extension<Machine>, Path((port,)): Path<(u16,)>) -> Answer<Json<Value>> {
    Ok(Json(json!({ "isInUse": listening(&machine).await?.contains(&port) })))
}

async fn no_language_servers() -> Problem {
    Problem::not_offered("language servers are not offered by this server; run one in a session and speak to it there")
}

async fn no_desktop() -> Problem {
    Problem::not_offered("this sandbox's template has no desktop, so computer use is not offered")
}
