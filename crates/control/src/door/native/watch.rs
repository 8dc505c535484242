//! Changes below a directory, as server-sent events.

use std::convert::Infallible;

use axum::extract::State;
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use cove_protocol::{Event, Request};
use serde::Deserialize;
use serde_json::json;

use super::auth::Authenticated;
use super::error::ApiError;
use super::events::over;
use super::extract::{Params, Path};
use crate::App;
use crate::guest::Item;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct WatchQuery {
    path: String,
    user: Option<String>,
    /// Directories below it too.
    recursive: Option<bool>,
    /// End after this time; never where absent.
    #[param(maximum = 86400)]
    for_seconds: Option<u32>,
}

/// Watch a directory (server-sent events)
///
/// Each event is a list of changes `{path, kind}`; an event named `overflow` says that some were missed.
#[utoipa::path(get, path = "/sandboxes/{id}/files/watch", tag = "files",
    params(("id" = String, Path, description = "id or name"), WatchQuery),
    responses((status = 200, description = "Changes as they happen", body = super::events::Sent, content_type = "text/event-stream")))]
pub async fn watch(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<WatchQuery>,
) -> Result<Response, ApiError> {
    let over = over(query.for_seconds)?;
    let (_, guest) = app.reach(&caller, &id).await?;
    let request = Request::Watch { path: query.path, user: query.user, recursive: query.recursive.unwrap_or(false) };
    let (_, operation) = guest.open(&request).await?;
    let ending = app.ending().clone();
    let changes = futures::stream::unfold((operation, ending), |(mut operation, ending)| async move {
        loop {
            let item = tokio::select! {
                item = operation.from.next() => item,
                () = ending.cancelled() => return None,
            };
            let event = match item {
                Ok(Some(Item::Event(Event::Changes { changes }))) => {
                    let changes: Vec<_> =
                        changes.iter().map(|change| json!({"path": change.path, "kind": change.kind})).collect();
                    SseEvent::default().event("changes").data(json!(changes).to_string())
                }
                Ok(Some(Item::Event(Event::Overflow))) => SseEvent::default().event("overflow").data("{}"),
                Ok(Some(_)) => continue,
                Ok(None) | Err(_) => return None,
            };
            return Some((Ok::<_, Infallible>(event), (operation, ending)));
        }
    });
    let changes = futures::StreamExt::take_until(changes, over);
    Ok(Sse::new(changes).keep_alive(KeepAlive::default()).into_response())
}
