//! `/files`: bytes in and out of a sandbox over plain HTTP, with a token or a signed URL.

pub mod compose;
pub mod download;
pub mod metadata;
pub mod signature;
pub mod upload;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{Method, StatusCode};

use self::signature::Operation;
use super::connect::{Code, Ending, code_of};
use super::envd::{Envd, UNAUTHORISED};
use super::error::{plain, sandbox_not_found};
use super::query::Query;
use crate::guest::GuestError;

pub async fn answer(envd: &Envd, parts: &Parts, body: Body) -> Response {
    let query = Query::of(&parts.uri);
    let operation = match parts.method {
        Method::GET | Method::HEAD => Operation::Read,
        Method::POST => Operation::Write,
        _ => return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and POST"),
    };
    if let Some(token) = &envd.token {
        if !envd.admits(&parts.headers) {
            let verdict = signature::check(&query, operation, token, jiff::Timestamp::now().as_second());
            if let Err(reason) = verdict {
                let presented_token = parts.headers.contains_key("x-access-token");
                return plain(StatusCode::UNAUTHORIZED, if presented_token { UNAUTHORISED } else { reason.as_str() });
            }
        }
    }
    let user = query.get("username").filter(|name| !name.is_empty());
    let outcome = match operation {
        Operation::Read => download::answer(envd, user, &query, parts).await,
        Operation::Write => upload::answer(envd, user, &query, &parts.headers, body).await,
    };
    outcome.unwrap_or_else(|refused| refused.answer(envd))
}

/// Why a transfer did not happen.
pub enum Refused {
    With(StatusCode, String),
    Gone,
}

impl Refused {
    pub fn bad(message: impl Into<String>) -> Self {
        Refused::With(StatusCode::BAD_REQUEST, message.into())
    }

    fn answer(self, envd: &Envd) -> Response {
        match self {
            Refused::With(status, message) => plain(status, &message),
            Refused::Gone => sandbox_not_found(&envd.id),
        }
        .into_response()
    }
}

impl From<Ending> for Refused {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Gone(_) => Refused::Gone,
            Ending::Rpc(error) => Refused::With(status(error.code), error.message),
        }
    }
}

impl From<GuestError> for Refused {
    fn from(error: GuestError) -> Self {
        match error {
            GuestError::Unreachable(_) => Refused::Gone,
            GuestError::Failed(failure) => Refused::With(status(code_of(failure.kind)), failure.message),
            GuestError::Protocol(reason) => Refused::With(StatusCode::INTERNAL_SERVER_ERROR, reason),
            error @ GuestError::Timeout(_) => Refused::With(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        }
    }
}

/// As the call's own status, but a full disk is what exhaustion means for a file.
fn status(code: Code) -> StatusCode {
    match code {
        Code::ResourceExhausted => StatusCode::INSUFFICIENT_STORAGE,
        code => code.status(),
    }
}
