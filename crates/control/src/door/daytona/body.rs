//! Bodies as the SDKs really send them.
//!
//! Some calls carry JSON without a content type, some a content type without a body: axum's own `Json` refuses both.

use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::problem::Problem;
use crate::door::{known, size};
use crate::{Error, border, heavy};

/// JSON whatever the headers say; no body at all is `{}`.
pub struct Lenient<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send + 'static> FromRequest<S> for Lenient<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let unreadable = |reason: String| {
            Problem::daemon(StatusCode::BAD_REQUEST, "INVALID_REQUEST_BODY", format!("request body: {reason}"))
        };
        let most = size::most(request.extensions());
        let bytes = match size::whole(request.into_body(), most).await {
            Ok(bytes) => bytes,
            Err(Error::Invalid { message, .. }) => return Err(unreadable(message)),
            Err(error) => return Err(error.into()),
        };
        let text = if bytes.iter().all(u8::is_ascii_whitespace) { Bytes::from_static(b"{}") } else { bytes };
        let read = heavy::run(text.len(), heavy::SMALL, move || {
            border::shape::check(&text).map_err(|excess| excess.to_string())?;
            known::read(&text)
        });
        read.await.map(Lenient).map_err(unreadable)
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
        let router: Router =
            Router::new().route("/", post(take)).route("/execute", post(take)).layer(DefaultBodyLimit::disable());
        for (path, size, expected) in [
            ("/", 1 << 10, StatusCode::OK),
            ("/", 1 << 20, StatusCode::PAYLOAD_TOO_LARGE),
            ("/execute", 2 << 20, StatusCode::OK),
            ("/execute", 16 << 20, StatusCode::PAYLOAD_TOO_LARGE),
        ] {
            let body = Body::from(format!("{{\"code\":\"{}\"}}", "x".repeat(size)));
            let answer = router.clone().oneshot(Request::post(path).body(body).unwrap()).await.unwrap();
            assert_eq!(answer.status(), expected, "{size} bytes to {path}");
        }
    }
}
