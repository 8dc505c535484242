//! States as they change, by Socket.IO v4 over WebSocket.
//!
//! The SDKs open one socket for each client, authenticate, and then only listen; without it they poll. This is the
//! subset that they speak: `0` open, `40` connect with a token, `42` event, `2`/`3` ping and pong, `41` leave.

use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;

use super::Door;
use super::origin::Origin;
use super::view;
use crate::border;
use crate::door::websocket;
use crate::event::Changed;
use crate::right;
use crate::sandbox::State as SandboxState;

const PING_EVERY: Duration = Duration::from_secs(25);
const PONG_WITHIN: Duration = Duration::from_secs(20);
const CONNECT_WITHIN: Duration = Duration::from_secs(45);

pub async fn connect(State(door): State<Door>, origin: Origin, upgrade: WebSocketUpgrade) -> Response {
    // The key comes over the socket: what it opens ends with it all the same.
    let admission = right::current();
    // A client sends a token and pongs, nothing long.
    websocket::bounded(upgrade, 64 << 10).on_upgrade(move |socket| async move {
        let serving = serve(door, origin, socket);
        // A client that leaves in the middle is no error of ours.
        let _ended = match admission {
            Some(admission) => admission.within(serving).await,
            None => serving.await,
        };
    })
}

async fn serve(door: Door, origin: Origin, mut socket: WebSocket) -> Result<(), axum::Error> {
    let sid = crate::random::hex(10);
    let open = json!({
        "sid": sid,
        "upgrades": [],
        "pingInterval": PING_EVERY.as_millis() as u64,
        "pingTimeout": PONG_WITHIN.as_millis() as u64,
        "maxPayload": 1_000_000,
    });
    socket.send(Message::Text(format!("0{open}").into())).await?;
    // Listening begins before the client is told that it is connected, so that it misses nothing after.
    let mut changes = door.app.changes();
    let connecting = tokio::time::timeout(CONNECT_WITHIN, organisation(&door, &mut socket)).await;
    let Ok(Some(organisation)) = connecting else {
        socket.send(Message::Text(r#"44{"message":"Unauthorized"}"#.into())).await?;
        return socket.send(Message::Close(None)).await;
    };
    socket.send(Message::Text(format!("40{}", json!({ "sid": sid })).into())).await?;

    let mut ping = tokio::time::interval(PING_EVERY);
    ping.tick().await;
    let mut silent_since_ping = false;
    loop {
        tokio::select! {
            change = changes.recv() => match change {
                Ok(change) if change.sandbox.organisation == organisation && change.sandbox.pool.is_none() => {
                    socket.send(Message::Text(event(&change, &origin).into())).await?;
                }
                Ok(_) => {}
                // Told by the next look: a client that missed something polls.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return Ok(()),
            },
            message = socket.recv() => match message {
                Some(Ok(Message::Text(text))) if text.as_str() == "41" || text.as_str() == "1" => return Ok(()),
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(()),
                Some(Ok(_)) => silent_since_ping = false,
            },
            _ = ping.tick() => {
                if silent_since_ping {
                    return Ok(());
                }
                silent_since_ping = true;
                socket.send(Message::Text("2".into())).await?;
            }
            () = door.app.ending().cancelled() => return socket.send(Message::Close(None)).await,
        }
    }
}

/// Whose events the client may hear: the first packet must bring a key.
async fn organisation(door: &Door, socket: &mut WebSocket) -> Option<String> {
    while let Some(Ok(message)) = socket.recv().await {
        let Message::Text(text) = message else { continue };
        if let Some(packet) = text.strip_prefix("40") {
            let token = border::parse::<Value>(packet.as_bytes()).ok()?;
            let caller = door.app.authenticate(token.get("token")?.as_str()?).await.ok()?;
            // It was nobody's stream until now.
            if let Some(admission) = right::current() {
                admission.may_stream().ok()?;
            }
            return Some(caller.organisation);
        }
    }
    None
}

fn event(change: &Changed, origin: &Origin) -> String {
    let sandbox = view::sandbox(&change.sandbox, origin);
    let packet = if change.from == SandboxState::Creating {
        json!(["sandbox.created", sandbox])
    } else {
        let (old, new) = (view::state(change.from), view::state(change.sandbox.state));
        json!(["sandbox.state.updated", { "sandbox": sandbox, "oldState": old, "newState": new }])
    };
    format!("42{packet}")
}
