//! `filesystem.Filesystem`: the calls that ask once. Watching is in [`watch`].
//!
//! Calls act with root's rights and give what they make to the user who asked, see [`ROOT`].

pub mod entry;
pub mod watch;

use cove_protocol::file::{Entry, FileKind};
use cove_protocol::{Event, FailureKind, Reply, Request as Ask};

use super::connect::{Code, Ending, RpcError};
use super::envd::{Envd, ROOT, parent, unexpected};
use super::message::filesystem::{EntryResponse, ListDirRequest, ListDirResponse, MoveRequest, PathRequest};
use super::message::process::Empty;
use crate::guest::{GuestError, Item};

/// Directories below a listing that a client may ask for, and entries that it may get: a listing is one message.
const MAX_ENTRIES: usize = 100_000;

pub async fn stat(envd: &Envd, user: Option<&str>, request: PathRequest) -> Result<EntryResponse, Ending> {
    let path = envd.resolve(user, &request.path).await?;
    let found = lstat(envd, &path).await?.ok_or_else(|| missing("file", &path))?;
    Ok(entry::describe(envd, found).await?.into())
}

pub async fn list(envd: &Envd, user: Option<&str>, request: ListDirRequest) -> Result<ListDirResponse, Ending> {
    let path = envd.resolve(user, &request.path).await?;
    let kind = follow(envd, &path).await?.ok_or_else(|| missing("directory", &path))?.kind;
    if kind != FileKind::Directory {
        return Err(RpcError::new(Code::InvalidArgument, format!("path is not a directory: {path}")).into());
    }
    let ask = Ask::List { path: path.clone(), user: Some(ROOT.into()), depth: request.depth.max(1) };
    let mut operation = envd.guest.open(&ask).await?.1.gathered();
    let mut found = Vec::new();
    while let Some(item) = operation.from.next().await? {
        let Item::Event(Event::Entries { entries }) = item else { continue };
        found.extend(entries);
        if found.len() > MAX_ENTRIES {
            let message = format!("more than {MAX_ENTRIES} entries below {path}: list with a smaller depth");
            return Err(RpcError::new(Code::ResourceExhausted, message).into());
        }
    }
    Ok(ListDirResponse { entries: entry::describe_all(envd, found).await? })
}

pub async fn make(envd: &Envd, user: Option<&str>, request: PathRequest) -> Result<EntryResponse, Ending> {
    let path = envd.resolve(user, &request.path).await?;
    if let Some(found) = follow(envd, &path).await? {
        return Err(match found.kind {
            FileKind::Directory => RpcError::new(Code::AlreadyExists, format!("directory already exists: {path}")),
            _ => not_a_directory(&path),
        }
        .into());
    }
    make_directories(envd, user, &path).await?;
    let made = lstat(envd, &path).await?.ok_or_else(|| missing("directory", &path))?;
    Ok(entry::describe(envd, made).await?.into())
}

pub async fn rename(envd: &Envd, user: Option<&str>, request: MoveRequest) -> Result<EntryResponse, Ending> {
    let from = envd.resolve(user, &request.source).await?;
    let to = envd.resolve(user, &request.destination).await?;
    lstat(envd, &from).await?.ok_or_else(|| missing("source file", &from))?;
    make_directories(envd, user, parent(&to)).await?;
    let ask = Ask::Move { from, to: to.clone(), user: Some(ROOT.into()) };
    let Reply::Entry { entry } = envd.guest.call(&ask).await? else { return Err(unexpected().into()) };
    Ok(entry::describe(envd, entry).await?.into())
}

/// A path that is not there is as good as removed.
pub async fn remove(envd: &Envd, user: Option<&str>, request: PathRequest) -> Result<Empty, Ending> {
    let path = envd.resolve(user, &request.path).await?;
    let ask = Ask::Remove { path, user: Some(ROOT.into()), recursive: true };
    match envd.guest.call(&ask).await {
        Ok(_) => Ok(Empty {}),
        Err(GuestError::Failed(failure)) if failure.kind == FailureKind::NotFound => Ok(Empty {}),
        Err(error) => Err(error.into()),
    }
}

/// Makes the directory and its parents, each that was missing owned by the user.
pub async fn make_directories(envd: &Envd, user: Option<&str>, path: &str) -> Result<(), Ending> {
    let mut missing = Vec::new();
    let mut at = path;
    loop {
        match follow(envd, at).await? {
            Some(found) if found.kind == FileKind::Directory => break,
            Some(_) => return Err(not_a_directory(at).into()),
            // A root that cannot be found has no parent to look for instead.
            None if at == "/" => return Err(self::missing("directory", at).into()),
            None => missing.push(at.to_owned()),
        }
        at = parent(at);
    }
    if missing.is_empty() {
        return Ok(());
    }
    let ask = Ask::MakeDirectory { path: path.to_owned(), user: Some(ROOT.into()), mode: Some(0o755) };
    envd.guest.call(&ask).await?;
    for directory in missing {
        give(envd, user, &directory).await?;
    }
    Ok(())
}

/// Makes the user the owner of a path. The group has the user's name, as in the original.
pub async fn give(envd: &Envd, user: Option<&str>, path: &str) -> Result<(), Ending> {
    let owner = user.unwrap_or(&envd.default_user).to_owned();
    let ask = |group: Option<String>| Ask::SetAttributes {
        path: path.to_owned(),
        user: Some(ROOT.into()),
        mode: None,
        owner: Some(owner.clone()),
        group,
    };
    match envd.guest.call(&ask(Some(owner.clone()))).await {
        Ok(_) => Ok(()),
        // A user without a group of its own name.
        Err(GuestError::Failed(_)) => envd.guest.call(&ask(None)).await.map(|_| ()).map_err(Ending::from),
        Err(error) => Err(error.into()),
    }
}

pub async fn lstat(envd: &Envd, path: &str) -> Result<Option<Entry>, Ending> {
    look(envd, path, Ask::Stat { path: path.to_owned(), user: Some(ROOT.into()), follow: false }).await
}

pub async fn follow(envd: &Envd, path: &str) -> Result<Option<Entry>, Ending> {
    look(envd, path, Ask::Stat { path: path.to_owned(), user: Some(ROOT.into()), follow: true }).await
}

async fn look(envd: &Envd, path: &str, ask: Ask) -> Result<Option<Entry>, Ending> {
    match envd.guest.call(&ask).await {
        Ok(Reply::Entry { entry }) => Ok(Some(entry)),
        Ok(_) => Err(unexpected().into()),
        Err(GuestError::Failed(failure)) if failure.kind == FailureKind::NotFound => Ok(None),
        Err(GuestError::Failed(failure)) if failure.kind == FailureKind::NotADirectory => {
            Err(RpcError::new(Code::InvalidArgument, format!("path is not a directory: {}", parent(path))).into())
        }
        Err(error) => Err(error.into()),
    }
}

fn not_a_directory(path: &str) -> RpcError {
    RpcError::new(Code::InvalidArgument, format!("path already exists but it is not a directory: {path}"))
}

fn missing(what: &str, path: &str) -> RpcError {
    RpcError::new(Code::NotFound, format!("{what} not found: {path}"))
}
