//! Sessions: an agent's durable handle on a sandbox.

use axum::Json;
use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::extract::ws::{Message as Frame, WebSocket, WebSocketUpgrade};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{OptionalBody, Params, Path, object, within};
use super::preview::base_url;
use super::sandboxes::CreateSandbox;
use crate::clock::Timestamp;
use crate::door::websocket::{SHORT, bounded};
use crate::sandbox::{NewSandbox, State as Life};
use crate::session::{Artifact, JournalEntry, NewSession, Session};
use crate::{App, Error};

/// What the session shall run in.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CreateSession {
    /// Where it runs; the server's default where absent.
    provider: Option<String>,
    /// What it runs in: a template, a name such as `Python3`, `Node` or `python-3.11`, or an image such as `python:latest`;
    /// `base` where absent.
    environment: Option<String>,
    /// Instead of `environment`: an image of a registry.
    image: Option<String>,
    /// A repository of git that is cloned into the sandbox first.
    git_url: Option<String>,
    /// A sandbox that is there already, by id or name; it outlives the session. Excludes all else, which is about a new
    /// one.
    sandbox_id: Option<String>,
    /// All else that a new sandbox can have.
    #[schema(value_type = CreateSandbox)]
    sandbox: Given,
}

/// What a new sandbox shall have, and the names that were given: `null` has a meaning for some.
#[derive(Debug, Default)]
struct Given {
    names: Vec<String>,
    wanted: CreateSandbox,
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let fields: serde_json::Value = object(from)?;
        let names = fields.as_object().into_iter().flat_map(|fields| fields.keys().cloned()).collect();
        let wanted = serde_json::from_value(fields).map_err(serde::de::Error::custom)?;
        Ok(Given { names, wanted })
    }
}

/// As the document shows its default.
impl Serialize for Given {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.wanted.serialize(to)
    }
}

impl CreateSession {
    /// The first option that a sandbox which is there already cannot be given any more.
    fn about_a_new_sandbox(&self) -> Option<String> {
        let own = [
            ("provider", self.provider.is_some()),
            ("environment", self.environment.is_some()),
            ("image", self.image.is_some()),
            ("git_url", self.git_url.is_some()),
        ];
        let own = own.into_iter().find(|(_, given)| *given).map(|(name, _)| name.to_owned());
        own.or_else(|| self.sandbox.names.first().map(|name| format!("sandbox.{name}")))
    }
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct CreatedSession {
    session_id: String,
    sandbox_id: String,
    provider: String,
    /// Of the session.
    url: String,
}

/// Create a session
#[utoipa::path(post, path = "/sessions", tag = "sessions", request_body = Option<CreateSession>,
    responses((status = 201, description = "Its sandbox runs", body = CreatedSession)))]
pub async fn create(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    headers: HeaderMap,
    OptionalBody(body): OptionalBody<CreateSession>,
) -> Result<(StatusCode, Json<CreatedSession>), ApiError> {
    if let (Some(existing), Some(option)) = (&body.sandbox_id, body.about_a_new_sandbox()) {
        let message = format!("only for a new sandbox: `sandbox_id` names {existing}, which is there already");
        return Err(Error::invalid(option, message).into());
    }
    let mut sandbox = body.sandbox.wanted;
    sandbox.provider = body.provider.or(sandbox.provider);
    sandbox.image = body.image.or(sandbox.image);
    sandbox.git_url = body.git_url.or(sandbox.git_url);
    if body.environment.is_some() {
        // The session's own word for it wins.
        sandbox.template = None;
    }
    let sandbox = NewSandbox { environment: body.environment, ..sandbox.into_domain(None)? };
    let session = app.create_session(&caller, NewSession { sandbox, existing: body.sandbox_id }).await?;
    let created = CreatedSession {
        url: format!("{}/api/sessions/{}", base_url(&app, &headers), session.id),
        session_id: session.id,
        sandbox_id: session.sandbox,
        provider: session.provider,
    };
    Ok((StatusCode::CREATED, Json(created)))
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SessionView {
    session_id: String,
    sandbox_id: String,
    provider: String,
    environment: String,
    /// Of its sandbox.
    state: Life,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    closed_at: Option<Timestamp>,
}

async fn view(app: &App, session: Session) -> Result<SessionView, Error> {
    Ok(SessionView {
        state: app.session_state(&session).await?,
        session_id: session.id,
        sandbox_id: session.sandbox,
        provider: session.provider,
        environment: session.template,
        created_at: session.created_at,
        closed_at: session.closed_at,
    })
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    cursor: Option<String>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SessionPage {
    items: Vec<SessionView>,
    next_cursor: Option<String>,
}

/// List sessions
#[utoipa::path(get, path = "/sessions", tag = "sessions", params(PageQuery),
    responses((status = 200, description = "Newest first", body = SessionPage)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Params(query): Params<PageQuery>,
) -> Result<Json<SessionPage>, ApiError> {
    let listed = app.list_sessions(&caller, query.cursor.as_deref(), within("limit", query.limit, 100, 1000)?).await?;
    let mut items = Vec::new();
    for session in listed.items {
        items.push(view(&app, session).await?);
    }
    Ok(Json(SessionPage { items, next_cursor: listed.next }))
}

/// Read a session
#[utoipa::path(get, path = "/sessions/{id}", tag = "sessions", params(("id" = String, Path)),
    responses((status = 200, description = "With its sandbox's state", body = SessionView)))]
pub async fn read(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<Json<SessionView>, ApiError> {
    let session = app.session(&caller, &id).await?;
    Ok(Json(view(&app, session).await?))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct DeleteQuery {
    /// Must be the session's own where given.
    sandbox_id: Option<String>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Interrupted {
    /// In how many languages a cell was running; 0 where nothing ran.
    interrupted: usize,
}

/// Interrupt a session's code
///
/// The cell that runs ends with an error, as by Ctrl-C; variables stay. Whoever waits for it gets what it printed.
#[utoipa::path(post, path = "/sessions/{id}/interrupt", tag = "sessions", params(("id" = String, Path)),
    responses((status = 200, description = "Interrupted, or nothing ran", body = Interrupted)))]
pub async fn interrupt(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<Json<Interrupted>, ApiError> {
    Ok(Json(Interrupted { interrupted: app.interrupt_session(&caller, &id).await? }))
}

/// End a session
///
/// The sandbox that was made for it is destroyed; journal and artifacts stay for 30 days.
#[utoipa::path(delete, path = "/sessions/{id}", tag = "sessions", params(("id" = String, Path), DeleteQuery),
    responses((status = 204, description = "Ended")))]
pub async fn delete(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<DeleteQuery>,
) -> Result<StatusCode, ApiError> {
    if let Some(sandbox) = query.sandbox_id
        && app.session(&caller, &id).await?.sandbox != sandbox
    {
        return Err(Error::Conflict(format!("session {id} is not on sandbox {sandbox}")).into());
    }
    app.delete_session(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct FromQuery {
    /// Entries from this number on; all where absent.
    seq: Option<i64>,
}

/// Read a session's journal
#[utoipa::path(get, path = "/sessions/{id}/journal", tag = "sessions", params(("id" = String, Path), FromQuery),
    responses((status = 200, description = "Up to a thousand entries", body = Vec<JournalEntry>)))]
pub async fn journal(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<FromQuery>,
) -> Result<Json<Vec<JournalEntry>>, ApiError> {
    Ok(Json(app.journal(&caller, &id, query.seq.unwrap_or(1).saturating_sub(1), 1000).await?))
}

/// Follow a session (WebSocket)
///
/// Messages `{type: "log", stream, content, seq}` … `{type: "execution_complete", exit_code, result, seq}`. With `?seq=N`
/// everything from that number on is sent first: who comes back misses nothing.
#[utoipa::path(get, path = "/sessions/{id}/stream", tag = "sessions", params(("id" = String, Path), FromQuery),
    responses((status = 101, description = "A WebSocket")))]
pub async fn stream(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<FromQuery>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let session = app.session(&caller, &id).await?;
    let upgrade = upgrade.map_err(|_| Error::invalid("upgrade", "this call is a WebSocket"))?;
    let after = match query.seq {
        Some(seq) => seq.saturating_sub(1),
        None => app.store().last_journal(&session.id).await?,
    };
    Ok(bounded(upgrade, SHORT).on_upgrade(move |socket| async move { tell(app, session, after, socket).await }))
}

async fn tell(app: App, session: Session, mut after: i64, mut socket: WebSocket) {
    let mut news = app.journal_news(&session.id);
    loop {
        news.borrow_and_update();
        let Ok(entries) = app.store().journal(&session.id, after, 500).await else { return };
        let full = entries.len() == 500;
        for entry in entries {
            after = entry.seq;
            let Ok(text) = serde_json::to_string(&entry) else { return };
            if socket.send(Frame::Text(text.into())).await.is_err() {
                return;
            }
        }
        if full {
            continue;
        }
        tokio::select! {
            () = app.ending().cancelled() => return,
            changed = news.changed() => if changed.is_err() { return },
            // Another server may write to the same journal.
            () = tokio::time::sleep(std::time::Duration::from_secs(2)) => {}
            heard = socket.recv() => match heard {
                Some(Ok(Frame::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => {}
            },
        }
    }
}

/// List a session's artifacts
#[utoipa::path(get, path = "/sessions/{id}/artifacts", tag = "sessions", params(("id" = String, Path)),
    responses((status = 200, description = "They outlive the sandbox", body = Vec<Artifact>)))]
pub async fn artifacts(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<Json<Vec<Artifact>>, ApiError> {
    Ok(Json(app.artifacts(&caller, &id).await?))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ArtifactQuery {
    name: String,
}

/// Read an artifact
#[utoipa::path(get, path = "/sessions/{id}/artifacts/content", tag = "sessions",
    params(("id" = String, Path), ArtifactQuery),
    responses((status = 200, description = "Its bytes", body = Vec<u8>, content_type = "application/octet-stream")))]
pub async fn artifact(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<ArtifactQuery>,
) -> Result<Response, ApiError> {
    let (artifact, bytes) = app.artifact(&caller, &id, &query.name).await?;
    // Never shown as a page of ours, whatever it says it is.
    let headers = [
        (header::CONTENT_TYPE, artifact.mime),
        (header::CONTENT_LENGTH, artifact.size.to_string()),
        (header::CONTENT_DISPOSITION, "attachment".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    Ok((headers, HttpBody::from_stream(bytes)).into_response())
}
