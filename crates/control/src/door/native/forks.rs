//! Forks: copies of a sandbox that run at once; and who came from whom.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::error::{ApiError, ErrorBody};
use super::extract::{OptionalBody, Params, Path, object, within};
use super::settings::TimersBody;
use super::view::SandboxView;
use crate::door::note_of_copy;
use crate::sandbox::Sandbox;
use crate::snapshot::{Forks, NewFork};
use crate::{App, Error};

/// Copies of one request.
const MOST: u32 = 100;

#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ForkBody {
    /// How many copies; as many as there are names, or 1, where absent.
    #[schema(minimum = 1, maximum = 100)]
    count: Option<u32>,
    /// What they are called, in order; copies beyond these have no name.
    names: Vec<String>,
    /// Those of the source where absent.
    labels: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "object")]
    timers: TimersBody,
}

/// What became of one copy: the sandbox, or why there is none.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Forked {
    sandbox: Option<SandboxView>,
    error: Option<ErrorBody>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ForksView {
    /// One for each copy, in order.
    forks: Vec<Forked>,
}

impl From<Result<Sandbox, Error>> for Forked {
    fn from(made: Result<Sandbox, Error>) -> Self {
        match made {
            Ok(sandbox) => Forked { sandbox: Some(sandbox.into()), error: None },
            Err(error) => {
                if let Some(detail) = error.detail() {
                    tracing::error!(%error, detail, "a copy of a sandbox failed");
                }
                let error = ErrorBody { code: error.code().to_owned(), message: error.to_string() };
                Forked { sandbox: None, error: Some(error) }
            }
        }
    }
}

/// Fork a sandbox
///
/// Copies that run at once, each with an id, tokens and a network of its own, all with the files that the source has at
/// one moment. The source goes on. Each copy succeeds or fails for itself; where all fail, the first reason is the
/// answer. Processes and memory are not copied; volumes are shared.
#[utoipa::path(post, path = "/sandboxes/{id}/fork", tag = "snapshots", request_body = Option<ForkBody>,
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "What became of each", body = ForksView)))]
pub async fn fork(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    OptionalBody(body): OptionalBody<ForkBody>,
) -> Result<Json<ForksView>, ApiError> {
    let names = u32::try_from(body.names.len()).unwrap_or(u32::MAX);
    let count = within("count", body.count, names.max(1), MOST)?;
    let source = app.sandbox(&caller, &id).await?;
    let door = note_of_copy(&source)?;
    let (names, labels, timers) = (body.names, body.labels, body.timers.into());
    let mut made =
        app.fork_sandbox(&caller, source.id.as_str(), NewFork { count, names, labels, timers, door }).await?;
    if made.iter().all(Result::is_err)
        && let Some(Err(first)) = made.drain(..).next()
    {
        return Err(first.into());
    }
    Ok(Json(ForksView { forks: made.into_iter().map(Into::into).collect() }))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct LineageQuery {
    /// Copies that are gone, too.
    destroyed: Option<bool>,
}

/// Where a sandbox comes from, and what came of it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Lineage {
    /// The sandbox that it came from: by a fork, or by a snapshot that it was started from.
    parent: Option<SandboxView>,
    /// Those that it came from, nearest first.
    ancestors: Vec<SandboxView>,
    /// Its copies, oldest first.
    forks: Vec<SandboxView>,
}

/// Read a sandbox's lineage
///
/// Of a sandbox that was destroyed, too, by its id, for as long as the server remembers it.
#[utoipa::path(get, path = "/sandboxes/{id}/lineage", tag = "snapshots",
    params(("id" = String, Path, description = "id or name"), LineageQuery),
    responses((status = 200, description = "Who came from whom", body = Lineage)))]
pub async fn lineage(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Params(query): Params<LineageQuery>,
) -> Result<Json<Lineage>, ApiError> {
    let which = if query.destroyed.unwrap_or(false) { Forks::WithDestroyed } else { Forks::Existing };
    let views = |all: Vec<Sandbox>| all.into_iter().map(SandboxView::from).collect::<Vec<_>>();
    let ancestors = views(app.ancestors_of(&caller, &id).await?);
    let forks = views(app.forks_of(&caller, &id, which).await?);
    Ok(Json(Lineage { parent: ancestors.first().cloned(), ancestors, forks }))
}
