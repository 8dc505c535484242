//! The domain's errors as the native API tells them.

use std::time::Duration;

use axum::Json;
use axum::extract::OriginalUri;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cove_protocol::FailureKind;
use serde::Serialize;

use crate::Error;
use crate::guest::GuestError;

/// What every refusal looks like.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ErrorBody {
    /// A short word for programs, such as `not_found`.
    pub code: String,
    /// A sentence for people.
    pub message: String,
}

#[derive(Debug)]
pub struct ApiError(pub Error);

impl<E: Into<Error>> From<E> for ApiError {
    fn from(error: E) -> Self {
        ApiError(error.into())
    }
}

fn status(error: &Error) -> StatusCode {
    match error {
        Error::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
        Error::Forbidden(_) => StatusCode::FORBIDDEN,
        Error::NotFound { .. } => StatusCode::NOT_FOUND,
        Error::Invalid { .. } | Error::Unsupported(_) => StatusCode::BAD_REQUEST,
        Error::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        Error::Conflict(_) | Error::Denied(_) => StatusCode::CONFLICT,
        Error::Quota { .. } | Error::RateLimited(_) => StatusCode::TOO_MANY_REQUESTS,
        Error::Exhausted { .. } | Error::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
        Error::Full(_) => StatusCode::INSUFFICIENT_STORAGE,
        Error::Elsewhere { .. } => StatusCode::MISDIRECTED_REQUEST,
        Error::Guest(GuestError::Failed(failure)) => match failure.kind {
            FailureKind::NotFound => StatusCode::NOT_FOUND,
            FailureKind::AlreadyExists | FailureKind::NotEmpty | FailureKind::WrongState => StatusCode::CONFLICT,
            FailureKind::PermissionDenied => StatusCode::FORBIDDEN,
            FailureKind::UnknownUser
            | FailureKind::NotADirectory
            | FailureKind::IsADirectory
            | FailureKind::InvalidArgument
            | FailureKind::Unsupported => StatusCode::BAD_REQUEST,
            FailureKind::Exhausted => StatusCode::INSUFFICIENT_STORAGE,
            FailureKind::Refused | FailureKind::Internal => StatusCode::BAD_GATEWAY,
        },
        Error::Guest(GuestError::Timeout(_)) => StatusCode::GATEWAY_TIMEOUT,
        Error::Guest(GuestError::Unreachable(_) | GuestError::Protocol(_)) => StatusCode::BAD_GATEWAY,
        Error::Archive { .. } => StatusCode::BAD_GATEWAY,
        Error::Internal { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = status(&self.0);
        if let Some(detail) = self.0.detail() {
            tracing::error!(error = %self.0, detail, "request failed");
        }
        let body = ErrorBody { code: self.0.code().to_owned(), message: self.0.to_string() };
        let mut response = (status, Json(body)).into_response();
        if let Some(after) = self.0.retry_after() {
            let seconds = after.as_secs_f64().ceil().max(1.0) as u64;
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Error::RateLimited(refused) = &self.0 {
            rate_headers(response.headers_mut(), refused.limit, 0, refused.retry_after);
        }
        response
    }
}

/// What a key has left, in every answer.
pub fn rate_headers(headers: &mut HeaderMap, limit: u32, remaining: u32, reset: Duration) {
    headers.insert("ratelimit-limit", HeaderValue::from(limit));
    headers.insert("ratelimit-remaining", HeaderValue::from(remaining));
    headers.insert("ratelimit-reset", HeaderValue::from(reset.as_secs_f64().ceil() as u64));
}

/// The path is there, but not for this method; the header `Allow` says for which.
pub async fn no_such_method(method: axum::http::Method, OriginalUri(uri): OriginalUri) -> Response {
    let message = format!("{} takes no {method}", uri.path());
    let body = ErrorBody { code: "method_not_allowed".into(), message };
    (StatusCode::METHOD_NOT_ALLOWED, Json(body)).into_response()
}

/// With the path as it was asked for, not as it is below `/api`.
pub async fn no_such_route(OriginalUri(uri): OriginalUri) -> ApiError {
    ApiError(Error::not_found("route", uri.path()))
}
