//! Snapshots: what a sandbox can be made from, which here are the templates.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::door::daytona::Door;
use crate::door::daytona::admit::Authenticated;
use crate::door::daytona::problem::Answer;
use crate::door::daytona::query::Pairs;
use crate::door::daytona::view::REGION;
use crate::template::Template;

/// Templates have no time of making that is known here; the SDKs want some.
const BEGINNING: &str = "1970-01-01T00:00:00Z";

fn view(template: &Template) -> Value {
    let gib = |bytes: u64| bytes.div_ceil(1 << 30);
    json!({
        "id": template.id,
        "name": template.name,
        "general": template.organisation.is_none(),
        "organizationId": template.organisation,
        "imageName": template.name,
        "state": "active",
        "size": null,
        "entrypoint": null,
        "cpu": template.limits.cpus.ceil().max(1.0) as u64,
        "gpu": 0,
        "mem": gib(template.limits.memory),
        "disk": gib(template.limits.disk.unwrap_or(0)),
        "errorReason": null,
        "createdAt": BEGINNING,
        "updatedAt": BEGINNING,
        "lastUsedAt": null,
        "sourceSandboxId": null,
        "regionIds": [REGION],
        "sandboxClass": "container",
    })
}

pub async fn list(State(door): State<Door>, Authenticated(caller): Authenticated, pairs: Pairs) -> Answer<Json<Value>> {
    let limit = pairs.number("limit")?.unwrap_or(100usize).clamp(1, 200);
    let page = pairs.number("page")?.unwrap_or(1usize).max(1);
    let named = |template: &Template| pairs.one("name").is_none_or(|part| template.name.contains(part));
    let all: Vec<Template> = door.app.list_templates(&caller).await?.into_iter().filter(named).collect();
    let items: Vec<Value> = all.iter().skip((page - 1).saturating_mul(limit)).take(limit).map(view).collect();
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
    Ok(Json(view(&door.app.template(&caller, &name).await?)))
}
