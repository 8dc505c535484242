//! A sandbox's ports by path, for those without wildcard DNS: `/api/sandboxes/{id}/ports/{port}/proxy/…`, and links to
//! them by path and by host name.
//!
//! The right to it is the organisation's key, the sandbox's traffic token (`X-Cove-Traffic-Token`, or `?cove_token=`),
//! a signed link that ends (`door/link.rs`), or a sandbox that is public.

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri, header};
use axum::response::Response;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};

use super::auth::{self, Authenticated};
use super::error::ApiError;
use super::extract::{Params, Path};
use crate::clock::{Timestamp, after};
use crate::door::link::{self, TOKEN};
use crate::door::relay::{self, Inside};
use crate::door::shield;
use crate::guest::{Guest, GuestError};
use crate::sandbox::Sandbox;
use crate::secret::same;
use crate::tls::{Secure, certified_domain};
use crate::{App, Error, Scope};

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
    /// By path, with a signature that ends: for programs, and where host names below the domain lead nowhere.
    url: String,
    /// By host name, with the same signature: for browsers. The page has an origin of its own, so absolute links, cookies
    /// and WebSockets work. The token becomes a cookie at the first visit.
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
    let seconds = query.expires_in_seconds.unwrap_or(3600);
    if !(1..=604_800).contains(&seconds) {
        return Err(Error::invalid("expires_in_seconds", "1 to 604800").into());
    }
    let expires_at = after(app.now(), seconds);
    let base = base_url(&app, &headers);
    let id = &sandbox.id;
    let signature = link::sign(&sandbox, port, expires_at);
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
        host_url: format!("{scheme}://{port}-{id}.{domain}{port_of_server}/?{TOKEN}={signature}"),
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
    // Characters that would end a link are not allowed in it.
    let plain = |host: &&str| host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte));
    let host = text("host").filter(plain).unwrap_or(&app.config().listen);
    // TLS of ours says so in the same header as a proxy before us.
    let scheme = if text("x-forwarded-proto") == Some("https") { "https" } else { "http" };
    format!("{scheme}://{host}")
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
    check_port(port)?;
    let (parts, body) = request.into_parts();
    let (admitted, guest) = admit(&app, &id, port, &parts).await?;
    app.touch(&admitted.sandbox.id);
    Ok(forward(&app, admitted, &guest, port, &path, Request::from_parts(parts, body)).await?)
}

struct Admitted {
    sandbox: Sandbox,
    /// The link that was followed, and its end.
    link: Option<Timestamp>,
}

async fn admit(app: &App, id: &str, port: u16, request: &Parts) -> Result<(Admitted, Guest), Error> {
    if let Some(key) = auth::secret(&request.headers)
        && let Ok(caller) = app.authenticate(&key).await
    {
        app.sandbox(&caller, id).await?;
        // The program on the port may do anything on request, so this needs the right to write.
        caller.require(Scope::Write)?;
        let (sandbox, guest) = app.reach(&caller, id).await?;
        return Ok((Admitted { sandbox, link: None }, guest));
    }
    // Without the right it is not there at all.
    let missing = || Error::not_found("sandbox", id);
    let sandbox = app.sandbox_any(id).await.map_err(|_| missing())?;
    let token = link::in_query(&request.uri).map_err(|reason| Error::invalid("query", reason))?;
    let shown = request.headers.get("x-cove-traffic-token").is_some_and(|token| same(token, &sandbox.traffic_token));
    let link = token.and_then(|token| link::opens(&sandbox, port, &token, app.now()));
    let opens = sandbox.public || shown || link.is_some() || link::by_cookie(&sandbox, port, request, app.now());
    if !opens {
        return Err(missing());
    }
    let (sandbox, guest) = app.reach_into(sandbox).await?;
    Ok((Admitted { sandbox, link }, guest))
}

async fn forward(
    app: &App,
    Admitted { sandbox, link }: Admitted,
    guest: &Guest,
    port: u16,
    path: &str,
    request: Request,
) -> Result<Response, Error> {
    let (mut parts, body) = request.into_parts();
    let prefix = format!("/api{}", parts.uri.path().strip_suffix(path).unwrap_or_default());
    // A page that was opened by a link asks for its parts with the cookie that the link left.
    let cookie = link.map(|end| link::cookie(&sandbox, port, end, app.now(), &prefix, link::transport(&parts)));
    let question = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    parts.uri = format!("/{path}{question}").parse().unwrap_or_else(|_| Uri::from_static("/"));
    let inside = Inside { app, sandbox: &sandbox, guest, port };
    let request = Request::from_parts(parts, body);
    let mut answer = relay::to_port(inside, relay::Host::AsSent, request).await.map_err(GuestError::from)?;
    shield::below(&prefix, answer.headers_mut());
    if let Some(cookie) = cookie {
        answer.headers_mut().append(header::SET_COOKIE, cookie);
    }
    Ok(answer)
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
