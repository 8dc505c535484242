//! Watching a directory: as a stream, or as a watcher that keeps events until they are fetched.

use cove_protocol::Event as GuestEvent;
use cove_protocol::Request as Ask;
use cove_protocol::file::{Change, ChangeKind, FileKind};

use super::super::connect::stream::Outgoing;
use super::super::connect::{Code, Ending, RpcError};
use super::super::envd::{Envd, ROOT};
use super::super::message::filesystem::{
    EventType, FilesystemEvent, WatchEvent, WatchRequest, WatchResponse, WatcherEvents, WatcherId,
};
use super::super::message::process::Empty;
use super::{entry, follow, missing};
use crate::guest::{Item, Operation};

pub async fn stream(envd: Envd, user: Option<String>, request: WatchRequest, outgoing: Outgoing) -> Result<(), Ending> {
    let mut operation = open(&envd, user.as_deref(), &request).await?;
    outgoing.send(&WatchResponse::from(WatchEvent::Start(Empty {}))).await?;
    let ping = WatchResponse::from(WatchEvent::Keepalive(Empty {}));
    loop {
        match outgoing.keeping_alive(&ping, operation.from.next()).await?? {
            Some(Item::Event(GuestEvent::Changes { changes })) => {
                for change in changes {
                    let event = describe(&envd, change, request.include_entry).await?;
                    outgoing.send(&WatchResponse::from(WatchEvent::Filesystem(event))).await?;
                }
            }
            Some(_) => {}
            None => return Ok(()),
        }
    }
}

pub async fn create(envd: &Envd, user: Option<&str>, request: WatchRequest) -> Result<WatcherId, Ending> {
    let mut operation = open(envd, user, &request).await?;
    let inside = envd.clone();
    let watcher_id = envd.watchers.add(&envd.id, async move |events| {
        while let Ok(Some(item)) = operation.from.next().await {
            let Item::Event(GuestEvent::Changes { changes }) = item else { continue };
            for change in changes {
                let Ok(event) = describe(&inside, change, request.include_entry).await else { return };
                events.push(event);
            }
        }
    })?;
    Ok(WatcherId { watcher_id })
}

pub async fn events(envd: &Envd, request: WatcherId) -> Result<WatcherEvents, Ending> {
    Ok(WatcherEvents { events: envd.watchers.take(&envd.id, &request.watcher_id)? })
}

pub async fn remove(envd: &Envd, request: WatcherId) -> Result<Empty, Ending> {
    envd.watchers.remove(&envd.id, &request.watcher_id)?;
    Ok(Empty {})
}

async fn open(envd: &Envd, user: Option<&str>, request: &WatchRequest) -> Result<Operation, Ending> {
    let path = envd.resolve(user, &request.path).await?;
    let found = follow(envd, &path).await?.ok_or_else(|| missing("path", &path))?;
    if found.kind != FileKind::Directory {
        return Err(RpcError::new(Code::InvalidArgument, format!("path is not a directory: {path}")).into());
    }
    let ask = Ask::Watch { path, user: Some(ROOT.into()), recursive: request.recursive };
    let (_, operation) = envd.guest.open(&ask).await?;
    Ok(operation)
}

async fn describe(envd: &Envd, change: Change, include_entry: bool) -> Result<FilesystemEvent, Ending> {
    let (kind, still_there) = match change.kind {
        ChangeKind::Create => (EventType::Create, true),
        ChangeKind::Write => (EventType::Write, true),
        ChangeKind::Chmod => (EventType::Chmod, true),
        ChangeKind::Remove => (EventType::Remove, false),
        ChangeKind::Rename => (EventType::Rename, false),
    };
    let entry = match change.entry {
        Some(found) if include_entry && still_there => Some(entry::describe(envd, found).await?),
        _ => None,
    };
    Ok(FilesystemEvent { name: change.path, r#type: kind as i32, entry })
}
