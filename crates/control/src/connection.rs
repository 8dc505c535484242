//! Connections: accepted, with a TLS handshake where configured, and served by the doors.
//!
//! A new client has proved nothing, so every wait for it has a limit: the handshake, the first request, the rest of a
//! header. Each request notes the right that allowed it, and ends with it (`right`).

mod attend;
mod crowd;
mod frames;
mod line;
mod meter;
mod unread;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use self::attend::attend;
use self::crowd::{Crowd, Place};
use self::line::{End, Line, Tenant};
use self::meter::Metered;
use crate::right::Rights;
use crate::tls::Secure;

/// A client that has not finished its handshake by then is dropped.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A request's header must be complete by then, counted from the connection's start or from the end of the request
/// before. Longer than clients keep an unused connection.
const HEADER: Duration = Duration::from_secs(75);

/// An HTTP/2 client that answers no ping is gone.
const PING: Duration = Duration::from_secs(30);

/// Requests of one HTTP/2 connection at a time.
const STREAMS: u32 = 250;

/// How long to wait when the kernel is out of descriptors or memory: connections that were closed free some.
const PAUSE: Duration = Duration::from_millis(20);

/// The answer when there is no place for a connection.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\
    Content-Length: 33\r\nContent-Type: text/plain\r\n\r\ntoo many connections; come again\n";

/// Serves until the server ends, then waits for the requests under way. With TLS where it is configured.
pub async fn serve(
    listener: TcpListener,
    secure: Option<Arc<ServerConfig>>,
    router: Router,
    rights: Arc<Rights>,
    ending: CancellationToken,
) {
    let crowd = Crowd::new(rights.budget().clone());
    serve_patiently(listener, secure, Reception { router, rights, crowd }, ending, HEADER).await;
}

/// Handles the requests.
#[derive(Clone)]
struct Reception {
    router: Router,
    rights: Arc<Rights>,
    crowd: Arc<Crowd>,
}

async fn serve_patiently(
    listener: TcpListener,
    secure: Option<Arc<ServerConfig>>,
    reception: Reception,
    ending: CancellationToken,
    patience: Duration,
) {
    let acceptor = secure.map(TlsAcceptor::from);
    let graceful = GracefulShutdown::new();
    loop {
        let (stream, peer) = tokio::select! {
            () = ending.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "accept a connection");
                    reception.crowd.make_room();
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
        };
        // TCP_NODELAY: small answers are sent at once, not when the last one was acknowledged.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "set TCP_NODELAY");
        }
        let watcher = graceful.watcher();
        let (acceptor, reception) = (acceptor.clone(), reception.clone());
        let line = Line::new(stream);
        let Some(place) = reception.crowd.enter(peer.ip(), line.end()) else {
            if acceptor.is_none() {
                line.say_and_close(FULL);
            }
            continue;
        };
        let known =
            Known { peer, secure: acceptor.is_some().then_some(Secure), end: line.end(), tenant: line.tenant(), place };
        tokio::spawn(async move {
            match acceptor {
                None => talk(line, known, reception, watcher, patience).await,
                Some(acceptor) => {
                    if let Some(stream) = shake_hands(acceptor, line, peer).await {
                        talk(stream, known, reception, watcher, patience).await;
                    }
                }
            }
        });
    }
    // From now on new clients are refused at once.
    drop(listener);
    graceful.shutdown().await;
}

/// What is known of a connection.
struct Known {
    /// The client's address.
    peer: SocketAddr,
    /// Whether only this machine can connect.
    secure: Option<Secure>,
    end: End,
    tenant: Tenant,
    place: Arc<Place>,
}

async fn talk<S>(stream: S, known: Known, reception: Reception, watcher: Watcher, patience: Duration)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Known { peer, secure, end, tenant, place } = known;
    let metered = Metered::new(stream, tenant.clone());
    let begun = Arc::new(AtomicBool::new(false));
    let service = {
        let begun = Arc::clone(&begun);
        service_fn(move |mut request: Request<Incoming>| {
            begun.store(true, Ordering::Relaxed);
            request.extensions_mut().insert(ConnectInfo(peer));
            secure.map(|secure| request.extensions_mut().insert(secure));
            let Reception { router, rights, .. } = reception.clone();
            let line = (tenant.clone(), end.clone());
            let answer = attend(router, rights.admit(), place.begin(), line, request.map(Body::new));
            async move { Ok::<_, Infallible>(answer.await) }
        })
    };
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(patience);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING).max_concurrent_streams(STREAMS);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(metered), service).into_owned();
    let connection = watcher.watch(connection);
    tokio::pin!(connection);
    // Before the first bytes show the version of HTTP, none of hyper's timeouts runs.
    let first = tokio::time::timeout(patience, connection.as_mut()).await;
    let ended = match first {
        Ok(ended) => ended,
        Err(_) if begun.load(Ordering::Relaxed) => connection.await,
        Err(_) => return tracing::debug!(%peer, "connected and asked for nothing"),
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection broke off");
    }
}

async fn shake_hands(
    acceptor: TlsAcceptor,
    stream: Line,
    peer: SocketAddr,
) -> Option<tokio_rustls::server::TlsStream<Line>> {
    match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "no handshake");
            None
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn nobody_is_waited_for_without_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let ending = CancellationToken::new();
        let router = Router::new().route("/", get(async || "here"));
        let reception = Reception { router, rights: Arc::default(), crowd: Crowd::new(Default::default()) };
        let patience = Duration::from_millis(200);
        let serving = tokio::spawn(serve_patiently(listener, None, reception, ending.clone(), patience));
        let ask = "GET / HTTP/1.1\r\nHost: x\r\n";
        for (said, answers) in
            [("", 0), (&format!("{ask}X-Slow: "), 0), ("PRI * HT", 0), (&format!("{ask}\r\n{ask}"), 1)]
        {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(said.as_bytes()).await.unwrap();
            let mut heard = Vec::new();
            let closed = tokio::time::timeout(Duration::from_secs(20), client.read_to_end(&mut heard)).await;
            assert!(closed.is_ok(), "{said:?} was waited for without end");
            assert_eq!(String::from_utf8_lossy(&heard).matches("200 OK").count(), answers, "{said:?}");
        }
        ending.cancel();
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn a_refusal_hears_a_small_request_out_and_the_connection_goes_on() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let ending = CancellationToken::new();
        let (asked, mut refused) = tokio::sync::mpsc::channel(1);
        let refuse = move || {
            let asked = asked.clone();
            async move {
                asked.send(()).await.unwrap();
                http::StatusCode::FORBIDDEN
            }
        };
        let router = Router::new().route("/", get(async || "here").post(refuse));
        let reception = Reception { router, rights: Arc::default(), crowd: Crowd::new(Default::default()) };
        let serving = tokio::spawn(serve_patiently(listener, None, reception, ending.clone(), HEADER));
        let mut client = TcpStream::connect(address).await.unwrap();
        let head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n";
        client.write_all(head.as_bytes()).await.unwrap();
        // The handler has refused, and the body is still to come.
        refused.recv().await.unwrap();
        client.write_all(&[7; 20_000]).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut heard = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(20), client.read_to_end(&mut heard)).await;
        closed.expect("in time").expect("not reset");
        let heard = String::from_utf8_lossy(&heard);
        assert!(heard.contains("403 Forbidden") && heard.contains("200 OK"), "{heard}");
        ending.cancel();
        serving.await.unwrap();
    }
}
