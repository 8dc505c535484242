//! What sandboxes use, from the host's own account.

use axum::extract::{Path, State};
use http::Uri;
use serde_json::{Map, Value, json};

use super::super::envd::Figures;
use super::super::error::ApiError;
use super::super::figures::figures;
use super::super::query::Query;
use super::{By, find};
use crate::App;
use crate::sandbox::State as Life;

const MANY: usize = 100;

/// The figures of now, where now is in the span that was asked for. A span of the past has none: nothing is recorded.
pub async fn of_one(
    State(app): State<App>,
    By(caller): By,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<axum::Json<Vec<Value>>, ApiError> {
    let query = Query::of(&uri);
    let second = |name: &str| query.get(name).and_then(|text| text.parse::<i64>().ok());
    let sandbox = find(&app, &caller, &id).await?;
    let now = app.now();
    let inside = second("start").is_none_or(|start| start <= now.as_second())
        && second("end").is_none_or(|end| now.as_second() <= end + 1);
    if !inside || sandbox.state != Life::Running {
        return Ok(axum::Json(Vec::new()));
    }
    let figures = figures(&app, &sandbox).await?;
    Ok(axum::Json(vec![tell(&figures, now)]))
}

pub async fn of_many(State(app): State<App>, By(caller): By, uri: Uri) -> Result<axum::Json<Value>, ApiError> {
    let query = Query::of(&uri);
    let ids = query.list("sandbox_ids");
    if ids.len() > MANY {
        return Err(ApiError::bad(format!("at most {MANY} sandboxes at a time")));
    }
    let mut told = Map::new();
    for id in ids {
        // One that is not there, or not the caller's, is left out.
        let Ok(sandbox) = find(&app, &caller, id).await else { continue };
        if let Ok(figures) = figures(&app, &sandbox).await {
            told.insert(id.to_owned(), tell(&figures, app.now()));
        }
    }
    Ok(axum::Json(json!({ "sandboxes": told })))
}

fn tell(figures: &Figures, at: crate::clock::Timestamp) -> Value {
    json!({
        "timestamp": at,
        "timestampUnix": at.as_second(),
        "cpuCount": figures.cpu_count.ceil() as u64,
        "cpuUsedPct": figures.cpu_used_percent,
        "memUsed": figures.memory_used,
        "memTotal": figures.memory_total,
        "memCache": figures.memory_cache,
        "diskUsed": figures.disk_used,
        "diskTotal": figures.disk_total,
    })
}
