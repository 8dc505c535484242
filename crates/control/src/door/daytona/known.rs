//! The query parameters of every call, as the SDKs since 0.21 send them; any other is refused by name.
//!
//! Taken from the SDKs' own clients, so that no version of theirs meets a refusal for what it has always sent.

use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::admit::TOKEN_QUERY;
use super::problem::{Problem, Speaker};
use crate::door::known::{parameters, unknown_parameter};

/// Filters of both lists of sandboxes.
const FILTERS: [&str; 29] = [
    "id",
    "name",
    "labels",
    "includeErroredDeleted",
    "includeWarm",
    "states",
    "snapshots",
    "regions",
    "regionIds",
    "sandboxClasses",
    "minCpu",
    "maxCpu",
    "minGpu",
    "maxGpu",
    "minMemoryGiB",
    "maxMemoryGiB",
    "minDiskGiB",
    "maxDiskGiB",
    "isPublic",
    "isRecoverable",
    "createdAtAfter",
    "createdAtBefore",
    "lastEventAfter",
    "lastEventBefore",
    "autoDestroyAtAfter",
    "autoDestroyAtBefore",
    "sort",
    "order",
    "limit",
];

/// What a signed URL of a file carries besides.
const SIGNED: [&str; 2] = ["expires", "signature"];

/// A call's own parameters; `None` where they are not ours to know.
fn known(method: &Method, path: &str) -> Option<Vec<&'static str>> {
    // HEAD is answered by the handler of GET.
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let own: &[&str] = match (method.as_str(), path) {
        // What a program inside, or the protocol of the events, takes.
        (_, "/proxy/{port}" | "/proxy/{port}/" | "/proxy/{port}/{*path}") => return None,
        (_, "/socket.io" | "/socket.io/") => return None,
        // Refused whatever it carries.
        (_, "/lsp/{*call}" | "/computeruse/{*call}") => return None,
        ("GET", "/sandbox") => return Some([&FILTERS[..], &["cursor", "verbose"]].concat()),
        ("GET", "/sandbox/paginated") => return Some([&FILTERS[..], &["page"]].concat()),
        ("GET", "/sandbox/{id}") => &["verbose"],
        ("DELETE", "/sandbox/{id}") | ("POST", "/sandbox/{id}/stop") => &["force"],
        ("POST", "/sandbox/{id}/recover") => &["skipStart"],
        ("POST", "/sandbox/{id}/ssh-access") => &["expiresInMinutes"],
        ("DELETE", "/sandbox/{id}/ssh-access") | ("GET", "/sandbox/ssh-access/validate") => &["token"],
        ("GET", "/sandbox/{id}/ports/{port}/signed-preview-url") => &["expiresInSeconds"],
        ("GET", "/sandbox/{id}/telemetry/metrics") => &["from", "to", "metricNames"],
        ("GET", "/sandbox/{id}/build-logs" | "/snapshots/{id}/build-logs") => &["follow"],
        ("GET", "/sandbox/{id}/forks") => &["includeDestroyed"],
        ("GET", "/snapshots") => &["limit", "page", "name", "sort", "order", "sourceSandboxId"],
        ("GET", "/secret/paginated") => &["cursor", "limit", "name", "sort", "order"],
        ("GET", "/volumes") => &["includeDeleted"],
        ("GET", "/object-storage/push-access") => &["region", "regionId"],
        ("GET", "/files" | "/files/") => &["path", "depth"],
        ("DELETE", "/files" | "/files/") => &["path", "recursive"],
        ("GET", "/files/info") => &["path"],
        ("GET", "/files/download") | ("POST", "/files/upload" | "/files/upload-v2") => {
            return Some([&["path"], &SIGNED[..]].concat());
        }
        ("GET", "/files/find" | "/files/search") => &["path", "pattern"],
        ("POST", "/files/folder") => &["path", "mode"],
        ("POST", "/files/move") => &["source", "destination"],
        ("POST", "/files/permissions") => &["path", "owner", "group", "mode"],
        ("GET", "/git/status" | "/git/branches" | "/git/history" | "/git/remotes") => &["path"],
        ("GET", "/git/config") => &["key", "path", "scope"],
        ("GET", "/process/session/{session}/command/{command}/logs" | "/process/session/entrypoint/logs") => {
            &["follow"]
        }
        ("GET", "/process/pty/create-connect") => &["id", "cwd", "cols", "rows"],
        _ => &[],
    };
    Some(own.to_vec())
}

/// Below the door: `/sandbox/{id}` of the API, `/files` of the toolbox.
fn below(path: &str) -> &str {
    let prefixes = ["/daytona/api/toolbox", "/daytona/toolbox", "/daytona/api"];
    prefixes.iter().find_map(|prefix| path.strip_prefix(prefix)).unwrap_or(path)
}

pub async fn guard(request: Request, next: Next) -> Response {
    let query = request.uri().query().unwrap_or_default();
    if query.is_empty() {
        return next.run(request).await;
    }
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    let Some(known) = known(request.method(), below(path)) else { return next.run(request).await };
    for name in parameters(query) {
        // Lists come in both spellings.
        let plain = name.strip_suffix("[]").unwrap_or(&name);
        if !known.contains(&plain) && plain != TOKEN_QUERY {
            let problem = Problem::bad_request(unknown_parameter(plain, &known));
            let (status, speaker) = (StatusCode::BAD_REQUEST, Speaker::Api);
            return Problem { status, speaker, ..problem }.into_response();
        }
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the SDKs' clients send, read off 0.21 to 0.226.
    const SENT: &str = include_str!("known/sent.txt");

    #[test]
    fn every_parameter_that_an_sdk_sends_is_known() {
        let mut checked = 0;
        for line in SENT.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let mut words = line.split_whitespace();
            let (method, path) = (words.next().unwrap(), words.next().unwrap());
            let method: Method = method.parse().unwrap();
            let known = known(&method, path).unwrap_or_else(|| panic!("{line}"));
            for name in words {
                assert!(known.contains(&name), "{method} {path} is sent {name}");
                checked += 1;
            }
        }
        assert!(checked > 100, "{checked}");
    }

    #[test]
    fn the_toolbox_is_found_under_all_its_names() {
        for path in ["/daytona/toolbox/files", "/daytona/api/toolbox/files", "/files"] {
            assert_eq!(below(path), "/files", "{path}");
        }
        assert_eq!(below("/daytona/api/sandbox/{id}"), "/sandbox/{id}");
    }
}
