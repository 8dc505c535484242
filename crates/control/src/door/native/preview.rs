//! A sandbox's ports by path, for those without wildcard DNS: `/api/sandboxes/{id}/ports/{port}/proxy/…`.
//!
//! The right to it is the organisation's key, the sandbox's traffic token (`X-Cove-Traffic-Token`, or `?cove_token=`),
//! a signed link that ends, or a sandbox that is public.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use axum::{Extension, Json};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Params, Path};
use crate::clock::{Timestamp, after};
use crate::door::{relay, shield};
use crate::guest::{Guest, GuestError};
use crate::sandbox::Sandbox;
use crate::secret::same;
use crate::tls::{Secure, certified_domain};
use crate::{App, Error, Scope, right};

const TOKEN: &str = "cove_token";

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct LinkQuery {
    /// How long the link opens the port; an hour where absent, a week at most.
    #[param(minimum = 1, maximum = 604800)]
    expires_in_seconds: Option<u64>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Link {
    /// By path, with a signature that ends.
    url: String,
    /// By host name; needs the token unless the sandbox is public.
    host_url: String,
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
}

/// Make a link to a port
#[utoipa::path(get, path = "/sandboxes/{id}/ports/{port}/link", tag = "ports",
    params(("id" = String, Path, description = "id or name"), ("port" = u16, Path, minimum = 1), LinkQuery),
    responses((status = 200, description = "The link", body = Link)))]
pub async fn link(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path((id, port)): Path<(String, u16)>,
    Params(query): Params<LinkQuery>,
    secure: Option<Extension<Secure>>,
    headers: HeaderMap,
) -> Result<Json<Link>, ApiError> {
    check_port(port)?;
    let sandbox = app.sandbox(&caller, &id).await?;
    // What listens there may do anything that it is asked to.
    caller.require(Scope::Write)?;
    let seconds = query.expires_in_seconds.unwrap_or(3600);
    if !(1..=604_800).contains(&seconds) {
        return Err(Error::invalid("expires_in_seconds", "1 to 604800").into());
    }
    let expires_at = after(app.now(), seconds);
    let base = base_url(&app, &headers);
    let id = &sandbox.id;
    let signature = sign(&sandbox, port, expires_at);
    let authority = base.split("://").nth(1).unwrap_or_default();
    let port_of_server = authority.rsplit_once(':').map(|(_, port)| format!(":{port}")).unwrap_or_default();
    let scheme = base.split("://").next().unwrap_or("http");
    // By TLS of ours, the name must be one that the certificate holds.
    let domain = match (&app.config().public_url, secure) {
        (None, Some(_)) => certified_domain(&app.config().domain),
        _ => app.config().domain.clone(),
    };
    Ok(Json(Link {
        url: format!("{base}/api/sandboxes/{id}/ports/{port}/proxy/?{TOKEN}={signature}"),
        host_url: format!("{scheme}://{port}-{id}.{domain}{port_of_server}/"),
        expires_at,
    }))
}

fn check_port(port: u16) -> Result<(), Error> {
    if port == 0 { Err(Error::invalid("port", "1 to 65535")) } else { Ok(()) }
}

/// How clients reach this server.
pub fn base_url(app: &App, headers: &HeaderMap) -> String {
    if let Some(url) = &app.config().public_url {
        return url.trim_end_matches('/').to_owned();
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // What goes into a link must not be able to end it.
    let plain = |host: &&str| host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte));
    let host = text("host").filter(plain).unwrap_or(&app.config().listen);
    // TLS of ours says so in the same header as a proxy before us.
    let scheme = if text("x-forwarded-proto") == Some("https") { "https" } else { "http" };
    format!("{scheme}://{host}")
}

/// `{end}.{hmac}`: good for one port of one sandbox until then; new tokens of the sandbox end it.
fn sign(sandbox: &Sandbox, port: u16, end: Timestamp) -> String {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(sandbox.traffic_token.as_bytes()).expect("HMAC takes a key of any length");
    mac.update(format!("{}/{port}/{}", sandbox.id, end.as_second()).as_bytes());
    format!("{}.{}", end.as_second(), hex::encode(mac.finalize().into_bytes()))
}

fn is_signed(sandbox: &Sandbox, port: u16, token: &str, now: Timestamp) -> bool {
    let Some((end, _)) = token.split_once('.') else { return false };
    let Some(end) = end.parse().ok().and_then(|second| Timestamp::from_second(second).ok()) else { return false };
    if end <= now || !same(token, sign(sandbox, port, end)) {
        return false;
    }
    right::hold_link(end);
    true
}

/// Every method that a program inside may want. `TRACE` and `CONNECT` are for the hop before us.
pub fn methods<H: axum::handler::Handler<T, App>, T: 'static>(handler: H) -> axum::routing::MethodRouter<App> {
    use axum::routing::MethodFilter as Method;
    let all = [Method::GET, Method::OPTIONS, Method::PUT, Method::POST, Method::PATCH, Method::DELETE];
    axum::routing::on(all.into_iter().fold(Method::HEAD, Method::or), handler)
}

/// A port's own root
///
/// Any method, and upgrades to WebSockets. The right to it is the key, the sandbox's traffic token
/// (`X-Cove-Traffic-Token`), a link's `cove_token`, or a sandbox that is public.
#[utoipa::path(method(get, head, options, put, post, patch, delete), path = "/sandboxes/{id}/ports/{port}/proxy", tag = "ports",
    params(("id" = String, Path, description = "id or name"), ("port" = u16, Path, minimum = 1)),
    security((), ("key" = [])), responses((status = "default", description = "What the program inside answers")))]
pub async fn root(
    State(app): State<App>,
    Path((id, port)): Path<(String, u16)>,
    request: Request,
) -> Result<Response, ApiError> {
    pass(app, id, port, String::new(), request).await
}

/// A port's pages below its root
///
/// Any method, and upgrades to WebSockets, as for the root.
#[utoipa::path(method(get, head, options, put, post, patch, delete), path = "/sandboxes/{id}/ports/{port}/proxy/{path}", tag = "ports",
    params(("id" = String, Path, description = "id or name"), ("port" = u16, Path, minimum = 1),
        ("path" = String, Path, description = "Any number of parts")),
    security((), ("key" = [])), responses((status = "default", description = "What the program inside answers")))]
pub async fn below(
    State(app): State<App>,
    Path((id, port, _path)): Path<(String, u16, String)>,
    request: Request,
) -> Result<Response, ApiError> {
    let path = below_proxy(request.uri().path()).to_owned();
    pass(app, id, port, path, request).await
}

/// What follows `/sandboxes/{id}/ports/{port}/proxy/`, as it was sent: the program inside decodes for itself.
fn below_proxy(sent: &str) -> &str {
    sent.splitn(7, '/').nth(6).unwrap_or_default()
}

async fn pass(app: App, id: String, port: u16, path: String, request: Request) -> Result<Response, ApiError> {
    let (headers, uri) = (request.headers().clone(), request.uri().clone());
    check_port(port)?;
    let (sandbox, guest) = admit(&app, &id, port, &headers, &uri).await?;
    app.touch(&sandbox.id);
    Ok(forward(&guest, port, &path, request).await?)
}

async fn admit(app: &App, id: &str, port: u16, headers: &HeaderMap, uri: &Uri) -> Result<(Sandbox, Guest), Error> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let key = text("x-api-key").or_else(|| text("authorization").and_then(|value| value.strip_prefix("Bearer ")));
    if let Some(key) = key
        && let Ok(caller) = app.authenticate(key).await
    {
        app.sandbox(&caller, id).await?;
        caller.require(Scope::Write)?;
        return app.reach(&caller, id).await;
    }
    // Without the right it is not there at all.
    let missing = || Error::not_found("sandbox", id);
    let sandbox = app.sandbox_any(id).await.map_err(|_| missing())?;
    let in_query =
        uri.query().and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix(TOKEN)?.strip_prefix('=')));
    let token = text("x-cove-traffic-token").or(in_query).or_else(|| cookie(headers));
    let opens = sandbox.public
        || token
            .is_some_and(|token| same(token, &sandbox.traffic_token) || is_signed(&sandbox, port, token, app.now()));
    if !opens {
        return Err(missing());
    }
    app.reach_any(sandbox.id.as_str()).await
}

/// A page that was opened by a signed link asks for its parts with the cookie that the link left.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|text| text.split(';')).find_map(|pair| pair.trim().strip_prefix(TOKEN)?.strip_prefix('='))
}

async fn forward(guest: &Guest, port: u16, path: &str, mut request: Request) -> Result<Response, Error> {
    // The router has taken our own prefix off; a browser has not.
    let prefix = format!("/api{}", request.uri().path().strip_suffix(path).unwrap_or_default());
    let link = signed_link(request.uri());
    prepare(&mut request, path);
    let mut answer = relay::to_port(guest, port, relay::Host::AsSent, request).await.map_err(GuestError::from)?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(answer);
    }
    shield::below(&prefix, answer.headers_mut());
    if let Some(token) = link {
        let cookie = format!("{TOKEN}={token}; Path={prefix}; HttpOnly; SameSite=Lax");
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            answer.headers_mut().append(header::SET_COOKIE, cookie);
        }
    }
    Ok(answer)
}

fn signed_link(uri: &Uri) -> Option<String> {
    let pairs = uri.query()?.split('&');
    pairs.filter_map(|pair| pair.strip_prefix(TOKEN)?.strip_prefix('=')).next().map(ToOwned::to_owned)
}

/// As the program inside shall see it: its own path, none of our secrets.
fn prepare(request: &mut Request, path: &str) {
    let query: Vec<&str> = request.uri().query().map(|query| query.split('&').collect()).unwrap_or_default();
    let query: Vec<&str> = query.into_iter().filter(|pair| !pair.starts_with(TOKEN)).collect();
    let question = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    let uri = format!("/{path}{question}");
    *request.uri_mut() = uri.parse().unwrap_or_else(|_| Uri::from_static("/"));
    for name in ["authorization", "cookie", "x-api-key", "x-cove-traffic-token"] {
        request.headers_mut().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_path_is_its_own_whatever_the_sandbox_is_called() {
        assert_eq!(below_proxy("/sandboxes/box/ports/80/proxy/a/proxy/b%20c"), "a/proxy/b%20c");
        assert_eq!(below_proxy("/sandboxes/proxy/ports/80/proxy/a"), "a");
        assert_eq!(below_proxy("/sandboxes/box/ports/80/proxy/"), "");
    }
}
