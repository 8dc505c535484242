//! A port of a sandbox, by path: `/daytona/preview/{sandbox}/{port}/…`, or `{port}~{token}` for a signed link.
//!
//! By path, because a client only puts paths behind the link it was given, and a path works without any DNS.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use axum::{Extension, Router};

use super::admit::{self, TOKEN_HEADER, TOKEN_QUERY, bearer, not_running, unauthorised};
use super::problem::{Answer, Problem};
use super::query::Pairs;
use super::token::Memory;
use super::{Door, forward};
use crate::clock::from_millisecond;
use crate::door::relay::Inside;
use crate::door::table::{Needs, Table};
use crate::sandbox::Sandbox;
use crate::secret::same;
use crate::{Scope, right};

/// Where the original's toolbox listens. It is the same one that `/daytona/toolbox` leads to, and asks for a right even
/// where the sandbox is public.
pub const TOOLBOX_PORT: u16 = 2280;

/// The toolbox of all sandboxes, for the port that leads there.
#[derive(Clone)]
pub struct Toolbox(pub Router);

/// Any method, and upgrades to WebSockets. The handler checks what the sandbox asks for at its ports.
pub fn table() -> Table<Door> {
    Table::new()
        .any("/{sandbox}/{port}", Needs::Port, serve)
        // As links end: a wildcard does not match nothing.
        .any("/{sandbox}/{port}/", Needs::Port, serve)
        .any("/{sandbox}/{port}/{*path}", Needs::Port, serve)
}

struct Target {
    sandbox: String,
    port: u16,
    token: Option<String>,
    uri: Uri,
}

fn split(uri: &Uri) -> Option<Target> {
    let mut segments = uri.path().strip_prefix('/')?.splitn(3, '/');
    let (sandbox, place) = (segments.next()?.to_owned(), segments.next()?);
    let (port, token) = match place.split_once('~') {
        Some((port, token)) => (port, Some(token.to_owned())),
        None => (place, None),
    };
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let uri = format!("/{}{query}", segments.next().unwrap_or_default()).parse().ok()?;
    Some(Target { sandbox, port: port.parse().ok().filter(|port| *port != 0)?, token, uri })
}

async fn serve(
    State(door): State<Door>,
    Extension(Toolbox(toolbox)): Extension<Toolbox>,
    mut request: Request,
) -> Answer<Response> {
    let Some(target) = split(request.uri()) else {
        let message = "a preview is /daytona/preview/SANDBOX/PORT/…";
        return Err(Problem::api(StatusCode::NOT_FOUND, "NOT_FOUND", message));
    };
    let pairs = Pairs::parse(request.uri().query().unwrap_or_default());
    if target.port == TOOLBOX_PORT {
        return to_toolbox(door, toolbox, target, request).await;
    }
    let sandbox = admit(&door, &target, request.headers(), &pairs).await?;
    let below = match &target.token {
        Some(token) => format!("/daytona/preview/{}/{}~{token}", target.sandbox, target.port),
        None => format!("/daytona/preview/{}/{}", target.sandbox, target.port),
    };
    *request.uri_mut() = target.uri;
    let (sandbox, guest) = door.app.reach_into(sandbox).await.map_err(not_running)?;
    let inside = Inside { app: &door.app, sandbox: &sandbox, guest: &guest, port: target.port };
    forward::to_port(inside, &below, request).await
}

/// Under the toolbox's own rights; a link that was signed for the port is as good as its token.
async fn to_toolbox(door: Door, toolbox: Router, target: Target, mut request: Request) -> Answer<Response> {
    if let Some(token) = &target.token {
        let sandbox = door.app.sandbox_any(&target.sandbox).await.map_err(|_| unauthorised())?;
        let until = Memory::of(&sandbox).opens_preview(token, TOOLBOX_PORT, door.app.now().as_second());
        right::hold_link(from_millisecond(until.ok_or_else(unauthorised)?.saturating_mul(1000)));
        let token = HeaderValue::from_str(&sandbox.access_token).map_err(|_| unauthorised())?;
        // The link is the right that counts.
        request.headers_mut().remove(header::AUTHORIZATION);
        request.headers_mut().insert(TOKEN_HEADER, token);
    }
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let uri = format!("/{}{}{query}", target.sandbox, target.uri.path());
    *request.uri_mut() = uri.parse().map_err(|_| Problem::bad_request("the path cannot be passed on"))?;
    admit::toolbox(toolbox, request).await
}

async fn admit(door: &Door, target: &Target, headers: &HeaderMap, pairs: &Pairs) -> Answer<Sandbox> {
    let Ok(sandbox) = door.app.sandbox_any(&target.sandbox).await else { return Err(unauthorised()) };
    if sandbox.public {
        return Ok(sandbox);
    }
    let shown = headers.get(TOKEN_HEADER).and_then(|value| value.to_str().ok()).or(pairs.sole(TOKEN_QUERY)?);
    if shown.is_some_and(|shown| same(shown, &sandbox.traffic_token) || same(shown, &sandbox.access_token)) {
        return Ok(sandbox);
    }
    let signed = |token: &String| Memory::of(&sandbox).opens_preview(token, target.port, door.app.now().as_second());
    if let Some(until) = target.token.as_ref().and_then(signed) {
        right::hold_link(from_millisecond(until.saturating_mul(1000)));
        return Ok(sandbox);
    }
    match bearer(headers) {
        Some(key) => {
            let caller = door.app.authenticate(key).await?;
            // Another organisation's key opens nothing.
            let sandbox = door.app.sandbox(&caller, sandbox.id.as_str()).await?;
            // What listens there may do anything that it is asked to.
            caller.require(Scope::Write)?;
            Ok(sandbox)
        }
        None => Err(unauthorised()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_path_names_sandbox_port_and_maybe_a_token() {
        let target = split(&"/abc/3000/a/b%20c?x=1&DAYTONA_SANDBOX_AUTH_KEY=s".parse().unwrap()).unwrap();
        assert_eq!((target.sandbox.as_str(), target.port, target.token), ("abc", 3000, None));
        assert_eq!(target.uri.to_string(), "/a/b%20c?x=1&DAYTONA_SANDBOX_AUTH_KEY=s");
        let target = split(&"/abc/3000~tok".parse().unwrap()).unwrap();
        assert_eq!((target.port, target.token.as_deref(), target.uri.to_string().as_str()), (3000, Some("tok"), "/"));
        assert!(split(&"/abc/0/".parse().unwrap()).is_none());
        assert!(split(&"/abc/http/".parse().unwrap()).is_none());
    }
}
