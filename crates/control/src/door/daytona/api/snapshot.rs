//! Snapshots: what a sandbox can be made from. Here these are the templates, and captures of sandboxes.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::build::{self, BuildInfo};
use super::create;
use crate::build::{Build, Recipe, State as BuildState};
use crate::clock::Timestamp;
use crate::door::daytona::Door;
use crate::door::daytona::admit::Authenticated;
use crate::door::daytona::body::Lenient;
use crate::door::daytona::naming::{self, Note};
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::daytona::query::Pairs;
use crate::door::daytona::view::{CLASS, REGION};
use crate::door::known::says_something;
use crate::provider::Limits;
use crate::store::templates::TemplateFilter;
use crate::template::{Kind, NewTemplate, Overview, Template, TemplateChange};
use crate::{App, Caller, Error};

/// One of the templates that can be a snapshot of the dialect.
pub enum Snapshot {
    /// Everybody's.
    BuiltIn(Box<Template>),
    Made(Box<Overview>),
}

impl Snapshot {
    fn id(&self) -> String {
        match self {
            Snapshot::BuiltIn(template) => naming::uuid(&template.id),
            Snapshot::Made(made) => naming::uuid(&made.record.id),
        }
    }

    fn name(&self) -> String {
        match self {
            Snapshot::BuiltIn(template) => template.name.clone(),
            Snapshot::Made(made) => naming::name_of(&made.record),
        }
    }

    /// One that needs no building is as old as the installation.
    fn made_at(&self, installed: Timestamp) -> Timestamp {
        match self {
            Snapshot::BuiltIn(template) => template.built_at.unwrap_or(installed),
            Snapshot::Made(made) => made.record.created_at,
        }
    }

    fn last_used_at(&self) -> Option<Timestamp> {
        match self {
            Snapshot::BuiltIn(_) => None,
            Snapshot::Made(made) => made.current.as_ref().and_then(|build| build.last_used_at),
        }
    }

    fn state(&self) -> &'static str {
        match self {
            Snapshot::BuiltIn(template) if template.is_ready() => "active",
            // One that is not built yet says what to do.
            Snapshot::BuiltIn(_) => "inactive",
            Snapshot::Made(made) if made.current.is_some() && made.record.inactive => "inactive",
            Snapshot::Made(made) if made.current.is_some() => "active",
            Snapshot::Made(made) => under_way(made),
        }
    }

    /// As the caller may see it: how another's was made is not shown.
    fn view(&self, caller: &Caller, installed: Timestamp) -> Value {
        match self {
            Snapshot::BuiltIn(template) => self.view_built_in(template, installed),
            Snapshot::Made(made) => self.view_made(made, caller),
        }
    }

    fn view_built_in(&self, template: &Template, installed: Timestamp) -> Value {
        let made = self.made_at(installed).to_string();
        let own = json!({
            "general": true,
            "organizationId": null,
            "imageName": template.name,
            "size": null,
            "entrypoint": null,
            "errorReason": template.note,
            "createdAt": made,
            "updatedAt": made,
            "sourceSandboxId": null,
        });
        self.with_size(template.limits, own)
    }

    fn view_made(&self, made: &Overview, caller: &Caller) -> Value {
        let (record, note) = (&made.record, Note::of(&made.record));
        let is_own = record.organisation == caller.organisation;
        let shown = made.current.as_ref().or(made.newest.as_ref());
        let updated =
            shown.and_then(|build| build.finished_at).map_or(record.updated_at, |at| at.max(record.updated_at));
        let failure = (is_own && made.current.is_none()).then(|| made.newest.as_ref()?.failure.as_ref()).flatten();
        let gib = |bytes: u64| (bytes as f64 / f64::from(1u32 << 30) * 1000.0).round() / 1000.0;
        let built = (is_own && note.is_built()).then(|| {
            json!({
                "dockerfileContent": note.dockerfile,
                "contextHashes": note.contexts,
                "createdAt": record.created_at.to_string(),
                "updatedAt": updated.to_string(),
                "snapshotRef": shown.map_or(&record.id, |build| &build.id),
            })
        });
        let own = json!({
            "general": false,
            "organizationId": record.organisation,
            "imageName": note.image.filter(|_| is_own).unwrap_or_else(|| self.name()),
            "size": made.current.as_ref().map(|build| gib(build.bytes)),
            "entrypoint": note.entrypoint,
            "errorReason": failure.map(|failure| &failure.message),
            "createdAt": record.created_at.to_string(),
            "updatedAt": updated.to_string(),
            "buildInfo": built,
            "sourceSandboxId": record.source_sandbox.as_ref().filter(|_| is_own),
        });
        self.with_size(shown.and_then(|build| build.defaults.limits).unwrap_or_default(), own)
    }

    /// With the fields that all have.
    fn with_size(&self, limits: Limits, mut own: Value) -> Value {
        let gib = |bytes: u64| bytes.div_ceil(1 << 30);
        own["id"] = json!(self.id());
        own["name"] = json!(self.name());
        own["state"] = json!(self.state());
        own["cpu"] = json!(limits.cpus.ceil().max(1.0) as u64);
        own["gpu"] = json!(0);
        own["mem"] = json!(gib(limits.memory));
        own["disk"] = json!(gib(limits.disk.unwrap_or(0)));
        own["lastUsedAt"] = json!(self.last_used_at().map(|at| at.to_string()));
        own["regionIds"] = json!([REGION]);
        own["sandboxClass"] = json!(CLASS);
        own
    }
}

/// The state of one that has no build to start from.
fn under_way(made: &Overview) -> &'static str {
    let note = Note::of(&made.record);
    match made.newest.as_ref().map(|build| build.state) {
        None | Some(BuildState::Waiting) => "pending",
        Some(BuildState::Building) if made.record.kind == Kind::Snapshot => "snapshotting",
        Some(BuildState::Building) if note.is_built() => "building",
        Some(BuildState::Building) => "pulling",
        Some(BuildState::Error | BuildState::Cancelled) if note.is_built() => "build_failed",
        // A ready build that no tag leads to is none to start from.
        Some(BuildState::Error | BuildState::Cancelled | BuildState::Ready) => "error",
    }
}

/// By id or name.
pub async fn find(app: &App, caller: &Caller, id_or_name: &str) -> Result<Snapshot, Error> {
    let by_id = naming::template_id(id_or_name);
    for name in by_id.into_iter().chain([naming::template_name(id_or_name)]) {
        match app.template_overview(caller, &name).await {
            Ok(made) if is_shown(&made) => return Ok(Snapshot::Made(Box::new(made))),
            Ok(_) | Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let all = app.list_templates(caller).await?;
    let meant = |template: &Template| {
        template.organisation.is_none()
            && (template.answers_to(id_or_name) || naming::is_snapshot_of(id_or_name, template))
    };
    let found = all.into_iter().find(meant);
    let unknown = || Error::not_found("snapshot", id_or_name);
    Ok(Snapshot::BuiltIn(Box::new(found.ok_or_else(unknown)?)))
}

/// What belongs to one sandbox is no snapshot: its checkpoints, and what it waits for.
fn is_shown(made: &Overview) -> bool {
    made.record.kind != Kind::Checkpoints && Note::of(&made.record).sandbox.is_none()
}

/// One that the caller may change.
async fn own(door: &Door, caller: &Caller, id_or_name: &str) -> Answer<Overview> {
    match find(&door.app, caller, id_or_name).await? {
        Snapshot::Made(made) if made.record.organisation == caller.organisation => Ok(*made),
        shared => {
            let message = format!("snapshot {} is not this organisation's to change", shared.name());
            Err(Problem::api(StatusCode::FORBIDDEN, "FORBIDDEN", message))
        }
    }
}

/// All that the caller can see, newest first.
async fn all(app: &App, caller: &Caller, of_sandbox: Option<&str>) -> Result<Vec<Snapshot>, Error> {
    const PAGE: u32 = 200;
    let mut found = Vec::new();
    for kind in [Kind::Snapshot, Kind::Built] {
        let source_sandbox = of_sandbox.map(ToOwned::to_owned);
        let filter = TemplateFilter { kind, source_sandbox, ..TemplateFilter::default() };
        let mut cursor = None;
        loop {
            let page = app.catalogue(caller, &filter, cursor.as_deref(), PAGE).await?;
            found.extend(page.items.into_iter().filter(is_shown).map(|made| Snapshot::Made(Box::new(made))));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
    }
    if of_sandbox.is_none() {
        let built_in = app.list_templates(caller).await?.into_iter().filter(|template| template.organisation.is_none());
        found.extend(built_in.map(|template| Snapshot::BuiltIn(Box::new(template))));
    }
    Ok(found)
}

pub async fn list(State(door): State<Door>, Authenticated(caller): Authenticated, pairs: Pairs) -> Answer<Json<Value>> {
    let limit = pairs.number("limit")?.unwrap_or(100usize).clamp(1, 200);
    let page = pairs.number("page")?.unwrap_or(1usize).max(1);
    let installed = door.app.installed_at().await?;
    let mut all = all(&door.app, &caller, pairs.one("sourceSandboxId")).await?;
    if let Some(part) = pairs.one("name").map(str::to_lowercase) {
        all.retain(|snapshot| snapshot.name().to_lowercase().contains(&part));
    }
    match pairs.one("sort") {
        None => all.sort_by_key(|snapshot| snapshot.made_at(installed)),
        Some("name") => all.sort_by_cached_key(Snapshot::name),
        Some("state") => all.sort_by_key(Snapshot::state),
        Some("lastUsedAt") => all.sort_by_key(Snapshot::last_used_at),
        Some("createdAt") => all.sort_by_key(|snapshot| snapshot.made_at(installed)),
        Some(other) => {
            let message = format!("sort: {other:?} is not one of name, state, lastUsedAt, createdAt");
            return Err(Problem::bad_request(message));
        }
    }
    match pairs.one("order") {
        None | Some("asc") => {}
        Some("desc") => all.reverse(),
        Some(other) => return Err(Problem::bad_request(format!("order: {other:?} is neither asc nor desc"))),
    }
    let page_of = all.iter().skip((page - 1).saturating_mul(limit)).take(limit);
    let items: Vec<Value> = page_of.map(|snapshot| snapshot.view(&caller, installed)).collect();
    Ok(Json(json!({
        "items": items,
        "total": all.len(),
        "page": page,
        "totalPages": all.len().div_ceil(limit),
    })))
}

pub async fn show(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    Path(name): Path<String>,
) -> Answer<Json<Value>> {
    Ok(Json(find(&door.app, &caller, &name).await?.view(&caller, door.app.installed_at().await?)))
}

/// Every field that an SDK sends; what this server does not offer is refused by name as soon as it says something.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct New {
    name: String,
    image_name: Option<String>,
    entrypoint: Option<Vec<String>>,
    build_info: Option<BuildInfo>,
    cpu: Option<f64>,
    gpu: Option<f64>,
    gpu_type: Option<Value>,
    memory: Option<f64>,
    disk: Option<f64>,
    /// There is one region, and SDKs may name one of the original's: any is taken.
    #[serde(rename = "regionId")]
    _region: Option<String>,
    sandbox_class: Option<String>,
    /// Of SDKs before 0.130: everybody's. Never granted.
    general: Option<bool>,
}

/// Answers as soon as the build goes on: SDKs ask again until it has ended.
pub async fn create(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    Lenient(body): Lenient<New>,
) -> Answer<Json<Value>> {
    refuse_what_is_not_offered(&body)?;
    free(&door.app, &caller, &body.name).await?;
    let note = Note { name: Some(body.name.clone()), entrypoint: body.entrypoint.clone(), ..Note::default() };
    let (recipe, note) = match (&body.image_name, &body.build_info) {
        (Some(image), None) => {
            (Recipe::Image { reference: image.clone() }, Note { image: Some(image.clone()), ..note })
        }
        (None, Some(info)) => (info.recipe()?, note.with_build(&info.dockerfile_content, info.contexts())),
        (Some(_), Some(_)) => return Err(Problem::bad_request("a snapshot has an imageName or a buildInfo, not both")),
        (None, None) => return Err(Problem::bad_request("a snapshot needs an imageName or a buildInfo")),
    };
    let new = NewTemplate {
        name: naming::template_name(&body.name),
        limits: create::limits(body.cpu, body.memory, body.disk)?,
        door: note.into_door(),
        ..NewTemplate::default()
    };
    let (record, build) = door.app.create_template(&caller, new).await?;
    build::start(&door.app, &caller, (&record, &build.id), recipe, body.entrypoint.as_deref()).await?;
    let made = door.app.template_overview(&caller, &record.id).await?;
    let mut view = Snapshot::Made(Box::new(made)).view(&caller, door.app.installed_at().await?);
    // An SDK shows the log only of one that it has seen at work, and this one may have ended already.
    view["state"] = json!(if body.build_info.is_some() { "building" } else { "pulling" });
    Ok(Json(view))
}

/// Refuses a name that is taken: in this dialect a snapshot is made once.
pub async fn free(app: &App, caller: &Caller, name: &str) -> Answer<()> {
    if name.is_empty() {
        return Err(Problem::bad_request("a snapshot needs a name"));
    }
    match find(app, caller, name).await {
        Ok(_) => {
            Err(Error::Conflict(format!("snapshot {name} already exists; delete it or choose another name")).into())
        }
        Err(Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn refuse_what_is_not_offered(body: &New) -> Answer<()> {
    if body.gpu.is_some_and(|gpu| gpu > 0.0) || says_something(body.gpu_type.as_ref()) {
        return Err(Problem::bad_request("gpu: GPUs are not offered by this server"));
    }
    if body.general == Some(true) {
        return Err(Problem::bad_request("general: a snapshot that is everybody's is the operator's to make"));
    }
    match body.sandbox_class.as_deref() {
        None | Some("" | CLASS) => Ok(()),
        Some(other) => {
            Err(Problem::bad_request(format!("sandboxClass {other:?} is not offered by this server: it has {CLASS}")))
        }
    }
}

/// Sandboxes that were made from it keep their files.
pub async fn delete(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    let made = own(&door, &caller, &id).await?;
    door.app.delete_template(&caller, &made.record.id).await?;
    Ok(StatusCode::OK)
}

pub async fn activate(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Answer<Json<Value>> {
    let id = set_active(&door, &caller, &id, true).await?;
    let made = door.app.template_overview(&caller, &id).await?;
    Ok(Json(Snapshot::Made(Box::new(made)).view(&caller, door.app.installed_at().await?)))
}

pub async fn deactivate(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    set_active(&door, &caller, &id, false).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn set_active(door: &Door, caller: &Caller, id: &str, active: bool) -> Answer<String> {
    let made = own(door, caller, id).await?;
    if made.current.is_none() {
        let message = format!("snapshot {} is {}", naming::name_of(&made.record), under_way(&made));
        return Err(Problem::api(StatusCode::BAD_REQUEST, "BAD_REQUEST", message));
    }
    let change = TemplateChange { active: Some(active), ..TemplateChange::default() };
    door.app.update_template(caller, &made.record.id, change).await?;
    Ok(made.record.id)
}

/// The build whose log a snapshot's is.
pub async fn build_of(app: &App, caller: &Caller, id_or_name: &str) -> Answer<Build> {
    let none = || Error::not_found("build log of snapshot", id_or_name);
    match find(app, caller, id_or_name).await? {
        Snapshot::BuiltIn(_) => Err(none().into()),
        // Somebody else's may be used, and how it was made is not shown.
        Snapshot::Made(made) if made.record.organisation != caller.organisation => Err(none().into()),
        Snapshot::Made(made) => Ok(made.newest.or(made.current).ok_or_else(none)?),
    }
}
