//! Builds: how a template's files come to be, with what is said meanwhile.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::body::Body as Stream;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{StreamExt as _, TryStreamExt as _};
use serde::{Deserialize, Serialize};
use tokio_util::io::StreamReader;

use super::auth::Authenticated;
use super::error::ApiError;
use super::events::{Sent, over};
use super::extract::{Params, Path, within};
use super::templates::TemplateView;
use crate::build::{
    Build, Confidential, Failure, Habits, Kind, Level, LogEntry, Origin, Recipe, Request, State as BuildState, Status,
};
use crate::clock::Timestamp;
use crate::template::NewTemplate;
use crate::template::name::Reference;
use crate::{App, Caller, Error, random};

/// How long one look at a log waits for something new.
const LOOK: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct BuildView {
    id: String,
    /// The template's id.
    template: String,
    kind: Kind,
    state: BuildState,
    /// Tags that lead to it once it is ready.
    tags: Vec<String>,
    provider: String,
    /// The server that has its files.
    server: String,
    /// Bytes of its files that no other build brought.
    bytes: u64,
    /// Why it has no files.
    failure: Option<Failure>,
    /// A word about it: of a checkpoint the command that it was made before.
    note: Option<String>,
    /// Of captures: who wanted it.
    origin: Origin,
    /// The sandbox that it was captured of.
    source_sandbox: Option<String>,
    /// The build that it was built on, or that its sandbox started from.
    parent_build: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    started_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Timestamp>,
}

impl From<Build> for BuildView {
    fn from(build: Build) -> Self {
        BuildView {
            id: build.id,
            template: build.template,
            kind: build.kind,
            state: build.state,
            tags: build.tags,
            provider: build.provider,
            server: build.server,
            bytes: build.bytes,
            failure: build.failure,
            note: build.note,
            origin: build.origin,
            source_sandbox: build.source_sandbox,
            parent_build: build.parent_build,
            created_at: build.created_at,
            started_at: build.started_at,
            finished_at: build.finished_at,
        }
    }
}

/// A template with the build that was started for it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Started {
    template: TemplateView,
    build: BuildView,
}

/// A template and a build of it that is under way. One that cannot be started leaves nothing.
pub async fn begin(
    app: &App,
    caller: &Caller,
    template: NewTemplate,
    request: Request,
    confidential: Confidential,
) -> Result<Started, Error> {
    request.check()?;
    confidential.check()?;
    let (record, waiting) = app.create_template(caller, template).await?;
    match app.start_build(caller, &record.id, &waiting.id, request, confidential).await {
        Ok(build) => {
            let overview = app.changeable_overview(caller, &record.id).await?;
            Ok(Started { template: TemplateView::of(caller, overview, None), build: build.into() })
        }
        Err(refused) => {
            app.cancel_build(caller, &record.id, &waiting.id).await?;
            if !record.is_built_in() && app.template_overview(caller, &record.id).await?.builds == 1 {
                app.delete_template(caller, &record.id).await?;
            }
            Err(refused)
        }
    }
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    #[param(minimum = 1, maximum = 1000)]
    pub(super) limit: Option<u32>,
    /// From the page before.
    pub(super) cursor: Option<String>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct BuildPage {
    items: Vec<BuildView>,
    /// For the page after; absent on the last.
    next_cursor: Option<String>,
}

/// List a template's builds
#[utoipa::path(get, path = "/templates/{name}/builds", tag = "templates",
    params(("name" = String, Path, description = "id, name or alias"), PageQuery),
    responses((status = 200, description = "Newest first", body = BuildPage)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(name): Path<String>,
    Params(query): Params<PageQuery>,
) -> Result<Json<BuildPage>, ApiError> {
    let limit = within("limit", query.limit, 100, 1000)?;
    let page = match app.template_builds(&caller, &name, query.cursor.as_deref(), limit).await {
        Ok(page) => page,
        Err(error) => return Err(app.explained(&caller, error).await.into()),
    };
    Ok(Json(BuildPage { items: page.items.into_iter().map(Into::into).collect(), next_cursor: page.next }))
}

/// Read a build
#[utoipa::path(get, path = "/templates/{name}/builds/{build}", tag = "templates",
    params(("name" = String, Path, description = "id, name or alias"), ("build" = String, Path)),
    responses((status = 200, description = "As it is now", body = BuildView)))]
pub async fn read(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path((name, build)): Path<(String, String)>,
) -> Result<Json<BuildView>, ApiError> {
    Ok(Json(app.build(&caller, &name, &build).await?.1.into()))
}

/// Cancel a build
///
/// One that is finished stays as it is.
#[utoipa::path(post, path = "/templates/{name}/builds/{build}/cancel", tag = "templates",
    params(("name" = String, Path, description = "id, name or alias"), ("build" = String, Path)),
    responses((status = 200, description = "Ended", body = BuildView)))]
pub async fn cancel(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path((name, build)): Path<(String, String)>,
) -> Result<Json<BuildView>, ApiError> {
    Ok(Json(app.cancel_build(&caller, &name, &build).await?.into()))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct LogQuery {
    /// Lines after this number.
    after: Option<u32>,
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// Read a build's log
#[utoipa::path(get, path = "/templates/{name}/builds/{build}/logs", tag = "templates",
    params(("name" = String, Path, description = "id, name or alias"), ("build" = String, Path), LogQuery),
    responses((status = 200, description = "Oldest first", body = Vec<LogEntry>)))]
pub async fn logs(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path((name, build)): Path<(String, String)>,
    Params(query): Params<LogQuery>,
) -> Result<Json<Vec<LogEntry>>, ApiError> {
    let limit = within("limit", query.limit, 1000, 1000)?;
    let lines = (Level::Debug, i64::from(query.after.unwrap_or(0)), limit);
    Ok(Json(app.build_status(&caller, &name, &build, lines).await?.lines))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct FollowQuery {
    /// Lines after this number.
    pub(super) after: Option<u32>,
    /// End after this time; with what is followed where absent.
    #[param(maximum = 86400)]
    pub(super) for_seconds: Option<u32>,
}

/// Follow a build's log (server-sent events)
///
/// `log` events from the first line on, or after the number given by `after` or the `Last-Event-ID` header. When the
/// build is finished, one `end` event has the build, and the stream ends.
#[utoipa::path(get, path = "/templates/{name}/builds/{build}/logs/follow", tag = "templates",
    params(("name" = String, Path, description = "id, name or alias"), ("build" = String, Path), FollowQuery),
    responses((status = 200, description = "Lines as they come", body = Sent, content_type = "text/event-stream")))]
pub async fn follow(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path((name, build)): Path<(String, String)>,
    Params(query): Params<FollowQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    let after = i64::from(query.after.or(last).unwrap_or(0));
    let over = over(query.for_seconds)?;
    let (_, build) = app.build(&caller, &name, &build).await?;
    let stream = futures::stream::unfold(Some((app, build.id, after, over)), |state| async move {
        let (app, id, after, mut over) = state?;
        let status = tokio::select! {
            status = app.follow_build(&id, after, LOOK) => status.ok()?,
            () = app.ending().cancelled() => return None,
            () = &mut over => return None,
        };
        let Status { build, lines } = status;
        let mut told: Vec<Result<SseEvent, Infallible>> = lines.iter().filter_map(line).map(Ok).collect();
        match lines.last() {
            Some(last) => Some((told, Some((app, id, last.seq, over)))),
            None if build.state.is_final() => {
                told.extend(end(build).map(Ok));
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

fn end(build: Build) -> Option<SseEvent> {
    let data = serde_json::to_string(&BuildView::from(build)).ok()?;
    Some(SseEvent::default().event("end").data(data))
}

/// An archive for `COPY`, or of an image.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct BuildFileView {
    hash: String,
    /// It is here and need not be sent.
    present: bool,
    /// As it was sent; absent where it was not sent just now.
    bytes: Option<u64>,
}

/// Ask for an archive
#[utoipa::path(get, path = "/build-files/{hash}", tag = "templates",
    params(("hash" = String, Path, description = "64 hexadecimal digits")),
    responses((status = 200, description = "Whether it is here", body = BuildFileView)))]
pub async fn find_file(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(hash): Path<String>,
) -> Result<Json<BuildFileView>, ApiError> {
    let present = app.has_build_file(&caller, &hash).await?;
    Ok(Json(BuildFileView { hash, present, bytes: None }))
}

/// Send an archive
///
/// A tar, plain or compressed by gzip or zstd, of any size that the server takes. It is yours alone and named by you:
/// the SHA-256 of its content is a good name. Archives that no build used for a while are removed.
#[utoipa::path(post, path = "/build-files/{hash}", tag = "templates",
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    params(("hash" = String, Path, description = "64 hexadecimal digits")),
    responses((status = 201, description = "It is here", body = BuildFileView)))]
pub async fn send_file(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(hash): Path<String>,
    body: Stream,
) -> Result<(StatusCode, Json<BuildFileView>), ApiError> {
    let file = app.put_build_file(&caller, &hash, reader(body)).await?;
    Ok((StatusCode::CREATED, Json(BuildFileView { hash: file.hash, present: true, bytes: Some(file.bytes) })))
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ForgottenSteps {
    /// How many there were.
    steps: u64,
}

/// Forget the steps of builds
///
/// A step that was done before is not done again, for as long as the server remembers it; until then its files count as
/// your storage. Forgets all steps of your organisation. Templates keep what they are made of.
#[utoipa::path(delete, path = "/build-steps", tag = "templates",
    responses((status = 200, description = "The next builds do every step", body = ForgottenSteps)))]
pub async fn forget_steps(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
) -> Result<Json<ForgottenSteps>, ApiError> {
    Ok(Json(ForgottenSteps { steps: app.forget_steps(&caller).await? }))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ImportQuery {
    /// The template that it becomes: `name` or `name:tag`.
    name: String,
    /// Of several images in the archive the one with this name.
    image: Option<String>,
}

/// Import an image
///
/// The body is an archive as `docker save` writes it, an OCI layout as a tar, or the tar of a root. It becomes a
/// template; the build goes on in the background.
#[utoipa::path(post, path = "/images/import", tag = "templates", params(ImportQuery),
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    responses((status = 202, description = "The build is under way", body = Started)))]
pub async fn import(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Params(query): Params<ImportQuery>,
    body: Stream,
) -> Result<(StatusCode, Json<Started>), ApiError> {
    // Said before a large body comes.
    Reference::parse(&query.name)?;
    let hash = random::hex(32);
    let request = Request {
        recipe: Recipe::Archive { hash: hash.clone(), name: query.image },
        start: None,
        ready: None,
        force: false,
        habits: Habits::OfTheImage,
        is_confidential: false,
        allow: Vec::new(),
    };
    request.check()?;
    app.put_archive_of_one_build(&caller, &hash, reader(body)).await?;
    let template = NewTemplate { name: query.name, ..NewTemplate::default() };
    let started = begin(&app, &caller, template, request, Confidential::default()).await;
    if started.is_err() {
        app.forget_build_file(&caller.organisation, &hash).await?;
    }
    Ok((StatusCode::ACCEPTED, Json(started?)))
}

/// A body as the domain reads it.
pub fn reader(body: Stream) -> impl tokio::io::AsyncRead + Send + Unpin {
    StreamReader::new(body.into_data_stream().map_err(std::io::Error::other))
}

/// Export a template
///
/// One archive that is an OCI layout and what `docker load` reads, streamed. Of a template that stands on an image; one
/// that stands on this machine's own programs has nothing that runs elsewhere.
#[utoipa::path(get, path = "/templates/{name}/export", tag = "templates",
    params(("name" = String, Path, description = "id, name or alias, with `:tag` or `:BUILD`")),
    responses((status = 200, description = "The archive", body = Vec<u8>, content_type = "application/x-tar")))]
pub async fn export(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    let archive = app.export_template(&caller, &name).await?;
    Ok(([(header::CONTENT_TYPE, "application/x-tar")], Stream::from_stream(archive)).into_response())
}

/// Export a snapshot
///
/// As the export of a template: with all files, those of the image that its sandbox stood on too.
#[utoipa::path(get, path = "/snapshots/{name}/export", tag = "snapshots",
    params(("name" = String, Path, description = "id or name, with `:tag` or `:BUILD`")),
    responses((status = 200, description = "The archive", body = Vec<u8>, content_type = "application/x-tar")))]
pub async fn export_snapshot(
    state: State<App>,
    caller: Authenticated,
    name: Path<String>,
) -> Result<Response, ApiError> {
    export(state, caller, name).await
}
