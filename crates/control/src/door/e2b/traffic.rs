//! Traffic for one sandbox: its daemon, its interpreter, or a port of its own.
//!
//! The order is the point: who asks is checked against the sandbox's own tokens, on the route that matched, before
//! anything wakes it. A sandbox that is asleep, dead, unknown or another's gives the same answer.

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use tower::ServiceExt as _;

use super::destination::{self, Reached as Named};
use super::envd::{self, Envd};
use super::error::{ApiError, for_reader, plain, sandbox_not_found};
use super::facts::Facts;
use super::files::{self, signature, signature::Operation};
use super::query::Query;
use super::watchers::Watchers;
use super::{Door, code_interpreter, preview};
use crate::door::link::{self, Entry};
use crate::door::parts;
use crate::door::relay::Inside;
use crate::door::table::{Needs, Table};
use crate::guest::Guest;
use crate::sandbox::{Sandbox, State as Life};
use crate::secret::same;
use crate::{App, Error};

/// The sandbox's tokens, as the dialect's clients show them.
const ACCESS: &str = "x-access-token";
pub const TRAFFIC: &str = "e2b-traffic-access-token";

/// The sandbox that a request to a daemon names, still to be found.
#[derive(Clone)]
struct Addressed {
    id: String,
    port: u16,
}

/// The sandbox that a request was let into.
#[derive(Clone)]
pub struct Reached {
    pub app: App,
    pub sandbox: Sandbox,
    pub guest: Guest,
}

/// What the guard of both daemons holds.
#[derive(Clone)]
pub struct Guard {
    pub app: App,
    pub watchers: std::sync::Arc<Watchers>,
}

impl Guard {
    /// A daemon's router: every row behind the guard.
    pub fn around(&self, table: Table<()>) -> Router {
        let guard =
            |needs, handler: MethodRouter<()>| handler.route_layer(from_fn_with_state((self.clone(), needs), admit));
        let no_route = |uri: Uri| async move { plain(StatusCode::NOT_FOUND, &format!("no route {}", uri.path())) };
        let no_method = |uri: Uri| async move {
            plain(StatusCode::METHOD_NOT_ALLOWED, &format!("{} does not take this method", uri.path()))
        };
        let router = table.guarded(guard).fallback(no_route).method_not_allowed_fallback(no_method);
        router.layer(from_fn(within_budget))
    }
}

/// The path, query and headers of every call to a daemon.
async fn within_budget(request: Request<Body>, next: Next) -> Response {
    match parts::check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(excess) => plain(StatusCode::BAD_REQUEST, &excess.to_string()),
    }
}

/// Lets a request to a daemon in, or not; wakes the sandbox only then.
async fn admit(State((guard, needs)): State<(Guard, Needs)>, mut request: Request<Body>, next: Next) -> Response {
    let Some(Addressed { id, port }) = request.extensions_mut().remove::<Addressed>() else {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "a request to a daemon that names no sandbox");
    };
    let sandbox = match guard.app.sandbox_any(&id).await {
        Ok(sandbox) => sandbox,
        Err(error) => return unreachable(&id, &error, request.headers()),
    };
    if let Some((status, reason)) = refusal(&guard.app, &sandbox, port, needs, &request) {
        return plain(status, &reason);
    }
    // Asking whether it lives must not bring it to life.
    if needs == Needs::Life {
        return if sandbox.state == Life::Running { next.run(request).await } else { sandbox_not_found(&id) };
    }
    let (sandbox, guest) = match guard.app.reach_into(sandbox).await {
        Ok(reached) => reached,
        Err(error) => return unreachable(&id, &error, request.headers()),
    };
    let daemon = Envd {
        id,
        guest: guest.clone(),
        env: sandbox.env.clone(),
        template: sandbox.template.clone(),
        default_user: sandbox.user.clone(),
        default_cwd: sandbox.cwd.clone(),
        watchers: guard.watchers,
    };
    request.extensions_mut().insert(daemon);
    request.extensions_mut().insert(Reached { app: guard.app, sandbox, guest });
    next.run(request).await
}

/// Why a request may not have what the route gives; nothing where it may.
fn refusal(
    app: &App,
    sandbox: &Sandbox,
    port: u16,
    needs: Needs,
    request: &Request<Body>,
) -> Option<(StatusCode, String)> {
    let shows = |name: &str, token: &str| {
        same(request.headers().get(name).map(HeaderValue::as_bytes).unwrap_or_default(), token)
    };
    let secure = Facts::of(sandbox).secure;
    // Who shows no token at all may be from before tokens: that has a remedy of its own.
    let reason = if request.headers().contains_key(ACCESS) { envd::UNAUTHORISED } else { envd::NO_TOKEN };
    let unauthorised = (StatusCode::UNAUTHORIZED, reason.to_owned());
    // The interpreter is a port like others, with more to ask for.
    if port == code_interpreter::PORT && !sandbox.public && !shows(TRAFFIC, &sandbox.traffic_token) {
        return Some((StatusCode::FORBIDDEN, NO_TRAFFIC.to_owned()));
    }
    let access = shows(ACCESS, &sandbox.access_token);
    match needs {
        Needs::Nothing | Needs::Life => None,
        Needs::Access => (secure && !access).then_some(unauthorised),
        Needs::AccessOrTraffic => {
            (secure && !access && !shows(TRAFFIC, &sandbox.traffic_token)).then_some(unauthorised)
        }
        Needs::AccessOrSignature => {
            files::refusal(secure.then_some(&sandbox.access_token), request, app.now().as_second())
        }
        // No row of a daemon asks for these.
        Needs::Key(_)
        | Needs::KeyOnSocket
        | Needs::Toolbox(_)
        | Needs::ToolboxFile(_)
        | Needs::SignedUpload
        | Needs::VolumeToken
        | Needs::Port
        | Needs::Peer => Some(unauthorised),
    }
}

const NO_TRAFFIC: &str = "missing or invalid traffic access token";

impl Door {
    /// A request whose host name, or whose headers, name a sandbox and a port of it.
    pub async fn traffic(&self, id: &str, port: u16, named: Named, mut request: Request<Body>) -> Response {
        if named == Named::ByHeader {
            strip_prefix(&mut request);
        }
        let daemon = match port {
            envd::PORT => &self.envd,
            code_interpreter::PORT => &self.interpreter,
            port => return self.port(id, port, named, request).await,
        };
        let mut response = if request.method() == Method::OPTIONS {
            // A browser asks what it may send: that is the same for every sandbox, and wakes none.
            StatusCode::NO_CONTENT.into_response()
        } else {
            request.extensions_mut().insert(Addressed { id: id.to_owned(), port });
            daemon.clone().oneshot(request).await.unwrap_or_else(|never| match never {})
        };
        open_to_browsers(response.headers_mut());
        response
    }

    /// A port that a program inside listens on.
    async fn port(&self, id: &str, port: u16, named: Named, request: Request<Body>) -> Response {
        let sandbox = match self.app.sandbox_any(id).await {
            Ok(sandbox) => sandbox,
            Err(error) => return unreachable(id, &error, request.headers()),
        };
        let (parts, body) = request.into_parts();
        let entry = link::enter(&sandbox, port, &parts, self.app.now());
        let request = Request::from_parts(parts, body);
        match entry {
            Entry::Open => {}
            // Where the address is the API's own, no cookie is left at it.
            Entry::Redirected(answer) if named == Named::ByHost => return answer,
            Entry::Redirected(_) => {}
            Entry::Ambiguous(reason) => return plain(StatusCode::BAD_REQUEST, reason),
            Entry::Closed => {
                let advice = "It is private: open it with a link, which <code>cove link</code> makes.";
                let answer = plain(StatusCode::FORBIDDEN, NO_TRAFFIC);
                return for_reader(request.headers(), answer, "This sandbox does not know you", advice);
            }
        }
        let facts = Facts::of(&sandbox);
        match self.app.reach_into(sandbox).await {
            Ok((sandbox, guest)) => {
                let inside = Inside { app: &self.app, sandbox: &sandbox, guest: &guest, port };
                preview::forward(inside, named, facts.mask_request_host.as_deref(), request).await
            }
            Err(error) => unreachable(id, &error, request.headers()),
        }
    }

    /// `/files?signature=…` without a word on which sandbox: the one whose token made the signature.
    pub async fn signed_file(&self, request: Request<Body>) -> Response {
        let query = Query::of(request.uri());
        let operation = if request.method() == http::Method::POST { Operation::Write } else { Operation::Read };
        let now = self.app.now().as_second();
        let made = |token: &str| {
            let checked = signature::check(&query, operation, token, now);
            !matches!(checked, Err(signature::Invalid::Wrong | signature::Invalid::Missing))
        };
        let signer = match self.signers.find(&self.app, made).await {
            Ok(signer) => signer,
            Err(error) => return ApiError::from(error).into_response(),
        };
        match signer {
            Some(id) => self.traffic(&id, envd::PORT, Named::ByHeader, request).await,
            None => plain(StatusCode::UNAUTHORIZED, signature::Invalid::Wrong.as_str()),
        }
    }
}

fn unreachable(id: &str, error: &Error, headers: &HeaderMap) -> Response {
    match error {
        Error::Internal { detail } => {
            tracing::error!(sandbox = id, detail, "sandbox traffic");
            plain(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())
        }
        Error::Elsewhere { .. } => plain(StatusCode::MISDIRECTED_REQUEST, &error.to_string()),
        // Its server is down.
        Error::Exhausted { .. } => plain(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
        Error::Unavailable { .. } | Error::Full(_) => ApiError::again(error).into_response(),
        _ => {
            let advice = "It was ended, it sleeps, or it never was.";
            for_reader(headers, sandbox_not_found(id), "No such sandbox", advice)
        }
    }
}

/// Below the prefix a daemon's paths are its own.
pub fn strip_prefix(request: &mut Request<Body>) {
    let Some(path) = destination::strip(request.uri().path()) else { return };
    let text = match request.uri().query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let mut parts = request.uri().clone().into_parts();
    if let Ok(stripped) = PathAndQuery::try_from(text) {
        parts.path_and_query = Some(stripped);
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
}

/// Clients run in browsers too; the token is the right, not the origin.
pub fn open_to_browsers(headers: &mut HeaderMap) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
}
