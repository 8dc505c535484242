//! Who may use a sandbox's toolbox: the holder of a key of its organisation, of the sandbox's own token, or of a URL
//! signed for one file.

use axum::Router;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::Response;
use tower::ServiceExt as _;

use super::Door;
use super::problem::{Answer, Problem, Speaker};
use super::query::Pairs;
use super::token::Memory;
use super::toolbox::Machine;
use crate::guest::Guest;
use crate::sandbox::Sandbox;
use crate::sandbox::state::Denied;
use crate::secret::same;
use crate::{Caller, Error, Scope};

pub const TOKEN_HEADER: &str = "x-daytona-preview-token";
pub const TOKEN_QUERY: &str = "DAYTONA_SANDBOX_AUTH_KEY";
const SKIP_ACTIVITY: &str = "x-daytona-skip-last-activity-update";

/// The key of `Authorization: Bearer`.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
}

/// A caller whose key was checked and counted, for the control plane's handlers. An organisation header is ignored: the key says
/// whose it is, and one SDK call puts something else there.
pub struct Authenticated(pub Caller);

impl FromRequestParts<Door> for Authenticated {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Problem> {
        let key = bearer(&parts.headers).ok_or_else(unauthorised)?;
        let caller = door.app.authenticate(key).await?;
        door.app.admit(&caller).await?;
        Ok(Authenticated(caller))
    }
}

pub fn unauthorised() -> Problem {
    Problem::api(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "no API key: send Authorization: Bearer KEY")
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let (status, code) = match &error {
            Error::Unauthenticated(_) => (StatusCode::UNAUTHORIZED, "UNAUTHORIZED"),
            Error::Forbidden(_) => (StatusCode::FORBIDDEN, "FORBIDDEN"),
            Error::NotFound { .. } => (StatusCode::NOT_FOUND, "NOT_FOUND"),
            Error::Invalid { .. } => (StatusCode::BAD_REQUEST, "BAD_REQUEST"),
            Error::Conflict(_) => (StatusCode::CONFLICT, "CONFLICT"),
            Error::Denied(Denied { state, .. }) if state.is_in_transition() => (StatusCode::CONFLICT, "CONFLICT"),
            Error::Denied(_) => (StatusCode::BAD_REQUEST, "BAD_REQUEST"),
            Error::Quota { .. } => (StatusCode::FORBIDDEN, "QUOTA_EXCEEDED"),
            Error::RateLimited(_) => (StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_REQUESTS"),
            Error::Exhausted { .. } => (StatusCode::SERVICE_UNAVAILABLE, "NO_CAPACITY"),
            Error::Unsupported(_) => (StatusCode::UNPROCESSABLE_ENTITY, "UNPROCESSABLE_ENTITY"),
            Error::Elsewhere { .. } => (StatusCode::MISDIRECTED_REQUEST, "MISDIRECTED_REQUEST"),
            Error::Guest(_) => {
                let Error::Guest(error) = error else { unreachable!("matched above") };
                return error.into();
            }
            Error::Archive { .. } => (StatusCode::BAD_GATEWAY, "BAD_GATEWAY"),
            Error::Unavailable { detail } => {
                tracing::error!(detail, "request failed");
                (StatusCode::SERVICE_UNAVAILABLE, "SERVICE_UNAVAILABLE")
            }
            Error::Full(_) => (StatusCode::INSUFFICIENT_STORAGE, "INSUFFICIENT_STORAGE"),
            Error::Internal { detail } => {
                tracing::error!(detail, "request failed");
                (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_SERVER_ERROR")
            }
        };
        Problem { retry_after: error.retry_after(), ..Problem::api(status, code, message) }
    }
}

/// A toolbox call that finds its sandbox asleep: the original's answers to this misled people.
pub fn not_running(error: Error) -> Problem {
    match &error {
        Error::Denied(_) => Problem {
            status: StatusCode::CONFLICT,
            code: "SANDBOX_NOT_RUNNING",
            speaker: Speaker::Proxy,
            message: error.to_string(),
            retry_after: None,
        },
        _ => error.into(),
    }
}

/// `/{sandbox}/path…`, and `/{sandbox}/toolbox/path…` of old.
fn split(uri: &Uri) -> Option<(String, Uri)> {
    let (sandbox, rest) = uri.path().strip_prefix('/')?.split_once('/')?;
    let rest = rest.strip_prefix("toolbox/").unwrap_or(rest);
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    Some((sandbox.to_owned(), format!("/{rest}{query}").parse().ok()?))
}

pub async fn toolbox(door: Door, toolbox: Router, mut request: Request) -> Answer<Response> {
    let Some((id, uri)) = split(request.uri()) else {
        return Err(Problem::api(StatusCode::NOT_FOUND, "NOT_FOUND", "a toolbox call names a sandbox and a path"));
    };
    *request.uri_mut() = uri;
    let (parts, body) = request.into_parts();
    let (sandbox, guest) = admit(&door, &id, &parts).await?;
    let mut request = Request::from_parts(parts, body);
    let cwd = sandbox.cwd.clone();
    let Door { app, desk } = door;
    request.extensions_mut().insert(Machine { id: sandbox.id.to_string(), guest, cwd, desk, app, sandbox });
    Ok(toolbox.oneshot(request).await.unwrap_or_else(|never| match never {}))
}

async fn admit(door: &Door, id: &str, request: &Parts) -> Answer<(Sandbox, Guest)> {
    let pairs = Pairs::parse(request.uri.query().unwrap_or_default());
    let app = &door.app;
    if let Some(key) = bearer(&request.headers) {
        let caller = app.authenticate(key).await?;
        app.admit(&caller).await?;
        let sandbox = app.sandbox(&caller, id).await?;
        caller.require(needed(request))?;
        return reach(door, sandbox, request).await;
    }
    // Not theirs and not there look the same to somebody without a key.
    let Ok(sandbox) = app.sandbox_any(id).await else { return Err(unauthorised()) };
    let shown = request.headers.get(TOKEN_HEADER).and_then(|value| value.to_str().ok()).or(pairs.one(TOKEN_QUERY));
    let by_token = shown.is_some_and(|shown| same(shown, &sandbox.access_token));
    if by_token || signed_for(&sandbox, request, &pairs, app.now().as_second()) {
        return reach(door, sandbox, request).await;
    }
    Err(unauthorised())
}

/// What a key must be good for: an upgraded connection is a terminal or an interpreter, whatever its method.
fn needed(request: &Parts) -> Scope {
    let looks = matches!(request.method, Method::GET | Method::HEAD) && !request.headers.contains_key(header::UPGRADE);
    if looks { Scope::Read } else { Scope::Write }
}

/// Whether the URL itself is the right to this one file.
fn signed_for(sandbox: &Sandbox, request: &Parts, pairs: &Pairs, now: i64) -> bool {
    let method = match request.uri.path() {
        "/files/download" => "GET",
        "/files/upload-v2" | "/files/upload" => "POST",
        _ => return false,
    };
    let (Some(path), Some(expires), Some(signature)) =
        (pairs.one("path"), pairs.one("expires"), pairs.one("signature"))
    else {
        return false;
    };
    request.method == method && Memory::of(sandbox).opens_file(method, path, expires, signature, now)
}

async fn reach(door: &Door, sandbox: Sandbox, request: &Parts) -> Answer<(Sandbox, Guest)> {
    // Measurements must not keep alive what they measure.
    if request.headers.get(SKIP_ACTIVITY).is_some_and(|value| value == "true")
        && sandbox.state == crate::sandbox::State::Running
    {
        let guest = door.app.provider(&sandbox.provider)?.guest(&sandbox.id);
        return Ok((sandbox, guest));
    }
    door.app.reach_any(sandbox.id.as_str()).await.map_err(not_running)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_of_a_toolbox_path_are_understood() {
        let of = |text: &str| split(&text.parse().unwrap()).map(|(id, uri)| (id, uri.to_string()));
        assert_eq!(of("/abc/files/info?path=a%20b"), Some(("abc".into(), "/files/info?path=a%20b".into())));
        assert_eq!(of("/abc/toolbox/files"), Some(("abc".into(), "/files".into())));
        assert_eq!(of("/abc"), None);
    }
}
