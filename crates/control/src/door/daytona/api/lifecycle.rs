//! Start, stop, pause, archive, recover, destroy. Each answers when it is done.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::Value;

use super::pending;
use crate::Error;
use crate::door::daytona::Door;
use crate::door::daytona::admit::Authenticated;
use crate::door::daytona::origin::Origin;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::daytona::query::Pairs;
use crate::door::daytona::view;
use crate::sandbox::State as Life;

type One = Answer<Json<Value>>;

pub async fn start(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
) -> One {
    Ok(Json(view::sandbox(&door.app.start(&caller, &id).await?, &origin)))
}

/// With `force` its processes get no time to end by themselves.
pub async fn stop(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
    pairs: Pairs,
) -> One {
    let stopped = match pairs.switch("force")? {
        Some(true) => door.app.kill(&caller, &id).await?,
        _ => door.app.stop(&caller, &id).await?,
    };
    Ok(Json(view::sandbox(&stopped, &origin)))
}

pub async fn pause(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
) -> One {
    Ok(Json(view::sandbox(&door.app.pause(&caller, &id).await?, &origin)))
}

pub async fn archive(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
) -> One {
    let sandbox = door.app.sandbox(&caller, &id).await?;
    if sandbox.timers.ephemeral {
        return Err(Problem::bad_request("an ephemeral sandbox is deleted when it stops and cannot be archived"));
    }
    Ok(Json(view::sandbox(&door.app.archive(&caller, &id).await?, &origin)))
}

/// With `skipStart` one that failed is left stopped, with its files.
pub async fn recover(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
    pairs: Pairs,
) -> One {
    let failed = door.app.sandbox(&caller, &id).await?.state == Life::Failed;
    let recovered = match pairs.switch("skipStart")? {
        Some(true) if failed => door.app.stop(&caller, &id).await?,
        _ => door.app.recover(&caller, &id).await?,
    };
    Ok(Json(view::sandbox(&recovered, &origin)))
}

/// Always by force, so that `force` changes nothing.
pub async fn destroy(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
    pairs: Pairs,
) -> One {
    pairs.switch("force")?;
    let destroyed = match door.app.destroy(&caller, &id).await {
        Err(Error::NotFound { .. }) => match pending::give_up(&door, &caller, &origin, &id).await? {
            Some(given_up) => return Ok(Json(given_up)),
            None => door.app.destroy(&caller, &id).await?,
        },
        destroyed => destroyed?,
    };
    pending::clear(&door, &caller, destroyed.id.as_str()).await?;
    Ok(Json(view::sandbox(&destroyed, &origin)))
}
