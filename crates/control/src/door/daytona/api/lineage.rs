//! Freezing a sandbox's files, copying it, and who came from whom.

use axum::Json;
use axum::extract::{Path, State};
use serde::Deserialize;
use serde_json::Value;

use super::snapshot;
use crate::Error;
use crate::door::daytona::Door;
use crate::door::daytona::admit::Authenticated;
use crate::door::daytona::body::Lenient;
use crate::door::daytona::naming::{self, Note};
use crate::door::daytona::origin::Origin;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::daytona::query::Pairs;
use crate::door::daytona::view;
use crate::door::note_of_copy;
use crate::snapshot::{Forks, NewFork, NewSnapshot};

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Freeze {
    name: String,
    include_memory: Option<bool>,
}

/// Answers when the snapshot is taken, and the sandbox is as it was.
pub async fn freeze(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
    Lenient(body): Lenient<Freeze>,
) -> Answer<Json<Value>> {
    let sandbox = door.app.sandbox(&caller, &id).await?;
    if body.include_memory == Some(true) {
        return Err(Problem::bad_request("includeMemory is not offered by this server: a snapshot has files alone"));
    }
    snapshot::free(&door.app, &caller, &body.name).await?;
    let note = Note { name: Some(body.name.clone()), image: Some(body.name.clone()), ..Note::default() };
    let new = NewSnapshot { name: Some(naming::template_name(&body.name)), note: None, door: note.into_door() };
    door.app.create_snapshot(&caller, sandbox.id.as_str(), new).await?;
    Ok(Json(view::sandbox(&door.app.sandbox(&caller, sandbox.id.as_str()).await?, &origin)))
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub struct Copy {
    name: Option<String>,
}

/// Answers with the copy when it runs. What opened the source does not open the copy.
pub async fn fork(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
    Lenient(body): Lenient<Copy>,
) -> Answer<Json<Value>> {
    let source = door.app.sandbox(&caller, &id).await?;
    let names = body.name.filter(|name| !name.is_empty()).into_iter().collect();
    let new = NewFork { names, door: note_of_copy(&source)?, ..NewFork::default() };
    let made = door.app.fork_sandbox(&caller, source.id.as_str(), new).await?.pop();
    let copy = made.unwrap_or_else(|| Err(Error::internal("a fork made nothing")))?;
    Ok(Json(view::sandbox(&copy, &origin)))
}

pub async fn forks(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
    pairs: Pairs,
) -> Answer<Json<Value>> {
    let which = match pairs.switch("includeDestroyed")? {
        Some(true) => Forks::WithDestroyed,
        _ => Forks::Existing,
    };
    let forks = door.app.forks_of(&caller, &id, which).await?;
    Ok(Json(forks.iter().map(|fork| view::sandbox(fork, &origin)).collect()))
}

pub async fn parent(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
) -> Answer<Json<Value>> {
    let parent = door.app.parent_of(&caller, &id).await?;
    let parent = parent.ok_or_else(|| Error::not_found("parent of sandbox", id))?;
    Ok(Json(view::sandbox(&parent, &origin)))
}

/// The nearest first.
pub async fn ancestors(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
) -> Answer<Json<Value>> {
    let ancestors = door.app.ancestors_of(&caller, &id).await?;
    Ok(Json(ancestors.iter().map(|ancestor| view::sandbox(ancestor, &origin)).collect()))
}

/// A checkpoint: what the sandbox can be rolled back to, on the server's own disk.
pub async fn backup(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Path(id): Path<String>,
) -> Answer<Json<Value>> {
    let made = door.app.checkpoint(&caller, &id, Some("backup".into())).await?;
    let at = made.finished_at.unwrap_or(made.created_at);
    let sandbox = super::links::remember(&door, &caller, &id, |memory| memory.backup_at = Some(at)).await?;
    Ok(Json(view::sandbox(&sandbox, &origin)))
}
