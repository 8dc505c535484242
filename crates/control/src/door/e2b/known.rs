//! The query parameters of every call of the API, as the SDKs since 1.0 send them; any other is refused by name.

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use http::{Method, StatusCode};

use super::destination::PREFIX;
use super::error::plain;
use crate::door::known::{parameters, unknown_parameter};

fn known(method: &str, path: &str) -> &'static [&'static str] {
    match (method, path) {
        ("GET", "/sandboxes") => &["metadata"],
        ("GET", "/v2/sandboxes") => &["metadata", "state", "order", "startedAfter", "template", "limit", "nextToken"],
        ("GET", "/sandboxes/metrics") => &["sandbox_ids", "metadata"],
        ("GET", "/sandboxes/{id}/metrics") => &["start", "end"],
        ("GET", "/sandboxes/{id}/logs") => &["start", "limit"],
        ("GET", "/v2/sandboxes/{id}/logs") => &["cursor", "limit", "direction", "level", "search"],
        ("GET", "/snapshots") => &["sandboxID", "name", "limit", "nextToken"],
        // Of the key's own team whatever is said.
        ("GET", "/templates") => &["teamID"],
        ("GET", "/v2/templates") => &["teamID", "limit", "nextToken"],
        ("GET", "/templates/{id}" | "/secrets") => &["limit", "nextToken"],
        _ => &[],
    }
}

pub async fn guard(request: Request, next: Next) -> Response {
    let query = request.uri().query().unwrap_or_default();
    if query.is_empty() {
        return next.run(request).await;
    }
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    // Below the door's prefix, or at the root for clients that cannot live with one.
    let path = path.strip_prefix(PREFIX).unwrap_or(path);
    // HEAD is answered by the handler of GET.
    let method = if request.method() == Method::HEAD { "GET" } else { request.method().as_str() };
    let known = known(method, path);
    match parameters(query).iter().find(|name| !known.contains(&name.as_str())) {
        Some(name) => plain(StatusCode::BAD_REQUEST, &unknown_parameter(name, known)),
        None => next.run(request).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_that_an_sdk_sends_is_known() {
        // Read off the Python clients from 1.0 to 2.63, for the calls that are served.
        for (path, sent) in [
            ("/sandboxes", "metadata"),
            ("/sandboxes/metrics", "metadata sandbox_ids"),
            ("/sandboxes/{id}/logs", "limit start"),
            ("/sandboxes/{id}/metrics", "end start"),
            ("/secrets", "limit nextToken"),
            ("/snapshots", "limit name nextToken sandboxID"),
            ("/templates", "teamID"),
            ("/templates/{id}", "limit nextToken"),
            ("/v2/sandboxes", "limit metadata nextToken order startedAfter state template"),
            ("/v2/sandboxes/{id}/logs", "cursor direction level limit search"),
            ("/v2/templates", "limit nextToken teamID"),
        ] {
            for name in sent.split(' ') {
                assert!(known("GET", path).contains(&name), "{path} is sent {name}");
            }
        }
    }
}
