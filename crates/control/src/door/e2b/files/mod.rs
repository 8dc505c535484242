//! `/files`: bytes in and out of a sandbox over plain HTTP, with a token or a signed URL.

pub mod compose;
pub mod download;
pub mod metadata;
pub mod signature;
pub mod upload;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{Method, Request, StatusCode};

use self::signature::Operation;
use super::connect::{Code, Ending, code_of};
use super::envd::{Envd, UNAUTHORISED};
use super::error::{plain, sandbox_not_found};
use super::query::Query;
use crate::door::known::unknown_parameter;
use crate::guest::GuestError;
use crate::secret::same;

pub async fn answer(envd: &Envd, parts: &Parts, body: Body) -> Response {
    let query = Query::of(&parts.uri);
    if let Some((name, _)) = query.pairs().find(|(name, _)| !ONCE.contains(name)) {
        return plain(StatusCode::BAD_REQUEST, &unknown_parameter(name, &ONCE));
    }
    let operation = match parts.method {
        Method::GET | Method::HEAD => Operation::Read,
        Method::POST => Operation::Write,
        _ => return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and POST"),
    };
    let user = query.get("username").filter(|name| !name.is_empty());
    let outcome = match operation {
        Operation::Read => download::answer(envd, user, &query, parts).await,
        Operation::Write => upload::answer(envd, user, &query, &parts.headers, body).await,
    };
    outcome.unwrap_or_else(|refused| refused.answer(envd))
}

/// What says which file, for whom, and with which right.
const ONCE: [&str; 4] = ["path", "username", "signature", "signature_expiration"];

/// Why a request may not have a file; nothing where it may: it shows the sandbox's token, or a signature that was made
/// with it. A request that names its file twice is refused whoever asks.
pub fn refusal(token: Option<&str>, request: &Request<Body>, now: i64) -> Option<(StatusCode, String)> {
    let query = Query::of(request.uri());
    if let Some(name) = query.repeated(&ONCE) {
        return Some((StatusCode::BAD_REQUEST, format!("the query has more than one '{name}'")));
    }
    let token = token?;
    let shown = request.headers().get("x-access-token").map(|value| value.as_bytes());
    if shown.is_some_and(|shown| same(shown, token)) {
        return None;
    }
    let operation = if request.method() == Method::POST { Operation::Write } else { Operation::Read };
    let wrong = signature::check(&query, operation, token, now).err()?;
    let reason = if shown.is_some() { UNAUTHORISED } else { wrong.as_str() };
    Some((StatusCode::UNAUTHORIZED, reason.to_owned()))
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
