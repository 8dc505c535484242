//! Bodies as the SDKs really send them.
//!
//! Some calls carry JSON without a content type, some a content type without a body: axum's own `Json` refuses both.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use serde::de::DeserializeOwned;

use super::problem::Problem;

/// JSON whatever the headers say; no body at all is `{}`.
pub struct Lenient<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Lenient<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let unreadable = |reason: String| {
            Problem::daemon(StatusCode::BAD_REQUEST, "INVALID_REQUEST_BODY", format!("request body: {reason}"))
        };
        let bytes = Bytes::from_request(request, state).await.map_err(|error| unreadable(error.body_text()))?;
        let text: &[u8] = if bytes.iter().all(u8::is_ascii_whitespace) { b"{}" } else { &bytes };
        serde_json::from_slice(text).map(Lenient).map_err(|error| unreadable(error.to_string()))
    }
}
