//! Snapshots: what a sandbox can be made from, which here are the templates.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::clock::Timestamp;
use crate::door::daytona::Door;
use crate::door::daytona::admit::Authenticated;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::daytona::query::Pairs;
use crate::door::daytona::view::{CLASS, REGION};
use crate::template::Template;

/// One that needs no building is as old as the installation; one that is not built yet is not active, and says what to do.
fn view(template: &Template, installed: Timestamp) -> Value {
    let gib = |bytes: u64| bytes.div_ceil(1 << 30);
    let made = template.built_at.unwrap_or(installed).to_string();
    json!({
        "id": template.id,
        "name": template.name,
        "general": template.organisation.is_none(),
        "organizationId": template.organisation,
        "imageName": template.name,
        "state": if template.is_ready() { "active" } else { "inactive" },
        "size": null,
        "entrypoint": null,
        "cpu": template.limits.cpus.ceil().max(1.0) as u64,
        "gpu": 0,
        "mem": gib(template.limits.memory),
        "disk": gib(template.limits.disk.unwrap_or(0)),
        "errorReason": template.note,
        "createdAt": made,
        "updatedAt": made,
        "lastUsedAt": null,
        "sourceSandboxId": null,
        "regionIds": [REGION],
        "sandboxClass": CLASS,
    })
}

pub async fn list(State(door): State<Door>, Authenticated(caller): Authenticated, pairs: Pairs) -> Answer<Json<Value>> {
    let limit = pairs.number("limit")?.unwrap_or(100usize).clamp(1, 200);
    let page = pairs.number("page")?.unwrap_or(1usize).max(1);
    let installed = door.app.installed_at().await?;
    let named = |template: &Template| pairs.one("name").is_none_or(|part| template.name.contains(part));
    let mut all: Vec<Template> = door.app.list_templates(&caller).await?.into_iter().filter(named).collect();
    // None was made of a sandbox.
    if pairs.one("sourceSandboxId").is_some() {
        all.clear();
    }
    let made = |template: &Template| template.built_at.unwrap_or(installed);
    match pairs.one("sort") {
        None | Some("lastUsedAt" | "state") => {}
        Some("name") => all.sort_by(|one, other| one.name.cmp(&other.name)),
        Some("createdAt") => all.sort_by_key(made),
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
    let items: Vec<Value> = page_of.map(|template| view(template, installed)).collect();
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
    Ok(Json(view(&door.app.template(&caller, &name).await?, door.app.installed_at().await?)))
}
