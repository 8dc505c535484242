//! Events: what happened, and what happens.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Params, within};
use crate::event::{Event, EventFilter, Kind};
use crate::{App, Caller, Error};

/// Other servers' events are found by looking; our own wake the follower at once.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EventQuery {
    /// Of this sandbox, by id.
    sandbox: Option<String>,
    /// Of this kind alone.
    kind: Option<Kind>,
    /// Events after this number.
    after: Option<i64>,
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where there are more than `limit`, the last of them and not the first.
    newest: Option<bool>,
}

#[derive(Debug, Clone, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct FollowQuery {
    /// Of this sandbox, by id.
    sandbox: Option<String>,
    /// Of this kind alone.
    kind: Option<Kind>,
    /// Events after this number.
    after: Option<i64>,
    /// End after this time; never where absent.
    #[param(maximum = 86400)]
    for_seconds: Option<u32>,
}

fn filter(caller: &Caller, sandbox: Option<String>, kind: Option<Kind>) -> EventFilter {
    let kind = kind.map(|kind| kind.as_str().to_owned());
    EventFilter { organisation: Some(caller.organisation.clone()), sandbox, kind, ..EventFilter::default() }
}

/// One event of a stream, as server-sent events have it.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its description is used")]
pub struct Sent {
    /// The place to go on from.
    id: Option<String>,
    /// Its kind.
    event: Option<String>,
    /// JSON.
    data: Option<String>,
}

/// When a stream that was asked for so long is over.
pub fn over(for_seconds: Option<u32>) -> Result<impl Future<Output = ()> + Send + Unpin, Error> {
    if for_seconds.is_some_and(|seconds| seconds > 86_400) {
        return Err(Error::invalid("for_seconds", "at most 86400"));
    }
    Ok(Box::pin(async move {
        match for_seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds.into())).await,
            None => std::future::pending().await,
        }
    }))
}

/// List events
#[utoipa::path(get, path = "/events", tag = "events", params(EventQuery),
    responses((status = 200, description = "Oldest first", body = Vec<Event>)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Params(query): Params<EventQuery>,
) -> Result<Json<Vec<Event>>, ApiError> {
    let limit = within("limit", query.limit, 100, 1000)?;
    let filter = filter(&caller, query.sandbox, query.kind);
    let after = query.after.unwrap_or(0);
    let events = match query.newest {
        Some(true) => app.store().newest_events(&filter, after, limit).await?,
        _ => app.store().events(&filter, after, limit).await?,
    };
    Ok(Json(events))
}

/// Follow events (server-sent events)
///
/// From now on, or after the number given by `after` or the `Last-Event-ID` header: a client that comes back misses
/// nothing.
#[utoipa::path(get, path = "/events/follow", tag = "events", params(FollowQuery),
    responses((status = 200, description = "Events as they happen", body = Sent, content_type = "text/event-stream")))]
pub async fn follow(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Params(query): Params<FollowQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    let after = match query.after.or(last) {
        Some(after) => after,
        None => app.store().last_event().await?,
    };
    let over = over(query.for_seconds)?;
    let filter = filter(&caller, query.sandbox, query.kind);
    let changes = app.changes();
    let stream = futures::stream::unfold((app, changes, after, over), move |(app, mut changes, after, mut over)| {
        let filter = filter.clone();
        async move {
            loop {
                let events = app.store().events(&filter, after, 100).await.ok()?;
                if let Some(last) = events.last().map(|event| event.seq) {
                    return Some((events, (app, changes, last, over)));
                }
                tokio::select! {
                    () = app.ending().cancelled() => return None,
                    () = &mut over => return None,
                    // A lag is no loss: the store has them all.
                    _ = changes.recv() => {}
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                }
            }
        }
    });
    let stream = futures::StreamExt::flat_map(stream, |events| {
        let events: Vec<Result<SseEvent, Infallible>> = events.iter().filter_map(told).map(Ok).collect();
        futures::stream::iter(events)
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()).into_response())
}

fn told(event: &Event) -> Option<SseEvent> {
    let data = serde_json::to_string(event).ok()?;
    Some(SseEvent::default().id(event.seq.to_string()).event(&event.kind).data(data))
}
