//! Pushes: templates and snapshots on their way to a registry.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::builds::{FollowQuery, PageQuery};
use super::error::ApiError;
use super::events::{Sent, over};
use super::extract::{Body, Params, Path, within};
use super::recipe::RegistryBody;
use crate::App;
use crate::build::LogEntry;
use crate::clock::Timestamp;
use crate::push::{NewPush, Push, State as PushState, Status};

/// How long one look at a log waits for something new.
const LOOK: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct PushView {
    id: String,
    /// The template's or snapshot's id.
    template: String,
    name: String,
    /// The build that is pushed.
    build: String,
    /// Where to: the full name in the registry.
    image: String,
    state: PushState,
    /// The server that does it.
    server: String,
    /// Of the manifest, once the registry has it.
    digest: Option<String>,
    /// Why the registry does not have it.
    failure: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Timestamp>,
}

impl From<Push> for PushView {
    fn from(push: Push) -> Self {
        PushView {
            id: push.id,
            template: push.template,
            name: push.name,
            build: push.build,
            image: push.image,
            state: push.state,
            server: push.server,
            digest: push.digest,
            failure: push.failure,
            created_at: push.created_at,
            finished_at: push.finished_at,
        }
    }
}

/// Where an image goes, and who may push it there.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushBody {
    /// The name in the registry, such as `registry.example/team/app:v2`; `latest` where there is no tag.
    image: String,
    /// Who may push. Kept in memory until the push ends. Where absent, nobody; for an operator's key, whom the server's
    /// `images.credentials` names.
    #[serde(default)]
    registry: Option<RegistryBody>,
}

impl PushBody {
    fn into_domain(self, name: String) -> NewPush {
        NewPush { name, image: self.image, credentials: self.registry.map(Into::into) }
    }
}

/// Push a template
///
/// Answers at once; the push goes on in the background. Follow its log, or ask for its state. Of a template that stands on an
/// image; one that stands on this machine's own programs has nothing that runs elsewhere. The server's address rules apply
/// as for pulls, and a mirror of the server's is no place to push to.
#[utoipa::path(post, path = "/templates/{name}/push", tag = "templates", request_body = PushBody,
    params(("name" = String, Path, description = "id, name or alias, with `:tag` or `:BUILD`")),
    responses((status = 202, description = "The push is under way", body = PushView)))]
pub async fn push(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(name): Path<String>,
    Body(body): Body<PushBody>,
) -> Result<(StatusCode, Json<PushView>), ApiError> {
    Ok((StatusCode::ACCEPTED, Json(app.start_push(&caller, body.into_domain(name)).await?.into())))
}

/// Push a snapshot
///
/// As the push of a template: with all files, those of the image that its sandbox stood on too.
#[utoipa::path(post, path = "/snapshots/{name}/push", tag = "snapshots", request_body = PushBody,
    params(("name" = String, Path, description = "id or name, with `:tag` or `:BUILD`")),
    responses((status = 202, description = "The push is under way", body = PushView)))]
pub async fn push_snapshot(
    state: State<App>,
    caller: Authenticated,
    name: Path<String>,
    body: Body<PushBody>,
) -> Result<(StatusCode, Json<PushView>), ApiError> {
    push(state, caller, name, body).await
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct PushPage {
    items: Vec<PushView>,
    /// For the page after; absent on the last.
    next_cursor: Option<String>,
}

/// List pushes
///
/// The organisation's latest.
#[utoipa::path(get, path = "/pushes", tag = "templates", params(PageQuery),
    responses((status = 200, description = "Newest first", body = PushPage)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Params(query): Params<PageQuery>,
) -> Result<Json<PushPage>, ApiError> {
    let limit = within("limit", query.limit, 100, 1000)?;
    let page = app.list_pushes(&caller, query.cursor.as_deref(), limit).await?;
    Ok(Json(PushPage { items: page.items.into_iter().map(Into::into).collect(), next_cursor: page.next }))
}

/// Read a push
#[utoipa::path(get, path = "/pushes/{push}", tag = "templates", params(("push" = String, Path)),
    responses((status = 200, description = "As it is now", body = PushView)))]
pub async fn read(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(push): Path<String>,
) -> Result<Json<PushView>, ApiError> {
    Ok(Json(app.push(&caller, &push).await?.into()))
}

/// Cancel a push
///
/// One that is finished stays as it is. Blobs that the registry has by then are its own to clear away.
#[utoipa::path(post, path = "/pushes/{push}/cancel", tag = "templates", params(("push" = String, Path)),
    responses((status = 200, description = "Ended", body = PushView)))]
pub async fn cancel(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(push): Path<String>,
) -> Result<Json<PushView>, ApiError> {
    Ok(Json(app.cancel_push(&caller, &push).await?.into()))
}

/// Follow a push's log (server-sent events)
///
/// `log` events from the first line on, or after the number given by `after` or the `Last-Event-ID` header. When the push is
/// finished, one `end` event has the push, and the stream ends.
#[utoipa::path(get, path = "/pushes/{push}/logs/follow", tag = "templates", params(("push" = String, Path), FollowQuery),
    responses((status = 200, description = "Lines as they come", body = Sent, content_type = "text/event-stream")))]
pub async fn follow(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(push): Path<String>,
    Params(query): Params<FollowQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    let after = i64::from(query.after.or(last).unwrap_or(0));
    let over = over(query.for_seconds)?;
    let id = app.push(&caller, &push).await?.id;
    let stream = futures::stream::unfold(Some((app, id, after, over)), |state| async move {
        let (app, id, after, mut over) = state?;
        let status = tokio::select! {
            status = app.follow_push(&id, after, LOOK) => status.ok()?,
            () = app.ending().cancelled() => return None,
            () = &mut over => return None,
        };
        let Status { push, lines } = status;
        let mut told: Vec<Result<SseEvent, Infallible>> = lines.iter().filter_map(line).map(Ok).collect();
        match lines.last() {
            Some(last) => Some((told, Some((app, id, last.seq, over)))),
            None if push.state.is_final() => {
                told.extend(end(push).map(Ok));
                Some((told, None))
            }
            None => Some((told, Some((app, id, after, over)))),
        }
    });
    let stream = stream.flat_map(futures::stream::iter);
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()).into_response())
}

fn line(entry: &LogEntry) -> Option<SseEvent> {
    let data = serde_json::to_string(entry).ok()?;
    Some(SseEvent::default().id(entry.seq.to_string()).event("log").data(data))
}

fn end(push: Push) -> Option<SseEvent> {
    let data = serde_json::to_string(&PushView::from(push)).ok()?;
    Some(SseEvent::default().event("end").data(data))
}
