//! What a sandbox is: its home, its work directory, its ports.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use axum::extract::Path;
use axum::response::Response;
use axum::{Extension, Json};
use cove_protocol::{Reply, Request};
use serde::Deserialize;
use serde_json::{Value, json};

use super::files::unexpected;
use super::{Machine, READ, WRITE};
use crate::door::daytona::body::Lenient;
use crate::door::daytona::forward;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::relay::Inside;
use crate::door::table::Table;

pub fn table() -> Table<()> {
    Table::new()
        .get("/user-home-dir", READ, home)
        .get("/project-dir", READ, work_directory)
        .get("/work-dir", READ, work_directory)
        .get("/version", READ, version)
        .get("/system/metrics", READ, measurements)
        .post("/env", WRITE, set_env)
        // What listens there may do anything that it is asked to, whatever the method.
        .any("/proxy/{port}", WRITE, proxy)
        // As links end: a wildcard does not match nothing.
        .any("/proxy/{port}/", WRITE, proxy)
        .any("/proxy/{port}/{*path}", WRITE, proxy)
        .get("/port", READ, ports)
        .get("/port/{port}/in-use", READ, port_in_use)
        .any("/lsp/{*call}", READ, no_language_servers)
        .any("/computeruse/{*call}", READ, no_desktop)
        .post("/init", WRITE, || async { Json(json!({ "message": "ready" })) })
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
    let handle = sandbox.handle();
    let look = || async { provider.usage(&handle).await.map_err(crate::Error::from) };
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
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
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
    Path(path): Path<BTreeMap<String, String>>,
    mut request: axum::extract::Request,
) -> Answer<Response> {
    let port = path.get("port").and_then(|port| port.parse::<u16>().ok()).filter(|port| *port > 0);
    let port = port.ok_or_else(|| Problem::bad_request("the port is not between 1 and 65535"))?;
    // The path as it was written: what is encoded stays so.
    let rest = request.uri().path().splitn(4, '/').nth(3).unwrap_or_default();
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let below = format!("/daytona/toolbox/{}/proxy/{port}", machine.id);
    *request.uri_mut() =
        format!("/{rest}{query}").parse().map_err(|_| Problem::bad_request("the path cannot be passed on"))?;
    let Machine { app, sandbox, guest, .. } = &machine;
    forward::to_port(Inside { app, sandbox, guest, port }, &below, request).await
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
