//! Ways into one sandbox: its toolbox, its ports, its files.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::door::daytona::Door;
use crate::door::daytona::admit::Authenticated;
use crate::door::daytona::origin::Origin;
use crate::door::daytona::preview::TOOLBOX_PORT;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::daytona::query::Pairs;
use crate::door::daytona::token::Memory;
use crate::sandbox::Sandbox;
use crate::{Caller, random};

/// Browsers cannot send headers with a WebSocket; their SDK asks for this port's token and shows it to the toolbox.
const BROWSERS_TOOLBOX_PORT: u16 = 1;

const SIGNED_DEFAULT_SECONDS: i64 = 60;
const SIGNED_LONGEST_SECONDS: i64 = 24 * 60 * 60;

pub async fn toolbox(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
) -> Answer<Json<Value>> {
    door.app.sandbox(&caller, &id).await?;
    Ok(Json(json!({ "url": origin.toolbox() })))
}

fn checked(port: u32) -> Answer<u16> {
    u16::try_from(port)
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| Problem::bad_request(format!("port {port} is not between 1 and 65535")))
}

pub async fn preview(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path((id, port)): Path<(String, u32)>,
) -> Answer<Json<Value>> {
    let port = checked(port)?;
    let sandbox = door.app.sandbox(&caller, &id).await?;
    // A link to a port is handed on; it must not open the toolbox.
    let opens_toolbox = [BROWSERS_TOOLBOX_PORT, TOOLBOX_PORT].contains(&port);
    let token = if opens_toolbox { &sandbox.access_token } else { &sandbox.traffic_token };
    let url = origin.preview(sandbox.id.as_str(), port);
    Ok(Json(json!({ "sandboxId": sandbox.id.as_str(), "url": url, "token": token })))
}

/// Changes what the sandbox remembers for this door.
pub(super) async fn remember(door: &Door, caller: &Caller, id: &str, change: impl Fn(&mut Memory)) -> Answer<Sandbox> {
    let changed = |sandbox: &Sandbox| {
        let mut memory = Memory::of(sandbox);
        change(&mut memory);
        memory.into_door(sandbox)
    };
    Ok(door.app.change_door(caller, id, changed).await?)
}

pub async fn signed_preview(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path((id, port)): Path<(String, u32)>,
    pairs: Pairs,
) -> Answer<Json<Value>> {
    let port = checked(port)?;
    let seconds = pairs.number("expiresInSeconds")?.unwrap_or(SIGNED_DEFAULT_SECONDS);
    if !(1..=SIGNED_LONGEST_SECONDS).contains(&seconds) {
        return Err(Problem::bad_request("expiresInSeconds must be between 1 and 86400"));
    }
    let token = random::hex(16);
    let now = door.app.now().as_second();
    let sandbox = remember(&door, &caller, &id, |memory| memory.add_preview(&token, port, now + seconds, now)).await?;
    let url = origin.signed_preview(sandbox.id.as_str(), port, &token);
    Ok(Json(json!({ "sandboxId": sandbox.id.as_str(), "port": port, "token": token, "url": url })))
}

pub async fn end_signed_preview(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    Path((id, port, token)): Path<(String, u32, String)>,
) -> Answer<StatusCode> {
    let port = checked(port)?;
    let sandbox = remember(&door, &caller, &id, |memory| memory.end_preview(&token, port)).await?;
    door.app.end_keyless(&sandbox).await?;
    Ok(StatusCode::OK)
}

/// A bare JSON string; made when first asked for.
pub async fn signing_key(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Answer<Json<String>> {
    let sandbox = door.app.sandbox(&caller, &id).await?;
    if let Some(key) = Memory::of(&sandbox).signing_key {
        return Ok(Json(key));
    }
    let key = random::token();
    let first = |memory: &mut Memory| {
        memory.signing_key.get_or_insert_with(|| key.clone());
    };
    let sandbox = remember(&door, &caller, &id, first).await?;
    // Of two who ask for the first time both get the same.
    Ok(Json(Memory::of(&sandbox).signing_key.unwrap_or(key)))
}

/// Every URL signed before is worthless from now on.
pub async fn rotate_signing_key(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Answer<Json<String>> {
    let key = random::token();
    let sandbox = remember(&door, &caller, &id, |memory| memory.signing_key = Some(key.clone())).await?;
    // An upload by such a URL that is under way would write the file later.
    door.app.end_keyless(&sandbox).await?;
    Ok(Json(key))
}
