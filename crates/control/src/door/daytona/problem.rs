//! Errors of this dialect.
//!
//! The SDKs read `message`, `code` and `source`, and choose their exception by source and code before the status. Every
//! error of the door goes through [`Problem`], so that none leaves without the three.

use std::time::Duration;

use axum::Json;
use axum::extract::{OriginalUri, Request};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cove_protocol::FailureKind;
use serde_json::json;

use crate::guest::GuestError;

/// Which of the original's parts would have said it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// The control plane.
    Api,
    /// The toolbox in a sandbox.
    Daemon,
    /// What stands between the two.
    Proxy,
}

impl Speaker {
    fn name(self) -> &'static str {
        match self {
            Speaker::Api => "DAYTONA_API",
            Speaker::Daemon => "DAYTONA_DAEMON",
            Speaker::Proxy => "DAYTONA_PROXY",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub status: StatusCode,
    pub code: &'static str,
    pub speaker: Speaker,
    pub message: String,
    /// When it may be worth trying again.
    pub retry_after: Option<Duration>,
}

pub type Answer<T> = Result<T, Problem>;

impl Problem {
    pub fn daemon(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Problem { status, code, speaker: Speaker::Daemon, message: message.into(), retry_after: None }
    }

    pub fn api(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Problem { status, code, speaker: Speaker::Api, message: message.into(), retry_after: None }
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Problem::daemon(StatusCode::BAD_REQUEST, "BAD_REQUEST", message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Problem::daemon(StatusCode::NOT_FOUND, "NOT_FOUND", message)
    }

    pub fn conflict(message: impl Into<String>) -> Self {
        Problem::daemon(StatusCode::CONFLICT, "CONFLICT", message)
    }

    pub fn gone(code: &'static str, message: impl Into<String>) -> Self {
        Problem::daemon(StatusCode::GONE, code, message)
    }

    /// Something that this server does not offer.
    pub fn not_offered(message: impl Into<String>) -> Self {
        Problem::daemon(StatusCode::NOT_IMPLEMENTED, "NOT_IMPLEMENTED", message)
    }

    /// The whole envelope; `path` and `method` are known only where the request is.
    pub fn envelope(&self, path: &str, method: &str) -> serde_json::Value {
        json!({
            "statusCode": self.status.as_u16(),
            "message": self.message,
            "code": self.code,
            "source": self.speaker.name(),
            "error": self.status.canonical_reason().unwrap_or("Error"),
            "path": path,
            "method": method,
            "timestamp": jiff::Timestamp::now().to_string(),
        })
    }

    fn answer(&self, path: &str, method: &str) -> Response {
        let mut response = (self.status, Json(self.envelope(path, method))).into_response();
        if let Some(wait) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, wait.as_secs().max(1).into());
        }
        response
    }
}

impl From<GuestError> for Problem {
    fn from(error: GuestError) -> Self {
        match error {
            GuestError::Failed(failure) => {
                let (status, code) = of_kind(failure.kind);
                Problem::daemon(status, code, failure.message)
            }
            GuestError::Unreachable(_) | GuestError::Protocol(_) => Problem {
                status: StatusCode::BAD_GATEWAY,
                code: "SANDBOX_UNREACHABLE",
                speaker: Speaker::Proxy,
                message: error.to_string(),
                retry_after: None,
            },
            GuestError::Timeout(_) => Problem {
                status: StatusCode::GATEWAY_TIMEOUT,
                code: "REQUEST_TIMEOUT",
                speaker: Speaker::Proxy,
                message: error.to_string(),
                retry_after: None,
            },
        }
    }
}

fn of_kind(kind: FailureKind) -> (StatusCode, &'static str) {
    match kind {
        FailureKind::NotFound => (StatusCode::NOT_FOUND, "NOT_FOUND"),
        FailureKind::AlreadyExists => (StatusCode::CONFLICT, "CONFLICT"),
        FailureKind::PermissionDenied => (StatusCode::FORBIDDEN, "FORBIDDEN"),
        FailureKind::NotADirectory
        | FailureKind::IsADirectory
        | FailureKind::NotEmpty
        | FailureKind::UnknownUser
        | FailureKind::InvalidArgument => (StatusCode::BAD_REQUEST, "BAD_REQUEST"),
        FailureKind::Exhausted => (StatusCode::INSUFFICIENT_STORAGE, "RESOURCES_EXHAUSTED"),
        FailureKind::WrongState => (StatusCode::GONE, "GONE"),
        FailureKind::Refused => (StatusCode::BAD_GATEWAY, "CONNECTION_REFUSED"),
        FailureKind::Unsupported => (StatusCode::NOT_IMPLEMENTED, "NOT_IMPLEMENTED"),
        FailureKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_SERVER_ERROR"),
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.answer("", "");
        response.extensions_mut().insert(self);
        response
    }
}

/// Writes the request's path and method into the envelope of a [`Problem`] on its way out.
pub async fn name_the_request(request: Request, next: Next) -> Response {
    // As the client wrote it, before routing took prefixes off.
    let uri = request.extensions().get::<OriginalUri>().map_or(request.uri(), |OriginalUri(uri)| uri);
    let (path, method) = (uri.path().to_owned(), request.method().to_string());
    let response = next.run(request).await;
    match response.extensions().get::<Problem>() {
        Some(problem) => problem.answer(&path, &method),
        None => response,
    }
}
