//! One request passed to a port inside a sandbox, and its answer back; WebSockets too.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use cove_protocol::FailureKind;
use hyper_util::rt::TokioIo;

use super::problem::{Answer, Problem, Speaker};
use crate::guest::{Guest, GuestError};

/// What concerns one connection and must not travel on (RFC 9110, 7.6.1).
const ONE_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

fn bad_gateway(port: u16, reason: impl std::fmt::Display) -> Problem {
    Problem {
        status: StatusCode::BAD_GATEWAY,
        code: "BAD_GATEWAY",
        speaker: Speaker::Proxy,
        message: format!("port {port} of the sandbox: {reason}"),
    }
}

/// `below` is the path that the application's own root has outside: its redirects are put there.
pub async fn to_port(guest: &Guest, port: u16, below: &str, mut request: Request) -> Answer<Response> {
    let pipe = guest.dial(port).await.map_err(|error| match error {
        GuestError::Failed(failure) if failure.kind == FailureKind::Refused => {
            bad_gateway(port, "nothing listens there")
        }
        error => error.into(),
    })?;
    let failed = |error: hyper::Error| bad_gateway(port, error);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(pipe)).await.map_err(failed)?;
    // Ends with the exchange, or with the upgraded connection.
    tokio::spawn(connection.with_upgrades());

    let upgrade = upgrade_of(request.headers());
    let client = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    for name in &ONE_HOP {
        headers.remove(name);
    }
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
    if let Some(host) = headers.get(header::HOST).cloned() {
        headers.insert("x-forwarded-host", host);
    }
    let local = HeaderValue::from_str(&format!("localhost:{port}")).expect("a host and a number are a header");
    headers.insert(header::HOST, local);

    let mut answer = sender.send_request(request).await.map_err(failed)?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let client = client.ok_or_else(|| bad_gateway(port, "an upgrade that nobody asked for"))?;
        let inside = hyper::upgrade::on(&mut answer);
        tokio::spawn(async move {
            let (Ok(client), Ok(inside)) = tokio::join!(client, inside) else { return };
            // Either side may hang up at any time: that is how such a connection ends.
            let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(inside)).await;
        });
        return Ok(answer.map(|_| Body::empty()).into_response());
    }
    for name in &ONE_HOP {
        answer.headers_mut().remove(name);
    }
    put_redirect_below(answer.headers_mut(), below);
    Ok(answer.map(Body::new).into_response())
}

fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = headers.get(header::CONNECTION)?.to_str().ok()?;
    let asked = asked.split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    asked.then(|| headers.get(header::UPGRADE).cloned()).flatten()
}

fn put_redirect_below(headers: &mut HeaderMap, below: &str) {
    let Some(location) = headers.get(header::LOCATION).and_then(|value| value.to_str().ok()) else { return };
    // `//host` is another server.
    if location.starts_with('/')
        && !location.starts_with("//")
        && let Ok(moved) = HeaderValue::from_str(&format!("{below}{location}"))
    {
        headers.insert(header::LOCATION, moved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_of_the_application_stays_in_its_preview() {
        let moved = |to: &'static str| {
            let mut headers = HeaderMap::from_iter([(header::LOCATION, HeaderValue::from_static(to))]);
            put_redirect_below(&mut headers, "/daytona/preview/abc/3000");
            headers[header::LOCATION].to_str().unwrap().to_owned()
        };
        assert_eq!(moved("/login"), "/daytona/preview/abc/3000/login");
        assert_eq!(moved("https://elsewhere.example/"), "https://elsewhere.example/");
        assert_eq!(moved("//elsewhere.example/"), "//elsewhere.example/");
    }
}
