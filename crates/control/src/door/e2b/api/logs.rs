//! A sandbox's log: what became of it and why, line by line, out of the events of the control plane.

use axum::extract::State;
use http::Uri;
use serde_json::{Value, json};

use super::super::error::ApiError;
use super::super::query::Query;
use super::{By, Id};
use crate::clock::from_millisecond;
use crate::event::{Event, EventFilter};
use crate::{App, Caller};

const LIMIT: usize = 1000;
/// Events read at one time.
const PAGE: u32 = 1000;

/// From `start` (in milliseconds) on, or the newest.
pub async fn v1(State(app): State<App>, By(caller): By, Id(id): Id, uri: Uri) -> Result<axum::Json<Value>, ApiError> {
    let query = Query::of(&uri);
    let span = match millisecond(&query, "start")? {
        Some(start) => Span::From(start),
        None => Span::Newest { before: None },
    };
    let events = events(&app, &caller, &id, span, limit(&query)?, |_| true).await?;
    let lines: Vec<_> = events.iter().map(|event| json!({ "timestamp": event.at, "line": record(event) })).collect();
    let entries: Vec<_> = events.iter().map(entry).collect();
    Ok(axum::Json(json!({ "logs": lines, "logEntries": entries })))
}

/// `cursor` is in milliseconds: the first line of a page forward, the end of a page backward. Without it a page holds the
/// newest, unless `forward` is asked for by name: that begins with the oldest.
pub async fn v2(State(app): State<App>, By(caller): By, Id(id): Id, uri: Uri) -> Result<axum::Json<Value>, ApiError> {
    let query = Query::of(&uri);
    let cursor = millisecond(&query, "cursor")?;
    let direction = query.get("direction").filter(|word| !word.is_empty());
    let span = match (direction, cursor) {
        (Some("backward"), before) => Span::Newest { before },
        (Some("forward"), cursor) => Span::From(cursor.unwrap_or(i64::MIN)),
        (None, Some(cursor)) => Span::From(cursor),
        (None, None) => Span::Newest { before: None },
        (Some(other), _) => {
            return Err(ApiError::bad(format!("direction: '{other}' is neither forward nor backward")));
        }
    };
    let least = match query.get("level").filter(|word| !word.is_empty()) {
        None => 0,
        Some(word) => LEVELS
            .iter()
            .position(|level| *level == word)
            .ok_or_else(|| ApiError::bad(format!("level: '{word}' is not one of {}", LEVELS.join(", "))))?,
    };
    let search = query.get("search").unwrap_or_default();
    let wanted = |event: &Event| {
        let rank = LEVELS.iter().position(|known| *known == level(event)).unwrap_or_default();
        rank >= least && line(event).contains(search)
    };
    let mut events = events(&app, &caller, &id, span, limit(&query)?, wanted).await?;
    if direction == Some("backward") {
        events.reverse();
    }
    Ok(axum::Json(json!({ "logs": events.iter().map(entry).collect::<Vec<_>>() })))
}

/// Least first; a filter by one means it and all after it.
const LEVELS: [&str; 4] = ["debug", "info", "warn", "error"];

/// Which lines a page is about, by their time in milliseconds.
#[derive(Debug, Clone, Copy)]
enum Span {
    /// The first from then on.
    From(i64),
    /// The last before then, or of all.
    Newest { before: Option<i64> },
}

/// A page, oldest first. Of a sandbox that is gone as well: that is when people look.
async fn events(
    app: &App,
    caller: &Caller,
    id: &str,
    span: Span,
    limit: usize,
    wanted: impl Fn(&Event) -> bool,
) -> Result<Vec<Event>, ApiError> {
    let sandbox = app.sandbox_even_destroyed(caller, id).await?;
    let mut filter = EventFilter {
        organisation: Some(caller.organisation.clone()),
        sandbox: Some(sandbox.id.to_string()),
        ..EventFilter::default()
    };
    let mut found: Vec<Event> = Vec::new();
    match span {
        Span::From(start) => {
            filter.since = (start > i64::MIN).then(|| from_millisecond(start));
            let mut after = 0;
            while found.len() < limit {
                let some = app.store().events(&filter, after, PAGE).await?;
                let Some(last) = some.last().map(|event| event.seq) else { break };
                after = last;
                found.extend(some.into_iter().filter(&wanted));
            }
            found.truncate(limit);
        }
        Span::Newest { before } => {
            filter.before = before.map(from_millisecond);
            while found.len() < limit {
                let some = app.store().newest_events(&filter, 0, PAGE).await?;
                let Some(first) = some.first().map(|event| event.seq) else { break };
                filter.before_seq = Some(first);
                found.extend(some.into_iter().rev().filter(&wanted));
            }
            found.truncate(limit);
            found.reverse();
        }
    }
    Ok(found)
}

fn millisecond(query: &Query, name: &str) -> Result<Option<i64>, ApiError> {
    let Some(text) = query.get(name).filter(|text| !text.is_empty()) else { return Ok(None) };
    let number = text.parse().map_err(|_| ApiError::bad(format!("{name}: '{text}' is no number of milliseconds")))?;
    Ok(Some(number))
}

fn limit(query: &Query) -> Result<usize, ApiError> {
    match query.get("limit").map(str::parse::<usize>) {
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
