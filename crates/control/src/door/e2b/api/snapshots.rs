//! Snapshots: templates that were captured of a sandbox. Clients delete them as templates.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{StatusCode, Uri};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::destination::sandbox_id;
use super::super::error::ApiError;
use super::super::query::Query;
use super::create::template_name;
use super::templates::{names, paging, with_next};
use super::{By, Id, body, find};
use crate::snapshot::NewSnapshot;
use crate::template::name::Reference;
use crate::template::{DEFAULT_TAG, Kind, Overview, Record};
use crate::{App, Error};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    name: Option<String>,
    /// Files are kept either way; processes start anew in what is made of it.
    #[serde(rename = "memory")]
    _memory: Option<bool>,
}

/// Of a sandbox that goes on. The same name again is another build of the same snapshot.
pub async fn create(State(app): State<App>, By(caller): By, Id(id): Id, bytes: Bytes) -> Result<Response, ApiError> {
    let wanted: Wanted = body(bytes).await?;
    find(&app, &caller, &id).await?;
    let name = wanted.name.filter(|name| !name.is_empty());
    if let Some(name) = &name {
        template_name(name)?;
    }
    let new = NewSnapshot { name, ..NewSnapshot::default() };
    let (record, build) = app.create_snapshot(&caller, &id, new).await?;
    let tag = build.tags.first().map_or(DEFAULT_TAG, String::as_str);
    Ok((StatusCode::CREATED, axum::Json(tell(&record, tag))).into_response())
}

/// One entry for each tag of each snapshot.
pub async fn list(State(app): State<App>, By(caller): By, uri: Uri) -> Result<Response, ApiError> {
    let query = Query::of(&uri);
    let (limit, token) = paging(&query)?;
    let sandbox = query.get("sandboxID").filter(|id| !id.is_empty()).map(sandbox_id);
    let Some(name) = query.get("name").filter(|name| !name.is_empty()) else {
        let page = app.list_snapshots(&caller, sandbox, None, (token.as_deref(), limit)).await?;
        let told: Vec<Value> = page.items.iter().flat_map(|overview| entries(overview, None)).collect();
        return Ok(with_next(axum::Json(told).into_response(), page.next.as_deref()));
    };
    let name = template_name(name)?;
    let reference = Reference::parse(&name)?;
    let tag = name.contains(':').then(|| reference.chosen.tag()).flatten();
    let found = match app.template_overview(&caller, &name).await {
        Ok(found) => Some(found),
        Err(Error::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let of_sandbox = |record: &Record| sandbox.is_none() || record.source_sandbox.as_deref() == sandbox;
    let found = found.filter(|Overview { record, .. }| {
        record.kind == Kind::Snapshot && record.organisation == caller.organisation && of_sandbox(record)
    });
    let told: Vec<Value> = found.iter().flat_map(|overview| entries(overview, tag)).collect();
    Ok(axum::Json(told).into_response())
}

fn entries(overview: &Overview, wanted: Option<&str>) -> Vec<Value> {
    let tags = overview.tags.iter().map(|tag| tag.tag.as_str());
    tags.filter(|tag| wanted.is_none_or(|wanted| wanted == *tag)).map(|tag| tell(&overview.record, tag)).collect()
}

/// By its name, or by its id where it has none.
fn tell(record: &Record, tag: &str) -> Value {
    let names: Vec<String> = names(record).into_iter().map(|name| format!("{name}:{tag}")).collect();
    let id = names.first().cloned().unwrap_or_else(|| format!("{}:{tag}", record.id));
    json!({ "snapshotID": id, "names": names })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::template::Visibility;

    #[test]
    fn a_snapshot_is_called_by_its_name_or_by_its_id() {
        let mut record = Record {
            id: "abcdefghij0123456789".into(),
            organisation: "acme".into(),
            kind: Kind::Snapshot,
            names: Vec::new(),
            visibility: Visibility::Private,
            description: String::new(),
            source_sandbox: None,
            inactive: false,
            door: Value::Null,
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
            deleted_at: None,
        };
        assert_eq!(tell(&record, "default"), json!({"snapshotID": "abcdefghij0123456789:default", "names": []}));
        record.names = vec!["mine".into()];
        assert_eq!(tell(&record, "v2"), json!({"snapshotID": "acme/mine:v2", "names": ["acme/mine:v2"]}));
    }
}
