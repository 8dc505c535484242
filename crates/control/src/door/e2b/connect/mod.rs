//! The Connect protocol: remote calls over plain HTTP, as the E2B SDKs speak them to the daemon in a sandbox.
//!
//! A *unary* call is one message each way as the whole body, its errors are HTTP statuses. A *streaming* call frames
//! messages in envelopes (one byte of flags, four of length), always answers 200, and tells its error in the last
//! envelope. Both come as JSON and as binary protobuf; one definition per message gives both, see
//! [`super::message`].
//!
//! ```text
//!   application/json          application/proto              unary: the body is the message
//!   application/connect+json  application/connect+proto      streaming: envelope* end
//! ```

pub mod envelope;
pub mod stream;
pub mod unary;

use std::time::Duration;

use bytes::Bytes;
use cove_protocol::FailureKind;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::guest::GuestError;
use crate::{border, heavy};

/// The longest message a client may send. The daemon's own calls are small; bulk data has its own route.
pub const MAX_MESSAGE: usize = 4 << 20;

/// A message that has both encodings.
pub trait Message: prost::Message + Default + Serialize + DeserializeOwned + 'static {}
impl<T: prost::Message + Default + Serialize + DeserializeOwned + 'static> Message for T {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Proto,
}

impl Encoding {
    /// A message within the border's budget, which is the same for both encodings. Read away from the async workers where
    /// it is large.
    pub async fn read<T: Message>(self, bytes: Bytes) -> Result<T, RpcError> {
        heavy::run(bytes.len(), heavy::SMALL, move || self.decode(&bytes)).await
    }

    pub fn decode<T: Message>(self, bytes: &[u8]) -> Result<T, RpcError> {
        let malformed = |error: String| RpcError::new(Code::InvalidArgument, format!("malformed message: {error}"));
        match self {
            Encoding::Json if bytes.is_empty() => Ok(T::default()),
            Encoding::Json => border::parse(bytes).map_err(|refused| malformed(refused.to_string())),
            Encoding::Proto => {
                let message = T::decode(bytes).map_err(|error| malformed(error.to_string()))?;
                // The budgets are by the names of fields, which the binary form does not have.
                border::shape::check(&Encoding::Json.encode(&message))
                    .map_err(|excess| malformed(excess.to_string()))?;
                Ok(message)
            }
        }
    }

    pub fn encode<T: Message>(self, message: &T) -> Vec<u8> {
        match self {
            Encoding::Json => serde_json::to_vec(message).expect("messages of the dialect always serialise"),
            Encoding::Proto => message.encode_to_vec(),
        }
    }
}

/// Connect's error codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    Canceled,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Unimplemented,
    Internal,
    Unavailable,
    Unauthenticated,
}

impl Code {
    pub fn as_str(self) -> &'static str {
        match self {
            Code::Canceled => "canceled",
            Code::InvalidArgument => "invalid_argument",
            Code::DeadlineExceeded => "deadline_exceeded",
            Code::NotFound => "not_found",
            Code::AlreadyExists => "already_exists",
            Code::PermissionDenied => "permission_denied",
            Code::ResourceExhausted => "resource_exhausted",
            Code::FailedPrecondition => "failed_precondition",
            Code::Unimplemented => "unimplemented",
            Code::Internal => "internal",
            Code::Unavailable => "unavailable",
            Code::Unauthenticated => "unauthenticated",
        }
    }

    /// The status of a unary call that failed so.
    pub fn status(self) -> StatusCode {
        match self {
            Code::Canceled => StatusCode::from_u16(499).expect("499 is a valid status"),
            Code::InvalidArgument | Code::FailedPrecondition => StatusCode::BAD_REQUEST,
            Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::AlreadyExists => StatusCode::CONFLICT,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        }
    }
}

/// Why a call failed, as the client reads it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    pub code: Code,
    pub message: String,
}

impl RpcError {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        RpcError { code, message: message.into() }
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({ "code": self.code.as_str(), "message": self.message })
    }

    pub fn deadline() -> Self {
        RpcError::new(Code::DeadlineExceeded, "context deadline exceeded")
    }
}

/// How a call ends that does not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Ending {
    /// The client is told why.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// The sandbox went away under the call. A stream is cut, so that the client asks for the sandbox's health; a
    /// unary call gets the proxy's "not found".
    #[error("the sandbox went away: {0}")]
    Gone(String),
}

impl From<GuestError> for Ending {
    fn from(error: GuestError) -> Self {
        match error {
            GuestError::Unreachable(reason) => Ending::Gone(reason),
            GuestError::Failed(failure) => RpcError::new(code_of(failure.kind), failure.message).into(),
            GuestError::Protocol(reason) => RpcError::new(Code::Internal, reason).into(),
            error @ GuestError::Timeout(_) => RpcError::new(Code::Unavailable, error.to_string()).into(),
        }
    }
}

pub fn code_of(kind: FailureKind) -> Code {
    match kind {
        FailureKind::NotFound => Code::NotFound,
        FailureKind::AlreadyExists => Code::AlreadyExists,
        FailureKind::PermissionDenied => Code::PermissionDenied,
        FailureKind::NotADirectory | FailureKind::IsADirectory | FailureKind::InvalidArgument => Code::InvalidArgument,
        FailureKind::NotEmpty | FailureKind::WrongState => Code::FailedPrecondition,
        FailureKind::Exhausted => Code::ResourceExhausted,
        FailureKind::Refused => Code::Unavailable,
        FailureKind::Unsupported => Code::Unimplemented,
        FailureKind::UnknownUser => Code::Unauthenticated,
        FailureKind::Internal => Code::Internal,
    }
}

/// `Connect-Timeout-Ms`: at most ten digits by the specification; absent or zero is no limit.
pub fn deadline(headers: &HeaderMap) -> Result<Option<Duration>, RpcError> {
    let Some(value) = headers.get("connect-timeout-ms") else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let fits = !text.is_empty() && text.len() <= 10 && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(milliseconds) = fits.then(|| text.parse::<u64>().ok()).flatten() else {
        return Err(RpcError::new(
            Code::InvalidArgument,
            format!("connect-timeout-ms must be at most ten digits, not '{text}'"),
        ));
    };
    Ok((milliseconds > 0).then(|| Duration::from_millis(milliseconds)))
}

/// `Keepalive-Ping-Interval` in seconds: how long a stream may be silent.
pub fn keepalive(headers: &HeaderMap) -> Duration {
    const DEFAULT: u64 = 90;
    let seconds = headers.get("keepalive-ping-interval").and_then(|value| value.to_str().ok()?.parse().ok());
    Duration::from_secs(seconds.filter(|seconds| *seconds > 0).unwrap_or(DEFAULT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(http::HeaderName::from_static(name), http::HeaderValue::from_static(value))])
    }

    #[test]
    fn a_deadline_is_milliseconds_and_nothing_else() {
        assert_eq!(deadline(&HeaderMap::new()).unwrap(), None);
        assert_eq!(deadline(&with("connect-timeout-ms", "0")).unwrap(), None);
        assert_eq!(deadline(&with("connect-timeout-ms", "7000")).unwrap(), Some(Duration::from_secs(7)));
        for wrong in ["-1", "1.5", "12345678901", "", "soon"] {
            assert_eq!(
                deadline(&with("connect-timeout-ms", wrong)).unwrap_err().code,
                Code::InvalidArgument,
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_message_has_the_same_budget_in_both_encodings() {
        use crate::door::e2b::message::process::{ProcessConfig, StartRequest};

        let asked = |args: usize, cmd: usize| {
            let config = ProcessConfig {
                cmd: "x".repeat(cmd),
                args: vec![String::new(); args],
                envs: Default::default(),
                cwd: Some("/".into()),
            };
            StartRequest { process: Some(config), ..StartRequest::default() }
        };
        for encoding in [Encoding::Json, Encoding::Proto] {
            let read = |message: StartRequest| encoding.decode::<StartRequest>(&encoding.encode(&message));
            assert_eq!(read(asked(100, 1 << 20)).unwrap(), asked(100, 1 << 20), "{encoding:?}");
            let refused = read(asked(100_000, 1)).unwrap_err();
            assert_eq!(refused.code, Code::InvalidArgument, "{encoding:?}");
            assert!(refused.message.contains("args: more than 4096 entries"), "{encoding:?}: {refused}");
        }
    }

    #[test]
    fn a_silly_keepalive_is_the_default() {
        assert_eq!(keepalive(&with("keepalive-ping-interval", "50")), Duration::from_secs(50));
        assert_eq!(keepalive(&with("keepalive-ping-interval", "0")), Duration::from_secs(90));
        assert_eq!(keepalive(&HeaderMap::new()), Duration::from_secs(90));
    }
}
