//! Links to a port of a private sandbox, and how a browser keeps the right that one gave it.
//!
//! ```text
//!   GET {port}-{id}.{domain}/page?cove_token=T ──▶ 302 /page, Set-Cookie: cove_token=T (this host alone, HttpOnly, Lax)
//!   GET {port}-{id}.{domain}/page, its CSS, its WebSockets, with the cookie ──▶ the program inside, without the cookie
//! ```
//!
//! A token is `{end}.{hmac}`: good for one port of one sandbox until then; new tokens of the sandbox end it. What is put
//! into a cookie is made here and never taken from the request, so that no request writes a cookie's attributes.
//!
//! Sandboxes are neighbours to a browser: their host names share a parent, so `SameSite` does not keep one's page from
//! asking another's with the visitor's cookies. A cookie therefore counts only for requests that a page of the same sandbox
//! makes, or that open a page of it.

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::credentials;
use crate::clock::{Timestamp, after};
use crate::right;
use crate::sandbox::Sandbox;
use crate::secret::same;
use crate::tls::Secure;

/// The query's parameter, and the cookie.
pub const TOKEN: &str = "cove_token";
/// The cookie's name over TLS: a browser takes one of this kind from the very host alone.
pub const TOKEN_OF_HOST: &str = "__Host-cove_token";

/// Headers that show the sandbox's traffic token itself.
const SHOWN: [&str; 2] = ["x-cove-traffic-token", "e2b-traffic-access-token"];

/// How long a cookie is good for that was had with the traffic token itself.
const COOKIE_SECONDS: u64 = 24 * 60 * 60;

/// What becomes of a request to a port.
pub enum Entry {
    Open,
    Closed,
    /// The browser has the cookie now and shall ask again without the token.
    Redirected(Response),
    Ambiguous(&'static str),
}

/// A token that opens a port for so long.
pub fn sign(sandbox: &Sandbox, port: u16, end: Timestamp) -> String {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(sandbox.traffic_token.as_bytes()).expect("HMAC takes a key of any length");
    mac.update(format!("{}/{port}/{}", sandbox.id, end.as_second()).as_bytes());
    format!("{}.{}", end.as_second(), hex::encode(mac.finalize().into_bytes()))
}

/// Until when a token opens a port; nothing where it does not. A stream that it opens ends then.
pub fn opens(sandbox: &Sandbox, port: u16, token: &str, now: Timestamp) -> Option<Timestamp> {
    if same(token, &sandbox.traffic_token) {
        return Some(after(now, COOKIE_SECONDS));
    }
    let (end, _) = token.split_once('.')?;
    let end = Timestamp::from_second(end.parse().ok()?).ok()?;
    if end <= now || !same(token, sign(sandbox, port, end)) {
        return None;
    }
    right::hold_link(end);
    Some(end)
}

/// The one token of the query.
pub fn in_query(uri: &Uri) -> Result<Option<String>, &'static str> {
    let mut tokens = credentials::pairs(uri).filter(|pair| pair.name == TOKEN).map(|pair| pair.value);
    let first = tokens.next();
    if tokens.next().is_some() { Err("the query has more than one cove_token") } else { Ok(first) }
}

/// Lets a request to a port in by what it shows: a header, the token of a link, or the cookie that a link left.
pub fn enter(sandbox: &Sandbox, port: u16, request: &Parts, now: Timestamp) -> Entry {
    let token = match in_query(&request.uri) {
        Ok(token) => token,
        Err(reason) => return Entry::Ambiguous(reason),
    };
    let shown = |name: &str| request.headers.get(name).is_some_and(|shown| same(shown, &sandbox.traffic_token));
    if sandbox.public || SHOWN.iter().any(|name| shown(name)) {
        return Entry::Open;
    }
    match token.and_then(|token| opens(sandbox, port, &token, now)) {
        Some(end) if opens_a_page(request) => Entry::Redirected(redirect(sandbox, port, end, now, request)),
        Some(_) => Entry::Open,
        None if by_cookie(sandbox, port, request, now) => Entry::Open,
        None => Entry::Closed,
    }
}

/// Whether a cookie opens the port, and the request is not one that a neighbour's page makes.
pub fn by_cookie(sandbox: &Sandbox, port: u16, request: &Parts, now: Timestamp) -> bool {
    is_at_home(sandbox, request) && in_cookies(&request.headers).any(|token| opens(sandbox, port, token, now).is_some())
}

/// Every one: a neighbour can put another beside ours.
fn in_cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = all.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(|(name, _)| [TOKEN, TOKEN_OF_HOST].contains(name)).map(|(_, token)| token)
}

/// Whether a page of the same sandbox asks, or somebody who opens a page of it.
fn is_at_home(sandbox: &Sandbox, request: &Parts) -> bool {
    let text = |name: &str| request.headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if let Some(origin) = text("origin") {
        let host = origin.split_once("://").map(|(_, host)| host).unwrap_or_default();
        let label = host.split('.').next().unwrap_or_default();
        let ours = |(port, id): (&str, &str)| port.parse::<u16>().is_ok() && id == sandbox.id.as_str();
        return label.split_once('-').is_some_and(ours) && parent(host) == parent(&host_of(request));
    }
    match text("sec-fetch-site") {
        None | Some("none" | "same-origin") => true,
        Some(_) => {
            let opens = text("sec-fetch-mode") == Some("navigate") && text("sec-fetch-dest") == Some("document");
            opens && request.method == Method::GET
        }
    }
}

/// What the host names of one server's sandboxes share.
fn parent(host: &str) -> &str {
    host.split_once('.').map_or("", |(_, parent)| parent)
}

fn host_of(request: &Parts) -> String {
    let host = request.uri.authority().map(|host| host.as_str());
    let host = host.or_else(|| request.headers.get(header::HOST)?.to_str().ok());
    host.unwrap_or_default().to_ascii_lowercase()
}

/// Somebody with a browser, who would keep the token in its history and hand it on by copying the address.
fn opens_a_page(request: &Parts) -> bool {
    let accepts = request.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let upgrades = request.headers.contains_key(header::UPGRADE);
    request.method == Method::GET && accepts.contains("text/html") && !upgrades
}

fn redirect(sandbox: &Sandbox, port: u16, end: Timestamp, now: Timestamp, request: &Parts) -> Response {
    let kept = credentials::query_without_ours(&request.uri);
    let question = if kept.is_empty() { String::new() } else { format!("?{kept}") };
    let path = request.uri.path();
    // Two slashes at the beginning would name another host.
    let dot = if path.get(1..).is_some_and(|rest| rest.starts_with(['/', '\\'])) { "/." } else { "" };
    let cookie = cookie(sandbox, port, end, now, "/", transport(request));
    let headers = [
        (header::LOCATION, HeaderValue::from_str(&format!("{dot}{path}{question}"))),
        (header::SET_COOKIE, Ok(cookie)),
        (header::CACHE_CONTROL, Ok(HeaderValue::from_static("no-store"))),
        (header::REFERRER_POLICY, Ok(HeaderValue::from_static("no-referrer"))),
    ];
    let headers = headers.into_iter().filter_map(|(name, value)| Some((name, value.ok()?)));
    (StatusCode::FOUND, headers.collect::<HeaderMap>()).into_response()
}

/// Whether the client came by TLS: ours, or that of a proxy before us.
pub fn transport(request: &Parts) -> Transport {
    let told = request.headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https");
    if told || request.extensions.get::<Secure>().is_some() { Transport::Tls } else { Transport::Clear }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Clear,
    Tls,
}

/// The cookie that keeps the right, below `path` of this host.
pub fn cookie(
    sandbox: &Sandbox,
    port: u16,
    end: Timestamp,
    now: Timestamp,
    path: &str,
    transport: Transport,
) -> HeaderValue {
    let seconds = (end.as_second() - now.as_second()).max(1);
    let token = sign(sandbox, port, end);
    let (name, secure) = match transport {
        Transport::Tls if path == "/" => (TOKEN_OF_HOST, "; Secure"),
        Transport::Tls => (TOKEN, "; Secure"),
        Transport::Clear => (TOKEN, ""),
    };
    let text = format!("{name}={token}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}");
    // Paths are those of the route that matched: letters, digits and slashes.
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("cove_token="))
}
