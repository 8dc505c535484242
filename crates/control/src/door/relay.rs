//! One request passed to a port inside a sandbox, and its answer back: every door's previews come through here.
//!
//! Bodies are streamed both ways and never held; WebSockets and other upgrades become a plain pipe. What concerns one
//! connection stays on it (RFC 9110, 7.6.1). What is ours is taken off here, whichever door it came through
//! (`credentials.rs`); a door says afterwards in its own dialect what went wrong.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, Version, header};
use axum::response::{IntoResponse, Response};
use cove_protocol::FailureKind;
use hyper_util::rt::TokioIo;

use super::credentials;
use crate::App;
use crate::guest::{Guest, GuestError};
use crate::sandbox::Sandbox;
use crate::tls::Secure;

/// How long a program inside may think before the first line of its answer.
const PATIENCE: Duration = Duration::from_secs(600);

/// `Upgrade` is dealt with apart; what `Connection` names goes too.
const ONE_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
];

/// Which Host the program inside reads; the one that was asked for is in `X-Forwarded-Host`.
pub enum Host {
    /// As the client sent it.
    AsSent,
    Named(String),
}

/// Why no answer came back.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    #[error("nothing listens on port {0} of the sandbox")]
    Closed(u16),
    #[error(transparent)]
    Guest(GuestError),
    #[error("port {port} of the sandbox: {reason}")]
    BrokeOff { port: u16, reason: String },
    #[error("port {0} of the sandbox did not answer within {seconds} s", seconds = PATIENCE.as_secs())]
    TooSlow(u16),
}

impl From<Broken> for GuestError {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Guest(error) => error,
            Broken::TooSlow(_) => GuestError::Timeout(PATIENCE),
            Broken::Closed(_) | Broken::BrokeOff { .. } => GuestError::Unreachable(broken.to_string()),
        }
    }
}

/// Where a request goes: a port of a sandbox that it may reach.
pub struct Inside<'a> {
    pub app: &'a App,
    pub sandbox: &'a Sandbox,
    pub guest: &'a Guest,
    pub port: u16,
}

/// Passes the request on. Its path is the program's own already.
pub async fn to_port(inside: Inside<'_>, host: Host, mut request: Request) -> Result<Response, Broken> {
    let Inside { app, sandbox, guest, port } = inside;
    credentials::take_off(app, sandbox, &mut request).await;
    let pipe = guest.dial(port).await.map_err(|error| match error {
        GuestError::Failed(failure) if failure.kind == FailureKind::Refused => Broken::Closed(port),
        error => Broken::Guest(error),
    })?;
    let broken = |error: hyper::Error| Broken::BrokeOff { port, reason: error.to_string() };
    // Header names as most proxies write them: programs that compare them letter by letter are out there.
    let mut line = hyper::client::conn::http1::Builder::new();
    line.title_case_headers(true);
    let (mut sender, connection) = line.handshake(TokioIo::new(pipe)).await.map_err(broken)?;
    // Ends with the exchange, or with the upgraded connection.
    tokio::spawn(connection.with_upgrades());

    let upgrade = upgrade_of(request.headers());
    let client = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    prepare(&mut request, upgrade, host);
    let answer = tokio::time::timeout(PATIENCE, sender.send_request(request)).await;
    let mut answer = answer.map_err(|_| Broken::TooSlow(port))?.map_err(broken)?;
    // The version is this hop's (RFC 9110, 2.5): a program that speaks HTTP/1.0 says nothing about us.
    *answer.version_mut() = Version::HTTP_11;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(client) = client else {
            return Err(Broken::BrokeOff { port, reason: "an upgrade that nobody asked for".into() });
        };
        let inside = hyper::upgrade::on(&mut answer);
        tokio::spawn(async move {
            let (Ok(client), Ok(inside)) = tokio::join!(client, inside) else { return };
            let (mut client, mut inside) = (TokioIo::new(client), TokioIo::new(inside));
            // Either side may hang up at any time: that is how such a connection ends.
            let _ended = tokio::io::copy_bidirectional(&mut client, &mut inside).await;
        });
        return Ok(answer.map(|_| Body::empty()).into_response());
    }
    remove_one_hop(answer.headers_mut());
    Ok(answer.map(Body::new).into_response())
}

/// The protocol of an `Upgrade`, if the connection asks for one.
fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = words(headers, "connection").any(|word| word.eq_ignore_ascii_case("upgrade"));
    asked.then(|| headers.get(header::UPGRADE).cloned()).flatten()
}

fn words<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|word| !word.is_empty())
}

fn remove_one_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = words(headers, "connection").filter_map(|word| word.parse().ok()).collect();
    for name in named.iter().chain(&ONE_HOP) {
        headers.remove(name);
    }
}

fn prepare(request: &mut Request, upgrade: Option<HeaderValue>, host: Host) {
    let asked = request.uri().authority().and_then(|name| HeaderValue::from_str(name.as_str()).ok());
    let asked = asked.or_else(|| request.headers().get(header::HOST).cloned());
    let secure = request.extensions().get::<Secure>().is_some() || request.uri().scheme_str() == Some("https");
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip().to_string());
    let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    remove_one_hop(headers);
    headers.remove(header::UPGRADE);
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
    if let Some(peer) = peer {
        let before = words(headers, "x-forwarded-for").map(ToOwned::to_owned);
        let chain: Vec<String> = before.chain([peer]).collect();
        if let Ok(chain) = HeaderValue::from_str(&chain.join(", ")) {
            headers.insert("x-forwarded-for", chain);
        }
    }
    // A proxy before us knows better.
    let scheme = HeaderValue::from_static(if secure { "https" } else { "http" });
    headers.entry("x-forwarded-proto").or_insert(scheme);
    if let Some(asked) = &asked {
        headers.insert("x-forwarded-host", asked.clone());
    }
    let host = match host {
        Host::Named(name) => HeaderValue::from_str(&name).ok().or(asked),
        Host::AsSent => asked,
    };
    headers.insert(header::HOST, host.unwrap_or(HeaderValue::from_static("localhost")));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(headers: &[(&str, &str)], host: Host) -> Request {
        let mut builder = Request::builder().uri("https://3000-x.example.com/a?b=c").version(Version::HTTP_2);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        let mut request = builder.body(Body::empty()).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 5))));
        let upgrade = upgrade_of(request.headers());
        prepare(&mut request, upgrade, host);
        request
    }

    #[test]
    fn the_program_inside_sees_a_plain_request_and_who_asked() {
        let request = prepared(&[("te", "trailers"), ("x-mine", "1"), ("x-forwarded-for", "10.0.0.9")], Host::AsSent);
        assert_eq!((request.uri().to_string().as_str(), request.version()), ("/a?b=c", Version::HTTP_11));
        let headers = request.headers();
        assert_eq!(headers["host"], "3000-x.example.com");
        assert_eq!(headers["x-mine"], "1");
        assert_eq!(headers["x-forwarded-for"], "10.0.0.9, 192.0.2.1");
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert!(!headers.contains_key("te"));
    }

    #[test]
    fn what_the_connection_names_stays_on_it() {
        let request = prepared(&[("connection", "close, X-Hop"), ("x-hop", "1"), ("keep-alive", "5")], Host::AsSent);
        for name in ["connection", "x-hop", "keep-alive"] {
            assert!(!request.headers().contains_key(name), "{name}");
        }
    }

    #[test]
    fn another_host_leaves_the_first_to_be_read() {
        let request = prepared(&[], Host::Named("3000.internal".into()));
        assert_eq!(request.headers()["host"], "3000.internal");
        assert_eq!(request.headers()["x-forwarded-host"], "3000-x.example.com");
    }

    #[test]
    fn an_upgrade_survives_the_removal_of_what_concerns_one_hop() {
        let request = prepared(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")], Host::AsSent);
        assert_eq!(request.headers()["connection"], "upgrade");
        assert_eq!(request.headers()["upgrade"], "websocket");
        let plain = prepared(&[("connection", "keep-alive"), ("upgrade", "h2c")], Host::AsSent);
        assert!(!plain.headers().contains_key("upgrade"));
    }
}
