//! A volume's files, for those who have its token: no sandbox is needed, and no key.
//!
//! Errors have a word for their code, as this part of the dialect has it. A wrong token and a volume that is not there
//! get the same answer.

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use futures::TryStreamExt as _;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::io::{ReaderStream, StreamReader};

use super::error::{sentence, status_of};
use super::query::Query;
use crate::border::{self, shape};
use crate::clock::from_millisecond;
use crate::door::known::read;
use crate::door::size;
use crate::secret::same;
use crate::volume::{Entry, EntryKind, Files, Owner, Volume, WriteFile};
use crate::{App, Caller, Error, Scope};

/// Bytes that are read at one time.
const PIECE: usize = 256 << 10;
const DEPTH: u32 = 1;

/// An error of these routes.
pub struct Refused(Error);

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Refused(error)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Refused(error) = self;
        if let Some(detail) = error.detail() {
            tracing::error!(detail, "request failed");
        }
        let told = json!({ "code": error.code(), "message": sentence(&error) });
        let mut response = (status_of(&error), axum::Json(told)).into_response();
        if let Some(wait) = error.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, wait.as_secs().max(1).into());
        }
        response
    }
}

/// The volume that a token opens.
pub async fn admit(app: &App, id: &str, headers: &HeaderMap) -> Result<Volume, Error> {
    let unknown = || Error::Unauthenticated("the token is not one of this volume's".into());
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (scheme, token) = shown.split_once(' ').ok_or_else(unknown)?;
    let opens = |volume: &Volume| scheme.eq_ignore_ascii_case("bearer") && same(token.trim(), &volume.token);
    let volume = app.volume_of_anybody(id, opens).await.map_err(|error| match error {
        Error::NotFound { .. } => unknown(),
        error => error,
    })?;
    let caller = Caller {
        organisation: volume.organisation.clone(),
        key: format!("volume_{}", volume.id),
        scopes: vec![Scope::Write],
    };
    app.admit(&caller).await?;
    Ok(volume)
}

/// The open volume, as the guard found it.
pub struct Opened(Files);

impl FromRequestParts<App> for Opened {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refused> {
        let volume = parts.extensions.get::<Volume>().ok_or_else(|| Error::internal("a route without its guard"))?;
        Ok(Opened(app.open_volume(volume).await?))
    }
}

/// What the query of these calls says.
pub struct Asked {
    path: String,
    owner: Owner,
    force: bool,
    depth: u32,
}

impl<S: Send + Sync> FromRequestParts<S> for Asked {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        Ok(asked(&parts.uri)?)
    }
}

fn asked(uri: &Uri) -> Result<Asked, Error> {
    let query = Query::of(uri);
    if let Some(twice) = query.repeated(&["path", "uid", "gid", "mode", "force", "depth"]) {
        return Err(Error::invalid(twice, "given more than once"));
    }
    let number = |name: &str| match query.get(name).filter(|text| !text.is_empty()).map(str::parse::<u32>) {
        None => Ok(None),
        Some(Ok(number)) => Ok(Some(number)),
        Some(Err(_)) => Err(Error::invalid(name, "not a number")),
    };
    let force = match query.get("force") {
        None | Some("" | "false") => false,
        Some("true") => true,
        Some(_) => return Err(Error::invalid("force", "true or false")),
    };
    let path = query.get("path").filter(|path| !path.is_empty());
    Ok(Asked {
        path: path.ok_or_else(|| Error::invalid("path", "is needed"))?.to_owned(),
        // Decimal, as JSON has it too.
        owner: Owner { uid: number("uid")?, gid: number("gid")?, mode: number("mode")? },
        force,
        depth: number("depth")?.unwrap_or(DEPTH),
    })
}

pub async fn list(Opened(files): Opened, asked: Asked) -> Result<axum::Json<Vec<Value>>, Refused> {
    let entries = files.list(&asked.path, asked.depth).await?;
    Ok(axum::Json(entries.iter().map(stat).collect()))
}

/// With `force` also what is missing on the way, and one that is there is taken.
pub async fn make_directory(Opened(files): Opened, asked: Asked) -> Result<Response, Refused> {
    let made = files.make_directory(&asked.path, asked.owner, asked.force).await?;
    Ok((StatusCode::CREATED, axum::Json(stat(&made))).into_response())
}

pub async fn download(Opened(files): Opened, asked: Asked) -> Result<Response, Refused> {
    let (entry, file) = files.read(&asked.path).await?;
    // As large as it was when it was opened: a file that grows meanwhile has no end.
    let bytes = tokio::io::AsyncReadExt::take(file, entry.size);
    let mut response = Body::from_stream(ReaderStream::with_capacity(bytes, PIECE)).into_response();
    let kind = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response.headers_mut().insert(header::CONTENT_LENGTH, entry.size.into());
    Ok(response)
}

/// A file that is there is replaced with `force` alone.
pub async fn upload(Opened(files): Opened, asked: Asked, body: Body) -> Result<Response, Refused> {
    let how = WriteFile { owner: asked.owner, parents: false, only_new: !asked.force };
    let bytes = StreamReader::new(body.into_data_stream().map_err(std::io::Error::other));
    let written = files.write(&asked.path, how, bytes).await?;
    Ok((StatusCode::CREATED, axum::Json(stat(&written))).into_response())
}

pub async fn one(Opened(files): Opened, asked: Asked) -> Result<axum::Json<Value>, Refused> {
    Ok(axum::Json(stat(&files.stat(&asked.path).await?)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
}

pub async fn change(Opened(files): Opened, asked: Asked, body: Body) -> Result<axum::Json<Value>, Refused> {
    let bytes = size::whole(body, border::MESSAGE).await?;
    let bytes: &[u8] = if bytes.trim_ascii().is_empty() { b"{}" } else { &bytes };
    shape::check(bytes).map_err(Error::from)?;
    let Change { uid, gid, mode } = read(bytes).map_err(|error| Error::invalid("body", error))?;
    Ok(axum::Json(stat(&files.set_attributes(&asked.path, Owner { uid, gid, mode }).await?)))
}

pub async fn remove(Opened(files): Opened, asked: Asked) -> Result<StatusCode, Refused> {
    files.remove(&asked.path).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn stat(entry: &Entry) -> Value {
    let kind = match entry.kind {
        EntryKind::File => "file",
        EntryKind::Directory => "directory",
        EntryKind::Symlink => "symlink",
        EntryKind::Other => "unknown",
    };
    let mut told = json!({
        // The volume's top has no name of its own.
        "name": if entry.name.is_empty() { "/" } else { &entry.name },
        "type": kind,
        "path": entry.path,
        "size": entry.size,
        "mode": entry.mode,
        "uid": entry.uid,
        "gid": entry.gid,
        "atime": from_millisecond(entry.accessed_ms),
        "mtime": from_millisecond(entry.modified_ms),
        "ctime": from_millisecond(entry.changed_ms),
    });
    if let Some(target) = &entry.target {
        told["target"] = json!(target);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(query: &str) -> Result<Asked, Error> {
        asked(&format!("/volumecontent/v/file?{query}").parse().unwrap())
    }

    #[test]
    fn a_query_says_where_and_whose() {
        let asked = ask("path=%2Fd%2Ff.txt&uid=5&mode=420&force=true").unwrap();
        assert_eq!((asked.path.as_str(), asked.force, asked.depth), ("/d/f.txt", true, 1));
        assert_eq!(asked.owner, Owner { uid: Some(5), gid: None, mode: Some(0o644) });
        for wrong in ["", "path=", "path=a&uid=x", "path=a&force=maybe", "path=a&path=b", "path=a&mode=-1"] {
            assert!(ask(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_entry_is_told_as_clients_read_it() {
        let entry = Entry {
            name: String::new(),
            path: "/".into(),
            kind: EntryKind::Directory,
            size: 0,
            mode: 0o755,
            uid: 1000,
            gid: 1000,
            accessed_ms: 0,
            modified_ms: 1500,
            changed_ms: 0,
            target: None,
        };
        let told = stat(&entry);
        assert_eq!((&told["name"], &told["type"], &told["mode"]), (&json!("/"), &json!("directory"), &json!(493)));
        assert_eq!(told["mtime"], "1970-01-01T00:00:01.5Z");
        assert!(told.get("target").is_none());
        let link = Entry { kind: EntryKind::Symlink, target: Some("x".into()), name: "l".into(), ..entry };
        assert_eq!((&stat(&link)["type"], &stat(&link)["target"]), (&json!("symlink"), &json!("x")));
    }
}
