//! Searching files by name and by content, and replacing in them.

use axum::Json;
use axum::extract::State;
use cove_protocol::{Event, Reply, Request};
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Body, Params, Path, within};
use super::tree::{EntryView, entries};
use crate::guest::{GuestError, Item};
use crate::{App, Error};

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct SearchQuery {
    /// Where to look.
    path: String,
    /// A name with `*`, `?` and `[…]`, or for grep the literal text.
    pattern: String,
    user: Option<String>,
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
}

const MOST: u32 = 10_000;

/// Find files by name
#[utoipa::path(get, path = "/sandboxes/{id}/files/find", tag = "files",
    params(("id" = String, Path, description = "id or name"), SearchQuery),
    responses((status = 200, description = "Those that match", body = Vec<EntryView>)))]
pub async fn find(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<SearchQuery>,
) -> Result<Json<Vec<EntryView>>, ApiError> {
    let (_, guest) = app.reach(&caller, &id).await?;
    let limit = Some(within("limit", query.limit, MOST, MOST)?);
    let request = Request::Find { path: query.path, pattern: query.pattern, user: query.user, limit };
    Ok(Json(entries(&guest, &request).await?))
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct MatchView {
    path: String,
    /// From 1.
    line: u64,
    text: String,
}

/// Find lines that hold a text
#[utoipa::path(get, path = "/sandboxes/{id}/files/grep", tag = "files",
    params(("id" = String, Path, description = "id or name"), SearchQuery),
    responses((status = 200, description = "Lines that match", body = Vec<MatchView>)))]
pub async fn grep(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<SearchQuery>,
) -> Result<Json<Vec<MatchView>>, ApiError> {
    let (_, guest) = app.reach(&caller, &id).await?;
    let limit = within("limit", query.limit, MOST, MOST)?;
    let request = Request::Grep { path: query.path, pattern: query.pattern, user: query.user, limit: Some(limit) };
    let mut operation = guest.open(&request).await?.1.gathered();
    let mut all = Vec::new();
    while let Some(item) = operation.from.next().await? {
        if let Item::Event(Event::Matches { matches }) = item {
            all.extend(matches.into_iter().map(|found| MatchView {
                path: found.path,
                line: found.line,
                text: found.text,
            }));
        }
        if all.len() >= limit as usize {
            break;
        }
    }
    Ok(Json(all))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceBody {
    paths: Vec<String>,
    /// Literal.
    pattern: String,
    replacement: String,
    user: Option<String>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ReplacedView {
    path: String,
    /// Occurrences replaced.
    count: u64,
    error: Option<String>,
}

/// Replace a text in files
#[utoipa::path(post, path = "/sandboxes/{id}/files/replace", tag = "files", request_body = ReplaceBody,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "What became of each", body = Vec<ReplacedView>)))]
pub async fn replace(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Body(body): Body<ReplaceBody>,
) -> Result<Json<Vec<ReplacedView>>, ApiError> {
    let (_, guest) = app.reach(&caller, &id).await?;
    let request =
        Request::Replace { paths: body.paths, pattern: body.pattern, replacement: body.replacement, user: body.user };
    match guest.call(&request).await? {
        Reply::Replaced { files } => Ok(Json(
            files
                .into_iter()
                .map(|file| ReplacedView { path: file.path, count: file.count, error: file.error })
                .collect(),
        )),
        other => Err(Error::from(GuestError::Protocol(format!("replace answered {other:?}"))).into()),
    }
}
