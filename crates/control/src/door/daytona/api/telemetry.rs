//! What a sandbox used, as series of the samples that were taken of it.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::door::daytona::Door;
use crate::door::daytona::admit::Authenticated;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::daytona::query::Pairs;
use crate::sandbox::metrics::Sample;

/// A series: its name, and its value in a sample.
type Series = (&'static str, fn(&Sample) -> Value);

const SERIES: [Series; 7] = [
    // A full sandbox has 100 per cent, however many processors it has.
    ("daytona.sandbox.cpu.utilization", |sample| json!(sample.cpu_percent / sample.cpus.max(0.01))),
    ("daytona.sandbox.cpu.limit", |sample| json!(sample.cpus.ceil().max(1.0) as u64)),
    ("daytona.sandbox.memory.usage", |sample| json!(sample.memory)),
    ("daytona.sandbox.memory.limit", |sample| json!(sample.memory_limit)),
    ("daytona.sandbox.memory.cache", |sample| json!(sample.memory_cache)),
    ("daytona.sandbox.filesystem.usage", |sample| json!(sample.disk)),
    ("daytona.sandbox.filesystem.total", |sample| json!(sample.disk_limit.unwrap_or(0))),
];

pub async fn metrics(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    pairs: Pairs,
) -> Answer<Json<Value>> {
    let wanted: Vec<&str> = pairs.all("metricNames").flat_map(|names| names.split(',')).collect();
    if let Some(unknown) = wanted.iter().find(|name| SERIES.iter().all(|(known, _)| known != *name)) {
        let known: Vec<&str> = SERIES.iter().map(|(name, _)| *name).collect();
        let message = format!("metricNames: there is no {unknown:?}; there are {}", known.join(", "));
        return Err(Problem::bad_request(message));
    }
    let samples = door.app.metrics(&caller, &id, pairs.time("from")?, pairs.time("to")?).await?;
    let chosen = SERIES.iter().filter(|(name, _)| wanted.is_empty() || wanted.contains(name));
    let series: Vec<Value> = chosen
        .map(|(name, value)| {
            let point = |sample: &Sample| json!({ "timestamp": sample.at.to_string(), "value": value(sample) });
            json!({ "metricName": name, "dataPoints": samples.iter().map(point).collect::<Vec<_>>() })
        })
        .collect();
    Ok(Json(json!({ "series": series })))
}
