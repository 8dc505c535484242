//! Why something was not done: one enum for the whole domain.
//!
//! `Display` is the sentence that the caller reads; [`Error::detail`] is what the log needs besides. Doors map every
//! variant to their dialect's status and shape.

use std::time::Duration;

use cove_protocol::FailureKind;

use crate::guest::GuestError;
use crate::provider::ProviderError;
use crate::rate::Refused;
use crate::sandbox::state::Denied;

const QUOTA_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No key, or one that is unknown, revoked or expired.
    #[error("{0}")]
    Unauthenticated(String),
    /// A good key that may not do this.
    #[error("{0}")]
    Forbidden(String),
    /// Not there, or another organisation's: the answer is the same.
    #[error("{kind} {id} does not exist")]
    NotFound { kind: &'static str, id: String },
    #[error("{field}: {message}")]
    Invalid { field: String, message: String },
    /// Something else bears the name, or the same idempotency key came with another request.
    #[error("{0}")]
    Conflict(String),
    /// The sandbox's state does not allow it.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// A maximum of the organisation.
    #[error("{message}")]
    Quota { message: String },
    #[error("too many requests of {}; try again in {} s", .0.whose, .0.retry_after.as_secs().max(1))]
    RateLimited(Refused),
    /// No room now.
    #[error("{message}")]
    Exhausted { message: String, retry_after: Duration },
    /// The provider cannot do this at all.
    #[error("{0}")]
    Unsupported(String),
    /// Runs on another server of the same store.
    #[error("sandbox {id} is on server {server}; {advice}")]
    Elsewhere { id: String, server: String, advice: String },
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// An archive could not be written, read or removed: the object store's doing. The sandbox is as it was.
    #[error("the archive of sandbox {id} could not be {verb}: {reason}")]
    Archive { id: String, verb: &'static str, reason: String },
    /// Our fault; the detail is for the log alone.
    #[error("internal error; the server's log has the details")]
    Internal { detail: String },
}

impl Error {
    pub fn not_found(kind: &'static str, id: impl Into<String>) -> Self {
        Error::NotFound { kind, id: id.into() }
    }

    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Error::Invalid { field: field.into(), message: message.into() }
    }

    pub fn internal(detail: impl std::fmt::Display) -> Self {
        Error::Internal { detail: detail.to_string() }
    }

    pub fn exhausted(message: impl Into<String>) -> Self {
        Error::Exhausted { message: message.into(), retry_after: Duration::from_secs(5) }
    }

    /// What the log should say that the caller must not read; `None` where the sentence is all there is.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Error::Internal { detail } => Some(detail),
            _ => None,
        }
    }

    /// When it may be worth trying again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::RateLimited(refused) => Some(refused.retry_after),
            Error::Exhausted { retry_after, .. } => Some(*retry_after),
            // There is room again when a sandbox of the same organisation ends: nobody knows when, but it may be soon.
            Error::Quota { .. } => Some(QUOTA_AGAIN),
            _ => None,
        }
    }

    /// The guest's own reason, where it answered no.
    pub fn failure_kind(&self) -> Option<FailureKind> {
        match self {
            Error::Guest(GuestError::Failed(failure)) => Some(failure.kind),
            _ => None,
        }
    }

    /// A short word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Unauthenticated(_) => "unauthenticated",
            Error::Forbidden(_) => "forbidden",
            Error::NotFound { .. } => "not_found",
            Error::Invalid { .. } => "invalid",
            Error::Conflict(_) => "conflict",
            Error::Denied(_) => "wrong_state",
            Error::Quota { .. } => "quota_exceeded",
            Error::RateLimited(_) => "rate_limited",
            Error::Exhausted { .. } => "no_capacity",
            Error::Unsupported(_) => "unsupported",
            Error::Elsewhere { .. } => "elsewhere",
            Error::Guest(GuestError::Failed(_)) => "refused_inside",
            Error::Guest(_) => "unreachable",
            Error::Archive { .. } => "archive",
            Error::Internal { .. } => "internal",
        }
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        Error::internal(format!("store: {error}"))
    }
}

impl From<ProviderError> for Error {
    fn from(error: ProviderError) -> Self {
        match error {
            ProviderError::NotFound(id) => Error::not_found("sandbox", id.to_string()),
            ProviderError::Unsupported(message) => Error::Unsupported(message),
            ProviderError::Refused(message) => Error::invalid("sandbox", message),
            ProviderError::Exhausted(message) => Error::exhausted(message),
            ProviderError::Failed(detail) => Error::internal(format!("provider: {detail}")),
        }
    }
}
