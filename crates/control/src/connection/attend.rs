//! One request, from its header to the last byte of its answer. It ends when its right ends.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use hyper::body::{Body as _, Frame, SizeHint};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tower::ServiceExt as _;

use super::crowd::Busy;
use super::line::{End, Tenant};
use super::unread;
use crate::Error;
use crate::door::native::error::ApiError;
use crate::right::{Admission, Ended};

/// Answers the request, or stops where its right ends.
pub async fn attend(
    router: Router,
    admission: Admission,
    busy: Busy,
    (tenant, end): (Tenant, End),
    request: Request<Body>,
) -> Response {
    let ended = admission.ended().clone();
    let (request, unread) = unread::lend(request);
    let answered = tokio::select! {
        biased;
        () = ended.cancelled() => None,
        answered = admission.clone().within(router.oneshot(request)) => Some(answered),
    };
    // A door may have answered the lack of room in its own format.
    let answered = answered.filter(|_| admission.why() != Some(Ended::Full));
    let Some(answered) = answered else { return refusal(&admission) };
    let response = answered.unwrap_or_else(|never| match never {});
    let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    // An answer without a length may take for ever.
    let goes_on = is_upgrade || response.body().size_hint().exact().is_none();
    if goes_on && admission.may_stream().is_err() {
        return refusal(&admission);
    }
    // A connection without any right may be closed, however slowly its client reads.
    let busy = admission.is_somebodys().then_some(busy);
    if is_upgrade {
        tenant.moves_in(admission, busy, end);
        return response;
    }
    unread.hear_out().await;
    response.map(|body| {
        if body.is_end_stream() {
            return body;
        }
        Body::new(WhileRight { body, admission, _busy: busy, streams: false, ended: None })
    })
}

/// The answer to a request that may not go on. Its connection ends too: the caller opens another where it has a right.
fn refusal(admission: &Admission) -> Response {
    let error = match (admission.full(), admission.why()) {
        (Some(message), _) => Error::Exhausted { message, retry_after: Duration::from_secs(1) },
        (None, Some(Ended::Server)) => Error::exhausted("the server is about to end; try again"),
        (None, Some(Ended::Right | Ended::Full) | None) => {
            Error::Unauthenticated("what this request was let in with was revoked, or has expired".into())
        }
    };
    let mut response = ApiError(error).into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A body that breaks off when its right ends: the client sees that it is incomplete.
struct WhileRight {
    body: Body,
    admission: Admission,
    _busy: Option<Busy>,
    /// Whether it is counted among the streams.
    streams: bool,
    /// Made when there is something to wait for.
    ended: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

#[derive(Debug, thiserror::Error)]
#[error("the right to it has ended")]
struct BrokenOff;

impl hyper::body::Body for WhileRight {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        if this.admission.ended().is_cancelled() {
            return Poll::Ready(Some(Err(axum::Error::new(BrokenOff))));
        }
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        if !this.streams {
            this.admission.streams();
            this.streams = true;
        }
        let token = this.admission.ended();
        let ended = this.ended.get_or_insert_with(|| Box::pin(token.clone().cancelled_owned()));
        match ended.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Some(Err(axum::Error::new(BrokenOff)))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
