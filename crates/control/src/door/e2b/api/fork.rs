//! Copies of a sandbox, each with its own outcome.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::error::{ApiError, sentence, status_of};
use super::create::leave_marks;
use super::{By, Id, body, describe, domain, find};
use crate::door::note_of_copy;
use crate::sandbox::{Sandbox, TimersChange};
use crate::snapshot::NewFork;
use crate::{App, Error};

const TIMEOUT: i64 = 15;
const COUNT: i64 = 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// Of the copies, in seconds. The source keeps its own.
    timeout: Option<i64>,
    count: Option<i64>,
}

pub async fn fork(
    State(app): State<App>,
    By(caller): By,
    Id(id): Id,
    uri: Uri,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, ApiError> {
    let wanted: Wanted = body(bytes).await?;
    let lifetime = match u64::try_from(wanted.timeout.unwrap_or(TIMEOUT)) {
        Ok(seconds) if seconds > 0 => seconds,
        _ => return Err(ApiError::bad("Timeout must be greater than 0")),
    };
    let source = find(&app, &caller, &id).await?;
    let new = NewFork {
        // What fits no number of ours is more than anybody may have, or less.
        count: u32::try_from(wanted.count.unwrap_or(COUNT)).unwrap_or(0),
        timers: TimersChange { lifetime_seconds: Some(Some(lifetime)), ..TimersChange::default() },
        door: note_of_copy(&source)?,
        ..NewFork::default()
    };
    let made = app.fork_sandbox(&caller, source.id.as_str(), new).await?;
    let copies: Vec<&Sandbox> = made.iter().filter_map(|one| one.as_ref().ok()).collect();
    futures::future::join_all(copies.into_iter().map(|copy| leave_marks(&app, copy))).await;
    let domain = domain(&app, &headers, &uri);
    let told: Vec<Value> = made.iter().map(|one| tell(one, &domain)).collect();
    Ok((StatusCode::CREATED, axum::Json(told)).into_response())
}

fn tell(made: &Result<Sandbox, Error>, domain: &str) -> Value {
    match made {
        Ok(copy) => json!({ "sandbox": describe::handle(copy, domain) }),
        Err(error) => {
            if let Some(detail) = error.detail() {
                tracing::error!(detail, "a fork failed");
            }
            json!({ "error": { "code": status_of(error).as_u16(), "message": sentence(error) } })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_could_not_be_made_says_why() {
        let told = tell(&Err(Error::exhausted("no room")), "d");
        assert_eq!(told, json!({"error": {"code": 503, "message": "no room"}}));
    }
}
