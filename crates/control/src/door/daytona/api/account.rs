//! Who asks, and where they are: as far as SDKs and the CLI want to know.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::door::daytona::Door;
use crate::door::daytona::admit::Authenticated;
use crate::door::daytona::origin::Origin;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::daytona::view::REGION;
use crate::{Caller, Scope};

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

/// The one there is, as old as the installation.
pub async fn regions(State(door): State<Door>, Authenticated(_): Authenticated) -> Answer<Json<Value>> {
    let since = door.app.installed_at().await?.to_string();
    Ok(Json(json!([{
        "id": REGION,
        "name": REGION,
        "organizationId": null,
        "regionType": "shared",
        "createdAt": since,
        "updatedAt": since,
    }])))
}

async fn organisation_view(door: &Door, caller: &Caller) -> Answer<Value> {
    let organisation = door.app.own_organisation(caller).await?;
    Ok(json!({
        "id": organisation.id,
        "name": organisation.name,
        "createdBy": caller.organisation,
        // The one that the key opens, which is what clients look for by this word.
        "personal": true,
        "defaultRegionId": REGION,
        "createdAt": organisation.created_at.to_string(),
        "updatedAt": organisation.created_at.to_string(),
        "suspended": false,
    }))
}

pub async fn organisations(State(door): State<Door>, Authenticated(caller): Authenticated) -> Answer<Json<Value>> {
    Ok(Json(json!([organisation_view(&door, &caller).await?])))
}

pub async fn organisation(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Answer<Json<Value>> {
    if id != caller.organisation {
        return Err(Problem::api(StatusCode::NOT_FOUND, "NOT_FOUND", format!("organization {id} not found")));
    }
    Ok(Json(organisation_view(&door, &caller).await?))
}

pub async fn me(State(door): State<Door>, Authenticated(caller): Authenticated) -> Answer<Json<Value>> {
    let key = door.app.own_key(&caller).await?;
    Ok(Json(json!({
        "id": key.id,
        "name": key.name,
        "email": "",
        "publicKeys": [],
        "createdAt": key.created_at.to_string(),
    })))
}

/// The key in use, without its secret. Others are managed by the native API.
async fn key_view(door: &Door, caller: &Caller) -> Answer<Value> {
    let key = door.app.own_key(caller).await?;
    let permissions: &[&str] = if caller.may(Scope::Write) { &["write:sandboxes", "delete:sandboxes"] } else { &[] };
    Ok(json!({
        "name": key.name,
        "value": format!("{}****", key.prefix),
        "createdAt": key.created_at.to_string(),
        "permissions": permissions,
        "lastUsedAt": key.last_used_at.map(|at| at.to_string()),
        "expiresAt": key.expires_at.map(|at| at.to_string()),
        "userId": key.id,
        "organizationId": caller.organisation,
    }))
}

pub async fn current_key(State(door): State<Door>, Authenticated(caller): Authenticated) -> Answer<Json<Value>> {
    Ok(Json(key_view(&door, &caller).await?))
}

pub async fn keys(State(door): State<Door>, Authenticated(caller): Authenticated) -> Answer<Json<Value>> {
    Ok(Json(json!([key_view(&door, &caller).await?])))
}

pub async fn no_items(Authenticated(_): Authenticated) -> Json<Value> {
    Json(json!({ "items": [], "total": 0, "nextCursor": null }))
}

pub async fn no_list(Authenticated(_): Authenticated) -> Json<Value> {
    Json(json!([]))
}
