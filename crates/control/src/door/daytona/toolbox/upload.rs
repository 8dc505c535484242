//! Bytes into the sandbox, streamed: nothing is held but the piece under way.

use std::collections::HashMap;

use axum::body::Body;
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{FromRequest, Multipart, Request as HttpRequest};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use cove_protocol::Request;
use cove_protocol::file::WriteMode;
use futures::{Stream, StreamExt, TryStreamExt};
use serde_json::{Value, json};

use super::{Machine, WRITE, WRITE_FILE, files};
use crate::door::daytona::admit::FilePath;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::form;
use crate::door::table::Table;

pub fn table() -> Table<()> {
    Table::new().post("/files/bulk-upload", WRITE, bulk).post("/files/upload", WRITE_FILE, single).post(
        "/files/upload-v2",
        WRITE_FILE,
        single,
    )
}

/// The longest path or other small field of a form.
const SMALL: usize = 8 << 10;

/// Paths held while their files are still to come.
const MOST_WAITING: usize = 10_000;
/// Files that are not stored before the rest of the form is given up.
const MOST_ERRORS: usize = 1000;

/// A new file's bytes as they come; the old file stays until all have arrived.
async fn store<E: std::fmt::Display>(
    machine: &Machine,
    path: &str,
    bytes: impl Stream<Item = Result<Bytes, E>>,
) -> Answer<u64> {
    let request =
        Request::Write { path: machine.path(path), user: None, how: WriteMode::Replace, mode: None, parents: true };
    let failed = |error| files::problem(path, error);
    let mut operation = machine.guest.send(&request).await.map_err(failed)?;
    let mut written = 0;
    let mut bytes = std::pin::pin!(bytes);
    while let Some(piece) = bytes.next().await {
        // Dropping the operation here closes the connection, and the guest drops what it has.
        let piece = piece.map_err(|error| Problem::bad_request(format!("upload of {path} broke off: {error}")))?;
        written += piece.len() as u64;
        if operation.to.data(&piece).await.is_err() {
            // The guest has closed: its reply says why.
            break;
        }
    }
    let _ = operation.to.end().await;
    operation.reply().await.map_err(failed)?;
    Ok(written)
}

async fn small_text(mut field: Field<'_>) -> Answer<String> {
    let mut text = Vec::new();
    while let Some(piece) = field.chunk().await.map_err(broken)? {
        text.extend_from_slice(&piece);
        if text.len() > SMALL {
            return Err(Problem::bad_request("a path in the form is longer than 8 KiB"));
        }
    }
    String::from_utf8(text).map_err(|_| Problem::bad_request("a path in the form is not UTF-8"))
}

fn broken(error: MultipartError) -> Problem {
    Problem::bad_request(format!("multipart form: {}", form::reason(&error)))
}

/// The parts of a form.
async fn parts_of(request: HttpRequest) -> Answer<Multipart> {
    let unreadable = |reason: String| Problem::bad_request(format!("multipart form: {reason}"));
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let boundary = multer::parse_boundary(kind).map_err(|error| unreadable(error.to_string()))?;
    let request = request.map(|body| Body::from_stream(form::bounded(body.into_data_stream(), boundary)));
    Multipart::from_request(request, &()).await.map_err(|error| unreadable(error.body_text()))
}

/// Pairs of parts, `files[N].path` and `files[N].file`: each path before its file, or all paths before all files.
async fn bulk(Extension(machine): Extension<Machine>, request: HttpRequest) -> Answer<Response> {
    let mut form = parts_of(request).await?;
    let mut destinations: HashMap<String, String> = HashMap::new();
    let (mut stored, mut errors) = (Vec::<Value>::new(), Vec::<String>::new());
    while let Some(field) = form.next_field().await.map_err(broken)? {
        if errors.len() >= MOST_ERRORS {
            return Err(Problem::bad_request(format!("{MOST_ERRORS} files were not stored, the first: {}", errors[0])));
        }
        let name = field.name().unwrap_or_default().to_owned();
        if let Some(index) = name.strip_suffix(".path") {
            if destinations.len() >= MOST_WAITING {
                return Err(Problem::bad_request(format!("more than {MOST_WAITING} paths without their files")));
            }
            destinations.insert(index.to_owned(), small_text(field).await?);
        } else if let Some(index) = name.strip_suffix(".file") {
            let Some(path) = destinations.remove(index) else {
                errors.push(format!("{name}: no {index}.path came before it"));
                continue;
            };
            match store(&machine, &path, field.into_stream()).await {
                Ok(bytes) => stored.push(json!({ "path": path, "bytes": bytes })),
                Err(problem) => errors.push(format!("{path}: {}", problem.message)),
            }
        }
    }
    if errors.is_empty() && stored.is_empty() {
        errors.push("the form held no files".into());
    }
    Ok(match errors.is_empty() {
        true => Json(json!({ "files": stored })).into_response(),
        false => (StatusCode::BAD_REQUEST, Json(json!({ "errors": errors, "files": stored }))).into_response(),
    })
}

/// One file: the part `file` of a form, or the whole body.
async fn single(
    Extension(machine): Extension<Machine>,
    Extension(FilePath(path)): Extension<FilePath>,
    request: HttpRequest,
) -> Answer<Json<Value>> {
    if path.is_empty() {
        return Err(Problem::bad_request("path is required"));
    }
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !kind.starts_with("multipart/form-data") {
        store(&machine, &path, request.into_body().into_data_stream()).await?;
        return Ok(uploaded(&path));
    }
    let mut form = parts_of(request).await?;
    while let Some(field) = form.next_field().await.map_err(broken)? {
        if field.name() == Some("file") {
            store(&machine, &path, field.into_stream()).await?;
            return Ok(uploaded(&path));
        }
    }
    Err(Problem::bad_request("the form has no part named file"))
}

fn uploaded(path: &str) -> Json<Value> {
    let name = path.rsplit('/').next().unwrap_or(path);
    Json(json!({ "name": name, "path": path, "type": "file" }))
}
