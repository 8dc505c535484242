//! Checks every request before any door: one host, no forged header of another server, and no provider of this server that
//! leads back to it.
//!
//! Doors, certificates and links are chosen by the host, so a request that names two of them is refused: two readers
//! could each believe another one.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::App;
use crate::peer::proof;
use crate::provider::remote::client::FROM;

/// Marks a request that another server of the same store has sent on, and proved it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SentOn;

/// To be laid around everything.
pub(crate) fn guard(router: Router, app: App) -> Router {
    router.layer(axum::middleware::from_fn_with_state(app, enter))
}

async fn enter(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let host = match one_host(request.uri(), request.headers()) {
        Ok(host) => host.to_ascii_lowercase(),
        Err(reason) => {
            let body = serde_json::json!({ "code": "invalid", "message": reason });
            return (StatusCode::BAD_REQUEST, axum::Json(body)).into_response();
        }
    };
    if request.headers_mut().remove(FROM).is_some_and(|server| server == app.server()) {
        let message = "this server cannot be a provider of itself: give the provider's url another address";
        let body = serde_json::json!({ "code": "unsupported", "message": message });
        return (StatusCode::LOOP_DETECTED, axum::Json(body)).into_response();
    }
    // A sender without proof is an ordinary client.
    let said = request.headers_mut().remove(proof::HEADER);
    if let (Some(said), Some(secret)) = (said, app.peer_secret()) {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let now = app.now().as_millisecond();
        let said = said.to_str().unwrap_or_default();
        if proof::proved(secret, said, request.method().as_str(), path, &host, now).is_some() {
            request.extensions_mut().insert(SentOn);
        }
    }
    next.run(request).await
}

/// The one host that a request names; empty where it names none (HTTP/1.0).
fn one_host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Result<&'a str, &'static str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match hosts.next() {
        Some(host) => Some(host.to_str().map_err(|_| "the Host header is no host name")?),
        None => None,
    };
    if hosts.next().is_some() {
        return Err("more than one Host header");
    }
    let target = uri.authority().map(|authority| authority.as_str());
    if target.or(host).is_some_and(|name| name.contains(['@', '/', ' ', ','])) {
        return Err("the host is no host name");
    }
    match (target, host) {
        (Some(target), Some(host)) if !is_same(uri, target, host) => {
            Err("the Host header names another host than the request's target")
        }
        (Some(target), _) => Ok(target),
        (None, host) => Ok(host.unwrap_or_default()),
    }
}

/// Ports that go without saying may be said by one of the two.
fn is_same(uri: &Uri, target: &str, host: &str) -> bool {
    let usual = if uri.scheme_str() == Some("https") { ":443" } else { ":80" };
    let bare = |name: &str| name.strip_suffix(usual).unwrap_or(name).to_ascii_lowercase();
    bare(target) == bare(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(uri: &str, hosts: &[&str]) -> Result<String, &'static str> {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, host.parse().unwrap());
        }
        one_host(&uri.parse().unwrap(), &headers).map(ToOwned::to_owned)
    }

    #[test]
    fn a_request_names_one_host() {
        assert_eq!(ask("/a", &["x.example"]).as_deref(), Ok("x.example"));
        assert_eq!(ask("/a", &[]).as_deref(), Ok(""));
        assert_eq!(ask("http://x.example/a", &["X.example:80"]).as_deref(), Ok("x.example"));
        assert_eq!(ask("https://x.example/a", &[]).as_deref(), Ok("x.example"));
        for (uri, hosts) in [
            ("/a", &["x.example", "y.example"][..]),
            ("/a", &["x.example", "x.example"]),
            ("/a", &["x.example, y.example"]),
            ("/a", &["user@x.example"]),
            ("http://x.example/a", &["y.example"]),
            ("https://x.example/a", &["x.example:80"]),
        ] {
            assert!(ask(uri, hosts).is_err(), "{uri} {hosts:?}");
        }
    }
}
