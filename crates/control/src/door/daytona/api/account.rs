//! Who asks, and where they are: as far as SDKs and the CLI want to know.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::Caller;
use crate::door::daytona::Door;
use crate::door::daytona::admit::Authenticated;
use crate::door::daytona::origin::Origin;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::daytona::view::REGION;

const BEGINNING: &str = "1970-01-01T00:00:00Z";

/// Open to all: clients read it before they have a key.
pub async fn config(origin: Origin) -> Json<Value> {
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "oidc": { "issuer": "", "clientId": "", "audience": "", "provider": "none" },
        "linkedAccountsEnabled": false,
        "announcements": {},
        "proxyTemplateUrl": format!("{}/daytona/preview/{{{{sandboxId}}}}/{{{{PORT}}}}", origin.url),
        "proxyToolboxUrl": origin.toolbox(),
        "defaultSnapshot": "base",
        "dashboardUrl": origin.url,
        "maxAutoArchiveInterval": crate::door::daytona::view::LONGEST_ARCHIVE_MINUTES,
        // As the original spells it.
        "maintananceMode": false,
        "environment": "self-hosted",
    }))
}

pub async fn health(State(door): State<Door>) -> Answer<Json<Value>> {
    match door.app.store().ping().await {
        Ok(()) => Ok(Json(json!({ "status": "ok" }))),
        Err(_) => Err(Problem::api(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", "the database does not answer")),
    }
}

pub async fn regions(Authenticated(_): Authenticated) -> Json<Value> {
    Json(json!([{
        "id": REGION,
        "name": REGION,
        "organizationId": null,
        "regionType": "shared",
        "createdAt": BEGINNING,
        "updatedAt": BEGINNING,
    }]))
}

fn organisation_view(caller: &Caller) -> Value {
    json!({
        "id": caller.organisation,
        "name": caller.organisation,
        "createdBy": caller.organisation,
        "personal": true,
        "defaultRegionId": REGION,
        "createdAt": BEGINNING,
        "updatedAt": BEGINNING,
        "suspended": false,
    })
}

pub async fn organisations(Authenticated(caller): Authenticated) -> Json<Value> {
    Json(json!([organisation_view(&caller)]))
}

pub async fn organisation(Authenticated(caller): Authenticated, Path(id): Path<String>) -> Answer<Json<Value>> {
    if id != caller.organisation {
        return Err(Problem::api(StatusCode::NOT_FOUND, "NOT_FOUND", format!("organization {id} not found")));
    }
    Ok(Json(organisation_view(&caller)))
}

pub async fn me(Authenticated(caller): Authenticated) -> Json<Value> {
    Json(json!({
        "id": caller.key,
        "name": caller.organisation,
        "email": "",
        "publicKeys": [],
        "createdAt": BEGINNING,
    }))
}

/// The key in use, without its secret. Others are managed by the native API.
fn key_view(caller: &Caller) -> Value {
    json!({
        "name": caller.key,
        "value": "****",
        "createdAt": BEGINNING,
        "permissions": ["write:sandboxes", "delete:sandboxes"],
        "lastUsedAt": null,
        "expiresAt": null,
        "userId": caller.organisation,
    })
}

pub async fn current_key(Authenticated(caller): Authenticated) -> Json<Value> {
    Json(key_view(&caller))
}

pub async fn keys(Authenticated(caller): Authenticated) -> Json<Value> {
    Json(json!([key_view(&caller)]))
}

pub async fn no_items(Authenticated(_): Authenticated) -> Json<Value> {
    Json(json!({ "items": [], "total": 0, "nextCursor": null }))
}

pub async fn no_list(Authenticated(_): Authenticated) -> Json<Value> {
    Json(json!([]))
}
