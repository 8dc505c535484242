//! The query parameters of every call, as SDKs of version 2 and 3 send them; any other is refused by name.

use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::Refusal;
use crate::door::known::{parameters, unknown_parameter};

/// With every call: the key says whose it is, and projects are not told apart.
const EVERYWHERE: [&str; 3] = ["teamId", "projectId", "project"];

fn known(method: &Method, path: &str) -> Vec<&'static str> {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let own: &[&str] = match (method.as_str(), path) {
        ("GET", "/v2/sandboxes") => &["limit", "sortBy", "sortOrder", "namePrefix", "cursor", "tags"],
        ("GET", "/v2/sandboxes/sessions" | "/v2/sandboxes/snapshots") => &["name", "limit", "cursor", "sortOrder"],
        ("GET", "/v2/sandboxes/snapshots/tree") => &["snapshotId", "limit", "sortOrder"],
        ("GET", "/v2/sandboxes/drives") => &["limit", "cursor", "sortBy", "sortOrder", "namePrefix"],
        ("GET", "/v2/sandboxes/{sandbox}") => &["resume"],
        ("DELETE", "/v2/sandboxes/{sandbox}") => &["deleteOrphanSnapshots"],
        ("GET", "/v2/sandboxes/sessions/{session}/cmd/{command}") => &["wait"],
        // What the body says too.
        ("POST", "/v2/sandboxes/sessions/{session}/cmd") => &["wait", "logs"],
        _ => &[],
    };
    [&EVERYWHERE[..], own].concat()
}

pub async fn guard(request: Request, next: Next) -> Response {
    let query = request.uri().query().unwrap_or_default();
    if query.is_empty() {
        return next.run(request).await;
    }
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    let known = known(request.method(), path.strip_prefix("/vercel/api").unwrap_or(path));
    match parameters(query).iter().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Refusal::bad(unknown_parameter(name, &known)).into_response(),
        None => next.run(request).await,
    }
}
