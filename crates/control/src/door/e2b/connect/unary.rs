//! Unary calls: the body is the message, the status is the outcome.

use std::future::Future;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};

use super::{Code, Encoding, Ending, MAX_MESSAGE, Message, RpcError, deadline};
use crate::Error;
use crate::door::size;

/// Runs `call` on the decoded request, within the client's deadline, and answers in the client's encoding.
pub async fn answer<Q: Message, A: Message, F: Future<Output = Result<A, Ending>>>(
    headers: &HeaderMap,
    body: Body,
    gone: impl FnOnce() -> Response,
    call: impl FnOnce(Q) -> F,
) -> Response {
    let Some(encoding) = encoding(headers) else { return unsupported() };
    let outcome = async {
        let deadline = deadline(headers)?;
        let request = read(headers, body, encoding).await?;
        match deadline {
            None => call(request).await,
            Some(limit) => tokio::time::timeout(limit, call(request)).await.unwrap_or(Err(RpcError::deadline().into())),
        }
    };
    match outcome.await {
        Ok(message) => ([(header::CONTENT_TYPE, content_type(encoding))], encoding.encode(&message)).into_response(),
        Err(Ending::Rpc(error)) => failed(&error),
        Err(Ending::Gone(_)) => gone(),
    }
}

/// A unary error: always JSON, whatever the messages are.
pub fn failed(error: &RpcError) -> Response {
    (error.code.status(), [(header::CONTENT_TYPE, "application/json")], error.json().to_string()).into_response()
}

async fn read<Q: Message>(headers: &HeaderMap, body: Body, encoding: Encoding) -> Result<Q, RpcError> {
    let coding = headers.get(header::CONTENT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or("identity");
    if coding != "identity" {
        let message = format!("unknown compression '{coding}': send the message uncompressed");
        return Err(RpcError::new(Code::Unimplemented, message));
    }
    let bytes = size::whole(body, MAX_MESSAGE).await.map_err(|error| match error {
        Error::TooLarge { .. } => {
            RpcError::new(Code::ResourceExhausted, format!("message is longer than the limit of {MAX_MESSAGE} bytes"))
        }
        Error::Exhausted { message, .. } => RpcError::new(Code::Unavailable, message),
        error => RpcError::new(Code::Canceled, error.to_string()),
    })?;
    encoding.read(bytes).await
}

fn encoding(headers: &HeaderMap) -> Option<Encoding> {
    let text = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    match text.split(';').next()?.trim() {
        "application/json" => Some(Encoding::Json),
        "application/proto" => Some(Encoding::Proto),
        _ => None,
    }
}

fn content_type(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Json => "application/json",
        Encoding::Proto => "application/proto",
    }
}

fn unsupported() -> Response {
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, [("accept-post", "application/json, application/proto")]).into_response()
}
