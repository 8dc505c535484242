//! What sandboxes use, from the host's own account.

use axum::extract::State;
use http::Uri;
use serde_json::{Map, Value, json};

use super::super::destination::sandbox_id;
use super::super::envd::Figures;
use super::super::error::ApiError;
use super::super::figures::figures;
use super::super::query::Query;
use super::{By, Id, find};
use crate::App;
use crate::clock::Timestamp;
use crate::sandbox::State as Life;
use crate::sandbox::metrics::Sample;

const MANY: usize = 100;

/// The samples of the span that was asked for. A sandbox so young that there is one sample alone is measured now, since a
/// share of the processor is the difference of two.
pub async fn of_one(
    State(app): State<App>,
    By(caller): By,
    Id(id): Id,
    uri: Uri,
) -> Result<axum::Json<Vec<Value>>, ApiError> {
    let query = Query::of(&uri);
    let second = |name: &str| {
        let wrong = || ApiError::bad(format!("{name}: a number of seconds since 1970"));
        query.get(name).map(|text| text.parse::<i64>().map_err(|_| wrong())).transpose()
    };
    let time =
        |second: i64| Timestamp::from_second(second).map_err(|_| ApiError::bad("start, end: seconds since 1970"));
    let from = second("start")?.map(time).transpose()?;
    // The last second counts to its end.
    let to = second("end")?.map(|end| time(end.saturating_add(1))).transpose()?;
    let sandbox = find(&app, &caller, &id).await?;
    let samples = app.metrics(&caller, sandbox.id.as_str(), from, to).await?;
    if samples.len() == 1 && sandbox.state == Life::Running {
        let figures = figures(&app, &sandbox).await?;
        return Ok(axum::Json(vec![tell(&figures, app.now())]));
    }
    Ok(axum::Json(samples.iter().map(|sample| tell(&recorded(sample), sample.at)).collect()))
}

/// In the dialect a full sandbox has 100 per cent, however many processors it has.
fn recorded(sample: &Sample) -> Figures {
    Figures {
        cpu_count: sample.cpus,
        cpu_used_percent: (sample.cpu_percent / sample.cpus.max(0.01) * 100.0).round() / 100.0,
        memory_used: sample.memory,
        memory_total: sample.memory_limit,
        memory_cache: sample.memory_cache,
        disk_used: sample.disk,
        disk_total: sample.disk_limit.unwrap_or(0),
    }
}

pub async fn of_many(State(app): State<App>, By(caller): By, uri: Uri) -> Result<axum::Json<Value>, ApiError> {
    let query = Query::of(&uri);
    if query.get("metadata").is_some_and(|text| !text.is_empty()) {
        return Err(ApiError::bad("metadata: name the sandboxes in sandbox_ids"));
    }
    let ids = query.list("sandbox_ids");
    if ids.len() > MANY {
        return Err(ApiError::bad(format!("at most {MANY} sandboxes at a time")));
    }
    let mut told = Map::new();
    for id in ids {
        // One that is not there, or not the caller's, is left out.
        let Ok(sandbox) = find(&app, &caller, sandbox_id(id)).await else { continue };
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
