//! Checks the host of a request that came by TLS: a host that the certificate does not name gets 421 (RFC 9110
//! 15.5.20). Marks the rest, so that the doors know that the client came by https.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};

use super::keeper::Keeper;
use crate::door::entrance::SentOn;

/// The header that doors read when they make links.
const PROTOCOL: &str = "x-forwarded-proto";

/// The doors, behind the check of the host.
pub fn guard(router: Router, keeper: Arc<Keeper>) -> Router {
    router.layer(axum::middleware::from_fn_with_state(keeper, receive))
}

/// Refuses requests for another host and marks the rest as https. A host that is an IP address passes.
async fn receive(State(keeper): State<Arc<Keeper>>, mut request: Request, next: Next) -> Response {
    let named = request.uri().authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = named {
        // HTTP/2 has no Host header; the code behind expects one.
        request.headers_mut().entry(header::HOST).or_insert(host);
    }
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host.parse::<http::uri::Authority>().map(|authority| authority.host().to_owned()).unwrap_or_default();
    let is_address = name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    // For a request that was sent on, the client's host and protocol are those it used with the first server.
    if request.extensions().get::<SentOn>().is_some() {
        return next.run(request).await;
    }
    if !is_address && !keeper.shown().facts.covers(&name) {
        let message = format!("this server's certificate is not for the host {name:?}");
        let body = serde_json::json!({ "code": 421, "message": message });
        return (StatusCode::MISDIRECTED_REQUEST, axum::Json(body)).into_response();
    }
    request.headers_mut().insert(PROTOCOL, HeaderValue::from_static("https"));
    next.run(request).await
}
