//! What stays of a session when its sandbox is gone: images and documents that a cell showed, and files that code put
//! into `~/artifacts`. Their bytes are in the object store.

use std::collections::HashMap;

use base64::Engine as _;
use bytes::Bytes;
use cove_protocol::file::{Entry, FileKind};
use cove_protocol::{Event, FailureKind, Request};
use object_store::ObjectStoreExt as _;
use object_store::path::Path as Key;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt as _;

use super::Session;
use crate::clock::Timestamp;
use crate::guest::{Guest, GuestError, Item};
use crate::interpreter::Outcome;
use crate::{App, Caller, Error};

/// Where code puts files to keep.
const FOLDER: &str = "artifacts";
/// Larger files are ignored.
const LARGEST: u64 = 256 << 20;
/// Files beyond this number are ignored.
const MOST: usize = 200;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Artifact {
    /// The path below `~/artifacts`, or a generated name for what a cell showed.
    pub name: String,
    /// Bytes.
    pub size: u64,
    pub mime: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

/// What was kept of a cell, and what found no room.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub artifacts: Vec<Artifact>,
    pub left_out: Vec<String>,
}

/// A file's size and time, to see whether it changed.
pub(super) type Known = HashMap<String, (u64, i64)>;

pub(super) fn key(session: &str, name: &str) -> Key {
    // A file of any name must be one name in the object store.
    Key::from(format!("artifacts/{session}/{}", crate::key::hash(name)))
}

/// Results of a cell that become files: MIME type, suffix, whether it is base64.
const SHOWN: [(&str, &str, bool); 5] = [
    ("image/png", "png", true),
    ("image/jpeg", "jpg", true),
    ("application/pdf", "pdf", true),
    ("image/svg+xml", "svg", false),
    ("text/html", "html", false),
];

impl App {
    pub(super) async fn known_artifacts(&self, guest: &Guest) -> Result<Known, Error> {
        Ok(list(guest).await?.into_iter().map(|entry| (entry.path, (entry.size, entry.modified_ms))).collect())
    }

    pub(super) async fn keep_artifacts(
        &self,
        session: &Session,
        guest: &Guest,
        outcome: &Outcome,
        before: &Known,
    ) -> Result<Kept, Error> {
        let mut kept = Kept::default();
        let mut room = None;
        for (number, result) in outcome.results.iter().enumerate() {
            for (mime, suffix, base64) in SHOWN {
                let Some(text) = result.data.get(mime).and_then(|value| value.as_str()) else { continue };
                let bytes = if base64 {
                    let compact: String = text.split_whitespace().collect();
                    let Ok(bytes) = base64::engine::general_purpose::STANDARD.decode(compact) else { continue };
                    bytes
                } else {
                    text.as_bytes().to_vec()
                };
                let name = format!("result-{}-{}.{suffix}", outcome.execution_count, number + 1);
                let size = bytes.len() as u64;
                let left = match room {
                    Some(room) => room,
                    None => self.room_for_artifacts(session).await?,
                };
                if size > left || self.check_disk(&session.provider).is_err() {
                    kept.left_out.push(name);
                    continue;
                }
                room = Some(left - size);
                self.objects().put(&key(&session.id, &name), Bytes::from(bytes).into()).await.map_err(trouble)?;
                kept.artifacts.push(self.note_artifact(session, name, size, mime).await?);
            }
        }
        let mut files = list(guest).await?;
        files.retain(|file| before.get(&file.path) != Some(&(file.size, file.modified_ms)) && file.size <= LARGEST);
        if files.is_empty() {
            return Ok(kept);
        }
        let mut room = match room {
            Some(room) => room,
            None => self.room_for_artifacts(session).await?,
        };
        for entry in files {
            let folder = format!("/{FOLDER}/");
            let Some(at) = entry.path.find(&folder) else { continue };
            let name = entry.path[at + folder.len()..].to_owned();
            // The sandbox chooses the names: without a maximum for all of them, many cells would fill the host's disk.
            if entry.size > room || self.check_disk(&session.provider).is_err() {
                kept.left_out.push(name);
                continue;
            }
            let size = self.copy_out(session, guest, &entry.path, &name, room.min(LARGEST)).await?;
            room -= size;
            let mime = mime_of(&name);
            kept.artifacts.push(self.note_artifact(session, name, size, mime).await?);
        }
        Ok(kept)
    }

    async fn note_artifact(&self, session: &Session, name: String, size: u64, mime: &str) -> Result<Artifact, Error> {
        let artifact = Artifact { name, size, mime: mime.to_owned(), created_at: self.now() };
        self.store().put_artifact(&session.id, &artifact).await?;
        Ok(artifact)
    }

    /// Reads at most this many bytes, whatever the guest sends.
    async fn copy_out(
        &self,
        session: &Session,
        guest: &Guest,
        path: &str,
        name: &str,
        most: u64,
    ) -> Result<u64, Error> {
        let read = Request::Read { path: path.to_owned(), user: None, offset: 0, length: Some(most) };
        let (_, mut operation) = guest.open(&read).await?;
        let (mut writer, _) = self.object_writer(key(&session.id, name), LARGEST);
        let mut size = 0;
        while let Some(item) = operation.from.next().await? {
            if let Item::Data(bytes) = item {
                size += bytes.len() as u64;
                if size > most {
                    return Err(GuestError::Protocol(format!("{path}: more bytes than were asked for")).into());
                }
                writer.write_all(&bytes).await.map_err(trouble)?;
            }
        }
        writer.shutdown().await.map_err(trouble)?;
        Ok(size)
    }

    pub async fn artifacts(&self, caller: &Caller, session: &str) -> Result<Vec<Artifact>, Error> {
        let session = self.session(caller, session).await?;
        self.store().artifacts(&session.id).await
    }

    /// An artifact and its bytes as they come.
    pub async fn artifact(
        &self,
        caller: &Caller,
        session: &str,
        name: &str,
    ) -> Result<(Artifact, futures::stream::BoxStream<'static, object_store::Result<Bytes>>), Error> {
        let session = self.session(caller, session).await?;
        let found = self.store().artifacts(&session.id).await?.into_iter().find(|artifact| artifact.name == name);
        let artifact = found.ok_or_else(|| Error::not_found("artifact", name))?;
        let object = self.objects().get(&key(&session.id, name)).await.map_err(trouble)?;
        Ok((artifact, object.into_stream()))
    }
}

/// Files in the sandbox's folder; empty where there is no folder.
async fn list(guest: &Guest) -> Result<Vec<Entry>, Error> {
    let request = Request::List { path: FOLDER.into(), user: None, depth: 8 };
    let mut operation = match guest.open(&request).await {
        Ok((_, operation)) => operation.gathered(),
        Err(GuestError::Failed(failure))
            if matches!(failure.kind, FailureKind::NotFound | FailureKind::NotADirectory) =>
        {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error.into()),
    };
    let mut files = Vec::new();
    while let Some(item) = operation.from.next().await? {
        if let Item::Event(Event::Entries { entries }) = item {
            files.extend(entries.into_iter().filter(|entry| entry.kind == FileKind::File));
        }
        if files.len() >= MOST {
            break;
        }
    }
    files.truncate(MOST);
    Ok(files)
}

pub(super) fn trouble(error: impl std::fmt::Display) -> Error {
    Error::internal(format!("object store: {error}"))
}

fn mime_of(name: &str) -> &'static str {
    match name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase().as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "svg" => "image/svg+xml",
        "pdf" => "application/pdf",
        "html" | "htm" => "text/html",
        "json" => "application/json",
        "csv" => "text/csv",
        "txt" | "md" | "log" => "text/plain",
        _ => "application/octet-stream",
    }
}
