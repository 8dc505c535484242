//! Git in a sandbox, as typed calls.

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Body, Params, Path};
use crate::git::{Branches, Cloning, Commit, Credentials, Diff, DiffRange, Git, NewCommit, Pull, Push, Status, Tls};
use crate::{App, Caller, Error};

/// Who asks, and for which sandbox. It is reached last: a request that is wrong in itself wakes nobody.
pub struct Asked {
    app: App,
    caller: Caller,
    id: String,
}

impl FromRequestParts<App> for Asked {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let Authenticated(caller) = Authenticated::from_request_parts(parts, app).await?;
        let Path(id) = Path::from_request_parts(parts, app).await?;
        Ok(Asked { app: app.clone(), caller, id })
    }
}

impl Asked {
    /// Git in the sandbox. The scope was checked by the route's guard.
    async fn git(&self) -> Result<Git, ApiError> {
        let (sandbox, guest) = self.app.reach(&self.caller, &self.id).await?;
        Ok(Git::new(guest, sandbox.cwd))
    }
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CloneBody {
    /// A name and password in it are taken out before git sees it.
    url: String,
    /// Where to; relative to where commands start.
    path: String,
    #[serde(default)]
    branch: Option<String>,
    /// Checked out after the clone, on a detached head.
    #[serde(default)]
    commit: Option<String>,
    /// How many commits to fetch.
    #[serde(default)]
    depth: Option<u32>,
    /// For a server with an untrusted certificate.
    #[serde(default)]
    insecure_skip_tls: bool,
    #[serde(default)]
    username: Option<String>,
    /// Or a token. Goes to git through a pipe: never an argument, a variable, the URL or a file.
    #[serde(default)]
    password: Option<String>,
}

/// Clone a repository
#[utoipa::path(post, path = "/sandboxes/{id}/git/clone", tag = "git",
    params(("id" = String, Path, description = "id or name")), request_body = CloneBody,
    responses((status = 204, description = "Cloned")))]
pub async fn clone(asked: Asked, Body(body): Body<CloneBody>) -> Result<StatusCode, ApiError> {
    let git = asked.git().await?;
    let credentials = Credentials::new(body.username, body.password)?;
    let tls = if body.insecure_skip_tls { Tls::Unverified } else { Tls::Verified };
    let CloneBody { url, path, branch, commit, depth, .. } = body;
    git.clone_repository(Cloning { url, path, branch, commit, depth, credentials, tls }).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct RepositoryQuery {
    /// The repository; relative to where commands start.
    path: String,
}

/// What is changed in the work tree
#[utoipa::path(get, path = "/sandboxes/{id}/git/status", tag = "git",
    params(("id" = String, Path, description = "id or name"), RepositoryQuery),
    responses((status = 200, description = "Branch, upstream and files", body = Status)))]
pub async fn status(asked: Asked, Params(query): Params<RepositoryQuery>) -> Result<Json<Status>, ApiError> {
    Ok(Json(asked.git().await?.status(&query.path).await?))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddBody {
    path: String,
    /// `.` is everything.
    files: Vec<String>,
}

/// Stage files
#[utoipa::path(post, path = "/sandboxes/{id}/git/add", tag = "git",
    params(("id" = String, Path, description = "id or name")), request_body = AddBody,
    responses((status = 204, description = "Staged")))]
pub async fn add(asked: Asked, Body(body): Body<AddBody>) -> Result<StatusCode, ApiError> {
    asked.git().await?.add(&body.path, &body.files).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommitBody {
    path: String,
    message: String,
    author: String,
    email: String,
    #[serde(default)]
    allow_empty: bool,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct CommitAnswer {
    hash: String,
}

/// Commit what is staged
#[utoipa::path(post, path = "/sandboxes/{id}/git/commit", tag = "git",
    params(("id" = String, Path, description = "id or name")), request_body = CommitBody,
    responses((status = 200, description = "The new commit", body = CommitAnswer)))]
pub async fn commit(asked: Asked, Body(body): Body<CommitBody>) -> Result<Json<CommitAnswer>, ApiError> {
    let CommitBody { path: repository, message, author, email, allow_empty } = body;
    let hash = asked.git().await?.commit(NewCommit { repository, message, author, email, allow_empty }).await?;
    Ok(Json(CommitAnswer { hash }))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoteBody {
    path: String,
    /// Where absent: the branch's own remote, or `origin`.
    #[serde(default)]
    remote: Option<String>,
    /// Where absent: the branch that is checked out.
    #[serde(default)]
    branch: Option<String>,
    /// Push only: remember the remote's branch as this one's upstream.
    #[serde(default)]
    set_upstream: bool,
    #[serde(default)]
    username: Option<String>,
    /// Or a token. Goes to git through a pipe: never an argument, a variable, the URL or a file.
    #[serde(default)]
    password: Option<String>,
}

/// Push a branch
#[utoipa::path(post, path = "/sandboxes/{id}/git/push", tag = "git",
    params(("id" = String, Path, description = "id or name")), request_body = RemoteBody,
    responses((status = 204, description = "Pushed")))]
pub async fn push(asked: Asked, Body(body): Body<RemoteBody>) -> Result<StatusCode, ApiError> {
    let git = asked.git().await?;
    let credentials = Credentials::new(body.username, body.password)?;
    let (remote, branch, set_upstream) = (body.remote, body.branch, body.set_upstream);
    git.push(Push { repository: body.path, remote, branch, set_upstream, credentials }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Fetch and merge a branch
#[utoipa::path(post, path = "/sandboxes/{id}/git/pull", tag = "git",
    params(("id" = String, Path, description = "id or name")), request_body = RemoteBody,
    responses((status = 204, description = "Merged")))]
pub async fn pull(asked: Asked, Body(body): Body<RemoteBody>) -> Result<StatusCode, ApiError> {
    let git = asked.git().await?;
    let credentials = Credentials::new(body.username, body.password)?;
    git.pull(Pull { repository: body.path, remote: body.remote, branch: body.branch, credentials }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List branches
#[utoipa::path(get, path = "/sandboxes/{id}/git/branches", tag = "git",
    params(("id" = String, Path, description = "id or name"), RepositoryQuery),
    responses((status = 200, description = "All, and which is checked out", body = Branches)))]
pub async fn branches(asked: Asked, Params(query): Params<RepositoryQuery>) -> Result<Json<Branches>, ApiError> {
    Ok(Json(asked.git().await?.branches(&query.path).await?))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BranchBody {
    path: String,
    /// A branch; to check out also a tag or a commit.
    name: String,
}

/// Make a branch from what is checked out
#[utoipa::path(post, path = "/sandboxes/{id}/git/branches", tag = "git",
    params(("id" = String, Path, description = "id or name")), request_body = BranchBody,
    responses((status = 204, description = "Made")))]
pub async fn create_branch(asked: Asked, Body(body): Body<BranchBody>) -> Result<StatusCode, ApiError> {
    asked.git().await?.create_branch(&body.path, &body.name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Delete a branch, merged or not
#[utoipa::path(delete, path = "/sandboxes/{id}/git/branches", tag = "git",
    params(("id" = String, Path, description = "id or name")), request_body = BranchBody,
    responses((status = 204, description = "Gone")))]
pub async fn delete_branch(asked: Asked, Body(body): Body<BranchBody>) -> Result<StatusCode, ApiError> {
    asked.git().await?.delete_branch(&body.path, &body.name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Check out a branch, tag or commit
#[utoipa::path(post, path = "/sandboxes/{id}/git/checkout", tag = "git",
    params(("id" = String, Path, description = "id or name")), request_body = BranchBody,
    responses((status = 204, description = "Checked out")))]
pub async fn checkout(asked: Asked, Body(body): Body<BranchBody>) -> Result<StatusCode, ApiError> {
    asked.git().await?.checkout(&body.path, &body.name).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct HistoryQuery {
    path: String,
    /// At most so many commits.
    limit: Option<u32>,
}

/// Commits, newest first
#[utoipa::path(get, path = "/sandboxes/{id}/git/history", tag = "git",
    params(("id" = String, Path, description = "id or name"), HistoryQuery),
    responses((status = 200, description = "Commits", body = Vec<Commit>)))]
pub async fn history(asked: Asked, Params(query): Params<HistoryQuery>) -> Result<Json<Vec<Commit>>, ApiError> {
    Ok(Json(asked.git().await?.history(&query.path, query.limit).await?))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct DiffQuery {
    path: String,
    /// What the next commit would hold, rather than what is not staged yet. Not together with `from`.
    #[serde(default)]
    staged: bool,
    /// From this commit.
    from: Option<String>,
    /// To this one; to the work tree where absent. Only together with `from`.
    to: Option<String>,
    /// One file or folder alone.
    file: Option<String>,
}

/// What differs
#[utoipa::path(get, path = "/sandboxes/{id}/git/diff", tag = "git",
    params(("id" = String, Path, description = "id or name"), DiffQuery),
    responses((status = 200, description = "Counts by file, and the patch", body = Diff)))]
pub async fn diff(asked: Asked, Params(query): Params<DiffQuery>) -> Result<Json<Diff>, ApiError> {
    let range = match (query.from, query.to, query.staged) {
        (None, Some(_), _) => return Err(Error::invalid("to", "needs `from`: the commit to compare with").into()),
        (Some(_), _, true) => return Err(Error::invalid("staged", "cannot be combined with `from`").into()),
        (Some(from), Some(to), false) => DiffRange::Between(from, to),
        (Some(from), None, false) => DiffRange::Since(from),
        (None, None, true) => DiffRange::Staged,
        (None, None, false) => DiffRange::Worktree,
    };
    let git = asked.git().await?;
    let files: Vec<String> = query.file.into_iter().collect();
    Ok(Json(git.diff(&query.path, &range, &files).await?))
}
