//! Who may use a sandbox's toolbox: the holder of a key of its organisation, of the sandbox's own token, or of a URL
//! signed for one file.

use axum::Router;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use tower::ServiceExt as _;

use super::Door;
use super::problem::{Answer, Problem, Speaker};
use super::query::Pairs;
use super::token::Memory;
use super::toolbox::Machine;
use crate::door::parts;
use crate::door::table::Needs;
use crate::guest::Guest;
use crate::sandbox::Sandbox;
use crate::sandbox::reach::Waking;
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

/// A caller whose key the guard has checked and counted. An organisation header is ignored: the key says whose it is, and
/// one SDK call puts something else there.
pub struct Authenticated(pub Caller);

impl FromRequestParts<Door> for Authenticated {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Door) -> Result<Self, Problem> {
        let caller = parts.extensions.get::<Caller>().cloned();
        Ok(Authenticated(caller.ok_or_else(|| Error::internal("a route without its guard"))?))
    }
}

/// The guard of the control plane: the key that the route asks for.
pub async fn keyed(State((door, needs)): State<(Door, Needs)>, mut request: Request, next: Next) -> Answer<Response> {
    match needs {
        Needs::Key(scope) => {
            let caller = by_key(&door, request.headers(), scope).await?.ok_or_else(unauthorised)?;
            request.extensions_mut().insert(caller);
        }
        Needs::Nothing | Needs::KeyOnSocket => {}
        // No row of the control plane asks for these.
        Needs::Toolbox(_)
        | Needs::ToolboxFile(_)
        | Needs::Life
        | Needs::Access
        | Needs::AccessOrSignature
        | Needs::AccessOrTraffic
        | Needs::SignedUpload
        | Needs::VolumeToken
        | Needs::Port
        | Needs::Peer => return Err(unauthorised()),
    }
    Ok(next.run(request).await)
}

/// The caller behind a request's key, if it has one.
async fn by_key(door: &Door, headers: &HeaderMap, scope: Scope) -> Answer<Option<Caller>> {
    let Some(key) = bearer(headers) else { return Ok(None) };
    let caller = door.app.authenticate(key).await?;
    door.app.admit(&caller).await?;
    caller.require(scope)?;
    Ok(Some(caller))
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
            Error::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE"),
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

/// The sandbox that a toolbox call names, still to be found.
#[derive(Clone)]
struct Named(String);

/// A toolbox call on its way to its route.
pub async fn toolbox(toolbox: Router, mut request: Request) -> Answer<Response> {
    let Some((id, uri)) = split(request.uri()) else {
        return Err(Problem::api(StatusCode::NOT_FOUND, "NOT_FOUND", "a toolbox call names a sandbox and a path"));
    };
    // What goes to a port inside is not for us to judge.
    if !uri.path().starts_with("/proxy/") {
        parts::check(&uri, request.headers()).map_err(Error::from)?;
    }
    *request.uri_mut() = uri;
    request.extensions_mut().insert(Named(id));
    Ok(toolbox.oneshot(request).await.unwrap_or_else(|never| match never {}))
}

/// The guard of the toolbox: lets in what the route asks for, and wakes the sandbox only then.
pub async fn into_toolbox(
    State((door, needs)): State<(Door, Needs)>,
    mut request: Request,
    next: Next,
) -> Answer<Response> {
    let Some(Named(id)) = request.extensions_mut().remove::<Named>() else {
        return Err(Error::internal("a toolbox call that names no sandbox").into());
    };
    let (parts, body) = request.into_parts();
    let pairs = Pairs::parse(parts.uri.query().unwrap_or_default());
    // The file that a link may be signed for, read once: what is checked is what is used.
    let file = match needs {
        Needs::ToolboxFile(_) => Some(FilePath(pairs.sole("path")?.unwrap_or_default().to_owned())),
        _ => None,
    };
    let (sandbox, waking) = admit(&door, &id, needs, file.as_ref(), &parts, &pairs).await?;
    let (sandbox, guest) = reach(&door, sandbox, waking, &parts).await?;
    let mut request = Request::from_parts(parts, body);
    let cwd = sandbox.cwd.clone();
    let Door { app, desk, .. } = door;
    request.extensions_mut().insert(Machine { id: sandbox.id.to_string(), guest, cwd, desk, app, sandbox });
    if let Some(file) = file {
        request.extensions_mut().insert(file);
    }
    Ok(next.run(request).await)
}

/// The one file that a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePath(pub String);

async fn admit(
    door: &Door,
    id: &str,
    needs: Needs,
    file: Option<&FilePath>,
    request: &Parts,
    pairs: &Pairs,
) -> Answer<(Sandbox, Waking)> {
    let (Needs::Toolbox(scope) | Needs::ToolboxFile(scope)) = needs else { return Err(unauthorised()) };
    let app = &door.app;
    if bearer(&request.headers).is_some() {
        let caller = by_key(door, &request.headers, Scope::Read).await?.ok_or_else(unauthorised)?;
        let sandbox = app.sandbox(&caller, id).await?;
        caller.require(scope)?;
        return Ok((sandbox, Waking::of(&caller)));
    }
    // Not theirs and not there look the same to somebody without a key.
    let Ok(sandbox) = app.sandbox_any(id).await else { return Err(unauthorised()) };
    let in_query = pairs.sole(TOKEN_QUERY)?;
    let shown = request.headers.get(TOKEN_HEADER).and_then(|value| value.to_str().ok()).or(in_query);
    if shown.is_some_and(|shown| same(shown, &sandbox.access_token)) {
        return Ok((sandbox, Waking::Allowed));
    }
    match file {
        Some(file) if is_signed(&sandbox, request, file, pairs, app.now().as_second())? => {
            Ok((sandbox, Waking::Allowed))
        }
        _ => Err(unauthorised()),
    }
}

/// Whether the URL itself is the right to this one file.
fn is_signed(sandbox: &Sandbox, request: &Parts, file: &FilePath, pairs: &Pairs, now: i64) -> Answer<bool> {
    let (expires, signature) = (pairs.sole("expires")?, pairs.sole("signature")?);
    let (Some(expires), Some(signature)) = (expires, signature) else { return Ok(false) };
    // A look at a file's size is a look at the file.
    let method = if request.method == Method::HEAD { "GET" } else { request.method.as_str() };
    Ok(Memory::of(sandbox).opens_file(method, &file.0, expires, signature, now))
}

async fn reach(door: &Door, sandbox: Sandbox, waking: Waking, request: &Parts) -> Answer<(Sandbox, Guest)> {
    // Measurements must not keep alive what they measure.
    if request.headers.get(SKIP_ACTIVITY).is_some_and(|value| value == "true")
        && sandbox.state == crate::sandbox::State::Running
    {
        let guest = door.app.provider(&sandbox.provider)?.guest(&sandbox.handle());
        return Ok((sandbox, guest));
    }
    door.app.reach_as(sandbox, waking).await.map_err(not_running)
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
