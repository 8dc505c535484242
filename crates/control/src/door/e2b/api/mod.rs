//! The control plane of the dialect: sandboxes, templates, and clear words where something is not served.

mod create;
mod describe;
mod lifecycle;
mod list;
mod logs;
mod metrics;
mod network;
mod templates;
mod unserved;

use axum::Router;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;

use super::destination::sandbox_id;
use super::error::{ApiError, plain};
use super::known;
use crate::border;
use crate::door::known::read;
use crate::door::table::{Needs, Table};
use crate::door::{parts, size};
use crate::{App, Caller, Error, Scope};

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
        .post("/sandboxes/{id}/snapshots", act, unserved::of_sandbox)
        .post("/sandboxes/{id}/fork", act, unserved::of_sandbox)
        .get("/snapshots", look, unserved::no_snapshots)
        .get("/templates", look, templates::list)
        .post("/templates", act, unserved::builds)
        .get("/v2/templates", look, templates::list)
        .post("/v2/templates", act, unserved::builds)
        .get("/default-templates", look, templates::defaults)
        .post("/v3/templates", act, unserved::builds)
        .post("/templates/tags", act, unserved::builds)
        .delete("/templates/tags", act, unserved::builds)
        .get("/templates/aliases/{alias}", look, templates::by_alias)
        .get("/templates/{id}", look, templates::one)
        .delete("/templates/{id}", act, templates::remove)
        .patch("/templates/{id}", act, unserved::builds)
        .get("/templates/{id}/tags", look, templates::tags)
        .patch("/v2/templates/{id}", act, unserved::builds)
        .get("/volumes", look, unserved::none)
        .post("/volumes", act, unserved::volumes)
        .get("/volumes/{id}", look, unserved::volumes)
        .delete("/volumes/{id}", act, unserved::volumes)
        .get("/secrets", look, unserved::none)
        .post("/secrets", act, unserved::secrets)
        .get("/secrets/{id}", look, unserved::secrets)
        .post("/secrets/{id}", act, unserved::secrets)
        .delete("/secrets/{id}", act, unserved::secrets)
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
        .layer(axum::extract::DefaultBodyLimit::max(border::MESSAGE))
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

/// Checks and counts the key that the route asks for, and takes the body of who has it.
async fn admit(State((app, needs)): State<(App, Needs)>, mut request: Request, next: Next) -> Response {
    if let Needs::Key(scope) = needs {
        let Some(secret) = secret(request.headers()) else {
            return plain(StatusCode::UNAUTHORIZED, "no API key: send it in the X-API-Key header");
        };
        let admitted = async {
            let caller = app.authenticate(secret).await?;
            app.admit(&caller).await?;
            caller.require(scope)?;
            Ok::<_, Error>(caller)
        };
        match admitted.await {
            Ok(caller) => request.extensions_mut().insert(caller),
            Err(error) => return ApiError::from(error).into_response(),
        };
        let (parts, body) = request.into_parts();
        let bytes = match size::whole(body, border::MESSAGE).await {
            Ok(bytes) => bytes,
            Err(error) => return ApiError::from(error).into_response(),
        };
        request = Request::from_parts(parts, axum::body::Body::from(bytes));
    }
    next.run(request).await
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
pub fn body<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let bytes = if bytes.trim_ascii().is_empty() { b"{}" } else { bytes };
    border::shape::check(bytes).map_err(Error::from)?;
    read(bytes).map_err(|error| ApiError::bad(format!("malformed body: {error}")))
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
