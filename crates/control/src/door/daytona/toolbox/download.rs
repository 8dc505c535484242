//! Bytes out of the sandbox, streamed.
//!
//! The bulk answer is a multipart body with one part for each path asked, in order; a file that cannot be read is a
//! part too. The closing boundary says that all is there, so it is only written when all is.

use std::io;

use axum::Extension;
use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cove_protocol::{Reply, Request};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::files::{problem, unexpected};
use super::{Machine, READ, READ_FILE};
use crate::door::daytona::admit::FilePath;
use crate::door::daytona::body::Lenient;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::table::Table;
use crate::guest::{Item, Receiver};

pub fn table() -> Table<()> {
    Table::new().post("/files/bulk-download", READ, bulk).get("/files/download", READ_FILE, single)
}

const BOUNDARY: &str = "DAYTONA-FILE-BOUNDARY";

/// What RFC 5987 lets stand in `filename*`.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_').remove(b'~');

struct Opened {
    size: u64,
    from: Receiver,
}

async fn open(machine: &Machine, path: &str) -> Answer<Opened> {
    let request = Request::Read { path: machine.path(path), user: None, offset: 0, length: None };
    let (reply, operation) = machine.guest.open(&request).await.map_err(|error| problem(path, error))?;
    match reply {
        // The sender closes with the operation's other half; reading needs only this one.
        Reply::Entry { entry } => Ok(Opened { size: entry.size, from: operation.split().0 }),
        other => Err(unexpected(&other)),
    }
}

type Pieces = mpsc::Sender<io::Result<Bytes>>;

/// The reader has gone; nobody is left to tell.
struct Gone;

async fn send(pieces: &Pieces, piece: impl Into<Bytes>) -> Result<(), Gone> {
    pieces.send(Ok(piece.into())).await.map_err(|_| Gone)
}

/// Exactly as many bytes as were announced; a file that shrank meanwhile breaks the stream off, for half must not pass
/// for whole.
async fn copy(mut opened: Opened, pieces: &Pieces) -> Result<(), Gone> {
    let mut left = opened.size;
    while left > 0 {
        match opened.from.next().await {
            Ok(Some(Item::Data(mut bytes))) => {
                bytes.truncate(left.min(bytes.len() as u64) as usize);
                left -= bytes.len() as u64;
                send(pieces, bytes).await?;
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => {
                let _ = pieces.send(Err(io::Error::other("the file ended early"))).await;
                return Err(Gone);
            }
        }
    }
    Ok(())
}

fn streamed(pieces: mpsc::Receiver<io::Result<Bytes>>) -> Body {
    Body::from_stream(futures::stream::unfold(pieces, |mut pieces| async move {
        pieces.recv().await.map(|piece| (piece, pieces))
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    paths: Vec<String>,
}

async fn bulk(Extension(machine): Extension<Machine>, Lenient(wanted): Lenient<Wanted>) -> Answer<Response> {
    if wanted.paths.is_empty() {
        return Err(Problem::bad_request("paths is required"));
    }
    let (pieces, read) = mpsc::channel(4);
    tokio::spawn(async move {
        // An error here is a reader that left.
        let _ = parts(&machine, &wanted.paths, &pieces).await;
    });
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    Ok(([(header::CONTENT_TYPE, kind)], streamed(read)).into_response())
}

async fn parts(machine: &Machine, paths: &[String], pieces: &Pieces) -> Result<(), Gone> {
    for path in paths {
        match open(machine, path).await {
            Ok(opened) => {
                let kind = "application/octet-stream";
                send(pieces, part_head("file", path, kind, opened.size)).await?;
                copy(opened, pieces).await?;
            }
            Err(problem) => {
                let body = problem.envelope(path, "POST").to_string();
                send(pieces, part_head("error", path, "application/json; charset=utf-8", body.len() as u64)).await?;
                send(pieces, body).await?;
            }
        }
        send(pieces, "\r\n").await?;
    }
    send(pieces, format!("--{BOUNDARY}--\r\n")).await
}

fn part_head(name: &str, path: &str, kind: &str, length: u64) -> String {
    // A path may hold what would end the quotes or the line.
    let quoted: String = path
        .chars()
        .flat_map(|c| match c {
            '"' | '\\' => vec!['\\', c],
            c if c.is_control() => vec!['_'],
            c => vec![c],
        })
        .collect();
    let encoded = utf8_percent_encode(path, PLAIN);
    format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{quoted}\"; \
         filename*=utf-8''{encoded}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
    )
}

async fn single(
    Extension(machine): Extension<Machine>,
    Extension(FilePath(path)): Extension<FilePath>,
) -> Answer<Response> {
    if path.is_empty() {
        return Err(Problem::bad_request("path is required"));
    }
    let opened = open(&machine, &path).await?;
    let size = opened.size;
    let (pieces, read) = mpsc::channel(4);
    tokio::spawn(async move {
        let _ = copy(opened, &pieces).await;
    });
    let name = utf8_percent_encode(path.rsplit('/').next().unwrap_or_default(), PLAIN);
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, size.to_string()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename*=utf-8''{name}")),
    ];
    Ok((headers, streamed(read)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_cannot_be_broken_out_of_by_a_path() {
        let head = part_head("file", "a\"\r\nX: y", "text/plain", 3);
        assert_eq!(head.matches("\r\n").count(), 5);
        assert!(head.contains("filename=\"a\\\"__X: y\""));
    }
}
