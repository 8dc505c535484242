//! The API dialects on one port. A door translates and decides nothing.
//!
//! ```text
//!   by name   {port}-{id}.{domain} · E2b-Sandbox-Id      a sandbox: E2B's daemons at 49983 and 49999, else its own port
//!             api.{domain} · X-API-Key at the root       E2B's API
//!   by path   /api       native
//!             /e2b       E2B's API
//!             /daytona   Daytona's API, toolbox and previews
//!             /vercel    Vercel's API
//!             / · /healthz · /metrics
//!             /peer      other servers of the same store
//! ```
//!
//! A name decides before any path does. Every route of every door is a row of a table with what it asks for ([`table`]);
//! [`routes`] lists them all.

mod credentials;
pub mod daytona;
pub mod e2b;
pub(crate) mod entrance;
mod form;
mod known;
mod layers;
mod link;
pub mod native;
mod observe;
mod parts;
pub(crate) mod peer;
mod prometheus;
mod range;
mod relay;
mod root;
mod shield;
mod size;
pub mod table;
pub mod vercel;
pub mod walk;
mod websocket;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};

use crate::sandbox::Sandbox;
use crate::{App, Error};
use table::{Needs, Route, Table};

/// Every door of the server.
pub fn router(app: App) -> Router {
    let e2b = e2b::Door::new(app.clone());
    let director = peer::Director::new(app.clone());
    table()
        .guarded(|_, handler| handler)
        .with_state(app.clone())
        .nest("/api", native::router(app.clone()))
        .nest("/e2b", e2b.api())
        .nest("/daytona", daytona::router(app.clone()))
        .nest("/vercel", vercel::router(app.clone()))
        .fallback(root::no_such_page)
        .layer(axum::middleware::from_fn_with_state(e2b, e2b::by_name))
        .layer(axum::middleware::from_fn_with_state(app, observe::observe))
        // Outermost: what another server must answer none of our doors can.
        .layer(axum::middleware::from_fn_with_state(director, peer::direct))
}

/// What the doors remember of a copy of a sandbox, whichever of them makes it: what the sandbox is to the clients of
/// each, and nothing that opens the source.
fn note_of_copy(source: &Sandbox) -> Result<serde_json::Value, Error> {
    let others = vercel::note_of_copy(source, &daytona::note_of_copy(source)?);
    Ok(e2b::facts::Facts::of(source).into_note(&others))
}

/// What belongs to no dialect. All but the last are everybody's; that one asks for its proof itself.
fn table() -> Table<App> {
    Table::new()
        .get("/", Needs::Nothing, root::page)
        .get("/healthz", Needs::Nothing, health)
        .get("/metrics", Needs::Nothing, prometheus::metrics)
        .get("/peer/layers/{id}", Needs::Peer, layers::send)
}

/// How a request comes to a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// Below this path.
    Path(&'static str),
    /// By a sandbox's name, at this port of it.
    Port(u16),
}

/// Every route of every door, and the way to it: what [`router`] serves, as data.
pub fn routes() -> Vec<(At, Route)> {
    let tables = [
        (At::Path(""), table().routes()),
        (At::Path("/api"), native::routes()),
        (At::Path("/e2b"), e2b::api::table().routes()),
        (At::Port(e2b::envd::PORT), e2b::envd::table().routes()),
        (At::Port(e2b::code_interpreter::PORT), e2b::code_interpreter::table().routes()),
        (At::Path("/daytona/api"), daytona::api_routes()),
        (At::Path("/daytona/toolbox/{id}"), daytona::toolbox_routes()),
        (At::Path("/daytona/preview"), daytona::preview_routes()),
        (At::Path("/daytona/storage"), daytona::storage_routes()),
        (At::Path("/vercel/api"), vercel::routes()),
    ];
    tables.into_iter().flat_map(|(at, rows)| rows.into_iter().map(move |row| (at, row))).collect()
}

/// Which sandbox a request is about: asks the door that it is for.
fn subject(app: &App, method: &Method, uri: &Uri, headers: &HeaderMap) -> peer::Subject {
    let below = |prefix: &str| uri.path().strip_prefix(prefix).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    if let Some(subject) = e2b::subject(app, method, uri, headers) {
        return subject;
    }
    match (below("/api"), below("/daytona"), below("/vercel")) {
        (Some(path), ..) => native::subject(method, path),
        (None, Some(path), _) => daytona::subject(path),
        (None, None, Some(path)) => vercel::subject(path),
        (None, None, None) => peer::Subject::Nothing,
    }
}

/// 200 when the server is ready for all that may be asked of it, 503 with the reason when it is not. In detail for those who
/// take JSON.
async fn health(State(app): State<App>, headers: HeaderMap) -> Response {
    let checks = app.health().await;
    let ok = checks.iter().all(|check| check.ok);
    let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let takes_json = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let mut response = if takes_json.contains("application/json") {
        let word = if ok { "ok" } else { "in trouble" };
        (status, Json(serde_json::json!({"status": word, "checks": checks}))).into_response()
    } else {
        let wrong: Vec<String> = checks.into_iter().filter_map(|check| check.message).collect();
        (status, if ok { "ok\n".to_owned() } else { format!("{}\n", wrong.join("\n")) }).into_response()
    };
    if !ok {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
    }
    response
}
