//! A sandbox's log: what became of it and why, line by line, out of the events of the control plane.

use axum::extract::{Path, State};
use http::Uri;
use serde_json::{Value, json};

use super::super::error::ApiError;
use super::super::query::Query;
use super::By;
use crate::event::{Event, EventFilter};
use crate::{App, Caller};

const LIMIT: u32 = 1000;

/// `start` is in milliseconds.
pub async fn v1(
    State(app): State<App>,
    By(caller): By,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<axum::Json<Value>, ApiError> {
    let query = Query::of(&uri);
    let start = query.get("start").and_then(|text| text.parse::<i64>().ok()).unwrap_or(i64::MIN);
    let events = events(&app, &caller, &id, limit(&query)?).await?;
    let events: Vec<_> = events.iter().filter(|event| event.at.as_millisecond() >= start).collect();
    let lines: Vec<_> = events.iter().map(|event| json!({ "timestamp": event.at, "line": record(event) })).collect();
    let entries: Vec<_> = events.iter().map(|event| entry(event)).collect();
    Ok(axum::Json(json!({ "logs": lines, "logEntries": entries })))
}

/// `cursor` is in milliseconds.
pub async fn v2(
    State(app): State<App>,
    By(caller): By,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<axum::Json<Value>, ApiError> {
    let query = Query::of(&uri);
    let backward = query.get("direction") == Some("backward");
    let cursor = query.get("cursor").and_then(|text| text.parse::<i64>().ok());
    let search = query.get("search").unwrap_or_default();
    let mut events = events(&app, &caller, &id, limit(&query)?).await?;
    events.retain(|event| {
        let at = event.at.as_millisecond();
        let in_span = cursor.is_none_or(|cursor| if backward { at < cursor } else { at >= cursor });
        in_span && line(event).contains(search)
    });
    if backward {
        events.reverse();
    }
    Ok(axum::Json(json!({ "logs": events.iter().map(entry).collect::<Vec<_>>() })))
}

/// Of a sandbox that is gone as well: that is when people look.
async fn events(app: &App, caller: &Caller, id: &str, limit: u32) -> Result<Vec<Event>, ApiError> {
    let sandbox = app.sandbox_even_destroyed(caller, id).await?;
    let filter = EventFilter {
        organisation: Some(caller.organisation.clone()),
        sandbox: Some(sandbox.id.to_string()),
        kind: None,
    };
    Ok(app.store().events(&filter, 0, limit).await?)
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
