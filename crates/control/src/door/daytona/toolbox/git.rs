//! Git, by the typed calls of [`crate::git`].

use axum::extract::Query;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Machine, READ, WRITE};
use crate::door::daytona::body::Lenient;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::known::unknown_field;
use crate::door::table::Table;
use crate::git::{
    Change, Cloning, Credentials, Git, GitError, NewCommit, Pull, Push, Reset, ResetMode, Restore, Scope, Tls,
};

pub fn table() -> Table<()> {
    Table::new()
        .post("/git/clone", WRITE, clone)
        .get("/git/status", READ, status)
        .post("/git/add", WRITE, add)
        .post("/git/commit", WRITE, commit)
        .post("/git/push", WRITE, push)
        .post("/git/pull", WRITE, pull)
        .get("/git/branches", READ, branches)
        .post("/git/branches", WRITE, create_branch)
        .delete("/git/branches", WRITE, delete_branch)
        .post("/git/checkout", WRITE, checkout)
        .get("/git/history", READ, history)
        .post("/git/init", WRITE, init)
        .post("/git/reset", WRITE, reset)
        .post("/git/restore", WRITE, restore)
        .get("/git/remotes", READ, remotes)
        .post("/git/remotes", WRITE, add_remote)
        .get("/git/config", READ, get_config)
        .post("/git/config", WRITE, set_config)
        .post("/git/config/user", WRITE, set_user)
        .post("/git/credentials", WRITE, lend_credentials)
}

fn git(machine: &Machine) -> Git {
    Git::new(machine.guest.clone(), machine.cwd.clone())
}

impl From<GitError> for Problem {
    fn from(error: GitError) -> Self {
        let message = error.to_string();
        let (status, code) = match error {
            GitError::Guest(error) => return error.into(),
            GitError::Invalid(_) => (StatusCode::BAD_REQUEST, "BAD_REQUEST"),
            GitError::NothingToCommit(_) => (StatusCode::BAD_REQUEST, "GIT_NOTHING_TO_COMMIT"),
            GitError::NoGit => (StatusCode::NOT_IMPLEMENTED, "GIT_NOT_INSTALLED"),
            GitError::AuthenticationFailed(_) => (StatusCode::UNAUTHORIZED, "GIT_AUTH_FAILED"),
            GitError::RepositoryNotFound(_) => (StatusCode::NOT_FOUND, "GIT_REPO_NOT_FOUND"),
            GitError::BranchNotFound(_) => (StatusCode::NOT_FOUND, "GIT_BRANCH_NOT_FOUND"),
            GitError::BranchExists(_) => (StatusCode::CONFLICT, "GIT_BRANCH_EXISTS"),
            GitError::PathTaken(_) => (StatusCode::CONFLICT, "CONFLICT"),
            GitError::PushRejected(_) => (StatusCode::CONFLICT, "GIT_PUSH_REJECTED"),
            GitError::RemoteRejected(_) => (StatusCode::UNPROCESSABLE_ENTITY, "GIT_REMOTE_REJECTED"),
            GitError::DirtyWorktree(_) => (StatusCode::CONFLICT, "GIT_DIRTY_WORKTREE"),
            GitError::MergeConflict(_) => (StatusCode::CONFLICT, "GIT_MERGE_CONFLICT"),
            GitError::TransportFailed(_) => (StatusCode::BAD_GATEWAY, "GIT_TRANSPORT_FAILED"),
            GitError::Timeout { .. } => (StatusCode::REQUEST_TIMEOUT, "REQUEST_TIMEOUT"),
            GitError::TooLong { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "UNPROCESSABLE_ENTITY"),
            GitError::Failed(_) => (StatusCode::BAD_REQUEST, "GIT_FAILED"),
        };
        Problem::daemon(status, code, message)
    }
}

/// Fields of every body here; each call takes those it knows.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Body {
    path: String,
    url: String,
    branch: Option<String>,
    commit_id: Option<String>,
    username: Option<String>,
    password: Option<String>,
    insecure_skip_tls: Option<bool>,
    depth: Option<u32>,
    files: Option<Vec<String>>,
    message: String,
    author: String,
    email: String,
    allow_empty: Option<bool>,
    remote: Option<String>,
    set_upstream: Option<bool>,
    name: String,
    bare: Option<bool>,
    initial_branch: Option<String>,
    mode: Option<ResetMode>,
    target: Option<String>,
    staged: Option<bool>,
    worktree: Option<bool>,
    source: Option<String>,
    fetch: Option<bool>,
    overwrite: Option<bool>,
    key: String,
    value: String,
    scope: Option<String>,
    host: Option<String>,
    protocol: Option<String>,
}

/// A body, and the names of what it says.
#[derive(Deserialize)]
#[serde(from = "serde_json::Map<String, Value>")]
struct Said(serde_json::Map<String, Value>);

impl From<serde_json::Map<String, Value>> for Said {
    fn from(fields: serde_json::Map<String, Value>) -> Self {
        // What is null says nothing.
        Said(fields.into_iter().filter(|(_, value)| !value.is_null()).collect())
    }
}

impl Said {
    /// The body, for a call that takes these fields.
    fn taking(self, known: &[&str]) -> Answer<Body> {
        if let Some(name) = self.0.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(Problem::bad_request(unknown_field(name, known)));
        }
        serde_json::from_value(Value::Object(self.0)).map_err(|error| Problem::bad_request(error.to_string()))
    }
}

impl Body {
    fn credentials(&self) -> Answer<Option<Credentials>> {
        Ok(Credentials::new(self.username.clone(), self.password.clone())?)
    }
}

fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

async fn clone(Extension(machine): Extension<Machine>, Lenient(said): Lenient<Said>) -> Answer<StatusCode> {
    let body =
        said.taking(&["path", "url", "branch", "commit_id", "username", "password", "insecure_skip_tls", "depth"])?;
    let credentials = body.credentials()?;
    let tls = if body.insecure_skip_tls == Some(true) { Tls::Unverified } else { Tls::Verified };
    let (branch, commit) = (given(body.branch), given(body.commit_id));
    let wanted = Cloning { url: body.url, path: body.path, branch, commit, depth: body.depth, credentials, tls };
    git(&machine).clone_repository(wanted).await?;
    Ok(StatusCode::OK)
}

#[derive(Deserialize)]
struct Repository {
    path: String,
}

fn word(change: Change) -> &'static str {
    match change {
        Change::Unmodified => "Unmodified",
        Change::Untracked => "Untracked",
        Change::Modified | Change::TypeChanged => "Modified",
        Change::Added => "Added",
        Change::Deleted => "Deleted",
        Change::Renamed => "Renamed",
        Change::Copied => "Copied",
        Change::Unmerged => "Updated but unmerged",
    }
}

async fn status(Extension(machine): Extension<Machine>, Query(query): Query<Repository>) -> Answer<Json<Value>> {
    let status = git(&machine).status(&query.path).await?;
    let files: Vec<Value> = status
        .files
        .iter()
        .map(|file| {
            json!({
                "name": file.path,
                "extra": file.from.clone().unwrap_or_default(),
                "staging": word(file.staged),
                "worktree": word(file.worktree),
            })
        })
        .collect();
    Ok(Json(json!({
        "currentBranch": status.branch.clone().or_else(|| status.head.clone()).unwrap_or_default(),
        "fileStatus": files,
        "ahead": status.ahead,
        "behind": status.behind,
        "branchPublished": status.published,
        "detached": status.branch.is_none(),
        "upstream": status.upstream,
    })))
}

async fn add(Extension(machine): Extension<Machine>, Lenient(said): Lenient<Said>) -> Answer<StatusCode> {
    let body = said.taking(&["path", "files"])?;
    git(&machine).add(&body.path, &body.files.unwrap_or_default()).await?;
    Ok(StatusCode::OK)
}

async fn commit(Extension(machine): Extension<Machine>, Lenient(said): Lenient<Said>) -> Answer<Json<Value>> {
    let body = said.taking(&["path", "message", "author", "email", "allow_empty"])?;
    let wanted = NewCommit {
        repository: body.path,
        message: body.message,
        author: body.author,
        email: body.email,
        allow_empty: body.allow_empty.unwrap_or(false),
    };
    Ok(Json(json!({ "hash": git(&machine).commit(wanted).await? })))
}

async fn push(Extension(machine): Extension<Machine>, Lenient(said): Lenient<Said>) -> Answer<StatusCode> {
    let body = said.taking(&["path", "remote", "branch", "set_upstream", "username", "password"])?;
    let credentials = body.credentials()?;
    let (remote, branch, set_upstream) = (given(body.remote), given(body.branch), body.set_upstream.unwrap_or(false));
    git(&machine).push(Push { repository: body.path, remote, branch, set_upstream, credentials }).await?;
    Ok(StatusCode::OK)
}

async fn pull(Extension(machine): Extension<Machine>, Lenient(said): Lenient<Said>) -> Answer<StatusCode> {
    let body = said.taking(&["path", "remote", "branch", "username", "password"])?;
    let credentials = body.credentials()?;
    let (remote, branch) = (given(body.remote), given(body.branch));
    git(&machine).pull(Pull { repository: body.path, remote, branch, credentials }).await?;
    Ok(StatusCode::OK)
}

async fn branches(Extension(machine): Extension<Machine>, Query(query): Query<Repository>) -> Answer<Json<Value>> {
    let branches = git(&machine).branches(&query.path).await?;
    Ok(Json(json!({ "branches": branches.names, "current": branches.current })))
}

async fn create_branch(Extension(machine): Extension<Machine>, Lenient(said): Lenient<Said>) -> Answer<StatusCode> {
    let body = said.taking(&["path", "name"])?;
    git(&machine).create_branch(&body.path, &body.name).await?;
    Ok(StatusCode::CREATED)
}

async fn delete_branch(Extension(machine): Extension<Machine>, Lenient(said): Lenient<Said>) -> Answer<StatusCode> {
    let body = said.taking(&["path", "name"])?;
    git(&machine).delete_branch(&body.path, &body.name).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn checkout(Extension(machine): Extension<Machine>, Lenient(said): Lenient<Said>) -> Answer<StatusCode> {
    let body = said.taking(&["path", "branch"])?;
    git(&machine).checkout(&body.path, &body.branch.unwrap_or_default()).await?;
    Ok(StatusCode::OK)
}

async fn history(Extension(machine): Extension<Machine>, Query(query): Query<Repository>) -> Answer<Json<Vec<Value>>> {
    let commits = git(&machine).history(&query.path, None).await?;
    let view = commits.into_iter().map(|commit| {
        json!({
            "hash": commit.hash,
            "author": commit.author,
            "email": commit.email,
            "message": commit.message,
            "timestamp": commit.time,
        })
    });
    Ok(Json(view.collect()))
}

async fn init(Extension(machine): Extension<Machine>, Lenient(said): Lenient<Said>) -> Answer<StatusCode> {
    let body = said.taking(&["path", "bare", "initial_branch"])?;
    let (git, branch) = (git(&machine), given(body.initial_branch));
    match body.bare.unwrap_or(false) {
        true => git.init_bare(&body.path, branch.as_deref()).await?,
        false => git.init(&body.path, branch.as_deref()).await?,
    }
    Ok(StatusCode::CREATED)
}

async fn reset(Extension(machine): Extension<Machine>, Lenient(said): Lenient<Said>) -> Answer<StatusCode> {
    let body = said.taking(&["path", "mode", "target", "files"])?;
    let (mode, target, files) = (body.mode.unwrap_or_default(), given(body.target), body.files.unwrap_or_default());
    git(&machine).reset(Reset { repository: body.path, mode, target, files }).await?;
    Ok(StatusCode::OK)
}

async fn restore(Extension(machine): Extension<Machine>, Lenient(said): Lenient<Said>) -> Answer<StatusCode> {
    let body = said.taking(&["path", "files", "staged", "worktree", "source"])?;
    let wanted = Restore {
        repository: body.path,
        files: body.files.unwrap_or_default(),
        staged: body.staged.unwrap_or(false),
        worktree: body.worktree.unwrap_or(false),
        source: given(body.source),
    };
    git(&machine).restore(wanted).await?;
    Ok(StatusCode::OK)
}

async fn remotes(Extension(machine): Extension<Machine>, Query(query): Query<Repository>) -> Answer<Json<Value>> {
    Ok(Json(json!({ "remotes": git(&machine).remotes(&query.path).await? })))
}

async fn add_remote(Extension(machine): Extension<Machine>, Lenient(said): Lenient<Said>) -> Answer<StatusCode> {
    let body = said.taking(&["path", "name", "url", "fetch", "overwrite"])?;
    let git = git(&machine);
    let there = git.remotes(&body.path).await?.iter().any(|remote| remote.name == body.name);
    match (there, body.overwrite.unwrap_or(false)) {
        (true, true) => git.set_remote_url(&body.path, &body.name, &body.url).await?,
        (true, false) => return Err(Problem::conflict(format!("remote {} already exists", body.name))),
        (false, _) => git.add_remote(&body.path, &body.name, &body.url).await?,
    }
    if body.fetch.unwrap_or(false) {
        git.fetch(&body.path, &body.name).await?;
    }
    Ok(StatusCode::CREATED)
}

/// The user's own configuration unless a repository is named.
fn scope(named: Option<&str>, path: Option<&str>) -> Answer<Scope> {
    let path = path.filter(|path| !path.is_empty());
    match (named.filter(|name| !name.is_empty()), path) {
        (Some("global"), _) | (None, None) => Ok(Scope::Global),
        (Some("system"), _) => Ok(Scope::System),
        (Some("local") | None, Some(path)) => Ok(Scope::Local(path.into())),
        (Some("local"), None) => Err(Problem::bad_request("the scope local needs the path of a repository")),
        (Some(other), _) => Err(Problem::bad_request(format!("scope {other:?} is not global, local or system"))),
    }
}

#[derive(Deserialize)]
struct ConfigKey {
    key: String,
    #[serde(default)]
    scope: Option<String>,
    #[serde(default)]
    path: Option<String>,
}

async fn get_config(Extension(machine): Extension<Machine>, Query(query): Query<ConfigKey>) -> Answer<Json<Value>> {
    let scope = scope(query.scope.as_deref(), query.path.as_deref())?;
    Ok(Json(json!({ "value": git(&machine).config(&scope, &query.key).await? })))
}

async fn set_config(Extension(machine): Extension<Machine>, Lenient(said): Lenient<Said>) -> Answer<StatusCode> {
    let body = said.taking(&["path", "key", "value", "scope"])?;
    let scope = scope(body.scope.as_deref(), Some(&body.path))?;
    git(&machine).set_config(&scope, &body.key, &body.value).await?;
    Ok(StatusCode::OK)
}

async fn set_user(Extension(machine): Extension<Machine>, Lenient(said): Lenient<Said>) -> Answer<StatusCode> {
    let body = said.taking(&["path", "name", "email", "scope"])?;
    let (git, scope) = (git(&machine), scope(body.scope.as_deref(), Some(&body.path))?);
    git.set_config(&scope, "user.name", &body.name).await?;
    git.set_config(&scope, "user.email", &body.email).await?;
    Ok(StatusCode::OK)
}

async fn lend_credentials(Extension(machine): Extension<Machine>, Lenient(said): Lenient<Said>) -> Answer<StatusCode> {
    let body = said.taking(&["username", "password", "host", "protocol"])?;
    let credentials = body.credentials()?.ok_or_else(|| Problem::bad_request("username and password are required"))?;
    let protocol = given(body.protocol).unwrap_or_else(|| "https".into());
    let host = given(body.host).unwrap_or_else(|| "github.com".into());
    git(&machine).lend_credentials(&format!("{protocol}://{host}"), &credentials).await?;
    Ok(StatusCode::OK)
}
