//! The control plane of the dialect: sandboxes, templates and their builds, snapshots, volumes, and clear words where
//! something is not served.

mod builds;
mod create;
mod describe;
mod fork;
mod lifecycle;
mod list;
mod logs;
mod metrics;
mod network;
mod snapshots;
mod tags;
mod templates;
mod unserved;
mod volumes;

use std::collections::HashMap;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;

use super::destination::sandbox_id;
use super::error::{ApiError, plain};
use super::{known, upload, volume_content};
use crate::border;
use crate::door::known::read;
use crate::door::table::{Needs, Table};
use crate::door::{parts, size};
use crate::{App, Caller, Error, Scope, heavy};

/// The control plane's routes and what each asks for.
pub fn table() -> Table<App> {
    let (look, act) = (Needs::Key(Scope::Read), Needs::Key(Scope::Write));
    Table::new()
        .get("/health", Needs::Nothing, || async { StatusCode::NO_CONTENT })
        .post("/sandboxes", act, create::v1)
        .get("/sandboxes", look, list::v1)
        .post("/v2/sandboxes", act, create::v2)
        .get("/v2/sandboxes", look, list::v2)
        .get("/sandboxes/metrics", look, metrics::of_many)
        .get("/sandboxes/{id}", look, describe::one)
        .delete("/sandboxes/{id}", act, lifecycle::kill)
        .post("/sandboxes/{id}/connect", act, lifecycle::connect)
        .post("/v2/sandboxes/{id}/connect", act, lifecycle::connect)
        .post("/sandboxes/{id}/resume", act, lifecycle::resume)
        .post("/sandboxes/{id}/pause", act, lifecycle::pause)
        .post("/sandboxes/{id}/timeout", act, lifecycle::timeout)
        .post("/sandboxes/{id}/refreshes", act, lifecycle::refresh)
        .put("/sandboxes/{id}/network", act, network::replace)
        .get("/sandboxes/{id}/metrics", look, metrics::of_one)
        .get("/sandboxes/{id}/logs", look, logs::v1)
        .get("/v2/sandboxes/{id}/logs", look, logs::v2)
        .post("/sandboxes/{id}/snapshots", act, snapshots::create)
        .post("/sandboxes/{id}/fork", act, fork::fork)
        .get("/snapshots", look, snapshots::list)
        .and(of_templates())
        .and(of_volumes())
        .get("/secrets", look, unserved::none)
        .post("/secrets", act, unserved::secrets)
        .get("/secrets/{id}", look, unserved::secrets)
        .post("/secrets/{id}", act, unserved::secrets)
        .delete("/secrets/{id}", act, unserved::secrets)
}

fn of_templates() -> Table<App> {
    let (look, act) = (Needs::Key(Scope::Read), Needs::Key(Scope::Write));
    Table::new()
        .get("/templates", look, templates::v1)
        .get("/v2/templates", look, templates::v2)
        .get("/default-templates", look, templates::defaults)
        .get("/templates/aliases/{alias}", look, templates::by_alias)
        .get("/templates/{id}", look, templates::one)
        .delete("/templates/{id}", act, templates::remove)
        .patch("/templates/{id}", act, templates::update)
        .patch("/v2/templates/{id}", act, templates::update)
        .post("/templates", act, builds::v1)
        .post("/templates/{id}", act, builds::v1)
        .post("/templates/{id}/builds/{build}", act, builds::v1)
        .post("/v2/templates", act, builds::v2)
        .post("/v3/templates", act, builds::v3)
        // What it answers is a right to write.
        .get("/templates/{id}/files/{hash}", act, builds::files)
        .put("/templates/{id}/files/{hash}", Needs::SignedUpload, upload::put)
        .post("/v2/templates/{id}/builds/{build}", act, builds::start)
        .get("/templates/{id}/builds/{build}/status", look, builds::status)
        .get("/templates/{id}/builds/{build}/logs", look, builds::logs)
        .post("/templates/tags", act, tags::assign)
        .delete("/templates/tags", act, tags::remove)
        .get("/templates/{id}/tags", look, tags::list)
        .get("/templates/{id}/tags/count", look, tags::count)
        .get("/templates/{id}/tags/exists", look, tags::exists)
        .get("/templates/{id}/tags/groups", look, tags::groups)
        .get("/templates/{id}/tags/{tag}/assignments", look, tags::assignments)
}

fn of_volumes() -> Table<App> {
    let (look, act) = (Needs::Key(Scope::Read), Needs::Key(Scope::Write));
    Table::new()
        .get("/volumes", look, volumes::list)
        .post("/volumes", act, volumes::create)
        .get("/volumes/{id}", look, volumes::one)
        .delete("/volumes/{id}", act, volumes::remove)
        .get("/volumecontent/{id}/dir", Needs::VolumeToken, volume_content::list)
        .post("/volumecontent/{id}/dir", Needs::VolumeToken, volume_content::make_directory)
        .get("/volumecontent/{id}/file", Needs::VolumeToken, volume_content::download)
        .put("/volumecontent/{id}/file", Needs::VolumeToken, volume_content::upload)
        .get("/volumecontent/{id}/path", Needs::VolumeToken, volume_content::one)
        .patch("/volumecontent/{id}/path", Needs::VolumeToken, volume_content::change)
        .delete("/volumecontent/{id}/path", Needs::VolumeToken, volume_content::remove)
}

pub fn router(app: App) -> Router {
    // What a call takes is checked once it is known who asks.
    let guard = |needs, handler: MethodRouter<App>| {
        let strict = handler.route_layer(from_fn(known::guard));
        strict.route_layer(from_fn_with_state((app.clone(), needs), admit))
    };
    table()
        .guarded(guard)
        .fallback(|uri: http::Uri| async move { plain(StatusCode::NOT_FOUND, &format!("no route {}", uri.path())) })
        .layer(from_fn(within_budget))
        .with_state(app)
}

/// The sandbox that a path names; old clients put the id of a machine behind its own.
pub struct Id(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(word)) => Ok(Id(sandbox_id(&word).to_owned())),
            Err(rejection) => Err(plain(StatusCode::BAD_REQUEST, &rejection.body_text())),
        }
    }
}

/// Checks what the route asks for, and hands on who calls.
async fn admit(State((app, needs)): State<(App, Needs)>, request: Request, next: Next) -> Response {
    let admitted = match needs {
        Needs::Nothing => return next.run(request).await,
        Needs::Key(scope) => with_key(&app, scope, request).await.map_err(ApiError::into_response),
        Needs::SignedUpload => with_link(&app, request).await.map_err(ApiError::into_response),
        Needs::VolumeToken => with_volume(&app, request).await.map_err(volume_content::Refused::into_response),
        // No other right opens anything here.
        _ => Err(ApiError::from(Error::internal("a route of the API that asks for a sandbox's token")).into_response()),
    };
    match admitted {
        Ok(request) => next.run(request).await,
        Err(refusal) => refusal,
    }
}

/// Checks and counts the key, and takes the body of who has it.
async fn with_key(app: &App, scope: Scope, mut request: Request) -> Result<Request, ApiError> {
    let Some(secret) = secret(request.headers()) else {
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, "no API key: send it in the X-API-Key header"));
    };
    let caller = app.authenticate(secret).await?;
    app.admit(&caller).await?;
    caller.require(scope)?;
    request.extensions_mut().insert(caller);
    let (parts, body) = request.into_parts();
    let bytes = size::whole(body, border::MESSAGE).await?;
    Ok(Request::from_parts(parts, Body::from(bytes)))
}

/// A link speaks for the key that asked for it. The body is a stream.
async fn with_link(app: &App, request: Request) -> Result<Request, ApiError> {
    let (mut parts, body) = request.into_parts();
    let names = named(&mut parts).await;
    let name = |name: &str| names.get(name).map(String::as_str).unwrap_or_default();
    let caller = upload::admit(app, name("id"), name("hash"), &parts.uri).await?;
    parts.extensions.insert(caller);
    Ok(Request::from_parts(parts, body))
}

async fn with_volume(app: &App, request: Request) -> Result<Request, volume_content::Refused> {
    let (mut parts, body) = request.into_parts();
    let names = named(&mut parts).await;
    let id = names.get("id").map(String::as_str).unwrap_or_default();
    let volume = volume_content::admit(app, id, &parts.headers).await?;
    parts.extensions.insert(volume);
    Ok(Request::from_parts(parts, body))
}

/// What the route's path names; nothing where it is no text.
async fn named(parts: &mut Parts) -> HashMap<String, String> {
    Path::from_request_parts(parts, &()).await.map(|Path(names)| names).unwrap_or_default()
}

/// Who calls, as the guard found.
pub struct By(pub Caller);

impl FromRequestParts<App> for By {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, ApiError> {
        let caller = parts.extensions.get::<Caller>().cloned();
        Ok(By(caller.ok_or_else(|| Error::internal("a route without its guard"))?))
    }
}

fn secret(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get("x-api-key") {
        return key.to_str().ok().filter(|key| !key.is_empty());
    }
    let (scheme, token) = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// A body of JSON; an empty one has every field absent. Whatever its content type says.
pub async fn body<T: DeserializeOwned + Send + 'static>(bytes: Bytes) -> Result<T, ApiError> {
    let bytes = if bytes.trim_ascii().is_empty() { Bytes::from_static(b"{}") } else { bytes };
    let parsed = heavy::run(bytes.len(), heavy::SMALL, move || {
        border::shape::check(&bytes).map_err(Error::from)?;
        Ok::<_, Error>(read(&bytes))
    });
    parsed.await?.map_err(|error| ApiError::bad(format!("malformed body: {error}")))
}

/// The path, query and headers of every call.
async fn within_budget(request: Request, next: Next) -> Response {
    match parts::check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(excess) => ApiError::from(Error::from(excess)).into_response(),
    }
}

/// Where previews are, as the client that asked can reach them: the configured domain, with the port that it used
/// itself unless the domain says one. Over https it is the name that the certificate bears.
pub fn domain(app: &App, headers: &HeaderMap, uri: &http::Uri) -> String {
    let secure = headers.get("x-forwarded-proto").is_some_and(|protocol| protocol == "https");
    let certified = crate::tls::certified_domain(&app.config().domain);
    let domain = if secure && !app.config().domain.contains(':') { &certified } else { &app.config().domain };
    let host = uri.authority().map(|authority| authority.as_str());
    let host = host.or_else(|| headers.get(http::header::HOST)?.to_str().ok()).unwrap_or_default();
    // Who asked at `api.{domain}` finds its sandboxes at `{port}-{id}.{domain}`.
    let name = host.split(':').next().unwrap_or_default();
    if let Some(rest) = super::destination::api_domain(name, domain) {
        return host.strip_prefix("api.").unwrap_or(rest).to_owned();
    }
    let Some((name, port)) = host.rsplit_once(':') else { return domain.clone() };
    let local = name == "localhost" || name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    let ours = local || name == domain || name.ends_with(&format!(".{domain}"));
    if domain.contains(':') || !ours { domain.clone() } else { format!("{domain}:{port}") }
}

/// A sandbox that another organisation owns is not there; one that is being destroyed is not there any more.
pub async fn find(app: &App, caller: &Caller, id: &str) -> Result<crate::sandbox::Sandbox, ApiError> {
    use crate::sandbox::State;
    let sandbox = app.sandbox(caller, id).await?;
    match sandbox.state {
        State::Destroying | State::Destroyed => Err(ApiError::from(Error::not_found("sandbox", id))),
        _ => Ok(sandbox),
    }
}
