//! A sandbox's own ports from outside: HTTP and WebSockets, passed through the guest to whatever listens inside.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use cove_protocol::{FailureKind, Reply, Request as Ask};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, Version, header};
use hyper_util::rt::TokioIo;

use super::error::{for_reader, plain, port_closed, sandbox_not_found};
use crate::guest::{Guest, GuestError};

/// What concerns one connection and must not travel on (RFC 9110, 7.6.1). `Upgrade` is dealt with apart.
const HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
];

/// Ours: the program inside has no business with them.
const TOKENS: [&str; 3] = ["e2b-traffic-access-token", "e2b-sandbox-id", "e2b-sandbox-port"];

/// Passes one request to a port of the sandbox and its answer back. `host` replaces the Host header where given.
pub async fn forward(guest: &Guest, id: &str, port: u16, host: Option<&str>, mut request: Request<Body>) -> Response {
    let wants = request.headers().clone();
    let pipe = match guest.dial(port).await {
        Ok(pipe) => pipe,
        Err(GuestError::Failed(failure)) if failure.kind == FailureKind::Refused => {
            let answer = port_closed(id, port, &open_ports(guest).await);
            let advice = format!("The sandbox is running, but nothing listens on port {port} inside it.");
            return for_reader(&wants, answer, "Nothing here yet", &advice);
        }
        Err(GuestError::Unreachable(_)) => return sandbox_not_found(id),
        Err(error) => return plain(StatusCode::BAD_GATEWAY, &format!("port {port}: {error}")),
    };
    let (mut sender, connection) = match hyper::client::conn::http1::handshake(TokioIo::new(pipe)).await {
        Ok(opened) => opened,
        Err(error) => return plain(StatusCode::BAD_GATEWAY, &format!("port {port}: {error}")),
    };
    // Ends with the exchange, or with the upgraded connection.
    tokio::spawn(connection.with_upgrades());

    let upgrade = upgrade_of(request.headers());
    let client = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    prepare(&mut request, upgrade.as_ref(), host, port);
    let mut answer = match sender.send_request(request).await {
        Ok(answer) => answer,
        Err(error) => return plain(StatusCode::BAD_GATEWAY, &format!("port {port} broke off: {error}")),
    };
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(client) = client else { return plain(StatusCode::BAD_GATEWAY, "an upgrade that nobody asked for") };
        let inside = hyper::upgrade::on(&mut answer);
        tokio::spawn(async move {
            let (Ok(client), Ok(inside)) = tokio::join!(client, inside) else { return };
            let (mut client, mut inside) = (TokioIo::new(client), TokioIo::new(inside));
            // Either side may hang up at any time: that is how such a connection ends.
            let _ended = tokio::io::copy_bidirectional(&mut client, &mut inside).await;
        });
        return answer.map(|_| Body::empty()).into_response();
    }
    for name in &HOP_BY_HOP {
        answer.headers_mut().remove(name);
    }
    answer.map(Body::new).into_response()
}

/// The protocol of an `Upgrade`, if the connection asks for one.
fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = headers.get(header::CONNECTION)?.to_str().ok()?;
    let asked = asked.split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    asked.then(|| headers.get(header::UPGRADE).cloned()).flatten()
}

fn prepare(request: &mut Request<Body>, upgrade: Option<&HeaderValue>, host: Option<&str>, port: u16) {
    let original = request.uri().authority().map(ToString::to_string);
    let original = original.and_then(|text| HeaderValue::from_str(&text).ok());
    let original = original.or_else(|| request.headers().get(header::HOST).cloned());
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse::<Uri>().unwrap_or_else(|_| Uri::from_static("/"));
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    for name in HOP_BY_HOP.iter().chain([&header::UPGRADE]) {
        headers.remove(name);
    }
    for name in TOKENS {
        headers.remove(name);
    }
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol.clone());
    }
    let masked = host.map(|mask| mask.replace("${PORT}", &port.to_string()));
    let masked = masked.and_then(|text| HeaderValue::from_str(&text).ok());
    if let Some(original) = &original {
        headers.insert("x-forwarded-host", original.clone());
    }
    if let Some(host) = masked.or(original) {
        headers.insert(header::HOST, host);
    }
}

async fn open_ports(guest: &Guest) -> Vec<u16> {
    match guest.call(&Ask::Ports).await {
        Ok(Reply::Ports { ports }) => ports.into_iter().map(|port| port.port).take(100).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(headers: &[(&str, &str)], host: Option<&str>) -> Request<Body> {
        let mut builder = Request::builder().uri("https://3000-x.example.com/a?b=c").version(Version::HTTP_2);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        let mut request = builder.body(Body::empty()).unwrap();
        let upgrade = upgrade_of(request.headers());
        prepare(&mut request, upgrade.as_ref(), host, 3000);
        request
    }

    #[test]
    fn the_program_inside_sees_a_plain_request_and_none_of_our_tokens() {
        let request = prepared(&[("e2b-traffic-access-token", "secret"), ("te", "trailers"), ("x-mine", "1")], None);
        assert_eq!((request.uri().to_string().as_str(), request.version()), ("/a?b=c", Version::HTTP_11));
        assert_eq!(request.headers()["host"], "3000-x.example.com");
        assert_eq!(request.headers()["x-mine"], "1");
        assert!(!request.headers().contains_key("e2b-traffic-access-token"));
        assert!(!request.headers().contains_key("te"));
    }

    #[test]
    fn a_masked_host_names_the_port() {
        let request = prepared(&[], Some("${PORT}.internal"));
        assert_eq!(request.headers()["host"], "3000.internal");
        assert_eq!(request.headers()["x-forwarded-host"], "3000-x.example.com");
    }

    #[test]
    fn an_upgrade_survives_the_removal_of_what_concerns_one_hop() {
        let request = prepared(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")], None);
        assert_eq!(request.headers()["connection"], "upgrade");
        assert_eq!(request.headers()["upgrade"], "websocket");
        let plain = prepared(&[("connection", "keep-alive"), ("upgrade", "h2c")], None);
        assert!(!plain.headers().contains_key("upgrade"));
    }
}
