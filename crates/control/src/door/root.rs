//! The page at `/`: what this is, and what to do next. It needs no key and shows nothing of the server's data. And the
//! answer to whoever asks for a path of no door.

use axum::Json;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse};

/// Longer than any host name that is somebody's.
const LONGEST_HOST: usize = 261;
/// Of a path that leads nowhere, as much is told.
const LONGEST_PATH: usize = 200;

/// The page, with commands for the address that the browser used.
pub async fn page(headers: HeaderMap) -> impl IntoResponse {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).filter(|host| is_plain(host));
    let page = include_str!("root.html").replace("{{host}}", host.unwrap_or("HOST:7070"));
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'";
    let headers = [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Its text depends on the request's Host.
        (header::VARY, "host"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, Html(page))
}

/// Names the doors: whoever comes here has forgotten the prefix of one.
pub async fn no_such_page(uri: Uri) -> impl IntoResponse {
    let path: String = uri.path().chars().take(LONGEST_PATH).collect();
    let doors = "the API is below /api (/api/docs), E2B's below /e2b, Daytona's below /daytona, Vercel's below /vercel";
    let message = format!("there is nothing at {path}: {doors}");
    (StatusCode::NOT_FOUND, Json(serde_json::json!({ "code": "not_found", "message": message })))
}

/// A host name with a port, and nothing that means something in HTML or to a shell.
fn is_plain(host: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    (1..=LONGEST_HOST).contains(&host.len()) && host.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn shown(host: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        let body = page(headers).await.into_response().into_body();
        String::from_utf8(axum::body::to_bytes(body, 1 << 20).await.unwrap().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn the_page_says_what_to_do_next_at_the_address_that_was_asked() {
        let page = shown("cove.example:7070").await;
        assert!(page.contains("COVE_URL=http://cove.example:7070"), "{page}");
        assert!(!page.contains("src=") && !page.contains("{{"), "{page}");
    }

    #[tokio::test]
    async fn a_host_of_a_strangers_making_is_not_shown() {
        for host in ["<script>", "a'b", "x;rm", "a b", &"a".repeat(300)] {
            assert!(shown(host).await.contains("HOST:7070"), "{host}");
        }
    }
}
