//! Sandboxes of images that are still to be built.
//!
//! ```text
//!   POST /sandbox {buildInfo} ──▶ template `sandbox-ID`, which remembers what was asked for; its build
//!        answered: pending_build         │ building_snapshot
//!                                        ├─ build fails ───────▶ build_failed, until somebody deletes it
//!                                        ▼ creating
//!                                  sandbox ID, of the build ──▶ the template goes: a sandbox keeps its layers
//! ```
//!
//! All that is needed to go on is in the store. A task of this server waits for the build; after a restart the first
//! look at the sandbox starts another. Lists show those that wait among the others ([`all`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use serde_json::{Value, json};

use super::build::{self, BuildInfo};
use super::create::{self, Body};
use crate::build::State as BuildState;
use crate::door::daytona::Door;
use crate::door::daytona::naming::{self, Note, Waiting};
use crate::door::daytona::origin::Origin;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::daytona::token::{Built, Memory};
use crate::door::daytona::view;
use crate::sandbox::{NewSandbox, Sandbox};
use crate::store::templates::TemplateFilter;
use crate::template::{Kind, NewTemplate, Overview, Template};
use crate::{Caller, Error, Scope};

/// How long a task waits for a build at one time.
const PATIENCE: Duration = Duration::from_secs(20);

/// What this server does for sandboxes that wait.
#[derive(Clone, Default)]
pub struct Nursery(Arc<Mutex<HashMap<String, Place>>>);

#[derive(Default)]
struct Place {
    /// Held by whoever makes the sandbox, or gives it up.
    turn: Arc<tokio::sync::Mutex<()>>,
    is_watched: bool,
    /// Why the sandbox could not be made of what was built.
    failure: Option<String>,
}

impl Nursery {
    fn with<T>(&self, id: &str, act: impl FnOnce(&mut Place) -> T) -> T {
        act(self.0.lock().expect("no panic while held").entry(id.to_owned()).or_default())
    }

    fn turn(&self, id: &str) -> Arc<tokio::sync::Mutex<()>> {
        self.with(id, |place| Arc::clone(&place.turn))
    }

    fn failure(&self, id: &str) -> Option<String> {
        self.0.lock().expect("no panic while held").get(id).and_then(|place| place.failure.clone())
    }

    fn forget(&self, id: &str) {
        self.0.lock().expect("no panic while held").remove(id);
    }
}

/// A sandbox that waits, with the template that it waits for.
struct Found {
    made: Overview,
    note: Note,
    waiting: Waiting,
}

impl Found {
    /// Nothing where it is an ordinary template, or another organisation's.
    fn of(made: Overview, caller: &Caller) -> Option<Found> {
        let note = Note::of(&made.record);
        let waiting = note.sandbox.clone()?;
        let ours = made.record.organisation == caller.organisation;
        let its = made.record.names.contains(&naming::waited_for(&waiting.id));
        (ours && its).then_some(Found { made, note, waiting })
    }
}

/// How a sandbox is that waits.
pub struct Waits {
    pub state: &'static str,
    pub reason: Option<String>,
}

/// Begins a build, and answers with a sandbox that waits for it.
pub async fn begin(door: &Door, caller: &Caller, origin: &Origin, body: Body, info: &BuildInfo) -> Answer<Json<Value>> {
    let app = &door.app;
    let recipe = info.recipe()?;
    let stored = serde_json::to_value(&body).map_err(Error::internal)?;
    // What is wrong with the request is said now and not after the build.
    let mut new = create::new_sandbox(caller, body, &app.template(caller, "base").await?, "")?;
    new.template = None;
    let (draft, _) = app.draft(caller, &new).await.map_err(create::in_body)?;
    if let Some(name) = &new.name
        && app.sandbox(caller, name).await.is_ok()
    {
        return Err(Error::Conflict(format!("a sandbox named {name:?} is there already")).into());
    }
    let id = draft.id.to_string();
    let waiting = Waiting { id: id.clone(), body: stored };
    let note = Note { sandbox: Some(waiting), ..Note::default() };
    let template = NewTemplate {
        name: naming::waited_for(&id),
        description: Some("of the image that a sandbox waits for".into()),
        limits: new.limits,
        door: note.with_build(&info.dockerfile_content, info.contexts()).into_door(),
        ..NewTemplate::default()
    };
    let (record, build) = app.create_template(caller, template).await?;
    build::start(app, caller, (&record, &build.id), recipe, None).await?;
    watch(door, caller, &id);
    // SDKs show the log only to those who are told of this state first.
    Ok(Json(shown(&draft, origin, &Waits { state: "pending_build", reason: None })))
}

/// What was asked for, in the state that it is in.
pub fn shown(draft: &Sandbox, origin: &Origin, waits: &Waits) -> Value {
    let mut view = view::sandbox(draft, origin);
    view["state"] = json!(waits.state);
    view["desiredState"] = json!("started");
    view["errorReason"] = json!(waits.reason);
    view["snapshot"] = Value::Null;
    view
}

async fn find(door: &Door, caller: &Caller, id: &str) -> Result<Option<Found>, Error> {
    if id.parse::<cove_protocol::SandboxId>().is_err() {
        return Ok(None);
    }
    let made = match door.app.template_overview(caller, &naming::waited_for(id)).await {
        Ok(made) => made,
        Err(Error::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(Found::of(made, caller).filter(|found| found.waiting.id == id))
}

/// All of the caller's that wait, newest first.
pub async fn all(door: &Door, caller: &Caller) -> Answer<Vec<(Sandbox, Waits)>> {
    const PAGE: u32 = 200;
    let name_prefix = Some(naming::WAITED_FOR.to_owned());
    let filter = TemplateFilter { kind: Kind::Built, name_prefix, ..TemplateFilter::default() };
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let page = door.app.catalogue(caller, &filter, cursor.as_deref(), PAGE).await?;
        for found in page.items.into_iter().filter_map(|made| Found::of(made, caller)) {
            let is_built = found.made.newest.as_ref().is_some_and(|build| build.state == BuildState::Ready);
            // Made a moment ago, and the template not yet gone: it is in the list as what it is.
            if is_built && door.app.sandbox(caller, &found.waiting.id).await.is_ok() {
                continue;
            }
            match draft(door, caller, &found).await {
                Ok(draft) => all.push((draft, state(door, &found))),
                Err(problem) => {
                    tracing::warn!(sandbox = %found.waiting.id, reason = problem.message, "list a sandbox that waits");
                }
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(all);
        }
    }
}

/// The sandbox as it was asked for. What cannot be had any more, such as a volume that is gone, is left out: it is told when the
/// sandbox is made.
async fn draft(door: &Door, caller: &Caller, found: &Found) -> Answer<Sandbox> {
    let id = &found.waiting.id;
    let body: Body = serde_json::from_value(found.waiting.body.clone()).map_err(Error::internal)?;
    let mut new = create::new_sandbox(caller, body, &door.app.template(caller, "base").await?, "")?;
    new.template = None;
    let drafted = match door.app.draft(caller, &new).await {
        Err(Error::Invalid { .. } | Error::NotFound { .. } | Error::Quota { .. } | Error::Unsupported(_)) => {
            let NewSandbox { name, labels, env, timers, user, public, .. } = new;
            let less = NewSandbox { name, labels, env, timers, user, public, ..NewSandbox::default() };
            door.app.draft(caller, &less).await
        }
        drafted => drafted,
    };
    let (mut draft, _) = drafted?;
    draft.id = id.parse().map_err(|_| Error::not_found("sandbox", id))?;
    draft.created_at = found.made.record.created_at;
    draft.state_since = found.made.record.created_at;
    Ok(draft)
}

/// A sandbox that waits, as it is shown; nothing where none does.
pub async fn show(door: &Door, caller: &Caller, origin: &Origin, id: &str) -> Answer<Option<Value>> {
    let Some(found) = find(door, caller, id).await? else { return Ok(None) };
    let waits = state(door, &found);
    let is_here = found.made.newest.as_ref().is_some_and(|build| build.server == door.app.server());
    if waits.state != "build_failed" && is_here && caller.may(Scope::Write) {
        watch(door, caller, id);
    }
    Ok(Some(shown(&draft(door, caller, &found).await?, origin, &waits)))
}

fn state(door: &Door, found: &Found) -> Waits {
    let plain = |state| Waits { state, reason: None };
    if let Some(reason) = door.nursery.failure(&found.waiting.id) {
        return Waits { state: "build_failed", reason: Some(reason) };
    }
    let Some(build) = &found.made.newest else { return plain("pending_build") };
    match build.state {
        BuildState::Waiting | BuildState::Building => plain("building_snapshot"),
        BuildState::Ready => plain("creating"),
        BuildState::Error | BuildState::Cancelled => {
            let reason = build.failure.as_ref().map(|failure| failure.message.clone());
            Waits { state: "build_failed", reason }
        }
    }
}

/// Gives up a sandbox that waits: its build ends. Nothing where none does.
pub async fn give_up(door: &Door, caller: &Caller, origin: &Origin, id: &str) -> Answer<Option<Value>> {
    let turn = door.nursery.turn(id);
    let _turn = turn.lock().await;
    // Made in the meantime: then it is a sandbox like any other.
    if door.app.sandbox(caller, id).await.is_ok() {
        door.nursery.forget(id);
        return Ok(None);
    }
    let Some(mut view) = show(door, caller, origin, id).await? else {
        door.nursery.forget(id);
        return Ok(None);
    };
    door.app.delete_template(caller, &naming::waited_for(id)).await?;
    door.nursery.forget(id);
    view["state"] = json!("destroyed");
    view["desiredState"] = json!("destroyed");
    Ok(Some(view))
}

/// What is left of a sandbox's template, where the server died before it was removed.
pub async fn clear(door: &Door, caller: &Caller, id: &str) -> Result<(), Error> {
    match find(door, caller, id).await? {
        Some(found) => door.app.delete_template(caller, &found.made.record.id).await,
        None => Ok(()),
    }
}

/// The build of a sandbox that waits, or that was made of one.
pub async fn build_of(door: &Door, caller: &Caller, id: &str) -> Answer<String> {
    if let Some(found) = find(door, caller, id).await?
        && let Some(build) = found.made.newest
    {
        return Ok(build.id);
    }
    let sandbox = door.app.sandbox(caller, id).await?;
    let built = Memory::of(&sandbox).build;
    Ok(built.ok_or_else(|| Error::not_found("build log of sandbox", id))?.id)
}

/// Sees to it that somebody waits for the build.
fn watch(door: &Door, caller: &Caller, id: &str) {
    if door.nursery.with(id, |place| std::mem::replace(&mut place.is_watched, true)) {
        return;
    }
    let (door, caller, id) = (door.clone(), caller.clone(), id.to_owned());
    door.app.clone().tasks().spawn(async move {
        let raised = tokio::select! {
            raised = raise(&door, &caller, &id) => raised,
            () = door.app.ending().cancelled() => return,
        };
        match raised {
            Ok(()) => door.nursery.forget(&id),
            Err(problem) => {
                tracing::warn!(sandbox = %id, reason = problem.message, "make a sandbox of the image that was built");
                door.nursery.with(&id, |place| (place.failure, place.is_watched) = (Some(problem.message), false));
            }
        }
    });
}

/// Waits for the build, then makes the sandbox. A build that failed is told by its own row.
async fn raise(door: &Door, caller: &Caller, id: &str) -> Answer<()> {
    loop {
        let Some(found) = find(door, caller, id).await? else { return Ok(()) };
        let Some(build) = &found.made.newest else { return Ok(()) };
        match build.state {
            BuildState::Ready => break,
            BuildState::Error | BuildState::Cancelled => return Ok(()),
            // No line has this number: only the end is waited for.
            BuildState::Waiting | BuildState::Building => {
                door.app.follow_build(&build.id, i64::MAX, PATIENCE).await?;
            }
        }
    }
    let turn = door.nursery.turn(id);
    let _turn = turn.lock().await;
    let Some(found) = find(door, caller, id).await? else { return Ok(()) };
    if let Err(error) = door.app.sandbox(caller, id).await {
        match error {
            Error::NotFound { .. } => make(door, caller, &found).await?,
            error => return Err(error.into()),
        }
    }
    Ok(door.app.delete_template(caller, &found.made.record.id).await?)
}

async fn make(door: &Door, caller: &Caller, found: &Found) -> Answer<()> {
    let template = door.app.template(caller, &found.made.record.id).await?;
    let body: Body = serde_json::from_value(found.waiting.body.clone()).map_err(Error::internal)?;
    let mut new = create::new_sandbox(caller, body, &template, &template.name)?;
    let id = &found.waiting.id;
    new.id = Some(id.parse().map_err(|_| Problem::bad_request(format!("{id} is no sandbox's id")))?);
    let memory = Memory { build: built(found, &template), ..Memory::default() };
    new.door = memory.as_door()?;
    create::launch(door, caller, new).await?;
    Ok(())
}

fn built(found: &Found, template: &Template) -> Option<Built> {
    Some(Built {
        id: template.build.clone()?,
        dockerfile: found.note.dockerfile.clone(),
        contexts: found.note.contexts.clone(),
        created_at: found.made.record.created_at,
        updated_at: template.built_at.unwrap_or(found.made.record.updated_at),
    })
}
