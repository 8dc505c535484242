//! A command's log: read once, or followed by WebSocket until the command has ended.

use axum::Extension;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Query};
use axum::http::HeaderMap;
use axum::response::Response;
use cove_protocol::process::Selector;
use cove_protocol::{Event, Request};
use futures::{SinkExt, StreamExt};
use serde::Deserialize;

use super::command::{find_command, log, shell_selector};
use super::{Machine, end_relay, shaped};
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::daytona::toolbox::output::{Chunk, Log};
use crate::door::daytona::toolbox::websocket::{self, FAILED, NORMAL};
use crate::guest::{GuestError, Item};

#[derive(Deserialize)]
pub struct How {
    #[serde(default)]
    follow: Option<bool>,
}

/// Absent for a plain GET.
type Upgrade = Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>;

pub async fn logs(
    Extension(machine): Extension<Machine>,
    Path((session, command)): Path<(String, String)>,
    Query(how): Query<How>,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Answer<Response> {
    match (upgrade, how.follow.unwrap_or(false)) {
        (Ok(upgrade), _) => {
            // Refused before the upgrade, where the client still sees a status.
            find_command(&machine, &session, &command).await?;
            Ok(websocket::choose(upgrade, &headers)
                .on_upgrade(move |socket| async move { follow(machine, session, command, socket).await }))
        }
        (Err(_), true) => Err(Problem::bad_request("follow needs a WebSocket")),
        (Err(_), false) => Ok(shaped(&log(&machine, &session, &command).await?, &headers)),
    }
}

/// No template of ours has a start command whose output would be kept here.
pub async fn entrypoint_logs(headers: HeaderMap, upgrade: Upgrade) -> Response {
    match upgrade {
        Ok(upgrade) => websocket::choose(upgrade, &headers)
            .on_upgrade(|socket| async move { websocket::close(socket, NORMAL, String::new()).await }),
        Err(_) => shaped(&Log::default(), &headers),
    }
}

async fn follow(machine: Machine, session: String, command: String, socket: WebSocket) {
    let (mut to_client, mut from_client) = socket.split();
    let sending = async {
        match send_log(&machine, &session, &command, &mut to_client).await {
            Ok(()) => websocket::close(&mut to_client, NORMAL, String::new()).await,
            Err(problem) => websocket::close(&mut to_client, FAILED, problem.message.chars().take(100).collect()).await,
        }
    };
    // Reading answers pings and sees the client leave.
    let reading = async { while let Some(Ok(_)) = from_client.next().await {} };
    tokio::select! {
        () = sending => {}
        () = reading => {}
    }
}

async fn send_log(
    machine: &Machine,
    session: &str,
    command: &str,
    to_client: &mut (impl SinkExt<Message> + Unpin),
) -> Answer<()> {
    let found = find_command(machine, session, command).await?;
    let Some(relay) = found.relay.clone() else { return Ok(()) };
    if found.code(command).is_some() {
        end_relay(machine, &relay).await;
    }
    let attach = Request::Attach { process: Selector::Pid(relay.pid), from: Some(0) };
    let (_, mut operation) = machine.guest.open(&attach).await?;
    let stream = async {
        while let Some(item) = operation.from.next().await? {
            if matches!(item, Item::Event(Event::Exited { .. })) {
                break;
            }
            if let Some(chunk) = Chunk::of(item)
                && to_client.send(Message::Binary(chunk.marked().into())).await.is_err()
            {
                break;
            }
        }
        Ok::<(), GuestError>(())
    };
    // A shell that ends cannot end its relay.
    let shell = async {
        if let Ok(mut waiting) = machine.guest.send(&Request::Wait { process: shell_selector(session) }).await {
            let _ = waiting.reply().await;
        }
        end_relay(machine, &relay).await;
        std::future::pending::<()>().await
    };
    tokio::select! {
        streamed = stream => streamed?,
        () = shell => {}
    }
    Ok(())
}
