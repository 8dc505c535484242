//! Why an operation failed: one enum for the whole domain.
//!
//! `Display` is the sentence for the caller; [`Error::detail`] is what the log needs in addition. Doors map every
//! variant to their dialect's status and shape.

use std::time::Duration;

use cove_protocol::FailureKind;

use crate::guest::GuestError;
use crate::provider::ProviderError;
use crate::rate::Refused;
use crate::sandbox::state::Denied;

const QUOTA_AGAIN: Duration = Duration::from_secs(1);
/// A restart of a database takes seconds.
const DATABASE_AGAIN: Duration = Duration::from_secs(5);
/// The server checks four times a second; somebody has to make room first.
const FULL_AGAIN: Duration = Duration::from_secs(10);
/// Somebody has to change the machine first.
const UNFIT_AGAIN: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No key, or one that is unknown, revoked or expired.
    #[error("{0}")]
    Unauthenticated(String),
    /// A valid key that may not do this.
    #[error("{0}")]
    Forbidden(String),
    /// It does not exist, or belongs to another organisation: the answer is the same.
    #[error("{kind} {id} does not exist")]
    NotFound { kind: &'static str, id: String },
    #[error("{field}: {message}")]
    Invalid { field: String, message: String },
    /// A body with more bytes than its route takes.
    #[error("body: more than {} KiB, which is the most that is taken here", .most >> 10)]
    TooLarge { most: usize },
    /// The name is taken, or the same idempotency key came with another request.
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
    /// A disk of this server is full, or nearly.
    #[error("{0}")]
    Full(String),
    /// The provider cannot do this at all.
    #[error("{0}")]
    Unsupported(String),
    /// Runs on another server of the same store.
    #[error("sandbox {id} is on server {server}; {advice}")]
    Elsewhere { id: String, server: String, advice: String },
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The object store could not write, read or remove an archive. The sandbox is unchanged.
    #[error("the archive of sandbox {id} could not be {verb}: {reason}")]
    Archive { id: String, verb: &'static str, reason: String },
    /// The database does not answer, or cannot be written. It may recover.
    #[error("the server's database cannot be used now; try again")]
    Unavailable { detail: String },
    /// A bug or a fault of this server; the detail is for the log alone.
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

    /// What the log needs and the caller must not read; `None` where the sentence says everything.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Error::Internal { detail } | Error::Unavailable { detail } => Some(detail),
            _ => None,
        }
    }

    /// Whether the database did not answer, or could not write: what was asked of it may have happened or not.
    pub fn is_of_the_database(&self) -> bool {
        matches!(self, Error::Unavailable { .. } | Error::Full(_))
    }

    /// When it may be worth trying again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::RateLimited(refused) => Some(refused.retry_after),
            Error::Exhausted { retry_after, .. } => Some(*retry_after),
            Error::Full(_) => Some(FULL_AGAIN),
            // There is room when a sandbox of the same organisation ends: when is unknown, but it may be soon.
            Error::Quota { .. } => Some(QUOTA_AGAIN),
            Error::Unavailable { .. } => Some(DATABASE_AGAIN),
            Error::Guest(GuestError::Failed(failure)) if failure.kind == FailureKind::Exhausted => Some(FULL_AGAIN),
            _ => None,
        }
    }

    /// The guest's own reason, where it refused.
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
            Error::TooLarge { .. } => "too_large",
            Error::Conflict(_) => "conflict",
            Error::Denied(_) => "wrong_state",
            Error::Quota { .. } => "quota_exceeded",
            Error::RateLimited(_) => "rate_limited",
            Error::Exhausted { .. } => "no_capacity",
            Error::Full(_) => "disk_full",
            Error::Unsupported(_) => "unsupported",
            Error::Elsewhere { .. } => "elsewhere",
            Error::Guest(GuestError::Failed(_)) => "refused_inside",
            Error::Guest(_) => "unreachable",
            Error::Archive { .. } => "archive",
            Error::Unavailable { .. } => "unavailable",
            Error::Internal { .. } => "internal",
        }
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let detail = format!("store: {error}");
        match &error {
            sqlx::Error::Encode(_) => Error::invalid("text", "must not hold a NUL byte"),
            sqlx::Error::Database(database) => from_code(database.code().as_deref().unwrap_or_default(), detail),
            sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::StorageFull => full(&detail),
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Error::Unavailable { detail },
            _ => Error::Internal { detail },
        }
    }
}

/// By PostgreSQL's SQLSTATE, which has five letters, or SQLite's number, whose lowest byte is its kind.
/// https://www.postgresql.org/docs/current/errcodes-appendix.html, https://www.sqlite.org/rescode.html
fn from_code(code: &str, detail: String) -> Error {
    if code.len() == 5 {
        return match (code, &code[..2]) {
            ("53100", _) => full(&detail),
            // Text that the encoding does not allow: a NUL.
            ("22021", _) => Error::invalid("text", "must not hold a NUL byte"),
            // Read-only, as a standby is; deadlock; a new connection would do.
            ("25006" | "40001" | "40P01", _) => Error::Unavailable { detail },
            // Connection, resources, operator intervention (shutdown, statement timeout), system error.
            (_, "08" | "53" | "57" | "58") => Error::Unavailable { detail },
            _ => Error::Internal { detail },
        };
    }
    match code.parse::<u32>().map(|code| code & 0xff) {
        Ok(13) => full(&detail),
        // BUSY, LOCKED, NOMEM, READONLY, IOERR, CANTOPEN, PROTOCOL.
        Ok(5 | 6 | 7 | 8 | 10 | 14 | 15) => Error::Unavailable { detail },
        _ => Error::Internal { detail },
    }
}

fn full(detail: &str) -> Error {
    tracing::error!(detail, "the disk of the database is full");
    Error::Full("the disk of the server's database is full; nothing was written".into())
}

impl From<ProviderError> for Error {
    fn from(error: ProviderError) -> Self {
        match error {
            ProviderError::NotFound(handle) => Error::not_found("sandbox", handle.to_string()),
            ProviderError::Unsupported(message) => Error::Unsupported(message),
            ProviderError::Refused(message) => Error::invalid("sandbox", message),
            ProviderError::Exhausted(message) => Error::exhausted(message),
            ProviderError::Full(detail) => {
                tracing::error!(detail, "a disk of this server is full");
                Error::Full("this server's disk is full; nothing was kept of the request".into())
            }
            ProviderError::Unfit(message) => Error::Exhausted { message, retry_after: UNFIT_AGAIN },
            ProviderError::Failed(detail) => Error::internal(format!("provider: {detail}")),
        }
    }
}
