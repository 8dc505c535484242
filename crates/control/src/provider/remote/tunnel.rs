//! The guest's protocol through a port of the sandbox: WebSocket messages of bytes.
//!
//! A service's proxies pass WebSockets where they pass anything. Messages carry the bytes of one connection to the guest
//! as they come; an empty one says that nothing more comes from that side, which a WebSocket by itself cannot say without
//! closing both. The first message is our token. The other end is `guest/src/tunnel.rs`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use base64::Engine as _;
use bytes::{Buf as _, Bytes};
use futures::{Sink as _, SinkExt as _, Stream as _};
use http::{HeaderMap, StatusCode, header};
use reqwest::Upgraded;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::Way;
use crate::guest::GuestError;

/// How long the way to a sandbox may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(15);

/// Bytes of one message of ours.
const PIECE: usize = 256 << 10;

/// The largest message that is taken: the guest's have 64 KiB.
const LARGEST: usize = 1 << 20;

/// Opens a connection to the guest.
pub async fn connect(http: &reqwest::Client, way: &Way, token: &str) -> Result<Tunnel, GuestError> {
    let greeted = async {
        let mut socket = websocket(http, &way.url, &way.headers).await?;
        let greeting = Message::Binary(Bytes::copy_from_slice(token.as_bytes()));
        socket.send(greeting).await.map_err(|error| error.to_string())?;
        Ok::<_, String>(socket)
    };
    let socket = match tokio::time::timeout(CONNECT_WITHIN, greeted).await {
        Ok(Ok(socket)) => socket,
        Ok(Err(reason)) => return Err(GuestError::Unreachable(reason)),
        Err(_) => return Err(GuestError::Unreachable("its service did not lead to it in time".into())),
    };
    Ok(Tunnel { socket, heard: Bytes::new(), heard_all: false, taken: 0, ended: false })
}

/// A WebSocket to a service.
pub async fn websocket(
    http: &reqwest::Client,
    url: &str,
    headers: &HeaderMap,
) -> Result<WebSocketStream<Upgraded>, String> {
    let mut nonce = [0u8; 16];
    rand::fill(&mut nonce[..]);
    let response = http
        .get(url)
        .headers(headers.clone())
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, base64::prelude::BASE64_STANDARD.encode(nonce))
        .send()
        .await
        .map_err(|error| error.without_url().to_string())?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(format!("its port answered with {}", response.status()));
    }
    let upgraded = response.upgrade().await.map_err(|error| error.without_url().to_string())?;
    let config = WebSocketConfig::default().max_message_size(Some(LARGEST)).max_frame_size(Some(LARGEST));
    Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await)
}

/// One connection to the guest.
pub struct Tunnel {
    socket: WebSocketStream<Upgraded>,
    /// Bytes that came and were not read yet.
    heard: Bytes,
    /// The other side has said all.
    heard_all: bool,
    /// Bytes of the caller's that are in a message which is not all sent yet.
    taken: usize,
    /// This side has said all.
    ended: bool,
}

fn broken(error: tokio_tungstenite::tungstenite::Error) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, error.to_string())
}

impl AsyncRead for Tunnel {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            if !self.heard.is_empty() {
                let count = self.heard.len().min(into.remaining());
                into.put_slice(&self.heard[..count]);
                self.heard.advance(count);
                return Poll::Ready(Ok(()));
            }
            if self.heard_all {
                return Poll::Ready(Ok(()));
            }
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) if bytes.is_empty() => self.heard_all = true,
                Some(Ok(Message::Binary(bytes))) => self.heard = bytes,
                // Pings are answered where they are read.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Text(_) | Message::Frame(_))) => {}
                // Who closes without having said that it is all was cut off: the frames' own end shows what is missing.
                Some(Ok(Message::Close(_))) | None => self.heard_all = true,
                Some(Err(error)) => return Poll::Ready(Err(broken(error))),
            }
        }
    }
}

impl AsyncWrite for Tunnel {
    /// Takes bytes into a message and returns when it is sent. A caller that was told to wait comes back with the same
    /// bytes: they are not taken a second time.
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.taken == 0 {
            let whole: usize = slices.iter().map(|slice| slice.len()).sum();
            if whole == 0 {
                return Poll::Ready(Ok(0));
            }
            ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(broken)?;
            let mut message = Vec::with_capacity(whole.min(PIECE));
            for slice in slices {
                let room = PIECE - message.len();
                message.extend_from_slice(&slice[..slice.len().min(room)]);
            }
            self.taken = message.len();
            Pin::new(&mut self.socket).start_send(Message::Binary(message.into())).map_err(broken)?;
        }
        ready!(Pin::new(&mut self.socket).poll_flush(cx)).map_err(broken)?;
        Poll::Ready(Ok(std::mem::take(&mut self.taken)))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(broken)
    }

    /// Nothing more from this side; the other may go on.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.ended {
            ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(broken)?;
            Pin::new(&mut self.socket).start_send(Message::Binary(Bytes::new())).map_err(broken)?;
            self.ended = true;
        }
        Pin::new(&mut self.socket).poll_flush(cx).map_err(broken)
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::extract::ws::{Message as Said, WebSocketUpgrade};
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn http() -> reqwest::Client {
        super::super::Client::new("x", "http://127.0.0.1", HeaderMap::new()).unwrap().http().clone()
    }

    /// A port behind which somebody wants a token and repeats the rest, once it is all there.
    async fn port() -> Way {
        let repeat = |upgrade: WebSocketUpgrade| async move {
            upgrade.on_upgrade(|mut socket| async move {
                let Some(Ok(Said::Binary(token))) = socket.recv().await else { return };
                if &token[..] != b"right" {
                    return;
                }
                let mut whole = Vec::new();
                while let Some(Ok(Said::Binary(bytes))) = socket.recv().await {
                    if bytes.is_empty() {
                        break;
                    }
                    whole.extend_from_slice(&bytes);
                }
                for piece in whole.chunks(60_000) {
                    socket.send(Said::Binary(Bytes::copy_from_slice(piece))).await.unwrap();
                }
                socket.send(Said::Binary(Bytes::new())).await.unwrap();
                // Until the other side goes: a close of ours would end its reading too.
                while let Some(Ok(_)) = socket.recv().await {}
            })
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, Router::new().route("/", get(repeat))).await });
        Way { url, headers: HeaderMap::new() }
    }

    #[tokio::test]
    async fn bytes_pass_both_ways_and_each_side_ends_for_itself() {
        let (http, way) = (http(), port().await);
        let mut tunnel = connect(&http, &way, "right").await.unwrap();
        let sent: Vec<u8> = (0..1_000_003u32).map(|number| number as u8).collect();
        tunnel.write_all(&sent).await.unwrap();
        tunnel.shutdown().await.unwrap();
        let mut heard = Vec::new();
        tunnel.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, sent);
    }

    #[tokio::test]
    async fn a_port_without_a_guest_is_no_sandbox() {
        let way = port().await;
        let http = http();
        let mut refused = connect(&http, &way, "wrong").await.unwrap();
        let mut heard = Vec::new();
        assert_eq!(refused.read_to_end(&mut heard).await.unwrap_or_default(), 0);
        let elsewhere = Way { url: format!("{}nowhere", way.url), ..way };
        let error = connect(&http, &elsewhere, "right").await.err().unwrap().to_string();
        assert_eq!(error, "sandbox cannot be reached: its port answered with 404 Not Found");
    }
}
