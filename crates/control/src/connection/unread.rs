//! The rest of a request that its handler did not read.
//!
//! An answer to half a request closes its connection over HTTP/1.1 and resets its stream over HTTP/2, and the reset can
//! overtake the answer: the client sees a broken connection and never the reason. So a small rest is read and dropped
//! before the answer is sent. A larger or slower one is not waited for.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body as _, Frame, SizeHint};

/// What is read of the rest, and for how long.
const MOST: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(1);

/// Where a body is put back that was not read to its end.
#[derive(Clone, Default)]
pub struct Unread(Arc<Mutex<Option<Body>>>);

/// The request with its body on loan: what the handler leaves of it can be read afterwards.
pub fn lend(request: Request<Body>) -> (Request<Body>, Unread) {
    let unread = Unread::default();
    // A client that waits for leave to send its body is answered at once, and does not send it.
    let waits = request.headers().contains_key(header::EXPECT);
    if waits || request.body().is_end_stream() {
        return (request, unread);
    }
    let back = unread.clone();
    (request.map(|body| Body::new(Lent { body: Some(body), back })), unread)
}

impl Unread {
    /// Reads what is left, if that is little.
    pub async fn hear_out(self) {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(left) = left.filter(|left| left.size_hint().lower() <= MOST as u64) else { return };
        // One that turns out larger, or is slow, is given up.
        let _heard = tokio::time::timeout(PATIENCE, Limited::new(left, MOST).collect()).await;
    }
}

struct Lent {
    /// Gone once it was read to its end.
    body: Option<Body>,
    back: Unread,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let left = self.body.take().filter(|body| !body.is_end_stream());
        *self.back.0.lock().unwrap_or_else(PoisonError::into_inner) = left;
    }
}

impl hyper::body::Body for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(context);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            this.body = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A body of so many pieces of 1 KiB, and how many of them were read.
    fn counted(pieces: usize) -> (Body, Arc<AtomicUsize>) {
        let read = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&read);
        let pieces = (0..pieces).map(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok::<_, std::convert::Infallible>(Bytes::from_static(&[7; 1 << 10]))
        });
        (Body::from_stream(futures::stream::iter(pieces)), read)
    }

    #[tokio::test]
    async fn a_small_rest_is_read_and_a_large_one_only_so_far() {
        for (pieces, at_least, at_most) in [(10, 10, 10), (1000, 64, 66)] {
            let (body, read) = counted(pieces);
            let (request, unread) = lend(Request::new(body));
            // As a handler that refuses does.
            drop(request);
            unread.hear_out().await;
            let read = read.load(Ordering::Relaxed);
            assert!((at_least..=at_most).contains(&read), "{read} of {pieces}");
        }
    }

    #[tokio::test]
    async fn a_body_that_was_read_leaves_nothing_and_keeps_its_size() {
        let (request, unread) = lend(Request::new(Body::from("hello")));
        assert_eq!(request.body().size_hint().exact(), Some(5));
        let heard = request.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(&heard[..], b"hello");
        assert!(unread.0.lock().unwrap().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_in_the_middle_is_not_waited_for() {
        let body = Body::from_stream(futures::stream::pending::<Result<Bytes, std::convert::Infallible>>());
        let (request, unread) = lend(Request::new(body));
        drop(request);
        let began = tokio::time::Instant::now();
        unread.hear_out().await;
        assert_eq!(began.elapsed(), PATIENCE);
    }

    #[tokio::test]
    async fn a_client_that_waits_for_leave_is_not_given_it() {
        let (body, read) = counted(10);
        let mut request = Request::new(body);
        request.headers_mut().insert(header::EXPECT, "100-continue".parse().unwrap());
        let (request, unread) = lend(request);
        drop(request);
        unread.hear_out().await;
        assert_eq!(read.load(Ordering::Relaxed), 0);
    }
}
