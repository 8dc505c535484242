//! Templates as the dialect lists, shows, publishes and deletes them.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, Uri};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::envd;
use super::super::error::ApiError;
use super::super::query::Query;
use super::create::template_name;
use super::{By, body};
use crate::build::{self, Build};
use crate::clock::Timestamp;
use crate::sandbox::Listed;
use crate::store::templates::TemplateFilter;
use crate::template::name::{Chosen, Reference};
use crate::template::{Kind, Overview, Record, Template, TemplateChange, Visibility};
use crate::{App, Caller, Error, random};

/// Of one page.
pub const LIMIT: u32 = 100;
/// Of the first version of the list, which has no pages.
const ALL: usize = 1000;
const MIB: u64 = 1 << 20;

/// Those of the installation, then the caller's own, newest first.
pub async fn v1(State(app): State<App>, By(caller): By) -> Result<axum::Json<Vec<Value>>, ApiError> {
    let mut all = Vec::new();
    let mut place = Place::BuiltIn(0);
    loop {
        let page = page(&app, &caller, &place, LIMIT).await?;
        all.extend(page.items);
        match page.next.map(|next| Place::parse(&next)) {
            Some(next) if all.len() < ALL => place = next,
            _ => return Ok(axum::Json(all)),
        }
    }
}

/// As [`v1`], in pages.
pub async fn v2(State(app): State<App>, By(caller): By, uri: Uri) -> Result<Response, ApiError> {
    let (limit, token) = paging(&Query::of(&uri))?;
    let place = token.as_deref().map_or(Place::BuiltIn(0), Place::parse);
    let page = page(&app, &caller, &place, limit).await?;
    Ok(with_next(axum::Json(page.items).into_response(), page.next.as_deref()))
}

/// Where a page of the list begins.
enum Place {
    /// At so manieth of the installation's own.
    BuiltIn(usize),
    /// With the caller's own, after the one that this cursor names; with the first where it is empty.
    Own(String),
}

impl Place {
    fn parse(token: &str) -> Place {
        match token.strip_prefix("built-in.").and_then(|number| number.parse().ok()) {
            Some(number) => Place::BuiltIn(number),
            None => Place::Own(token.strip_prefix("own.").unwrap_or(token).to_owned()),
        }
    }

    fn token(&self) -> String {
        match self {
            Place::BuiltIn(number) => format!("built-in.{number}"),
            Place::Own(cursor) => format!("own.{cursor}"),
        }
    }
}

async fn page(app: &App, caller: &Caller, place: &Place, limit: u32) -> Result<Listed<Value>, ApiError> {
    let mut items = Vec::new();
    let cursor = match place {
        Place::Own(cursor) => Some(cursor.as_str()).filter(|cursor| !cursor.is_empty()),
        Place::BuiltIn(first) => {
            let built_in = built_in(app, caller).await?;
            items.extend(built_in.iter().skip(*first).take(limit as usize).cloned());
            if first + items.len() < built_in.len() {
                let next = Place::BuiltIn(first + items.len()).token();
                return Ok(Listed { items, next: Some(next) });
            }
            None
        }
    };
    let room = limit - items.len() as u32;
    if room == 0 {
        return Ok(Listed { items, next: Some(Place::Own(String::new()).token()) });
    }
    let filter = TemplateFilter { kind: Kind::Built, ..TemplateFilter::default() };
    let own = app.catalogue(caller, &filter, cursor, room).await?;
    items.extend(own.items.iter().map(tell));
    Ok(Listed { items, next: own.next.map(|next| Place::Own(next).token()) })
}

async fn built_in(app: &App, caller: &Caller) -> Result<Vec<Value>, ApiError> {
    let installed = app.installed_at().await?;
    let all = app.list_templates(caller).await?;
    let built_in = all.iter().filter(|template| template.organisation.is_none());
    Ok(built_in.map(|template| tell_built_in(template, installed)).collect())
}

/// Those that every installation has.
pub async fn defaults(State(app): State<App>, By(caller): By) -> Result<axum::Json<Value>, ApiError> {
    Ok(axum::Json(json!({ "templates": built_in(&app, &caller).await? })))
}

/// A template with a page of its builds.
pub async fn one(
    State(app): State<App>,
    By(caller): By,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let (limit, token) = paging(&Query::of(&uri))?;
    let name = template_name(&id)?;
    let Some(record) = find(&app, &caller, &name).await? else {
        let template = usable(&app, &caller, &name).await?;
        // Another organisation's is there to start sandboxes from, not to be looked into.
        if template.organisation.is_some() {
            return Err(Error::not_found("template", name).into());
        }
        let mut told = tell_built_in(&template, app.installed_at().await?);
        told["builds"] = json!([]);
        return Ok(axum::Json(told).into_response());
    };
    let page = app.template_builds(&caller, &record.id, token.as_deref(), limit).await?;
    let mut told = tell(&app.template_overview(&caller, &record.id).await?);
    told["builds"] = page.items.iter().map(tell_build).collect();
    Ok(with_next(axum::Json(told).into_response(), page.next.as_deref()))
}

/// Whether there is one. A name with a tag is there once a build that the tag leads to is ready.
pub async fn by_alias(
    State(app): State<App>,
    By(caller): By,
    Path(alias): Path<String>,
) -> Result<axum::Json<Value>, ApiError> {
    let name = template_name(&alias)?;
    let tagged = Reference::parse(&name)?.chosen != Chosen::Default;
    let (id, public) = match find(&app, &caller, &name).await? {
        Some(record) if !tagged => (record.id, record.visibility == Visibility::Public),
        _ => {
            let template = usable(&app, &caller, &name).await?;
            let public = template.is_public();
            (template.id, public)
        }
    };
    Ok(axum::Json(json!({ "templateID": id, "public": public })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Update {
    public: Option<bool>,
}

/// Publishes a template, or takes that back.
pub async fn update(
    State(app): State<App>,
    By(caller): By,
    Path(id): Path<String>,
    bytes: Bytes,
) -> Result<axum::Json<Value>, ApiError> {
    let wanted: Update = body(bytes).await?;
    let record = own(&app, &caller, &template_name(&id)?).await?;
    let visibility = wanted.public.map(|public| if public { Visibility::Public } else { Visibility::Private });
    let change = TemplateChange { visibility, ..TemplateChange::default() };
    let record = app.update_template(&caller, &record.id, change).await?;
    Ok(axum::Json(json!({ "names": names(&record) })))
}

/// Also how clients delete a snapshot: by its name with a tag, or by its id.
pub async fn remove(State(app): State<App>, By(caller): By, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    let name = template_name(&id)?;
    match own(&app, &caller, &name).await?.kind {
        Kind::Built => app.delete_template(&caller, &name).await?,
        Kind::Snapshot | Kind::Checkpoints => app.delete_snapshot(&caller, &name).await?,
    }
    Ok(StatusCode::NO_CONTENT)
}

/// The caller's own template that a name leads to. What it says of itself and of its builds is for its owner, although
/// others may start sandboxes from a public one.
pub async fn own(app: &App, caller: &Caller, name: &str) -> Result<Record, ApiError> {
    if let Some(record) = find(app, caller, name).await? {
        return Ok(record);
    }
    let is_built_in = |template: Template| template.organisation.is_none();
    if app.template(caller, name).await.is_ok_and(is_built_in) {
        return Err(ApiError::new(StatusCode::FORBIDDEN, format!("template '{name}' is built in")));
    }
    Err(Error::not_found("template", name).into())
}

async fn find(app: &App, caller: &Caller, name: &str) -> Result<Option<Record>, ApiError> {
    match app.template_record(caller, name).await {
        Ok(record) => Ok(Some(record).filter(|record| record.organisation == caller.organisation)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn usable(app: &App, caller: &Caller, name: &str) -> Result<Template, ApiError> {
    Ok(app.template(caller, name).await?)
}

/// The size of a page and the token that it begins with.
pub fn paging(query: &Query) -> Result<(u32, Option<String>), ApiError> {
    let limit = match query.get("limit").filter(|text| !text.is_empty()).map(str::parse::<u32>) {
        None => LIMIT,
        Some(Ok(limit)) if (1..=LIMIT).contains(&limit) => limit,
        Some(_) => return Err(ApiError::bad(format!("limit must be 1 to {LIMIT}"))),
    };
    Ok((limit, query.get("nextToken").filter(|token| !token.is_empty()).map(ToOwned::to_owned)))
}

pub fn with_next(mut response: Response, next: Option<&str>) -> Response {
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(next).ok()) {
        response.headers_mut().insert("x-next-token", next);
    }
    response
}

/// With the organisation before each, as the dialect writes whose they are.
pub fn names(record: &Record) -> Vec<String> {
    record.names.iter().map(|name| format!("{}/{name}", record.organisation)).collect()
}

/// The four states that the dialect knows.
pub fn status(state: build::State) -> &'static str {
    match state {
        build::State::Waiting => "waiting",
        build::State::Building => "building",
        build::State::Ready => "ready",
        build::State::Error | build::State::Cancelled => "error",
    }
}

/// By the build that its name leads to; by the newest one while none is ready.
pub fn tell(overview: &Overview) -> Value {
    let Overview { record, current, newest, builds, .. } = overview;
    let shown = current.as_ref().or(newest.as_ref());
    let limits = shown.and_then(|build| build.defaults.limits).unwrap_or_default();
    json!({
        "templateID": record.id,
        "buildID": shown.map(|build| build.id.as_str()).unwrap_or_default(),
        "cpuCount": limits.cpus.ceil() as u64,
        "memoryMB": limits.memory / MIB,
        "diskSizeMB": limits.disk.unwrap_or(0) / MIB,
        "public": record.visibility == Visibility::Public,
        "aliases": record.names,
        "names": names(record),
        "createdAt": record.created_at,
        "updatedAt": record.updated_at,
        "createdBy": Value::Null,
        "lastSpawnedAt": shown.and_then(|build| build.last_used_at),
        "spawnCount": 0,
        "buildCount": builds,
        "envdVersion": envd::VERSION,
        "buildStatus": shown.map_or("waiting", |build| status(build.state)),
        "isDefault": false,
        "description": record.description,
    })
}

fn tell_build(build: &Build) -> Value {
    let limits = build.defaults.limits.unwrap_or_default();
    let updated = build.finished_at.or(build.started_at).unwrap_or(build.created_at);
    let mut told = json!({
        "buildID": build.id,
        "status": status(build.state),
        "createdAt": build.created_at,
        "updatedAt": updated,
        "cpuCount": limits.cpus.ceil() as u64,
        "memoryMB": limits.memory / MIB,
        "diskSizeMB": limits.disk.unwrap_or(0) / MIB,
        "envdVersion": envd::VERSION,
    });
    if let Some(finished) = build.finished_at {
        told["finishedAt"] = json!(finished);
    }
    told
}

/// The id of a built-in template's build: its own, or one that is derived from the template, so that it stays the same.
pub fn build_id(template: &Template) -> String {
    use sha2::{Digest, Sha256};
    if let Some(build) = &template.build {
        return build.clone();
    }
    let digest: [u8; 32] = Sha256::digest(template.id.as_bytes()).into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    random::uuid_from(bytes)
}

/// One that needs no building is as old as the installation; one that is not built yet is waiting for it.
fn tell_built_in(template: &Template, installed: Timestamp) -> Value {
    let made = template.built_at.unwrap_or(installed);
    let mut names = vec![template.name.clone()];
    names.extend(template.aliases.iter().cloned());
    json!({
        "templateID": template.id,
        "buildID": build_id(template),
        "cpuCount": template.limits.cpus.ceil() as u64,
        "memoryMB": template.limits.memory / MIB,
        "diskSizeMB": template.limits.disk.unwrap_or(0) / MIB,
        "public": template.is_public(),
        "aliases": names,
        "names": names,
        "createdAt": made,
        "updatedAt": made,
        "createdBy": Value::Null,
        "lastSpawnedAt": Value::Null,
        "spawnCount": 0,
        "buildCount": u8::from(template.built_at.is_some()),
        "envdVersion": envd::VERSION,
        "buildStatus": if template.is_ready() { "ready" } else { "waiting" },
        "isDefault": template.organisation.is_none(),
        "description": template.note.as_ref().unwrap_or(&template.description),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_goes_on_where_the_last_one_ended() {
        for place in [Place::BuiltIn(2), Place::Own(String::new()), Place::Own("1700000000000.abc".into())] {
            assert_eq!(Place::parse(&place.token()).token(), place.token());
        }
    }

    #[test]
    fn a_page_has_its_bounds() {
        assert_eq!(paging(&Query::parse("")).ok().unwrap(), (LIMIT, None));
        assert_eq!(paging(&Query::parse("limit=2&nextToken=x")).ok().unwrap(), (2, Some("x".into())));
        assert!(paging(&Query::parse("limit=0")).is_err() && paging(&Query::parse("limit=101")).is_err());
    }
}
