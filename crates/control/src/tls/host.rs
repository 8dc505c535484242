//! Who is meant by a request that came through TLS of ours: a host that the certificate does not name is told so (421,
//! RFC 9110 15.5.20), and the doors learn that the client came by https.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};

use super::keeper::Keeper;
use crate::door::entrance::SentOn;

/// What the doors read where they make links.
const PROTOCOL: &str = "x-forwarded-proto";

/// The doors, for requests that are meant for this server.
pub fn guard(router: Router, keeper: Arc<Keeper>) -> Router {
    router.layer(axum::middleware::from_fn_with_state(keeper, receive))
}

/// Refuses what is meant for another server, and marks the rest as https. An address is nobody's name: it passes.
async fn receive(State(keeper): State<Arc<Keeper>>, mut request: Request, next: Next) -> Response {
    let named = request.uri().authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = named {
        // HTTP/2 has no Host header; those who look for one find it.
        request.headers_mut().entry(header::HOST).or_insert(host);
    }
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host.parse::<http::uri::Authority>().map(|authority| authority.host().to_owned()).unwrap_or_default();
    let is_address = name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    // The client's own host and protocol are those that it used with the server which sent the request on.
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
