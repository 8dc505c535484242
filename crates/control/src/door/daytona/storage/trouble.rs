//! Errors as S3 writes them.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::Error;
use crate::sandbox::state::Denied;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
}

impl Trouble {
    pub fn bad(code: &'static str, message: impl Into<String>) -> Trouble {
        Trouble { status: StatusCode::BAD_REQUEST, code, message: message.into() }
    }

    pub fn denied(code: &'static str, message: impl Into<String>) -> Trouble {
        Trouble { status: StatusCode::FORBIDDEN, code, message: message.into() }
    }

    pub fn not_found(code: &'static str, message: impl Into<String>) -> Trouble {
        Trouble { status: StatusCode::NOT_FOUND, code, message: message.into() }
    }

    pub fn unknown_key() -> Trouble {
        Trouble::denied("InvalidAccessKeyId", "the access key is none of this server's, or its API key is gone")
    }
}

/// Text for XML.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            // XML has no way to write the others.
            letter if letter.is_control() && !"\t\n\r".contains(letter) => safe.push('\u{fffd}'),
            letter => safe.push(letter),
        }
    }
    safe
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        let Trouble { status, code, message } = self;
        let text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{}</Message></Error>",
            escaped(&message)
        );
        (status, [(header::CONTENT_TYPE, "application/xml")], text).into_response()
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        let message = error.to_string();
        let (status, code) = match &error {
            Error::Unauthenticated(_) | Error::Forbidden(_) => (StatusCode::FORBIDDEN, "AccessDenied"),
            Error::NotFound { .. } => (StatusCode::NOT_FOUND, "NoSuchKey"),
            Error::Invalid { .. } | Error::Unsupported(_) => (StatusCode::BAD_REQUEST, "InvalidRequest"),
            Error::TooLarge { .. } => (StatusCode::BAD_REQUEST, "EntityTooLarge"),
            Error::Conflict(_) | Error::Denied(Denied { .. }) => (StatusCode::CONFLICT, "OperationAborted"),
            Error::Quota { .. } => (StatusCode::FORBIDDEN, "QuotaExceeded"),
            Error::RateLimited(_) | Error::Exhausted { .. } => (StatusCode::SERVICE_UNAVAILABLE, "SlowDown"),
            Error::Elsewhere { .. } => (StatusCode::MISDIRECTED_REQUEST, "OperationAborted"),
            Error::Full(_) => (StatusCode::INSUFFICIENT_STORAGE, "InsufficientStorage"),
            Error::Guest(_) | Error::Archive { .. } => (StatusCode::BAD_GATEWAY, "InternalError"),
            Error::Unavailable { detail } => {
                tracing::error!(detail, "request failed");
                (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")
            }
            Error::Internal { detail } => {
                tracing::error!(detail, "request failed");
                (StatusCode::INTERNAL_SERVER_ERROR, "InternalError")
            }
        };
        Trouble { status, code, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_stays_within_its_element() {
        assert_eq!(escaped("<a href=\"x\">&\u{1}"), "&lt;a href=&quot;x&quot;&gt;&amp;\u{fffd}");
    }
}
