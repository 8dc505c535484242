//! WebSockets as the SDKs open them.
//!
//! Node gives up when it offered subprotocols and none was chosen, so one of those offered always is.

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::http::HeaderMap;
use futures::SinkExt;

use crate::door::daytona::sdk;
use crate::door::websocket::{LONG, bounded};

/// Asks for an `exited` message before the close of a terminal.
pub const EXIT_CONTROL: &str = "X-Daytona-Pty-Exit-Control";
/// Carries a terminal's environment where a browser cannot send headers.
pub const TERMINAL_ENV: &str = "X-Daytona-Pty-Envs~";

pub fn offered(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all("sec-websocket-protocol").iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|token| token.trim().to_owned()).filter(|t| !t.is_empty()).collect()
}

/// Chooses one of the subprotocols offered, if any was.
pub fn choose(upgrade: WebSocketUpgrade, headers: &HeaderMap) -> WebSocketUpgrade {
    let upgrade = bounded(upgrade, LONG);
    let offered = offered(headers);
    let chosen = offered
        .iter()
        .find(|token| *token == EXIT_CONTROL)
        .or_else(|| offered.iter().find(|token| token.starts_with(sdk::SUBPROTOCOL)))
        .or_else(|| offered.first());
    match chosen {
        Some(token) => upgrade.protocols([token.clone()]),
        None => upgrade,
    }
}

/// Says goodbye; a peer that has gone already does not mind.
pub async fn close(mut socket: impl SinkExt<Message> + Unpin, code: u16, reason: String) {
    let _ = socket.send(Message::Close(Some(CloseFrame { code, reason: reason.into() }))).await;
    let _ = socket.flush().await;
}

/// Close codes that the SDKs distinguish.
pub const NORMAL: u16 = 1000;
pub const FAILED: u16 = 1011;

/// Sends until the peer has gone.
pub async fn text(socket: &mut WebSocket, text: String) -> bool {
    socket.send(Message::Text(text.into())).await.is_ok()
}
