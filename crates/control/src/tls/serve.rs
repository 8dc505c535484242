//! Connections that begin with a handshake; after it they are served like all others.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::Secure;

/// A client that has not shaken hands by then is dropped.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The kernel is out of something: waiting is all that helps.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until told to end, then waits for the requests under way.
pub async fn serve(listener: TcpListener, config: Arc<ServerConfig>, router: Router, ending: CancellationToken) {
    let acceptor = TlsAcceptor::from(config);
    let graceful = GracefulShutdown::new();
    loop {
        let (stream, peer) = tokio::select! {
            () = ending.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "accept on the TLS socket");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
        };
        let watcher = graceful.watcher();
        let (acceptor, router) = (acceptor.clone(), router.clone());
        tokio::spawn(async move {
            if let Some(stream) = shake_hands(acceptor, stream, peer).await {
                let service = TowerToHyperService::new(known(router, peer));
                let builder = Builder::new(TokioExecutor::new());
                let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
                if let Err(error) = watcher.watch(connection).await {
                    tracing::debug!(%peer, %error, "connection broke off");
                }
            }
        });
    }
    graceful.shutdown().await;
}

/// Doors read who is there, and that nobody else listens.
fn known(router: Router, peer: SocketAddr) -> Router {
    router.layer(axum::Extension(ConnectInfo(peer))).layer(axum::Extension(Secure))
}

async fn shake_hands(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    peer: SocketAddr,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    // Small frames of a stream must not wait for one another.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "set TCP_NODELAY");
    }
    match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "no handshake");
            None
        }
        Err(_) => None,
    }
}
