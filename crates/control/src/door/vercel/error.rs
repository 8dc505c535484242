//! Errors of this dialect: `{"error": {"code", "message"}}`.
//!
//! The SDK reacts to four of them. `404` is "not there"; `410` is "this session is over", upon which it starts another and
//! asks again; `422` with `sandbox_stopping` or `sandbox_snapshotting` is the same, a little later. It asks again by itself
//! after `429` and every `5xx`, so what a repetition cannot mend is none of these.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cove_protocol::FailureKind;
use serde_json::json;

use crate::Error;
use crate::guest::GuestError;
use crate::sandbox::State;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    /// When it may be worth trying again.
    pub retry_after: Option<Duration>,
}

pub type Answer<T> = Result<T, Refusal>;

impl Refusal {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { status, code, message: message.into(), retry_after: None }
    }

    pub fn bad(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// Something that this server does not offer.
    pub fn not_offered(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", message)
    }

    /// A session that is over. The SDK begins another.
    pub fn over(session: &str) -> Refusal {
        let message = format!("session {session} is over; get its sandbox with resume=true");
        Refusal::new(StatusCode::GONE, "sandbox_stopped", message)
    }

    /// A sandbox that is on its way to rest.
    pub fn stopping(session: &str) -> Refusal {
        let message = format!("session {session} is stopping");
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "sandbox_stopping", message)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        if let Some(detail) = error.detail() {
            tracing::error!(%error, detail, "request failed");
        }
        let (status, code) = match &error {
            Error::Unauthenticated(_) => (StatusCode::UNAUTHORIZED, "forbidden"),
            Error::Forbidden(_) => (StatusCode::FORBIDDEN, "forbidden"),
            Error::NotFound { .. } => (StatusCode::NOT_FOUND, "not_found"),
            Error::Invalid { .. } => (StatusCode::BAD_REQUEST, "bad_request"),
            Error::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            Error::Conflict(_) => (StatusCode::CONFLICT, "conflict"),
            Error::Denied(denied) => match denied.state {
                State::Stopped | State::Paused | State::Archived | State::Destroyed => {
                    (StatusCode::GONE, "sandbox_stopped")
                }
                State::Stopping | State::Pausing | State::Archiving | State::Destroying => {
                    (StatusCode::UNPROCESSABLE_ENTITY, "sandbox_stopping")
                }
                State::Creating
                | State::Starting
                | State::Running
                | State::Resuming
                | State::Restoring
                | State::Failed => (StatusCode::CONFLICT, "conflict"),
            },
            Error::Quota { .. } => (StatusCode::PAYMENT_REQUIRED, "quota_exceeded"),
            Error::RateLimited(_) => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
            Error::Exhausted { .. } => (StatusCode::SERVICE_UNAVAILABLE, "no_capacity"),
            Error::Full(_) => (StatusCode::INSUFFICIENT_STORAGE, "disk_full"),
            Error::Unsupported(_) => (StatusCode::BAD_REQUEST, "not_supported"),
            Error::Elsewhere { .. } => (StatusCode::MISDIRECTED_REQUEST, "elsewhere"),
            Error::Guest(GuestError::Failed(failure)) => of_kind(failure.kind),
            Error::Guest(GuestError::Timeout(_)) => (StatusCode::GATEWAY_TIMEOUT, "timeout"),
            Error::Guest(GuestError::Unreachable(_) | GuestError::Protocol(_)) => {
                (StatusCode::BAD_GATEWAY, "unreachable")
            }
            Error::Archive { .. } => (StatusCode::BAD_GATEWAY, "archive"),
            Error::Unavailable { .. } => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            Error::Internal { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        };
        Refusal { status, code, retry_after: error.retry_after(), message: error.to_string() }
    }
}

impl From<GuestError> for Refusal {
    fn from(error: GuestError) -> Refusal {
        Error::from(error).into()
    }
}

fn of_kind(kind: FailureKind) -> (StatusCode, &'static str) {
    match kind {
        FailureKind::NotFound => (StatusCode::NOT_FOUND, "not_found"),
        FailureKind::AlreadyExists | FailureKind::NotEmpty | FailureKind::WrongState => {
            (StatusCode::CONFLICT, "conflict")
        }
        FailureKind::PermissionDenied => (StatusCode::FORBIDDEN, "forbidden"),
        FailureKind::NotADirectory
        | FailureKind::IsADirectory
        | FailureKind::UnknownUser
        | FailureKind::InvalidArgument => (StatusCode::BAD_REQUEST, "bad_request"),
        FailureKind::Exhausted => (StatusCode::INSUFFICIENT_STORAGE, "exhausted"),
        FailureKind::Unsupported => (StatusCode::NOT_IMPLEMENTED, "not_implemented"),
        FailureKind::Refused | FailureKind::Internal => (StatusCode::BAD_GATEWAY, "unreachable"),
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = json!({"error": {"code": self.code, "message": self.message}});
        let mut response = (self.status, Json(body)).into_response();
        if let Some(wait) = self.retry_after {
            let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
