//! How the dialect says no: `{"code": <status>, "message": …}` on every plain route, and the proxy's own shapes, whose
//! wording clients look for.

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use serde_json::json;

use crate::Error;
use crate::guest::GuestError;

/// An error of the API or of the daemon's plain routes.
pub fn plain(status: StatusCode, message: &str) -> Response {
    let mut response = (status, axum::Json(json!({ "code": status.as_u16(), "message": message }))).into_response();
    if status.is_server_error() {
        // Without the header clients repeat what a repeat cannot mend.
        response.headers_mut().insert("should-retry", http::HeaderValue::from_static("false"));
    }
    response
}

/// A domain error as the API tells it.
pub struct ApiError(Response);

impl ApiError {
    pub fn new(status: StatusCode, message: impl AsRef<str>) -> Self {
        ApiError(plain(status, message.as_ref()))
    }

    pub fn bad(message: impl AsRef<str>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    pub fn no_sandbox(id: &str) -> Self {
        ApiError::new(StatusCode::NOT_FOUND, no_sandbox(id))
    }
}

impl ApiError {
    /// The daemon inside does not answer; clients know it by its code.
    pub fn unresponsive(id: &str) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let message = format!("the daemon of sandbox {id} does not answer");
        let code = "sandbox_snapshot_guest_agent_unresponsive";
        let body = json!({ "code": status.as_u16(), "message": message, "error_code": code });
        let mut response = (status, axum::Json(body)).into_response();
        response.headers_mut().insert("should-retry", http::HeaderValue::from_static("false"));
        ApiError(response)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.0
    }
}

impl ApiError {
    /// The server's own trouble, which may pass.
    pub fn again(error: &Error) -> Self {
        let status = match error {
            Error::Full(_) => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        tracing::error!(detail = error.detail(), "request failed");
        ApiError::told(status, error)
    }

    fn told(status: StatusCode, error: &Error) -> Self {
        let mut response = plain(status, &sentence(error));
        if let Some(wait) = error.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, wait.as_secs().max(1).into());
            response.headers_mut().insert("should-retry", http::HeaderValue::from_static("true"));
        } else if status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert("should-retry", http::HeaderValue::from_static("false"));
        }
        ApiError(response)
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        if let Some(detail) = error.detail() {
            tracing::error!(detail, "request failed");
        }
        ApiError::told(status_of(&error), &error)
    }
}

/// The status of each error of the domain.
pub fn status_of(error: &Error) -> StatusCode {
    match error {
        Error::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
        Error::Forbidden(_) => StatusCode::FORBIDDEN,
        Error::NotFound { .. } => StatusCode::NOT_FOUND,
        Error::Invalid { .. } => StatusCode::BAD_REQUEST,
        Error::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        Error::Conflict(_) | Error::Denied(_) => StatusCode::CONFLICT,
        Error::Quota { .. } | Error::RateLimited(_) => StatusCode::TOO_MANY_REQUESTS,
        Error::Exhausted { .. } | Error::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
        Error::Full(_) => StatusCode::INSUFFICIENT_STORAGE,
        Error::Unsupported(_) => StatusCode::BAD_REQUEST,
        Error::Elsewhere { .. } => StatusCode::MISDIRECTED_REQUEST,
        Error::Guest(GuestError::Failed(_)) => StatusCode::CONFLICT,
        Error::Guest(_) => StatusCode::SERVICE_UNAVAILABLE,
        Error::Archive { .. } => StatusCode::BAD_GATEWAY,
        Error::Internal { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// What the caller reads, in the dialect's own words where it has some.
pub fn sentence(error: &Error) -> String {
    match error {
        Error::NotFound { kind: "sandbox", id } => no_sandbox(id),
        Error::NotFound { kind: kind @ ("template" | "snapshot"), id } => format!("{kind} '{id}' not found"),
        error => error.to_string(),
    }
}

/// The dialect's own sentence for a sandbox that is not there or not the caller's.
fn no_sandbox(id: &str) -> String {
    format!("Sandbox \"{id}\" doesn't exist or you don't have access to it")
}

/// Traffic for a sandbox that is dead, asleep, unknown or another's: all the same from outside.
pub fn sandbox_not_found(id: &str) -> Response {
    gateway(json!({ "sandboxId": id, "message": "The sandbox was not found", "code": 502 }))
}

/// The sandbox lives, but nothing listens there. Says what does, since that is the next question.
pub fn port_closed(id: &str, port: u16, open: &[u16]) -> Response {
    gateway(json!({
        "sandboxId": id,
        "message": "The sandbox is running but port is not open",
        "port": port,
        "openPorts": open,
        "code": 502,
    }))
}

fn gateway(body: serde_json::Value) -> Response {
    (StatusCode::BAD_GATEWAY, axum::Json(body)).into_response()
}

/// A person with a browser reads a page, a program reads JSON.
pub fn for_reader(headers: &HeaderMap, response: Response, title: &str, advice: &str) -> Response {
    let wants_page = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|accept| accept.contains("text/html"));
    if !wants_page {
        return response;
    }
    let page = format!(
        "<!doctype html><meta charset=utf-8><title>{title}</title>\
         <body style=\"font:16px system-ui;max-width:36rem;margin:20vh auto;padding:0 1rem\"><h1>{title}</h1><p>{advice}</p>"
    );
    (response.status(), axum::response::Html(page)).into_response()
}
