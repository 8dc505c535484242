//! Listing, moving, removing, searching: everything about files but their bytes.

use axum::extract::Query;
use axum::http::StatusCode;
use axum::{Extension, Json};
use cove_protocol::file::{Entry, FileKind};
use cove_protocol::{Event, FailureKind, Reply, Request};
use futures::{StreamExt as _, TryStreamExt as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Machine, READ, WRITE};
use crate::door::daytona::body::Lenient;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::table::Table;
use crate::guest::{Guest, GuestError, Item};

/// The most entries or matches one call answers with; the sandbox decides how many there are.
const MOST: usize = 100_000;

/// Links of a listing that are followed at the same time.
const AT_ONCE: usize = 16;

pub fn table() -> Table<()> {
    Table::new()
        .get("/files", READ, list)
        .delete("/files", WRITE, remove)
        .get("/files/", READ, list)
        .delete("/files/", WRITE, remove)
        .get("/files/info", READ, info)
        .post("/files/folder", WRITE, make_folder)
        .post("/files/move", WRITE, rename)
        .post("/files/permissions", WRITE, set_permissions)
        .get("/files/find", READ, find_text)
        .get("/files/search", READ, search_names)
        .post("/files/replace", WRITE, replace)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FileInfo {
    name: String,
    size: u64,
    mode: String,
    mod_time: String,
    modified_at: String,
    is_dir: bool,
    owner: String,
    group: String,
    permissions: String,
    path: String,
}

impl From<Entry> for FileInfo {
    fn from(entry: Entry) -> Self {
        let modified = crate::clock::from_millisecond(entry.modified_ms).to_string();
        FileInfo {
            size: entry.size,
            mode: mode_letters(entry.kind, entry.mode),
            mod_time: modified.clone(),
            modified_at: modified,
            is_dir: entry.kind == FileKind::Directory,
            owner: entry.uid.to_string(),
            group: entry.gid.to_string(),
            permissions: format!("{:04o}", entry.mode & 0o7777),
            name: entry.name,
            path: entry.path,
        }
    }
}

fn mode_letters(kind: FileKind, mode: u32) -> String {
    let first = match kind {
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::File | FileKind::Other => '-',
    };
    let bits = (0..9).map(|bit| if mode & (0o400 >> bit) != 0 { ['r', 'w', 'x'][bit % 3] } else { '-' });
    std::iter::once(first).chain(bits).collect()
}

/// A guest's no about a path, with the codes that the SDKs know.
pub(super) fn problem(path: &str, error: GuestError) -> Problem {
    let GuestError::Failed(failure) = error else { return error.into() };
    let (status, code) = match failure.kind {
        FailureKind::NotFound => {
            let message = format!("file not found: {path}");
            return Problem::daemon(StatusCode::NOT_FOUND, "FILE_NOT_FOUND", message);
        }
        FailureKind::PermissionDenied => (StatusCode::FORBIDDEN, "FILE_ACCESS_DENIED"),
        FailureKind::NotADirectory
        | FailureKind::IsADirectory
        | FailureKind::NotEmpty
        | FailureKind::InvalidArgument => (StatusCode::BAD_REQUEST, "INVALID_FILE_PATH"),
        FailureKind::AlreadyExists => (StatusCode::CONFLICT, "CONFLICT"),
        FailureKind::UnknownUser
        | FailureKind::Exhausted
        | FailureKind::WrongState
        | FailureKind::Refused
        | FailureKind::Unsupported
        | FailureKind::Internal => return GuestError::Failed(failure).into(),
    };
    Problem::daemon(status, code, failure.message)
}

#[derive(Deserialize)]
struct AtPath {
    #[serde(default)]
    path: String,
}

impl AtPath {
    fn named(&self) -> Answer<&str> {
        if self.path.is_empty() { Err(Problem::bad_request("path is required")) } else { Ok(&self.path) }
    }
}

#[derive(Deserialize)]
struct Listing {
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    depth: Option<u32>,
}

async fn list(Extension(machine): Extension<Machine>, Query(query): Query<Listing>) -> Answer<Json<Vec<FileInfo>>> {
    let path = query.path.filter(|path| !path.is_empty()).unwrap_or_else(|| ".".into());
    let depth = query.depth.unwrap_or(1);
    if depth == 0 {
        return Err(Problem::bad_request("depth must be at least 1"));
    }
    let request = Request::List { path: machine.path(&path), user: None, depth };
    let entries = entries(&machine.guest, &request).await.map_err(|error| problem(&path, error))?;
    let entries = follow_all(&machine.guest, entries).await?;
    Ok(Json(entries.into_iter().map(FileInfo::from).collect()))
}

/// In the order given; only links cost a question of their own.
async fn follow_all(guest: &Guest, entries: Vec<Entry>) -> Result<Vec<Entry>, GuestError> {
    let followed = futures::stream::iter(entries).map(|entry| follow(guest, entry)).buffered(AT_ONCE);
    followed.try_filter_map(|entry| std::future::ready(Ok(entry))).try_collect().await
}

/// What a link leads to, under the link's own name. One that leads nowhere, or in a circle, is left out, as the original does.
async fn follow(guest: &Guest, entry: Entry) -> Result<Option<Entry>, GuestError> {
    if entry.kind != FileKind::Symlink {
        return Ok(Some(entry));
    }
    match guest.call(&Request::Stat { path: entry.path, user: None, follow: true }).await {
        Ok(Reply::Entry { entry }) => Ok(Some(entry)),
        Ok(other) => Err(GuestError::Protocol(format!("stat answered {other:?}"))),
        Err(GuestError::Failed(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn entries(guest: &Guest, request: &Request) -> Result<Vec<Entry>, GuestError> {
    let mut operation = guest.open(request).await?.1.gathered();
    let mut all = Vec::new();
    while let Some(item) = operation.from.next().await? {
        if let Item::Event(Event::Entries { entries }) = item {
            all.extend(entries);
        }
        if all.len() >= MOST {
            all.truncate(MOST);
            break;
        }
    }
    Ok(all)
}

async fn info(Extension(machine): Extension<Machine>, Query(query): Query<AtPath>) -> Answer<Json<FileInfo>> {
    let path = query.named()?;
    let request = Request::Stat { path: machine.path(path), user: None, follow: true };
    match machine.guest.call(&request).await.map_err(|error| problem(path, error))? {
        Reply::Entry { entry } => Ok(Json(entry.into())),
        other => Err(unexpected(&other)),
    }
}

#[derive(Deserialize)]
struct NewFolder {
    path: String,
    #[serde(default)]
    mode: Option<String>,
}

async fn make_folder(Extension(machine): Extension<Machine>, Query(query): Query<NewFolder>) -> Answer<StatusCode> {
    let mode = query.mode.as_deref().filter(|mode| !mode.is_empty()).map(octal).transpose()?;
    let request = Request::MakeDirectory { path: machine.path(&query.path), user: None, mode };
    machine.guest.call(&request).await.map_err(|error| problem(&query.path, error))?;
    Ok(StatusCode::CREATED)
}

fn octal(text: &str) -> Answer<u32> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| Problem::bad_request(format!("mode {text:?} is not octal permission bits such as 755")))
}

#[derive(Deserialize)]
struct Removal {
    path: String,
    #[serde(default)]
    recursive: Option<bool>,
}

async fn remove(Extension(machine): Extension<Machine>, Query(query): Query<Removal>) -> Answer<StatusCode> {
    let path = machine.path(&query.path);
    let recursive = query.recursive.unwrap_or(false);
    let stat = Request::Stat { path: path.clone(), user: None, follow: false };
    let found = machine.guest.call(&stat).await.map_err(|error| problem(&query.path, error))?;
    if let Reply::Entry { entry } = &found
        && entry.kind == FileKind::Directory
        && !recursive
    {
        let message = format!("{} is a directory; ask for recursive to remove it with all it holds", query.path);
        return Err(Problem::daemon(StatusCode::BAD_REQUEST, "INVALID_FILE_PATH", message));
    }
    machine
        .guest
        .call(&Request::Remove { path, user: None, recursive })
        .await
        .map_err(|error| problem(&query.path, error))?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
struct Renaming {
    source: String,
    destination: String,
}

async fn rename(Extension(machine): Extension<Machine>, Query(query): Query<Renaming>) -> Answer<StatusCode> {
    let to = machine.path(&query.destination);
    let there = Request::Stat { path: to.clone(), user: None, follow: false };
    if machine.guest.call(&there).await.is_ok() {
        return Err(Problem::conflict(format!("destination already exists: {}", query.destination)));
    }
    let request = Request::Move { from: machine.path(&query.source), to, user: None };
    machine.guest.call(&request).await.map_err(|error| problem(&query.source, error))?;
    Ok(StatusCode::OK)
}

#[derive(Deserialize)]
struct Permissions {
    path: String,
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    owner: Option<String>,
    #[serde(default)]
    group: Option<String>,
}

async fn set_permissions(
    Extension(machine): Extension<Machine>,
    Query(query): Query<Permissions>,
) -> Answer<StatusCode> {
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let request = Request::SetAttributes {
        path: machine.path(&query.path),
        user: None,
        mode: given(query.mode).as_deref().map(octal).transpose()?,
        owner: given(query.owner),
        group: given(query.group),
    };
    machine.guest.call(&request).await.map_err(|error| problem(&query.path, error))?;
    Ok(StatusCode::OK)
}

#[derive(Deserialize)]
struct Search {
    path: String,
    pattern: String,
}

async fn find_text(Extension(machine): Extension<Machine>, Query(query): Query<Search>) -> Answer<Json<Vec<Value>>> {
    if query.pattern.is_empty() {
        return Err(Problem::bad_request("pattern is required"));
    }
    let request =
        Request::Grep { path: machine.path(&query.path), pattern: query.pattern, user: None, limit: Some(MOST as u32) };
    let failed = |error| problem(&query.path, error);
    let mut operation = machine.guest.open(&request).await.map_err(failed)?.1.gathered();
    let mut found = Vec::new();
    while let Some(item) = operation.from.next().await.map_err(failed)? {
        if let Item::Event(Event::Matches { matches }) = item {
            found.extend(matches.into_iter().map(|m| json!({ "file": m.path, "line": m.line, "content": m.text })));
        }
        if found.len() >= MOST {
            break;
        }
    }
    Ok(Json(found))
}

async fn search_names(Extension(machine): Extension<Machine>, Query(query): Query<Search>) -> Answer<Json<Value>> {
    let request =
        Request::Find { path: machine.path(&query.path), pattern: query.pattern, user: None, limit: Some(MOST as u32) };
    let entries = entries(&machine.guest, &request).await.map_err(|error| problem(&query.path, error))?;
    let files: Vec<String> = entries.into_iter().map(|entry| entry.path).collect();
    Ok(Json(json!({ "files": files })))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Replacement {
    files: Vec<String>,
    pattern: String,
    new_value: String,
}

async fn replace(
    Extension(machine): Extension<Machine>,
    Lenient(body): Lenient<Replacement>,
) -> Answer<Json<Vec<Value>>> {
    if body.pattern.is_empty() {
        return Err(Problem::bad_request("pattern is required"));
    }
    let request = Request::Replace {
        paths: body.files.iter().map(|path| machine.path(path)).collect(),
        pattern: body.pattern,
        replacement: body.new_value,
        user: None,
    };
    let Reply::Replaced { files } = machine.guest.call(&request).await? else {
        return Err(Problem::bad_request("the sandbox gave no answer about the files"));
    };
    // Answered under the names that were asked for.
    let results = files.into_iter().zip(body.files).map(|(outcome, asked)| match outcome.error {
        None => json!({ "file": asked, "success": true }),
        Some(error) => json!({ "file": asked, "success": false, "error": error }),
    });
    Ok(Json(results.collect()))
}

pub(super) fn unexpected(reply: &Reply) -> Problem {
    GuestError::Protocol(format!("unexpected answer {reply:?}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_reads_as_ls_prints_it() {
        assert_eq!(mode_letters(FileKind::File, 0o644), "-rw-r--r--");
        assert_eq!(mode_letters(FileKind::Directory, 0o755), "drwxr-xr-x");
    }

    #[test]
    fn a_mode_must_be_permission_bits() {
        assert_eq!(octal("755").unwrap(), 0o755);
        assert_eq!(octal("0644").unwrap(), 0o644);
        assert!(octal("rwx").is_err());
        assert!(octal("77777").is_err());
    }
}
