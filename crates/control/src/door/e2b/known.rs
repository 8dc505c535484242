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
        ("GET", "/templates/{id}/builds/{build}/status") => &["logsOffset", "limit", "level"],
        ("GET", "/templates/{id}/builds/{build}/logs") => &["cursor", "limit", "direction", "level", "source"],
        ("GET", "/templates/{id}/tags/exists") => &["tag"],
        ("GET", "/templates/{id}/tags/groups") => &["assignmentLimit", "tagsLimit", "tagsCursor", "search", "sort"],
        ("GET", "/templates/{id}/tags/{tag}/assignments") => &["cursor", "limit"],
        // Written by us, into the link.
        ("PUT", "/templates/{id}/files/{hash}") => &["key", "end", "signature"],
        ("GET", "/volumecontent/{id}/dir") => &["path", "depth"],
        ("GET" | "PATCH" | "DELETE", "/volumecontent/{id}/path") => &["path"],
        ("GET", "/volumecontent/{id}/file") => &["path"],
        ("POST", "/volumecontent/{id}/dir") | ("PUT", "/volumecontent/{id}/file") => {
            &["path", "uid", "gid", "mode", "force"]
        }
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
            ("/templates/{id}/builds/{build}/logs", "cursor direction level limit source"),
            ("/templates/{id}/builds/{build}/status", "level limit logsOffset"),
            ("/templates/{id}/tags/exists", "tag"),
            ("/templates/{id}/tags/groups", "assignmentLimit search sort tagsCursor tagsLimit"),
            ("/templates/{id}/tags/{tag}/assignments", "cursor limit"),
            ("/volumecontent/{id}/dir", "depth path"),
            ("/volumecontent/{id}/file", "path"),
            ("/volumecontent/{id}/path", "path"),
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
