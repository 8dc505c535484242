//! Bodies as the SDKs really send them.
//!
//! Some calls carry JSON without a content type, some a content type without a body: axum's own `Json` refuses both.

use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use serde::de::DeserializeOwned;

use super::problem::Problem;
use crate::door::known;

/// Messages are held whole, and the routes for files have no limit of axum's: this is it.
const LARGEST: usize = 16 << 20;

/// JSON whatever the headers say; no body at all is `{}`.
pub struct Lenient<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Lenient<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let unreadable = |reason: String| {
            Problem::daemon(StatusCode::BAD_REQUEST, "INVALID_REQUEST_BODY", format!("request body: {reason}"))
        };
        let read = axum::body::to_bytes(request.into_body(), LARGEST).await;
        let bytes = read.map_err(|error| unreadable(format!("{error} (at most {} MiB)", LARGEST >> 20)))?;
        let text: &[u8] = if bytes.iter().all(u8::is_ascii_whitespace) { b"{}" } else { &bytes };
        known::read(text).map(Lenient).map_err(unreadable)
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::extract::DefaultBodyLimit;
    use axum::routing::post;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn a_message_has_a_largest_size_also_where_files_have_none() {
        let take = async |Lenient(_): Lenient<serde_json::Value>| "taken";
        let router: Router = Router::new().route("/", post(take)).layer(DefaultBodyLimit::disable());
        for (size, expected) in [(1 << 20, StatusCode::OK), (LARGEST, StatusCode::BAD_REQUEST)] {
            let body = Body::from(format!("\"{}\"", "x".repeat(size)));
            let answer = router.clone().oneshot(Request::post("/").body(body).unwrap()).await.unwrap();
            assert_eq!(answer.status(), expected, "{size} bytes");
        }
    }
}
