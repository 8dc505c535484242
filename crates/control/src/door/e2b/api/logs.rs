//! A sandbox's log: what became of it and why, line by line, out of the events of the control plane.

use axum::extract::{Path, State};
use http::Uri;
use serde_json::{Value, json};

use super::super::error::ApiError;
use super::super::query::Query;
use super::By;
use crate::clock::from_millisecond;
use crate::event::{Event, EventFilter};
use crate::{App, Caller};

const LIMIT: u32 = 1000;

/// Lines that a search looks through at most.
const SEARCHED: u32 = 10_000;

/// Which end of the log a page is cut at where there is more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    Oldest,
    Newest,
}

/// `start` is in milliseconds: the first lines from then on. Without it, the last ones.
pub async fn v1(
    State(app): State<App>,
    By(caller): By,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<axum::Json<Value>, ApiError> {
    let query = Query::of(&uri);
    let since = query.get("start").and_then(|text| text.parse().ok()).map(from_millisecond);
    let page = if since.is_some() { Page::Oldest } else { Page::Newest };
    let wanted = EventFilter { since, ..EventFilter::default() };
    let events = events(&app, &caller, &id, wanted, page, limit(&query)?).await?;
    let lines: Vec<_> = events.iter().map(|event| json!({ "timestamp": event.at, "line": record(event) })).collect();
    let entries: Vec<_> = events.iter().map(entry).collect();
    Ok(axum::Json(json!({ "logs": lines, "logEntries": entries })))
}

/// `cursor` is in milliseconds: forward from it come the lines at it and after, oldest first; backward those before it,
/// newest first.
pub async fn v2(
    State(app): State<App>,
    By(caller): By,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<axum::Json<Value>, ApiError> {
    let query = Query::of(&uri);
    let backward = query.get("direction") == Some("backward");
    let cursor = query.get("cursor").and_then(|text| text.parse().ok()).map(from_millisecond);
    let search = query.get("search").unwrap_or_default();
    let limit = limit(&query)?;
    let (page, wanted) = if backward {
        (Page::Newest, EventFilter { before: cursor, ..EventFilter::default() })
    } else {
        (Page::Oldest, EventFilter { since: cursor, ..EventFilter::default() })
    };
    let read = if search.is_empty() { limit } else { SEARCHED };
    let mut events = events(&app, &caller, &id, wanted, page, read).await?;
    events.retain(|event| line(event).contains(search));
    if backward {
        events.reverse();
    }
    events.truncate(limit as usize);
    Ok(axum::Json(json!({ "logs": events.iter().map(entry).collect::<Vec<_>>() })))
}

/// Of a sandbox that is gone as well: that is when people look.
async fn events(
    app: &App,
    caller: &Caller,
    id: &str,
    wanted: EventFilter,
    page: Page,
    limit: u32,
) -> Result<Vec<Event>, ApiError> {
    let sandbox = app.sandbox_even_destroyed(caller, id).await?;
    let filter = EventFilter {
        organisation: Some(caller.organisation.clone()),
        sandbox: Some(sandbox.id.to_string()),
        ..wanted
    };
    Ok(match page {
        Page::Oldest => app.store().events(&filter, 0, limit).await?,
        Page::Newest => app.store().newest_events(&filter, 0, limit).await?,
    })
}

fn limit(query: &Query) -> Result<u32, ApiError> {
    match query.get("limit").map(str::parse::<u32>) {
        None => Ok(LIMIT),
        Some(Ok(limit)) if limit <= LIMIT => Ok(limit),
        Some(_) => Err(ApiError::bad(format!("limit must be at most {LIMIT}"))),
    }
}

fn line(event: &Event) -> String {
    let why = event.data["cause"]["message"].as_str().unwrap_or_default();
    if why.is_empty() { event.kind.clone() } else { format!("{}: {why}", event.kind) }
}

/// A line of the first version is a record in JSON of its own: the command line takes it apart.
fn record(event: &Event) -> String {
    json!({ "level": level(event), "logger": "cove", "message": line(event) }).to_string()
}

fn level(event: &Event) -> &'static str {
    if event.kind.ends_with(".failed") { "error" } else { "info" }
}

fn entry(event: &Event) -> Value {
    json!({ "timestamp": event.at, "level": level(event), "message": line(event), "fields": { "kind": event.kind } })
}
