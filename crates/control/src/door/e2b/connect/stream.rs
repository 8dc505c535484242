//! Streaming calls: envelopes until the end, always with status 200.
//!
//! A streaming answer is made by a task that feeds a channel which is the response's body. When the client goes away
//! the channel closes and the task is dropped at its next await: the process in the sandbox goes on.

use std::future::Future;
use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use tokio::sync::mpsc;

use super::envelope::{self, Incoming};
use super::{Code, Encoding, Ending, Message, RpcError, deadline, keepalive};

/// Envelopes that may wait for a slow client before the producer does.
const QUEUE: usize = 16;

/// Where a streaming call puts its answers.
pub struct Outgoing {
    to: mpsc::Sender<Result<Bytes, io::Error>>,
    encoding: Encoding,
    /// How long the stream may stay silent.
    pub keepalive: Duration,
    /// How long the whole call may last.
    pub deadline: Option<Duration>,
}

impl Outgoing {
    pub async fn send(&self, message: &impl Message) -> Result<(), Ending> {
        let bytes = envelope::message(&self.encoding.encode(message));
        // Nobody reads: the task is about to be dropped, see `answer`.
        self.to.send(Ok(bytes)).await.map_err(|_| RpcError::new(Code::Canceled, "client went away").into())
    }

    /// Waits for `next`, sending `ping` whenever the stream has been silent for too long.
    pub async fn keeping_alive<T>(&self, ping: &impl Message, next: impl Future<Output = T>) -> Result<T, Ending> {
        let mut next = std::pin::pin!(next);
        loop {
            tokio::select! {
                item = &mut next => return Ok(item),
                () = tokio::time::sleep(self.keepalive) => self.send(ping).await?,
            }
        }
    }
}

/// A call with one request and a stream of answers.
pub async fn answer<Q, F>(headers: &HeaderMap, body: Body, call: impl FnOnce(Q, Outgoing) -> F) -> Response
where
    Q: Message,
    F: Future<Output = Result<(), Ending>> + Send + 'static,
{
    let Some(encoding) = encoding(headers) else { return unsupported() };
    let opening = async {
        let limit = deadline(headers)?;
        let mut incoming = Incoming::new(body);
        let message =
            incoming.next().await?.ok_or_else(|| RpcError::new(Code::InvalidArgument, "no request message"))?;
        let request = encoding.read(message).await?;
        // A request that is not read to its end makes the server close a connection which the client may be using for
        // its next request already.
        tokio::spawn(async move { while let Ok(Some(_)) = incoming.next().await {} });
        Ok::<_, RpcError>((limit, request))
    };
    let (deadline, request) = match opening.await {
        Ok(opened) => opened,
        Err(error) => return respond(encoding, Body::from(envelope::end(&Err(error)))),
    };

    let (to, mut from) = mpsc::channel(QUEUE);
    let outgoing = Outgoing { to: to.clone(), encoding, keepalive: keepalive(headers), deadline };
    let work = call(request, outgoing);
    tokio::spawn(async move {
        tokio::select! {
            // First the answer: an end that is ready is sent although the client may be leaving.
            biased;
            outcome = within(deadline, work) => {
                let last = match outcome {
                    Ok(()) => Ok(envelope::end(&Ok(()))),
                    Err(Ending::Rpc(error)) => Ok(envelope::end(&Err(error))),
                    // Cuts the connection, so that the client asks for the sandbox's health.
                    Err(Ending::Gone(reason)) => Err(io::Error::new(io::ErrorKind::ConnectionReset, reason)),
                };
                // The client may be gone: nothing to do.
                let _unread = to.send(last).await;
            }
            () = to.closed() => {}
        }
    });
    respond(encoding, Body::from_stream(futures::stream::poll_fn(move |context| from.poll_recv(context))))
}

/// A call with a stream of requests and one answer, which is an envelope too.
pub async fn collect<Q, A, F>(headers: &HeaderMap, body: Body, call: impl FnOnce(Requests<Q>) -> F) -> Response
where
    Q: Message,
    A: Message,
    F: Future<Output = Result<A, Ending>>,
{
    let Some(encoding) = encoding(headers) else { return unsupported() };
    let requests = Requests { incoming: Incoming::new(body), encoding, message: std::marker::PhantomData };
    let outcome = async { within(deadline(headers)?, call(requests)).await };
    match outcome.await {
        Ok(message) => {
            let mut bytes = envelope::message(&encoding.encode(&message)).to_vec();
            bytes.extend_from_slice(&envelope::end(&Ok(())));
            respond(encoding, Body::from(bytes))
        }
        Err(Ending::Rpc(error)) => respond(encoding, Body::from(envelope::end(&Err(error)))),
        Err(Ending::Gone(reason)) => {
            let cut = futures::stream::iter([Err::<Bytes, _>(io::Error::new(io::ErrorKind::ConnectionReset, reason))]);
            respond(encoding, Body::from_stream(cut))
        }
    }
}

/// The messages of a client's stream.
pub struct Requests<Q> {
    incoming: Incoming,
    encoding: Encoding,
    message: std::marker::PhantomData<Q>,
}

impl<Q: Message> Requests<Q> {
    pub async fn next(&mut self) -> Result<Option<Q>, RpcError> {
        match self.incoming.next().await? {
            Some(bytes) => Ok(Some(self.encoding.read(bytes).await?)),
            None => Ok(None),
        }
    }
}

async fn within<T>(limit: Option<Duration>, work: impl Future<Output = Result<T, Ending>>) -> Result<T, Ending> {
    match limit {
        None => work.await,
        Some(limit) => tokio::time::timeout(limit, work).await.unwrap_or(Err(RpcError::deadline().into())),
    }
}

fn encoding(headers: &HeaderMap) -> Option<Encoding> {
    let text = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    match text.split(';').next()?.trim() {
        "application/connect+json" => Some(Encoding::Json),
        "application/connect+proto" => Some(Encoding::Proto),
        _ => None,
    }
}

fn respond(encoding: Encoding, body: Body) -> Response {
    let kind = match encoding {
        Encoding::Json => "application/connect+json",
        Encoding::Proto => "application/connect+proto",
    };
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

fn unsupported() -> Response {
    let accepted = [("accept-post", "application/connect+json, application/connect+proto")];
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, accepted).into_response()
}
